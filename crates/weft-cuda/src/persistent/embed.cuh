// `embed` in the persistent kernel. Nothing is loaded ahead: which rows are needed is known only
// when the token before is. A block keeps its own rows of the residual stream in shared memory.
#pragma once

#include "kernels/base.cuh"
#include "persistent/launch.cuh"

// Where eight columns of a row of the embedding lie.
__device__ __forceinline__ const uint4 *embedded(const Launch &launch, u32 row, int chunk) {
    const u64 unit = (u64)(row / 8) * (HIDDEN_STRIDE / 32) + unit_place<HIDDEN_UNITS>(chunk / 4);
    return (const uint4 *)launch.embedding + unit * UNIT + row % 8 * 4 + chunk % 4;
}

__device__ __forceinline__ void compute_embed(Block &block) {
    const TileRange own = block.shared.own.hidden;
    for (int i = block.thread(); i < (own.end - own.first) * 64; i += WARPS * 32) {
        const u32 local = i / 8, token = i % 8, row = own.first * 8 + local;
        if (token >= block.n_tokens) continue;
        const u16 value = ((const u16 *)embedded(block.launch, block.shared.tokens[token], row / 8))[row % 8];
        block.shared.residual[local][token] = value;
        if (block.is_last() && row < HIDDEN) block.launch.plain.x[(u64)token * HIDDEN_STRIDE + row] = value;
    }
}
