// Bare rows: what blocks hand to one another in the kernel for eight tokens, without numbers.
//
// Of eight tokens, words with numbers are twice the bytes, and every block reads all of them. Bare
// rows lie as a product takes them: [unit of 32 columns][token][four chunks of eight columns], so
// that lane 4g + c finds its operand in one load of 16 bytes. A pair of columns that nobody has
// sent is NOTHING, two NaNs that no rounding gives.
//
// Whoever reads a pair must never see what an earlier layer left there. So rows have SLOTS places
// in turn, and a place is emptied long before its next turn: by the copying warps of those blocks
// that own rows of the residual stream, when they begin to load a layer, for the layer after it. By
// then all blocks have read what lies there, because this block has awaited rows of two layers that came
// of it. And nobody asks for the layer after this one before all such blocks have published rows of
// this one, which their computing warps do after their copying warp's fence. Rows for the head are
// asked for by blocks that may take no part in layers, so they have places of their own, by steps.
// The host empties all places before a launch.
#pragma once

#include "persistent/launch.cuh"

constexpr u32 SLOTS = 4;
// Chunks of rows of some units a warp.
constexpr u32 bare_chunks(u32 units) { return WARPS * units * FEW * 4; }
constexpr u32 BARE_X = bare_chunks(HIDDEN_UNITS), BARE_A = bare_chunks(Q_UNITS), BARE_H = bare_chunks(INTER_UNITS);
constexpr u32 BARE_SLOT = 2 * BARE_X + BARE_A + BARE_H;
static_assert(BARE_BYTES == 0 || (SLOTS * BARE_SLOT + 2 * BARE_X) * 16 == BARE_BYTES, "the host has as much");

// Where rows of a layer lie, or of a head.
struct BarePlaces {
    uint4 *rows;
    u32 layer, step; // layers and steps of the launch
    __device__ __forceinline__ BarePlaces(const Launch &launch, u32 step, u32 layer) : rows(launch.bare), layer(step * LAYERS + layer), step(step) {}
    __device__ __forceinline__ uint4 *slot(u32 of_layer) const { return rows + of_layer % SLOTS * BARE_SLOT; }
    // After `proj_add`, and after `down_add` of this layer.
    __device__ __forceinline__ uint4 *between() const { return slot(layer); }
    __device__ __forceinline__ uint4 *after() const { return (layer + 1) % LAYERS == 0 ? head(step) : slot(layer) + BARE_X; }
    // What this layer or the head begins with, which is no first layer.
    __device__ __forceinline__ uint4 *before() const { return slot(layer - 1) + BARE_X; }
    __device__ __forceinline__ uint4 *head(u32 of_step) const { return rows + SLOTS * BARE_SLOT + of_step % 2 * BARE_X; }
    __device__ __forceinline__ uint4 *attended() const { return slot(layer) + 2 * BARE_X; }
    __device__ __forceinline__ uint4 *gated() const { return slot(layer) + 2 * BARE_X + BARE_A; }
};
__device__ __forceinline__ BarePlaces bare_places(const Block &block) { return {block.launch, block.step, (u32)block.shared.ops[block.op] >> 8}; }

// ---- publishing --------------------------------------------------------------------------------
__device__ __forceinline__ void store_bare(uint4 *rows, u32 n_tokens, u32 token, u32 column, u32 pair, u32 number) {
    if (number != 0) store_relaxed((u32 *)rows + (column / 32 * n_tokens + token) * 16 + column % 32 / 2, pair);
}
// As `publish_row`.
__device__ __forceinline__ void publish_bare(const Block &block, uint4 *rows, u32 row, u32 n_rows, u32 token, bool there, u16 value) {
    const u32 next = __shfl_down_sync(FULL, (u32)value, 1);
    if (there && row % 2 == 0 && row < n_rows) store_bare(rows, block.n_tokens, token, row, value | next << 16, block.number);
}

// ---- awaiting ----------------------------------------------------------------------------------
// A lane's chunks of a warp's N units of its token's row, of which WIDTH columns are sent; all
// others are zero. A lane without a token has another's.
template <int N, int WIDTH, int STRIDE> struct BareRow {
    uint4 chunks[N];
    static __device__ __forceinline__ bool pair_is_there(u32 &pair, u32 column) {
        if (WIDTH == STRIDE) return pair != NOTHING;
        if (column >= WIDTH) pair = 0;
        return pair != NOTHING;
    }
    // From a unit of the row on; `last` is the last that there is.
    __device__ __forceinline__ void await(const uint4 *rows, u32 n_tokens, u32 first, u32 last, int lane, Watch &watch) {
        const u32 token = min((u32)lane / 4, n_tokens - 1), c = lane % 4;
        watch.until([&] {
            bool all = true;
#pragma unroll
            for (int i = 0; i < N; ++i) chunks[i] = load_four_relaxed(rows + (min(first + i, last) * n_tokens + token) * 4 + c);
#pragma unroll
            for (int i = 0; i < N; ++i) {
                const u32 column = min(first + i, last) * 32 + c * 8;
                all &= pair_is_there(chunks[i].x, column);
                all &= pair_is_there(chunks[i].y, column + 2);
                all &= pair_is_there(chunks[i].z, column + 4);
                all &= pair_is_there(chunks[i].w, column + 6);
            }
            return all;
        });
        __syncwarp();
    }
};

// The input of `proj_add` and `down_add`. Plain tiles take it from registers, coded ones from the
// warp's stage.
template <int UNITS, int WIDTH, int STRIDE> struct BareInput {
    static constexpr bool IS_BARE = true;
    Block &block;
    const uint4 *rows;
    BareRow<UNITS, WIDTH, STRIDE> row;
    u32 first = 0; // unit of those that are in the stage
    __device__ __forceinline__ BareInput(Block &block, const uint4 *rows) : block(block), rows(rows) {}
    __device__ __forceinline__ void begin() { row.await(rows, block.n_tokens, block.warp * UNITS, block.warp * UNITS + UNITS - 1, block.lane, block.watch); }
    __device__ __forceinline__ uint4 unit(int i) const { return row.chunks[i]; }
    __device__ __forceinline__ void next() const {}
    __device__ __forceinline__ bool holds_coded() const { return true; }
    __device__ __forceinline__ void ready(u32 u, u32 n) {
        constexpr u32 AT_ONCE = x_units(BARE_TOKENS) / BARE_TOKENS;
        if (u > 0 && u + n <= first + AT_ONCE) return;
        first = u;
        __syncwarp();
        const u32 end = min(u + AT_ONCE, (u32)UNITS);
        for (u32 at = u; at < end; at += 4) {
            BareRow<4, WIDTH, STRIDE> some;
            some.await(rows, block.n_tokens, block.warp * UNITS + at, block.warp * UNITS + UNITS - 1, block.lane, block.watch);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (at + i < end) block.x[(at - u + i) * UNIT + block.lane] = some.chunks[i];
        }
        __syncwarp();
    }
    __device__ __forceinline__ const uint4 *from(u32 u) const { return block.x + (u - first) * UNIT + block.lane; }
};

// ---- emptying ----------------------------------------------------------------------------------
// The copying warp's share of some chunks, as large as its block's of the tiles of x.
__device__ __forceinline__ void empty_share(uint4 *rows, u32 n_chunks, const TileRange &own, int lane) {
    constexpr u32 TILES = (HIDDEN + 7) / 8;
    const u32 each = (n_chunks + TILES - 1) / TILES;
    for (u32 i = own.first * each + lane; i < min(own.end * each, n_chunks); i += 32) store_four_relaxed(rows + i, make_uint4(NOTHING, NOTHING, NOTHING, NOTHING));
}
// Before the copying warp loads a layer: the next layer's place, and with the last layer that of
// the next head. False where the block has left.
__device__ __forceinline__ bool empty_rows(const BlockShared &shared, const Launch &launch, u32 step, u32 of_step, int lane) {
    const TileRange own = shared.own.hidden;
    const BarePlaces places(launch, step, of_step);
    const u32 layer = places.layer;
    const bool layer_is_used = layer + 1 >= SLOTS, head_is_used = of_step + 1 == LAYERS && step > 0;
    if (own.first == own.end || !layer_is_used && !head_is_used) return true;
    if (layer_is_used) {
        for (; shared.n_added + 1 < layer; look_again())
            if (shared.ring.left) return false;
        empty_share(places.slot(layer + 1), BARE_SLOT, own, lane);
    }
    if (head_is_used) {
        for (; shared.n_steps < step; look_again())
            if (shared.ring.left) return false;
        empty_share(places.head(step + 1), BARE_X, own, lane);
    }
    __threadfence();
    __syncwarp();
    return true;
}
