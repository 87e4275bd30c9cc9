// What the copying warp brings of a layer's products in a narrow model, found once a launch: all layers
// have the same, but for where their matrices lie. To find it takes more instructions than to copy it,
// and those that run in every layer hardly fit into the caches of a multiprocessor.
#pragma once

#include "generated/matrices.cuh"
#include "persistent/product.cuh"
#include "persistent/ring.cuh"

#define IS_ALIKE(SUFFIX, W) &&W::IS_LAST &&W::ID == 0 && W::IS_UNIFORM
constexpr bool LAYERS_ARE_ALIKE = true QKV_MATRICES(IS_ALIKE) PROJ_MATRICES(IS_ALIKE) GATE_UP_MATRICES(IS_ALIKE) DOWN_MATRICES(IS_ALIKE);
constexpr bool IS_PLANNED = !HAS_EXPERTS && HIDDEN_UNITS <= TWO_BLOCKS_UNITS && LAYERS_ARE_ALIKE;

// A stage, as it lies behind its matrix: pieces of equal lengths and distances.
struct __align__(16) PlannedStage {
    u32 offset, stride, bytes; // bytes are those of a piece
    u16 n_pieces, is_norm;     // a norm's weights lie elsewhere
};
// The products of a layer, in order.
enum PlannedProduct { PLANNED_QKV, PLANNED_PROJ, PLANNED_GATE_UP, PLANNED_DOWN, PLANNED_PRODUCTS };

// Room for stages of some tiles.
constexpr u32 planned_stages(u32 tiles, u32 units) { return tiles * ((units + SHORT_STRIP - 1) / SHORT_STRIP); }
constexpr u32 STAGES_OF_NORMS = 2 + planned_stages(QkvRows::MOST_TILES + GateUpRows::MOST_TILES, HIDDEN_UNITS);
constexpr u32 STAGES_OF_OTHERS = planned_stages(HiddenRows::MOST_TILES, Q_UNITS) + planned_stages(HiddenRows::MOST_TILES, INTER_UNITS);
constexpr u32 MOST_PLANNED = IS_PLANNED ? STAGES_OF_NORMS + STAGES_OF_OTHERS : 1;

struct PlannedStages {
    PlannedStage all[MOST_PLANNED];
    u32 end[PLANNED_PRODUCTS];
    int in_flight[PLANNED_PRODUCTS];

    __device__ __forceinline__ u32 begin(u32 product) const { return product == 0 ? 0 : end[product - 1]; }
    // Adds those of a product, after its norm's weights if it has any, in the order of `load_tiles`. By
    // one thread, product after product.
    template <class W, int UNITS> __device__ __forceinline__ void add(PlannedProduct product, const TileRange &own, int at_once, bool has_norm, int few) {
        u32 n = begin(product);
        in_flight[product] = few;
        if constexpr (!W::IS_PLAIN) in_flight[product] = CodedStage<W, UNITS>::in_flight(few);
        if (has_norm && own.first < own.end) all[n++] = {0, 0, HIDDEN_STRIDE * 2, 1, 1};
        const TileCopies copies = tile_copies<W, UNITS>(nullptr, own, at_once);
        copies.each_stage([&](u32 offset, u32 bytes) {
            if (copies.eighth_bytes == 0) all[n++] = {offset, 0, bytes, 1, 0};
            else all[n++] = {offset, copies.eighth_bytes, bytes / WARPS, WARPS, 0};
            return true;
        });
        end[product] = n;
    }
};
