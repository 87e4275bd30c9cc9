// `proj_add` and `down_add` in the persistent kernel: products that are added to the residual
// stream. What an op loads, and what it awaits, is in the file of its name.
#pragma once

#include "generated/matrices.cuh"
#include "persistent/bare.cuh"
#include "persistent/down_add.cuh"
#include "persistent/launch.cuh"
#include "persistent/product.cuh"
#include "persistent/proj_add.cuh"

// Calls `work` with the matrix of an op in a layer.
template <class Work> __device__ __forceinline__ void with_proj(u32 variant, Work work) { PROJ_MATRICES(CALL_WITH_MATRIX) }
template <class Work> __device__ __forceinline__ void with_down(u32 variant, Work work) { DOWN_MATRICES(CALL_WITH_MATRIX) }

// ---- loading -----------------------------------------------------------------------------------
// The copying warp: what to copy of the weights of either product.
__device__ __forceinline__ bool plan_add(Copier &copier, TileCopies &copies, const LayerAddresses &layer, const TileRange &own, OpKind kind, int in_flight) {
    bool here = true;
    if (kind == PROJ_ADD)
        with_proj(layer.variants.proj, [&](auto matrix) INLINED { here = plan_copies<decltype(matrix), ProjAdd::UNITS>(copier, copies, layer.o, own, ADD_TILES, in_flight); });
    else with_down(layer.variants.down, [&](auto matrix) INLINED { here = plan_copies<decltype(matrix), DownAdd::UNITS>(copier, copies, layer.down, own, ADD_TILES, in_flight); });
    return here;
}

// ---- computing ---------------------------------------------------------------------------------
// Rows that other blocks make, awaited as many at a time as there is room for.
struct AwaitedInput {
    static constexpr bool IS_BARE = false;
    Block &block;
    AwaitedRows rows;
    u32 n_units, units_at_once, portions_at_once;
    u32 first = 0; // unit of those that are there, where tiles are coded
    __device__ __forceinline__ void begin(u32 portion) const {
        if (portion % portions_at_once != 0) return;
        const u32 first = portion * PORTION_UNITS, n = min(portions_at_once * PORTION_UNITS, n_units - first);
        __syncwarp();
        rows.into(block.x, block.warp * n_units + first, n, block.n_tokens, block.lane, block.watch);
    }
    __device__ __forceinline__ uint4 unit(u32 portion, int u) const {
        return StagedUnits{block.x, block.n_tokens, block.lane}[portion % portions_at_once * PORTION_UNITS + u];
    }
    __device__ __forceinline__ bool holds() const { return block.holds_weights(); }
    __device__ __forceinline__ void next() const {}
    __device__ __forceinline__ bool holds_coded() const { return block.holds_weights(); }
    __device__ __forceinline__ void ready(u32 u, u32 n) {
        if (u > 0 && u + n <= first + units_at_once) return;
        first = u;
        __syncwarp();
        rows.into(block.x, block.warp * n_units + u, min(units_at_once, n_units - u), block.n_tokens, block.lane, block.watch);
    }
    __device__ __forceinline__ const uint4 *from(u32 u) const { return StagedUnits{block.x, block.n_tokens, block.lane}.from(u - first); }
};

// x += input * W, rounded once. The residual stream of a block's own rows stays in its shared
// memory.
template <class Op, class W> __device__ __forceinline__ void add_matrix(Block &block) {
    constexpr int UNITS = Op::UNITS;
    const Launch &launch = block.launch;
    const TileRange own = block.shared.own.hidden;
    const int first_row = own.first * 8;
    if (own.first == own.end) return;
    const AwaitedRows rows = Op::input(launch, block.number_before(1));
    const u32 at_once = x_units(block.n_tokens) / block.n_tokens;
    const AwaitedInput input = {block, rows, UNITS, at_once, at_once / PORTION_UNITS};
    multiply_tiles<W, ADD_TILES, 1, UNITS, W::CHAINS>(block.stages, block.shared.scratch.sums, block.flip, own, block.n_tokens, block.warp, block.lane,
                                        input, [&](int tile, u32 token, u32 row, const float (&sum)[1], bool there) {
        const u32 r = tile * 8 + row;
        u16 value = 0;
        if (there && r < HIDDEN) {
            u16 &before = block.shared.residual[r - first_row][token];
            before = value = round_one(widen(before) + sum[0]);
            if (block.is_last()) launch.plain.x[(u64)token * HIDDEN_STRIDE + r] = value;
        }
        publish_row(launch.x + token * (HIDDEN_STRIDE / 2), r, HIDDEN, there, value, block.number);
    });
}
// The same where rows have no numbers.
template <class Op, class W> __device__ __forceinline__ void add_bare_matrix(Block &block) {
    const TileRange own = block.shared.own.hidden;
    const int first_row = own.first * 8;
    if (own.first == own.end) return;
    const BarePlaces places = bare_places(block);
    const BareInput<Op::UNITS, Op::WIDTH, Op::STRIDE> input(block, Op::bare_input(places));
    multiply_tiles<W, ADD_TILES, 1, Op::UNITS, W::CHAINS>(block.stages, block.shared.scratch.sums, block.flip, own, block.n_tokens, block.warp, block.lane,
                                                         input, [&](int tile, u32 token, u32 row, const float (&sum)[1], bool there) {
        const u32 r = tile * 8 + row;
        u16 value = 0;
        if (there && r < HIDDEN) {
            u16 &before = block.shared.residual[r - first_row][token];
            before = value = round_one(widen(before) + sum[0]);
            if (block.is_last()) block.launch.plain.x[(u64)token * HIDDEN_STRIDE + r] = value;
        }
        publish_bare(block, Op::bare_output(places), r, HIDDEN, token, there, value);
    });
}
template <bool BARE> __device__ __forceinline__ void compute_add(Block &block, OpKind kind) {
    const LayerAddresses &layer = block.layer();
    const auto add = [&](auto op, auto matrix) INLINED {
        if constexpr (BARE) add_bare_matrix<decltype(op), decltype(matrix)>(block);
        else add_matrix<decltype(op), decltype(matrix)>(block);
    };
    if (kind == PROJ_ADD) with_proj(layer.variants.proj, [&](auto matrix) INLINED { add(ProjAdd{}, matrix); });
    else with_down(layer.variants.down, [&](auto matrix) INLINED { add(DownAdd{}, matrix); });
}
