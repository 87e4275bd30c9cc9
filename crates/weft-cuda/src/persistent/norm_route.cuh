// `norm_route` in the persistent kernel: a router's logits, and how every block chooses its tokens'
// experts by them. The product itself is that of all norms (norm_product.cuh). It is empty for
// models without experts.
#pragma once

#include "generated/constants.cuh"
#if HAS_EXPERTS

#include "generated/experts.cuh"
#include "kernels/routing.cuh"
#include "persistent/hop.cuh"
#include "persistent/launch.cuh"
#include "persistent/product.cuh"

constexpr int ROUTER_TILES = 2; // computed at once

// The experts of a token, by one warp, from the logits that the op of a number published; to be
// weighed. Logits are words, so every block chooses for itself: that is one hop, not two.
__device__ __forceinline__ Choice await_experts(Block &block, u32 token, Route *to, u32 number) {
    const u64 *words = block.launch.experts.logits + token * EXPERTS + block.lane;
    float own[LANE_EXPERTS] = {};
    block.watch.until([&] {
        bool all = true;
#pragma unroll
        for (int j = 0; j < LANE_EXPERTS; ++j) {
            if (j * 32 + block.lane >= EXPERTS) continue;
            const u64 word = load_relaxed(words + j * 32);
            all &= number_of(word) == number;
            own[j] = __uint_as_float(value_of(word));
        }
        return all;
    });
    __syncwarp();
    return choose_experts([&](int j) { return own[j]; }, to, block.lane);
}
__device__ __forceinline__ void await_routes(Block &block, u32 token, Route *to, u32 number) {
    weigh_experts(await_experts(block, token, to, number), to, block.lane);
}

struct NormRoute {
    // Loaded: the norm's weights, before those of the product.
    static __device__ __forceinline__ const uint4 *norm(const LayerAddresses &layer) { return layer.mlp_norm; }
    // Computed: the logit of an expert.
    static __device__ __forceinline__ void store(Block &block, u32 expert, u32 token, float logit, bool there) {
        if (there && expert < EXPERTS) store_word(block.launch.experts.logits + token * EXPERTS + expert, __float_as_uint(logit), block.number);
    }
    // After it, if the launch ends with it: the routes, for tests.
    static __device__ __forceinline__ void end(Block &block) {
        if (blockIdx.x != 0 || block.warp >= block.n_tokens) return;
        Route *own = block.shared.used.routes[block.warp];
        await_routes(block, block.warp, own, block.number_before(0));
        for (int i = block.lane; i < N_CHOSEN; i += 32) block.launch.experts.routes[block.warp * N_CHOSEN + i] = own[i];
    }
};

#endif
