// `norm_qkv`, `norm_gate_up` and `norm_head` in the persistent kernel, and of models with experts
// `norm_route` and `expert_gate_up`. All are one product, by the same instructions, because those of
// a whole layer do not fit into the caches for instructions; what an op loads and what it makes of
// its sums is in the file of its name.
#pragma once

#include "generated/matrices.cuh"
#include "persistent/expert_gate_up.cuh"
#include "persistent/norm_gate_up.cuh"
#include "persistent/norm_head.cuh"
#include "persistent/norm_input.cuh"
#include "persistent/norm_qkv.cuh"
#include "persistent/norm_route.cuh"
#include "persistent/product.cuh"

// Whether it is the first product of an MLP, and whether it is a router's.
__device__ __forceinline__ bool is_gate_up(OpKind kind) { return kind == NORM_GATE_UP || HAS_EXPERTS && kind == EXPERT_GATE_UP; }
__device__ __forceinline__ bool is_router(OpKind kind) { return HAS_EXPERTS && kind == NORM_ROUTE; }

// Calls `work` with the forms of an op's matrix.
template <class Work> __device__ __forceinline__ void with_norm_forms(const LayerAddresses &layer, OpKind kind, Work work) {
    const u32 variant = kind == NORM_QKV ? layer.variants.qkv : is_gate_up(kind) ? layer.variants.gate_up : HEAD_FORMS;
    NORM_FORMS(CALL_WITH_MATRIX)
}
__device__ __forceinline__ const TileRange &norm_tiles(const OwnTiles &own, OpKind kind) {
#if HAS_EXPERTS
    if (kind == NORM_ROUTE) return own.router;
#endif
    return kind == NORM_QKV ? own.qkv : kind == NORM_GATE_UP ? own.gate_up : own.vocabulary;
}
__device__ __forceinline__ const u8 *norm_matrix(const Launch &launch, const LayerAddresses &layer, OpKind kind) {
    return kind == NORM_QKV ? layer.qkv : kind == NORM_GATE_UP ? layer.gate_up : launch.head;
}
__device__ __forceinline__ const uint4 *norm_weights(const Launch &launch, const LayerAddresses &layer, OpKind kind) {
    return kind == NORM_QKV ? NormQkv::norm(layer) : is_gate_up(kind) || is_router(kind) ? NormGateUp::norm(layer) : NormHead::norm(launch);
}

// ---- loading -----------------------------------------------------------------------------------
// The copying warp: a norm's weights. False where the block has left.
__device__ __forceinline__ bool load_norm_weights(Copier &copier, const uint4 *norm, int in_flight) {
    static_assert(HIDDEN_STRIDE * 2 <= LONG_STAGE_BYTES, "a norm's weights are one stage");
    copier.in_flight = in_flight;
    return copier.push(HIDDEN_STRIDE * 2, [&](u8 *stage, u64 *full) { copy(stage, norm, HIDDEN_STRIDE * 2, full, copier.lane); });
}
// Those, then what to copy of the weights of its product.
__device__ __forceinline__ bool load_norm(Copier &copier, TileCopies &copies, const Launch &launch, const LayerAddresses &layer, const OwnTiles &all, OpKind kind, int in_flight) {
    const TileRange own = norm_tiles(all, kind);
    const uint4 *norm = norm_weights(launch, layer, kind);
    if (own.first == own.end) return true;
    bool here = load_norm_weights(copier, norm, in_flight);
    if (here)
        with_norm_forms(layer, kind, [&](auto forms) INLINED {
            here = plan_copies<decltype(forms), HIDDEN_UNITS>(copier, copies, norm_matrix(launch, layer, kind), own, NORM_TILES, in_flight);
        });
    return here;
}
#if HAS_EXPERTS
// The same for a router, which is plain whatever its model is.
__device__ __forceinline__ bool load_router(Copier &copier, const BlockShared &shared, const LayerAddresses &layer, const u8 *router, int in_flight) {
    TileCopies copies = {};
    if (!has_router(shared.own)) return true;
    return load_norm_weights(copier, NormRoute::norm(layer), in_flight)
           && plan_copies<RouterMatrix, HIDDEN_UNITS>(copier, copies, router, shared.own.router, ROUTER_TILES, in_flight) && load_tiles(copier, copies);
}
// For experts, whose weights it can ask for when their tokens have chosen.
__device__ __forceinline__ bool load_experts(Copier &copier, const BlockShared &shared, const LayerAddresses &layer, int in_flight) {
    if (!takes_routes(shared.own)) return true;
    if (has_gate_up() && !has_router(shared.own) && !load_norm_weights(copier, NormRoute::norm(layer), in_flight)) return false;
    if (!await_used(copier)) return false;
    bool here = true;
    with_norm_forms(layer, EXPERT_GATE_UP, [&](auto forms) INLINED {
        here = load_gate_up<decltype(forms)>(copier, shared.used, layer.gate_up, gate_up_range(shared.used.n));
    });
    return here;
}
#endif

// ---- computing ---------------------------------------------------------------------------------
// Results of one row of any of them, from a pair of tiles; those of experts are stored by other warps.
template <bool BARE> struct NormStore {
    Block &block;
    OpKind kind;
    u64 &best;
    __device__ __forceinline__ void operator()(int tile, u32 token, u32 row, const float (&sums)[2], bool there) const {
        if (kind == NORM_GATE_UP) return NormGateUp::store<BARE>(block, tile / 2 * 8 + row, token, sums[0], sums[1], there);
        if (kind == NORM_HEAD) return NormHead::store(block, best, tile * 8 + row, token, sums, there);
#pragma unroll
        for (int t = 0; t < 2; ++t) NormQkv::store(block, (tile + t) * 8 + row, token, sums[t], there);
    }
};

#if HAS_EXPERTS
// A router's input. Its weights are few however wide the model is, and in registers before their input
// is there.
struct RouterInput {
    static constexpr bool IS_BARE = false;
    NormInput &of;
    static __device__ __forceinline__ bool holds(const Block &block) {
        return __CUDA_ARCH__ >= 900 && block.n_tokens == 1 && HIDDEN_UNITS <= MOST_HELD;
    }
    __device__ __forceinline__ bool holds() const { return holds(of.block); }
    __device__ __forceinline__ void begin(u32 portion) const {
        if (portion == 0 && !of.awaited) of.await_rows<false>();
    }
    __device__ __forceinline__ uint4 unit(u32 portion, int u) const { return of.unit(portion, u); }
    __device__ __forceinline__ void next() const { of.next(); }
};

// What is before and beside the product of a sparse layer's ops. The input of experts is there before
// their routes are; a block that has a part of the router had the same norm there.
__device__ __forceinline__ bool multiply_routed(Block &block, OpKind kind, NormInput &input, TileRange &own) {
    if (kind == EXPERT_GATE_UP) {
        take_routes(block);
        own = gate_up_range(block.shared.used.n);
        return false;
    }
    if (kind != NORM_ROUTE) return false;
    multiply_tiles<RouterMatrix, ROUTER_TILES, 2, HIDDEN_UNITS, 1>(
        block.stages, block.shared.scratch.sums, block.flip, own, block.n_tokens, block.warp, block.lane, RouterInput{input},
        [&](int tile, u32 token, u32 row, const float (&sums)[2], bool there) INLINED {
#pragma unroll
            for (int t = 0; t < 2; ++t) NormRoute::store(block, (tile + t) * 8 + row, token, sums[t], there);
        });
    return true;
}
#endif

// The product. The best of the logits that it computed, if any.
template <bool BARE> __device__ __forceinline__ u64 multiply_norm(Block &block, OpKind kind) {
    TileRange own = norm_tiles(block.shared.own, kind);
    const u32 n_rows = block.n_tokens;
    u64 best = NO_CANDIDATE;
    bool is_normed = false, comes_first = !block.holds_weights(), is_routed = false;
#if HAS_EXPERTS
    is_routed = kind == EXPERT_GATE_UP;
    if (kind == NORM_ROUTE && RouterInput::holds(block)) comes_first = false;
    if (is_routed) {
        if (!has_gate_up() && takes_routes(block.shared.own)) take_routes(block);
        if (!has_gate_up()) return best;
        is_normed = has_router(block.shared.own), comes_first = true;
    }
#endif
    if (!is_routed && own.first == own.end) return best;
    if constexpr (BARE) {
        BareNormInput input(block, kind);
        with_norm_forms(block.layer(), kind, [&](auto forms) INLINED {
            multiply_tiles<decltype(forms), NORM_TILES, 2, HIDDEN_UNITS, 1>(block.stages, block.shared.scratch.sums, block.flip, own, n_rows, block.warp, block.lane,
                                                                            input, NormStore<BARE>{block, kind, best});
        });
        return best;
    }
    NormInput input(block, kind, n_rows, is_normed);
    if (comes_first && !input.awaited) input.await_rows(), input.next();
#if HAS_EXPERTS
    if (multiply_routed(block, kind, input, own)) return best;
    const HandedSums handed = {block, is_routed};
#else
    const KeptSums handed;
#endif
    with_norm_forms(block.layer(), kind, [&](auto forms) INLINED {
        multiply_tiles<decltype(forms), NORM_TILES, 2, HIDDEN_UNITS, 1>(block.stages, block.shared.scratch.sums, block.flip, own, n_rows, block.warp, block.lane,
                                                                        input, NormStore<BARE>{block, kind, best}, handed);
    });
    return best;
}

template <bool BARE> __device__ __forceinline__ void compute_norm_product(Block &block, OpKind kind) {
    if (kind == NORM_HEAD && block.shared.n_outputs == 0) return;
    const bool chooses = kind == NORM_HEAD && block.launch.chooses != CHOOSES_NOTHING;
    if (blockIdx.x == 0 && chooses) NormHead::begin(block);
    if (block.draws && chooses) NormHead::take_masks(block);
    const u64 best = multiply_norm<BARE>(block, kind);
#if HAS_EXPERTS
    if (kind == NORM_ROUTE && block.is_last()) NormRoute::end(block);
#endif
    if (!chooses) return;
    NormHead::end(block, best);
}
