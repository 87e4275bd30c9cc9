// The product of a matrix with a block of tokens, by tensor cores.
//
// A block of eight warps owns 128 tokens x 128 rows, a warp 32 tokens x 64 rows: few tokens and
// many rows, because tokens' registers must be put into another order for the product, and rows'
// need not. Columns come in stages of 64 through a ring, BLOCK_AT_ONCE stages at a time. Sums are
// cut and added as `matvec.cuh` cuts and adds them: the CHAINS of an eighth of the columns, each in
// order, and all chains in order. So a row of a prompt has the bits that the same token has when it
// is decoded alone.
#pragma once

#include "kernels/base.cuh"

constexpr int BLOCK_TILES = BLOCK_ROWS / 8;
constexpr int WARP_TOKENS = 32, WARP_TILES = 8;
constexpr int HALF_STAGE = BLOCK_STAGE / 2;            // bytes of the tokens' part, and of the rows'
static_assert(HALF_STAGE == BLOCK_TOKENS * 64 * 2 && BLOCK_TOKENS == BLOCK_ROWS, "a stage is 64 columns");
constexpr int COPIES = HALF_STAGE / 16 / BLOCK_THREADS; // that a thread makes of each part

// What a thread copies into every stage, and where the next of it lies. Both parts lie in units:
// [8 rows][2 units][lane].
template <int UNITS> struct StageCopies {
    static constexpr u64 TILE_BYTES = (u64)WARPS * UNITS * UNIT_BYTES;
    const u16 *tokens[COPIES];
    const u8 *rows;
    int unit; // of the rows' part
    int stage; // that is next
    u8 *to_tokens, *to_rows;

    __device__ __forceinline__ StageCopies(u8 *stages, const u8 *weights, const u16 *x, int stride,
                                           int first_tile, u32 first_token, u32 n_tokens) {
        const int row = threadIdx.x / 8, k = threadIdx.x % 8;
#pragma unroll
        for (int i = 0; i < COPIES; ++i)
            tokens[i] = x + (u64)min(first_token + row + i * (BLOCK_THREADS / 8), n_tokens - 1) * stride + k * 8;
        rows = weights + (first_tile + threadIdx.x / 64) * TILE_BYTES + threadIdx.x % 32 * 16;
        unit = threadIdx.x / 32 % 2;
        stage = 0;
        to_tokens = stages + ((row / 8 * 2 + k / 4) * UNIT + row % 8 * 4 + k % 4) * 16;
        to_rows = stages + HALF_STAGE + threadIdx.x * 16;
    }
    // Begins the copies of what is computed at once after all that were begun before, where there
    // is more.
    __device__ __forceinline__ void begin_next() {
#pragma unroll
        for (int i = 0; i < BLOCK_AT_ONCE; ++i)
            if (unit < UNITS * WARPS) begin_stage();
        commit_copies();
    }
    // Copies the next 64 columns.
    __device__ __forceinline__ void begin_stage() {
        const u8 *from = rows + unit_place<UNITS>(unit) * UNIT_BYTES;
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            copy_chunk(to_tokens + stage * BLOCK_STAGE + i * (BLOCK_THREADS / 64) * 2 * UNIT_BYTES, tokens[i]);
            tokens[i] += 64;
            copy_chunk(to_rows + stage * BLOCK_STAGE + i * BLOCK_THREADS * 16, from + i * (BLOCK_THREADS / 64) * TILE_BYTES);
        }
        unit += 2;
        if (++stage == BLOCK_STAGES) stage = 0;
    }
};

// Where a block's rows and tokens begin: by its place in the grid, unless another kernel says.
struct BlockPlace {
    int first_tile;
    u32 first_token;
    __device__ __forceinline__ BlockPlace() : first_tile(blockIdx.x * BLOCK_TILES), first_token(blockIdx.y * BLOCK_TOKENS) {}
    __device__ __forceinline__ BlockPlace(int first_tile, u32 first_token) : first_tile(first_tile), first_token(first_token) {}
};

// Hands sums of tokens up to `tokens` to `store(token, first of four tiles, column in each, pairs of
// sums)`.
template <int UNITS, int CHAINS, class Store>
__device__ __forceinline__ void multiply_block(const u8 *weights, const u16 *x, int stride, u32 tokens, Store store, BlockPlace place = BlockPlace()) {
    constexpr int SLABS = WARP_TOKENS / 16;
    u8 *stages = dynamic_shared();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first_tile = place.first_tile;
    const u32 first_token = place.first_token;
    const int warp_token = warp % 4 * WARP_TOKENS, warp_tile = warp / 4 * WARP_TILES;
    StageCopies<UNITS> copies(stages, weights, x, stride, first_tile, first_token, tokens);
    for (int s = 0; s < BLOCK_STAGES / BLOCK_AT_ONCE - 1; ++s) copies.begin_next();
    const uint4 *own_tokens = (const uint4 *)stages + warp_token / 8 * 2 * UNIT + lane;
    const uint4 *own_rows = (const uint4 *)(stages + HALF_STAGE) + warp_tile * 2 * UNIT + lane;
    const uint4 *a = nullptr, *b = nullptr;
    float total[SLABS][WARP_TILES][4] = {};
    const u32 zero = unknown_zero();
    int stage = 0;
    constexpr int LONG = chain_units(UNITS, CHAINS);
#pragma unroll 1
    for (int chain = 0; chain < WARPS * CHAINS; ++chain) {
        float sum[SLABS][WARP_TILES][4] = {};
        const int first = chain / CHAINS * UNITS + chain % CHAINS * LONG, n_units = chain % CHAINS == 0 ? LONG : UNITS - LONG;
#pragma unroll(LONG <= 4 ? LONG : 2)
        for (int u = 0; u < n_units; ++u) {
            const int in_turn = (first + u) % (2 * BLOCK_AT_ONCE), half = in_turn % 2;
            if (in_turn == 0) {
                await_copies<BLOCK_STAGES / BLOCK_AT_ONCE - 2>();
                __syncthreads();
                copies.begin_next();
            }
            if (half == 0) {
                a = own_tokens + stage * (BLOCK_STAGE / 16);
                b = own_rows + stage * (BLOCK_STAGE / 16);
                if (++stage == BLOCK_STAGES) stage = 0;
            }
            uint4 rows[WARP_TILES];
#pragma unroll
            for (int j = 0; j < WARP_TILES; ++j) rows[j] = b[(j * 2 + half) * UNIT];
#pragma unroll
            for (int i = 0; i < SLABS; ++i) {
                const Interleaved slab(a[(i * 4 + half) * UNIT], a[(i * 4 + 2 + half) * UNIT], zero);
#pragma unroll
                for (int j = 0; j < WARP_TILES; ++j) mma32(sum[i][j], slab, rows[j]);
            }
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
