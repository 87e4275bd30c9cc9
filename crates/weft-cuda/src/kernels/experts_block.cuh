// Products of experts' matrices with the tokens of a prompt that are sorted by expert (sorted.cuh),
// by single warps. A block multiplies a tile of positions with 128 rows of its expert's matrix; those
// for which there is no tile end at once.
#pragma once

#include "kernels/coded_block.cuh"
#include "kernels/sorted.cuh"
#include "ops/norm_gate_up.cuh"

// Hands sums to `store(route, first of four tiles, column in each, pairs of sums)`.
template <class W, int UNITS, class Store>
__device__ __forceinline__ void multiply_expert_block(const u8 *weights, const u16 *input, int stride, const Sorted &sorted, Store store) {
    let_next_start();
    wait_for_previous();
    if (blockIdx.y >= n_expert_tiles(sorted)) return;
    const ExpertTile tile = expert_tile(sorted.tiles, blockIdx.y);
    multiply_matrix_block<W, UNITS>(weights + (u64)tile.expert * W::EXPERT_BYTES, input, stride, tile.end,
                                    [&](u32 position, u32 tile, u32 column, const float (&sums)[4][2]) {
        store(load_fresh(sorted.sources + position), tile, column, sums);
    }, BlockPlace(blockIdx.x * BLOCK_TILES, tile.first));
}

template <class W>
__device__ __forceinline__ void multiply_expert_gate_up_block(const u8 *weights, const u16 *n, const Sorted &sorted, u16 *h) {
    multiply_expert_block<W, HIDDEN_UNITS>(weights, n, HIDDEN_STRIDE, sorted, [&](u32 route, u32 tile, u32 column, const float (&sums)[4][2]) {
        // Rows are padded to whole pairs; what is beyond the last row is zero, like its weights.
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            const u32 r = (tile / 2 + pair) * 8 + column;
            const float (&gate)[2] = sums[pair * 2], (&up)[2] = sums[pair * 2 + 1];
            if (r < EXPERT_INTER)
                *(u32 *)(h + (u64)route * EXPERT_STRIDE + r) = round_pair(gated(gate[0], up[0]), gated(gate[1], up[1]));
        }
    });
}

template <class W>
__device__ __forceinline__ void multiply_expert_down_block(const u8 *weights, const u16 *h, const Sorted &sorted, float *products) {
    multiply_expert_block<W, EXPERT_UNITS>(weights, h, EXPERT_STRIDE, sorted, [&](u32 route, u32 tile, u32 column, const float (&sums)[4][2]) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const u32 r = (tile + j) * 8 + column;
            if (r < HIDDEN) *(float2 *)(products + (u64)route * HIDDEN_STRIDE + r) = make_float2(sums[j][0], sums[j][1]);
        }
    });
}
