// The product of a coded matrix with a block of tokens, by tensor cores.
//
// As in `matmul.cuh` a block of eight warps owns 128 tokens x 128 rows, a warp 32 tokens x 64 rows,
// and columns come in stages of 64. Weights lie in shared memory as codes; each warp unpacks those
// of its rows. Runs are added as `matvec.cuh` adds them, those of each eighth of the columns in
// order and all eighths in order, so a row of a prompt has the bits of a decoded token.
#pragma once

#include "kernels/coded.cuh"
#include "kernels/matmul.cuh"
#include "kernels/tiled.cuh"

// What a thread copies into every stage. The tokens' part lies in units, [8 rows][2 units][lane],
// the rows' part too, [tile][2 units], with room for the largest unit of the matrix. Where other
// matrices are multiplied by warpgroups, tokens come in squares (tiled.cuh).
template <class W, int UNITS> struct CodedCopies {
    static constexpr int TILE_ROOM = 2 * W::BYTES, STAGE_BYTES = HALF_STAGE + BLOCK_TILES * TILE_ROOM;
    static constexpr int TOKENS_STEP = TILED ? SQUARE_BYTES : 64 * 2;
    const u8 *tokens[COPIES];
    const u8 *weights;
    int first_tile, unit, stage; // the unit and the stage that are next
    u8 *stages, *to_tokens;

    __device__ __forceinline__ CodedCopies(u8 *stages, const u8 *weights, const u16 *x, int stride, int first_tile, u32 first_token, u32 n_tokens)
        : weights(weights), first_tile(first_tile), unit(0), stage(0), stages(stages) {
        const int row = threadIdx.x / 8, k = threadIdx.x % 8;
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            const u32 token = min(first_token + row + i * (BLOCK_THREADS / 8), n_tokens - 1);
            tokens[i] = (const u8 *)x + (TILED ? token_row(token, 0, stride) + half_chunk(token, 0, k) : ((u64)token * stride + k * 8) * 2);
        }
        to_tokens = stages + ((row / 8 * 2 + k / 4) * UNIT + row % 8 * 4 + k % 4) * 16;
    }
    // What a lane takes of a unit of tokens. In squares, its columns are a word of each chunk.
    static __device__ __forceinline__ uint4 token_unit(const uint4 *unit, int lane) {
        if (!TILED) return unit[lane];
        const u32 *words = (const u32 *)(unit + lane / 4 * 4) + lane % 4;
        return make_uint4(words[0], words[4], words[8], words[12]);
    }
    // Begins the copies of what is computed at once after all that were begun before, where there
    // is more.
    __device__ __forceinline__ void begin_next() {
#pragma unroll 1
        for (int i = 0; i < BLOCK_AT_ONCE; ++i)
            if (unit < UNITS * WARPS) begin_stage();
        commit_copies();
    }
    // Copies the next 64 columns. A thread has every 256th chunk of 16 bytes.
    __device__ __forceinline__ void begin_stage() {
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            copy_chunk(to_tokens + stage * STAGE_BYTES + i * (BLOCK_THREADS / 64) * 2 * UNIT_BYTES, tokens[i]);
            tokens[i] += TOKENS_STEP;
        }
        constexpr int CHUNKS = W::BYTES / 16;
        const int places[2] = {unit_place<UNITS, W::CODED_BYTES>(unit), unit_place<UNITS, W::CODED_BYTES>(unit + 1)};
        u8 *to = stages + stage * STAGE_BYTES + HALF_STAGE;
#pragma unroll
        for (int i = threadIdx.x; i < BLOCK_TILES * 2 * CHUNKS; i += BLOCK_THREADS) {
            const int tile = i / (2 * CHUNKS), half = i / CHUNKS % 2, chunk = i % CHUNKS, unit_bytes = W::unit_bytes(first_tile + tile);
            if (W::IS_UNIFORM || chunk * 16 < unit_bytes)
                copy_chunk(to + i * 16, weights + tile_place<W>(first_tile + tile, UNITS) + (u64)(half == 0 ? places[0] : places[1]) * unit_bytes + chunk * 16);
        }
        unit += 2;
        if (++stage == BLOCK_STAGES) stage = 0;
    }
};

// Hands sums to `store(token, first of four tiles, column in each, pairs of sums)`.
template <class W, int UNITS, class Store>
__device__ __forceinline__ void multiply_coded_block(const u8 *weights, const u16 *x, int stride, u32 tokens, Store store, BlockPlace place) {
    using Copies = CodedCopies<W, UNITS>;
    static_assert(Copies::STAGE_BYTES <= BLOCK_STAGE, "the ring has room for its stages");
    constexpr int SLABS = WARP_TOKENS / 16;
    u8 *stages = dynamic_shared();
    // Where other products are by warpgroups, kernels start early.
    let_next_start();
    wait_for_previous();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first_tile = place.first_tile;
    const u32 first_token = place.first_token;
    const int warp_token = warp % 4 * WARP_TOKENS, warp_tile = warp / 4 * WARP_TILES;
    Copies copies(stages, weights, x, stride, first_tile, first_token, tokens);
    for (int s = 0; s < BLOCK_STAGES / BLOCK_AT_ONCE - 1; ++s) copies.begin_next();
    float total[SLABS][WARP_TILES][4] = {};
    const u32 zero = unknown_zero();
    int stage = -1;
#pragma unroll 1
    for (int eighth = 0; eighth < WARPS; ++eighth) {
        float sum[SLABS][WARP_TILES][4] = {};
#pragma unroll 1
        for (int u = 0; u < UNITS; ++u) {
            const int in_turn = (eighth * UNITS + u) % (2 * BLOCK_AT_ONCE), half = in_turn % 2;
            if (in_turn == 0) {
                await_copies<BLOCK_STAGES / BLOCK_AT_ONCE - 2>();
                __syncthreads();
                copies.begin_next();
            }
            if (half == 0 && ++stage == BLOCK_STAGES) stage = 0;
            const uint4 *a = (const uint4 *)(stages + stage * Copies::STAGE_BYTES) + warp_token / 8 * 2 * UNIT;
            const auto tokens_of = [&](int unit) { return Copies::token_unit(a + unit * UNIT, lane); };
            const u8 *b = stages + stage * Copies::STAGE_BYTES + HALF_STAGE + warp_tile * Copies::TILE_ROOM + half * W::BYTES;
            Interleaved slabs[SLABS];
#pragma unroll
            for (int i = 0; i < SLABS; ++i) slabs[i] = Interleaved(tokens_of(i * 4 + half), tokens_of(i * 4 + 2 + half), zero);
            // Tiles of one form share what is made of the input.
            constexpr int SHARED_BY = W::IS_UNIFORM ? WARP_TILES : 1;
#pragma unroll
            for (int from = 0; from < WARP_TILES; from += SHARED_BY)
                W::with(first_tile + warp_tile + from, [&](auto form) INLINED {
                    using F = decltype(form);
                    const UnitInput<F> inputs[SLABS] = {UnitInput<F>(slabs[0], lane), UnitInput<F>(slabs[1], lane)};
#pragma unroll
                    for (int j = from; j < from + SHARED_BY; ++j) {
                        const u8 *unit = b + j * Copies::TILE_ROOM;
                        const uint4 codes = unpack<F>(unit, lane);
#pragma unroll
                        for (int i = 0; i < SLABS; ++i) add_unit<F, true>(sum[i][j], inputs[i], unit, codes, lane);
                    }
                });
        }
#pragma unroll
        for (int i = 0; i < SLABS; ++i)
#pragma unroll
            for (int j = 0; j < WARP_TILES; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) total[i][j][e] += sum[i][j][e];
    }
#pragma unroll
    for (int i = 0; i < SLABS; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const u32 token = first_token + warp_token + i * 16 + half * 8 + lane / 4;
            if (token >= tokens) continue;
#pragma unroll
            for (int tile = 0; tile < WARP_TILES; tile += 4) {
                float pairs[4][2];
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    pairs[j][0] = total[i][tile + j][half * 2], pairs[j][1] = total[i][tile + j][half * 2 + 1];
                store(token, first_tile + warp_tile + tile, lane % 4 * 2, pairs);
            }
        }
}

// The product of a matrix in any form.
template <class W, int UNITS, class Store>
__device__ __forceinline__ void multiply_matrix_block(const u8 *weights, const u16 *x, int stride, u32 tokens, Store store, BlockPlace place = BlockPlace()) {
    if constexpr (W::IS_PLAIN) multiply_block<UNITS, W::CHAINS>(weights, x, stride, tokens, store, place);
    else multiply_coded_block<W, UNITS>(weights, x, stride, tokens, store, place);
}
