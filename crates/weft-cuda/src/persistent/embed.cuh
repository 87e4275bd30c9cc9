// `embed` in the persistent kernel. Nothing is loaded ahead: which rows are needed is known only
// when the token before is. A block keeps its own rows of the residual stream in shared memory.
#pragma once

#include "generated/matrices.cuh"
#include "kernels/base.cuh"
#include "persistent/launch.cuh"

// Two columns of a row of the embedding, from an even one on.
__device__ __forceinline__ u32 embedded_pair(const Launch &launch, u32 row, u32 pair) {
    const uint4 chunk = read_chunk<EmbeddingMatrix>(launch.embedding, row, pair / 4);
    return pair % 4 == 0 ? chunk.x : pair % 4 == 1 ? chunk.y : pair % 4 == 2 ? chunk.z : chunk.w;
}

__device__ __forceinline__ void compute_embed(Block &block) {
    const TileRange own = block.shared.own.hidden;
    for (int i = block.thread(); i < (own.end - own.first) * 64; i += WARPS * 32) {
        const u32 local = i / 8, token = i % 8, row = own.first * 8 + local;
        if (token >= block.n_tokens) continue;
        const u16 value = (u16)(embedded_pair(block.launch, block.shared.tokens[token], row / 2) >> (row % 2 * 16));
        block.shared.residual[local][token] = value;
        if (block.is_last() && row < HIDDEN) block.launch.plain.x[(u64)token * HIDDEN_STRIDE + row] = value;
    }
}
