// `proj_add` and `down_add` in the persistent kernel: products that are added to the residual
// stream. What an op loads, and what it awaits, is in the file of its name.
#pragma once

#include "persistent/down_add.cuh"
#include "persistent/launch.cuh"
#include "persistent/product.cuh"
#include "persistent/proj_add.cuh"

// ---- loading -----------------------------------------------------------------------------------
__device__ __forceinline__ Tiles add_tiles(const LayerAddresses &layer, const OwnTiles &own, OpKind kind) {
    const u8 *weights = kind == PROJ_ADD ? ProjAdd::weights(layer) : DownAdd::weights(layer);
    return tiles_of(own.hidden, weights, kind == PROJ_ADD ? ProjAdd::UNITS : DownAdd::UNITS);
}
// The copying warp: the weights of either product.
__device__ __forceinline__ bool load_add(Copier &copier, const LayerAddresses &layer, const OwnTiles &own, OpKind kind) {
    return load_tiles(copier, add_tiles(layer, own, kind), ADD_TILES);
}

// ---- computing ---------------------------------------------------------------------------------
// Rows that other blocks make, awaited as many at a time as there is room for.
struct AwaitedInput {
    Block &block;
    AwaitedRows rows;
    u32 n_units, portions_at_once;
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
};

// x += input * W, rounded once. The residual stream of a block's own rows stays in its shared
// memory.
template <class Op> __device__ __forceinline__ void compute_add(Block &block) {
    constexpr int UNITS = Op::UNITS, CHAINS = Op::CHAINS;
    const Launch &launch = block.launch;
    const Tiles own = tiles_of(block.shared.own.hidden, Op::weights(block.layer()), UNITS);
    const int first_row = own.first * 8;
    if (own.first == own.end) return;
    const AwaitedRows rows = Op::input(launch, block.number_before(1));
    const AwaitedInput input = {block, rows, UNITS, x_units(block.n_tokens) / block.n_tokens / PORTION_UNITS};
    multiply_tiles<ADD_TILES, 1, UNITS, CHAINS>(block.stages, block.shared.scratch.sums, block.flip, own, block.n_tokens, block.warp, block.lane,
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
