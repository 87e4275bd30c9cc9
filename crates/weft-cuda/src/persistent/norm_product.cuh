// `norm_qkv`, `norm_gate_up` and `norm_head` in the persistent kernel. All three are one product,
// by the same instructions, because those of a whole layer do not fit into the caches for
// instructions; what an op loads and what it makes of its sums is in the file of its name.
#pragma once

#include "generated/matrices.cuh"
#include "persistent/norm_gate_up.cuh"
#include "persistent/norm_head.cuh"
#include "persistent/norm_input.cuh"
#include "persistent/norm_qkv.cuh"
#include "persistent/product.cuh"

// Calls `work` with the forms of an op's matrix.
template <class Work> __device__ __forceinline__ void with_norm_forms(const LayerAddresses &layer, OpKind kind, Work work) {
    const u32 variant = kind == NORM_QKV ? layer.variants.qkv : kind == NORM_GATE_UP ? layer.variants.gate_up : HEAD_FORMS;
    NORM_FORMS(CALL_WITH_MATRIX)
}
__device__ __forceinline__ const TileRange &norm_tiles(const OwnTiles &own, OpKind kind) {
    return kind == NORM_QKV ? own.qkv : kind == NORM_GATE_UP ? own.gate_up : own.vocabulary;
}
__device__ __forceinline__ const u8 *norm_matrix(const Launch &launch, const LayerAddresses &layer, OpKind kind) {
    return kind == NORM_QKV ? layer.qkv : kind == NORM_GATE_UP ? layer.gate_up : launch.head;
}
__device__ __forceinline__ const uint4 *norm_weights(const Launch &launch, const LayerAddresses &layer, OpKind kind) {
    return kind == NORM_QKV ? NormQkv::norm(layer) : kind == NORM_GATE_UP ? NormGateUp::norm(layer) : NormHead::norm(launch);
}

// ---- loading -----------------------------------------------------------------------------------
// The copying warp: a norm's weights; then what to copy of those of its product.
__device__ __forceinline__ bool load_norm(Copier &copier, TileCopies &copies, const Launch &launch, const LayerAddresses &layer, const OwnTiles &all, OpKind kind, int in_flight) {
    static_assert(HIDDEN_STRIDE * 2 <= LONG_STAGE_BYTES, "a norm's weights are one stage");
    const TileRange own = norm_tiles(all, kind);
    const uint4 *norm = norm_weights(launch, layer, kind);
    if (own.first == own.end) return true;
    copier.in_flight = in_flight;
    const bool pushed = copier.push(HIDDEN_STRIDE * 2, [&](u8 *stage, u64 *full) { copy(stage, norm, HIDDEN_STRIDE * 2, full, copier.lane); });
    bool here = pushed;
    if (here)
        with_norm_forms(layer, kind, [&](auto forms) INLINED {
            here = plan_copies<decltype(forms), HIDDEN_UNITS>(copier, copies, norm_matrix(launch, layer, kind), own, NORM_TILES, in_flight);
        });
    return here;
}

// ---- computing ---------------------------------------------------------------------------------
// Results of one row of any of them, from a pair of tiles.
struct NormStore {
    Block &block;
    OpKind kind;
    u64 &best;
    __device__ __forceinline__ void operator()(int tile, u32 token, u32 row, const float (&sums)[2], bool there) const {
        if (kind == NORM_GATE_UP) return NormGateUp::store(block, tile / 2 * 8 + row, token, sums[0], sums[1], there);
        if (kind == NORM_HEAD) return NormHead::store(block, best, tile * 8 + row, token, sums, there);
#pragma unroll
        for (int t = 0; t < 2; ++t) NormQkv::store(block, (tile + t) * 8 + row, token, sums[t], there);
    }
};

// The product. The best of the logits that it computed, if any.
__device__ __forceinline__ u64 multiply_norm(Block &block, OpKind kind) {
    const TileRange own = norm_tiles(block.shared.own, kind);
    const u32 n_rows = kind == NORM_HEAD && !block.fixed ? block.shared.n_outputs : block.n_tokens;
    u64 best = NO_CANDIDATE;
    if (own.first == own.end) return best;
    NormInput input(block, kind, n_rows);
    if (!block.holds_weights()) input.await_rows(), input.next();
    with_norm_forms(block.layer(), kind, [&](auto forms) INLINED {
        multiply_tiles<decltype(forms), NORM_TILES, 2, HIDDEN_UNITS, 1>(block.stages, block.shared.scratch.sums, block.flip, own, n_rows, block.warp, block.lane,
                                                                        input, NormStore{block, kind, best});
    });
    return best;
}

__device__ __forceinline__ void compute_norm_product(Block &block, OpKind kind) {
    if (kind == NORM_HEAD && block.shared.n_outputs == 0) return;
    const bool chooses = kind == NORM_HEAD && block.launch.chooses != CHOOSES_NOTHING;
    if (blockIdx.x == 0 && chooses) NormHead::begin(block);
    if (block.draws && chooses) NormHead::take_masks(block);
    const u64 best = multiply_norm(block, kind);
    if (!chooses) return;
    NormHead::end(block, best);
}
