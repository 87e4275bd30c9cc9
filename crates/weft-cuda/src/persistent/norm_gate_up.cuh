// `norm_gate_up` in the persistent kernel: what it loads, and what it makes of its sums. The
// product itself is that of all norms (norm_product.cuh).
#pragma once

#include "ops/norm_gate_up.cuh"
#include "persistent/bare.cuh"
#include "persistent/launch.cuh"
#include "persistent/product.cuh"

struct NormGateUp {
    // Loaded: the norm's weights, before those of the product.
    static __device__ __forceinline__ const uint4 *norm(const LayerAddresses &layer) { return layer.mlp_norm; }
    // Computed: row `r` of a token, for `down_add`.
    template <bool BARE> static __device__ __forceinline__ void store(Block &block, u32 r, u32 token, float gate, float up, bool there) {
        const u16 value = r < INTER ? round_one(gated(gate, up)) : 0;
        if constexpr (BARE) publish_bare(block, bare_places(block).gated(), r, INTER, token, there, value);
        else publish_row(block.launch.h + token * (INTER_STRIDE / 2), r, INTER, there, value, block.number);
        if (block.is_last() && there && r < INTER) block.launch.plain.h[(u64)token * INTER_STRIDE + r] = value;
    }
};
