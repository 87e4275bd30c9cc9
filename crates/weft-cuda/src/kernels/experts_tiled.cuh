// Products of experts' matrices with the tokens of a prompt that are sorted by expert, by products of
// warpgroups (sm_90a): as those of other matrices (matmul_tiled.cuh), but that every tile of tokens
// has its own matrix.
#pragma once

#include "kernels/coded_tiled.cuh"
#include "kernels/sorted.cuh"
#include "ops/norm_gate_up.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The tiles of all experts, with all blocks of rows for each.
template <class W> struct ExpertWalk {
    int pairs, first, step, end;
    u32 squares;
    const ExpertTile *tiles;
    __device__ __forceinline__ ExpertWalk(int n_row_blocks, const Sorted &sorted)
        : pairs((n_row_blocks + 1) / 2), first(blockIdx.x / 2), step(gridDim.x / 2), tiles(sorted.tiles) {
        // Every warp needs the list, which other kernels made.
        wait_for_previous();
        end = pairs * (int)n_expert_tiles(sorted);
        squares = n_positions(sorted) / SQUARE;
    }
    __device__ __forceinline__ u32 n_squares() const { return squares; }
    __device__ __forceinline__ u32 pair(int tile) const { return tile % pairs; }
    __device__ __forceinline__ ExpertTile at(int tile) const { return expert_tile(tiles, tile / pairs); }
    __device__ __forceinline__ u64 matrix(int tile) const { return (u64)at(tile).expert * W::EXPERT_BYTES; }
    __device__ __forceinline__ u32 tokens(int tile) const { return at(tile).first; }
};

template <class W, int TOKENS>
__device__ __forceinline__ void multiply_expert_gate_up_tiles(const u8 *weights, const u8 *n, const u8 *sums_of_runs, const Sorted &sorted, u16 *h, u8 *placed) {
    constexpr int BLOCKS = (W::ALL_TILES * 8 + BLOCK_ROWS - 1) / BLOCK_ROWS;
    multiply_walked_tiles<W, HIDDEN_UNITS, TOKENS>(weights, BLOCKS, n, sums_of_runs, [&] { return ExpertWalk<W>(BLOCKS, sorted); },
                                                   [&](const ExpertTile &tile, u32 first_row, const float (&sums)[TOKENS / 2], u8 *memory) {
        // A warp has a tile of gate and its tile of up: eight columns of h. What is beyond the last
        // column is zero, like its weights.
        const Staged staged(memory);
        const u32 column = first_row / 2;
#pragma unroll
        for (int part = 0; part < TOKENS / STAGED_TOKENS; ++part) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                u32 pairs[4];
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const float *s = sums + (part * 8 + i * 4 + j) * 4;
                    pairs[j] = round_pair(gated(s[0], s[2]), gated(s[1], s[3]));
                }
                store_transposed(memory + (i * 32 + staged.lane) * STAGED_STRIDE + staged.warp * 16, pairs[0], pairs[1], pairs[2], pairs[3]);
            }
            staged.meet();
            const u32 own = staged.thread / 2, side = staged.thread % 2, position = tile.first + part * STAGED_TOKENS + own;
            const u8 *from = memory + own * STAGED_STRIDE;
            if (position < tile.end && placed) {
                uint2 words[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) words[i] = *(const uint2 *)(from + i * 16 + side * 8);
                u8 *to = placed + token_row(position, column, EXPERT_STRIDE);
                const u32 half = column / 32 % 2;
                *(uint4 *)(to + half_chunk(position, half, side * 2)) = make_uint4(words[0].x, words[1].x, words[2].x, words[3].x);
                *(uint4 *)(to + half_chunk(position, half, side * 2 + 1)) = make_uint4(words[0].y, words[1].y, words[2].y, words[3].y);
            } else if (position < tile.end) {
                uint4 *to = (uint4 *)(h + (u64)load_fresh(sorted.sources + position) * EXPERT_STRIDE + column);
                to[side * 2] = ((const uint4 *)from)[side * 2], to[side * 2 + 1] = ((const uint4 *)from)[side * 2 + 1];
            }
            staged.meet();
        }
    });
}

template <class W, int TOKENS>
__device__ __forceinline__ void multiply_expert_down_tiles(const u8 *weights, const u8 *h, const u8 *sums_of_runs, const Sorted &sorted, float *products) {
    constexpr int BLOCKS = (HIDDEN + BLOCK_ROWS - 1) / BLOCK_ROWS;
    multiply_walked_tiles<W, EXPERT_UNITS, TOKENS>(weights, BLOCKS, h, sums_of_runs, [&] { return ExpertWalk<W>(BLOCKS, sorted); },
                                                   [&](const ExpertTile &tile, u32 first_row, const float (&sums)[TOKENS / 2], u8 *) {
        // Eight lanes have eight rows of a position: whole sectors of memory.
        const u32 lane = threadIdx.x % 32, row = first_row + threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
        for (int i = 0; i < TOKENS / 8; ++i)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const u32 position = tile.first + i * 8 + lane % 4 * 2 + e;
                if (position >= tile.end) continue;
                float *to = products + (u64)load_fresh(sorted.sources + position) * HIDDEN_STRIDE + row;
                to[0] = sums[i * 4 + e], to[8] = sums[i * 4 + 2 + e];
            }
    });
}

#endif
