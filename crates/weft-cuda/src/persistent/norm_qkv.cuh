// `norm_qkv` in the persistent kernel: what it loads, and what it makes of its sums. The product
// itself is that of all norms (norm_product.cuh).
#pragma once

#include "ops/norm_qkv.cuh"
#include "persistent/launch.cuh"
#include "persistent/product.cuh"

struct NormQkv {
    // Loaded: the norm's weights, before those of the product.
    static __device__ __forceinline__ const uint4 *norm(const LayerAddresses &layer) { return layer.attention_norm; }
    // Computed: row `r` of a token, rounded after its bias, for the blocks that attend.
    static __device__ __forceinline__ void store(Block &block, u32 r, u32 token, float sum, bool there) {
        const Launch &launch = block.launch;
        const QkvStore plain = {block.layer().bias, launch.plain.qkv.q, launch.plain.qkv.k, launch.plain.qkv.v};
        const u16 value = r < QKV_ROWS ? round_one(plain.biased(r, sum)) : 0;
        publish_row(launch.qkv + token * QKV_WORDS, r, QKV_ROWS, there, value, block.number);
        if (block.is_last() && there && r < QKV_ROWS) *plain.place(token, r) = value;
    }
};
