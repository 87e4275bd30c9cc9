// Matrix products of the persistent kernel: the sums of `matvec.cuh` in their order, so the same
// bits. A block computes several tiles together, because its time is that of a chain of
// instructions; and all matrices go through the same few instructions, because those of a whole
// layer do not fit into the caches for instructions.
#pragma once

#include "kernels/base.cuh"
#include "persistent/coded_product.cuh"
#include "persistent/ring.cuh"

// The tiles of a matrix, and how many of them a group that a block cannot divide. Where groups do
// not come out even, the last blocks have one more: the first attend at any context.
template <int ROWS, int TOGETHER_> struct Rows8 {
    static constexpr int TOGETHER = TOGETHER_;
    static constexpr int GROUPS = (ROWS + 8 * TOGETHER - 1) / (8 * TOGETHER), EACH = GROUPS / N_BLOCKS, MORE = GROUPS % N_BLOCKS;
    static constexpr int MOST_TILES = (EACH + (MORE > 0)) * TOGETHER; // that a block owns
    // The first group of a block.
    static __device__ __forceinline__ int first(int block) { return block * EACH + max(block - (N_BLOCKS - MORE), 0); }
};
using HiddenRows = Rows8<HIDDEN, 1>;
using QkvRows = Rows8<QKV_ROWS, 2>;
using GateUpRows = Rows8<(INTER + 7) / 8 * 16, 2>;
using VocabularyRows = Rows8<VOCAB, 2>;

// The tiles of a block, from `first` to `end`.
struct TileRange {
    int first, end;
};
template <class M> __device__ __forceinline__ TileRange own_range() {
    return {M::first(blockIdx.x) * M::TOGETHER, M::first(blockIdx.x + 1) * M::TOGETHER};
}
// Of every matrix, computed once: divisions take long.
struct OwnTiles {
    TileRange hidden, qkv, gate_up, vocabulary;
#if HAS_EXPERTS
    TileRange router;
#endif
    __device__ __forceinline__ void fill() {
        hidden = own_range<HiddenRows>(), qkv = own_range<QkvRows>();
        gate_up = own_range<GateUpRows>(), vocabulary = own_range<VocabularyRows>();
#if HAS_EXPERTS
        router = own_range<Rows8<EXPERTS, 2>>();
#endif
    }
};

// Tiles computed at once.
constexpr int NORM_TILES = 6;
constexpr int ADD_TILES = HiddenRows::MOST_TILES <= 6 ? HiddenRows::MOST_TILES : 4;
constexpr int MOST_TILES_AT_ONCE = 6;

// Sums of each warp's chains: of tiles computed together, eight tokens x eight rows.
struct WarpSums {
    float of[2][MOST_TILES_AT_ONCE][WARPS][64];
};

// Calls `work` with the number `n` as a constant.
template <int VALUE_> struct Count {
    static constexpr int VALUE = VALUE_;
};
template <int MOST, class Work> __device__ __forceinline__ void for_count(int n, Work work) {
    if (MOST == 1 || n == MOST) return work(Count<MOST>{});
    if constexpr (MOST > 1) for_count<MOST - 1>(n, work);
}

// What the copying warp has to know of a matrix whose tiles have one form.
struct TileCopies {
    const u8 *weights;
    TileRange own;
    int at_once;                 // tiles that are computed together
    u32 tile_bytes;
    int n_strips, tiles;         // of a tile; that a stage holds of one strip
    u32 strip_bytes, last_bytes; // of a tile's strips, and of its last
    u32 eighth_bytes;            // of a warp's units of a tile, where strips do not lie together; or zero

    // Calls `visit(where it begins behind the weights, its bytes)` for each stage, in the order in which
    // `multiply_tiles` takes them, until that says no.
    template <class Visit> __device__ __forceinline__ bool each_stage(Visit visit) const {
        for (int first = own.first; first < own.end; first += at_once) {
            const int end = min(first + at_once, own.end);
            for (int strip = 0; strip < n_strips; ++strip)
                for (int tile = first; tile < end; tile += tiles) {
                    const u32 bytes = (strip + 1 < n_strips ? strip_bytes : last_bytes) * min(tiles, end - tile);
                    if (!visit(tile * (u64)tile_bytes + strip * (eighth_bytes == 0 ? strip_bytes : strip_bytes / WARPS), bytes)) return false;
                }
        }
        return true;
    }
};
template <class W, int UNITS> __device__ __forceinline__ TileCopies tile_copies(const u8 *weights, const TileRange &own, int at_once) {
    if constexpr (W::IS_PLAIN) {
        constexpr int PORTIONS = (UNITS + PORTION_UNITS - 1) / PORTION_UNITS, PORTION = UNITS < PORTION_UNITS ? UNITS : PORTION_UNITS;
        static_assert(SHORT_STRIP == PORTION_UNITS, "a strip is a portion");
        constexpr bool LIES_TOGETHER = UNITS <= PORTION_UNITS || UNITS > LONGEST_STRIP;
        return {weights, own, at_once, WARPS * UNITS * UNIT_BYTES, PORTIONS, 1, WARPS * PORTION * UNIT_BYTES,
                WARPS * (UNITS - (PORTIONS - 1) * PORTION) * UNIT_BYTES, LIES_TOGETHER ? 0 : UNITS * UNIT_BYTES};
    } else {
        using Stage = CodedStage<W, UNITS>;
        return {weights, own, at_once, WARPS * UNITS * W::BYTES, Stage::STRIPS, Stage::TILES, Stage::STRIP_ROOM,
                WARPS * (UNITS - (Stage::STRIPS - 1) * Stage::STRIP) * W::BYTES, 0};
    }
}
// The copying warp: all of them. False where the block has left. All matrices go through the same few
// instructions here too.
__device__ __forceinline__ bool load_tiles(Copier &copier, const TileCopies &copies) {
    return copies.each_stage([&](u64 offset, u32 bytes) {
        return copier.push(bytes, [&](u8 *stage, u64 *full) {
            if (copies.eighth_bytes == 0) copy_passing(stage, copies.weights + offset, bytes, full, copier.lane);
            else copy_pieces(stage, copies.weights + offset, copies.eighth_bytes, bytes / WARPS, WARPS, full, copier.lane);
        });
    });
}
// What to copy of a matrix in any form, with `in_flight` full stages on their way at once. A matrix
// of several forms is copied here, and leaves nothing. False where the block has left.
template <class W, int UNITS>
__device__ __forceinline__ bool plan_copies(Copier &copier, TileCopies &copies, const u8 *weights, const TileRange &own, int at_once, int in_flight) {
    copier.in_flight = in_flight;
    if constexpr (!W::IS_PLAIN) copier.in_flight = CodedStage<W, UNITS>::in_flight(in_flight);
    if constexpr (!W::IS_UNIFORM) return load_mixed_tiles<W, UNITS>(copier, weights, own.first, own.end, at_once);
    else return copies = tile_copies<W, UNITS>(weights, own, at_once), true;
}

// A warp's units of an input in shared memory, as `AwaitedRows` puts them there.
struct StagedUnits {
    const uint4 *stage;
    u32 n_tokens;
    int lane;
    __device__ __forceinline__ uint4 operator[](u32 unit) const {
        return lane / 4 < n_tokens ? stage[unit * n_tokens * 4 + lane] : make_uint4(0, 0, 0, 0);
    }
    // Where this lane's part of a unit lies. Lanes of no token have that of another: tokens are
    // columns of a product, which do not mix.
    __device__ __forceinline__ const uint4 *from(u32 unit) const { return stage + unit * n_tokens * 4 + min(lane / 4, (int)n_tokens - 1) * 4 + lane % 4; }
};

// A warp's units of a portion of N tiles, in the stages from `first` on.
template <int N, int UNITS> struct PortionUnits {
    const Stages &stages;
    u32 first;
    int width, warp, lane;
    __device__ __forceinline__ PortionUnits(const Stages &stages, u32 first, int portion, int warp, int lane)
        : stages(stages), first(first), width(UNITS % PORTION_UNITS == 0 ? PORTION_UNITS : min(UNITS - portion * PORTION_UNITS, PORTION_UNITS)),
          warp(warp), lane(lane) {}
    __device__ __forceinline__ uint4 operator()(int tile, int u) const {
        return tile < N && u < width ? ((const uint4 *)stages.at(first + tile))[(warp * width + u) * UNIT + lane] : make_uint4(0, 0, 0, 0);
    }
};

// Leaves a warp's sums where tokens are the columns of a product: `sum(tile, chain, e)` is that of
// token 2c + e and row g, in lane 4g + c.
template <int N, int CHAINS, class Sum>
__device__ __forceinline__ void leave_pairs(WarpSums &sums, u32 flip, u32 n_tokens, int warp, int lane, Sum sum) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        const u32 token = lane % 4 * 2 + e;
        if (token >= n_tokens) continue;
#pragma unroll
        for (int i = 0; i < N * CHAINS; ++i) sums.of[flip][i][warp][token * 8 + lane / 4] = sum(i / CHAINS, i % CHAINS, e);
    }
}

// A warp's sums of N tiles, of UNITS units a warp each. They all have their own registers: what is
// computed only sometimes is computed one after the other. As many weights as registers can hold
// are read, and their stages given back, before the input is awaited: they are there first as a
// rule, and reading them takes longer than the products. Two tiles take the rows of a product,
// tokens its columns (matvec.cuh).
constexpr int MOST_HELD = 12; // pairs of units
template <int N, int UNITS, int CHAINS, class Input>
__device__ __forceinline__ void sum_held_tiles(Stages &stages, WarpSums &sums, u32 flip, u32 n_tokens, int warp, int lane, const Input &input) {
    constexpr int PAIRS = (N + 1) / 2, PORTIONS = (UNITS + PORTION_UNITS - 1) / PORTION_UNITS, FIT = MOST_HELD / (PAIRS * PORTION_UNITS);
    constexpr int HELD = FIT < 1 ? 1 : FIT < PORTIONS ? FIT : PORTIONS; // portions
    const u32 zero = unknown_zero();
    float sum[CHAINS][PAIRS][4] = {};
#pragma unroll(CHAINS > 1 ? PORTIONS : 1)
    for (int first = 0; first < PORTIONS; first += HELD) {
        const int n_portions = HELD == PORTIONS ? PORTIONS : min(HELD, PORTIONS - first);
        Interleaved held[HELD][PORTION_UNITS][PAIRS];
        stages.wait_for_all(n_portions * N, lane);
#pragma unroll
        for (int portion = 0; portion < HELD; ++portion) {
            if (portion >= n_portions) break;
            const PortionUnits<N, UNITS> units(stages, portion * N, first + portion, warp, lane);
#pragma unroll
            for (int i = 0; i < PAIRS * PORTION_UNITS; ++i)
                held[portion][i % PORTION_UNITS][i / PORTION_UNITS] =
                    Interleaved(units(i / PORTION_UNITS * 2, i % PORTION_UNITS), units(i / PORTION_UNITS * 2 + 1, i % PORTION_UNITS), zero);
        }
        stages.release(n_portions * N, lane);
#pragma unroll
        for (int portion = 0; portion < HELD; ++portion) {
            if (portion >= n_portions) break;
            input.begin(first + portion);
#pragma unroll
            for (int u = 0; u < PORTION_UNITS; ++u) {
                if (UNITS % PORTION_UNITS != 0 && (first + portion) * PORTION_UNITS + u >= UNITS) break;
                const uint4 x = input.unit(first + portion, u);
#pragma unroll
                for (int pair = 0; pair < PAIRS; ++pair) mma32(sum[CHAINS == 1 ? 0 : ((first + portion) * PORTION_UNITS + u) / chain_units(UNITS, CHAINS)][pair], held[portion][u][pair], x);
            }
        }
    }
    leave_pairs<N, CHAINS>(sums, flip, n_tokens, warp, lane, [&](int tile, int chain, int e) INLINED { return sum[chain][tile / 2][tile % 2 * 2 + e]; });
}

// The same where several tokens leave fewer registers: portion by portion, tokens the rows of a
// product, which all tiles share. Where a row is a portion, so many units are read before the input
// is awaited.
constexpr int MOST_EARLY = 12;
template <int N, int UNITS, int CHAINS, class Input>
__device__ __forceinline__ void sum_tiles(Stages &stages, WarpSums &sums, u32 flip, u32 n_tokens, int warp, int lane, const Input &input) {
    constexpr int PORTIONS = (UNITS + PORTION_UNITS - 1) / PORTION_UNITS, FIT = MOST_EARLY / N, EARLY = PORTIONS > 1 ? 0 : FIT < UNITS ? FIT : UNITS;
    const u32 zero = unknown_zero();
    float sum[N][4] = {}, before[N][4]; // of the last chain, and of the one before it
    static_assert(CHAINS <= 2, "chains are at most two");
#pragma unroll 1
    for (int portion = 0; portion < PORTIONS; ++portion) {
        if (EARLY == 0) input.begin(portion);
        stages.wait_for_all(N, lane);
        const PortionUnits<N, UNITS> units(stages, 0, portion, warp, lane);
        uint4 held[PORTION_UNITS][N];
        const auto read = [&](int i) { held[i / N][i % N] = units(i % N, i / N); };
#pragma unroll
        for (int i = 0; i < N * EARLY; ++i) read(i);
        if (EARLY > 0) input.begin(portion);
#pragma unroll
        for (int i = N * EARLY; i < N * PORTION_UNITS; ++i) read(i);
#pragma unroll
        for (int u = 0; u < PORTION_UNITS; ++u) {
            if (UNITS % PORTION_UNITS != 0 && portion * PORTION_UNITS + u >= UNITS) break;
            if (CHAINS > 1 && portion * PORTION_UNITS + u == chain_units(UNITS, CHAINS))
#pragma unroll
                for (int i = 0; i < N * 4; ++i) before[i / 4][i % 4] = sum[i / 4][i % 4], sum[i / 4][i % 4] = 0.0f;
            const Interleaved x(input.unit(portion, u), make_uint4(0, 0, 0, 0), zero);
#pragma unroll
            for (int tile = 0; tile < N; ++tile) mma32(sum[tile], x, held[u][tile]);
        }
        stages.release(N, lane);
    }
    if (lane / 4 < n_tokens)
#pragma unroll
        for (int i = 0; i < N * CHAINS; ++i) {
            const auto &of_tile = i % CHAINS == CHAINS - 1 ? sum[i / CHAINS] : before[i / CHAINS];
            *(float2 *)&sums.of[flip][i][warp][lane * 2] = make_float2(of_tile[0], of_tile[1]);
        }
}

// The same where a warp's whole input comes in registers (bare.cuh). A tile without another has
// tokens as the rows of its products: as columns it would take twice the registers.
template <int N, int UNITS, int CHAINS, class Input>
__device__ __forceinline__ void sum_bare_tiles(Stages &stages, WarpSums &sums, u32 flip, u32 n_tokens, int warp, int lane, Input &input) {
    constexpr int PAIRS = (N + 1) / 2, PORTIONS = (UNITS + PORTION_UNITS - 1) / PORTION_UNITS, HELD = PORTIONS * PORTION_UNITS;
    const u32 zero = unknown_zero();
    float sum[CHAINS][PAIRS][4] = {};
    const auto unit_of = [&](int tile, int i) INLINED {
        return PortionUnits<N, UNITS>(stages, i / PORTION_UNITS * N, i / PORTION_UNITS, warp, lane)(tile, i % PORTION_UNITS);
    };
    const auto chain = [&](int i) INLINED { return CHAINS == 1 ? 0 : i / chain_units(UNITS, CHAINS); };
    stages.wait_for_all(PORTIONS * N, lane);
    if constexpr (N == 1) {
        uint4 held[HELD];
#pragma unroll
        for (int i = 0; i < HELD; ++i) held[i] = unit_of(0, i);
        stages.release(PORTIONS, lane);
        input.begin();
#pragma unroll
        for (int i = 0; i < UNITS; ++i) mma32(sum[chain(i)][0], Interleaved(input.unit(i), make_uint4(0, 0, 0, 0), zero), held[i]);
        if (lane / 4 < n_tokens)
#pragma unroll
            for (int i = 0; i < CHAINS; ++i) *(float2 *)&sums.of[flip][i][warp][lane * 2] = make_float2(sum[i][0][0], sum[i][0][1]);
    } else {
        Interleaved held[HELD][PAIRS];
#pragma unroll
        for (int i = 0; i < HELD * PAIRS; ++i) held[i % HELD][i / HELD] = Interleaved(unit_of(i / HELD * 2, i % HELD), unit_of(i / HELD * 2 + 1, i % HELD), zero);
        stages.release(PORTIONS * N, lane);
        input.begin();
#pragma unroll
        for (int i = 0; i < UNITS; ++i)
#pragma unroll
            for (int pair = 0; pair < PAIRS; ++pair) mma32(sum[chain(i)][pair], held[i][pair], input.unit(i));
        leave_pairs<N, CHAINS>(sums, flip, n_tokens, warp, lane, [&](int tile, int chain, int e) INLINED { return sum[chain][tile / 2][tile % 2 * 2 + e]; });
    }
}

// Those of N plain tiles.
template <class W, int N, int UNITS, int CHAINS, class Input>
__device__ __forceinline__ void sum_plain_tiles(Stages &stages, WarpSums &sums, u32 flip, u32 n_tokens, int warp, int lane, Input &input) {
    if constexpr (Input::IS_BARE) return sum_bare_tiles<N, UNITS, CHAINS>(stages, sums, flip, n_tokens, warp, lane, input);
    else if (input.holds()) sum_held_tiles<N, UNITS, CHAINS>(stages, sums, flip, n_tokens, warp, lane, input);
    else sum_tiles<N, UNITS, CHAINS>(stages, sums, flip, n_tokens, warp, lane, input);
}

// Those of up to TILES coded tiles, a multiple of TOGETHER. So many pairs of units are unpacked
// before the input is awaited: of one token, of several.
constexpr int MOST_UNPACKED = 11, FEW_UNPACKED = 6;
template <class W, int TILES, int TOGETHER, int UNITS, bool ONE, class Input>
__device__ __forceinline__ void sum_any_coded_tiles(Stages &stages, WarpSums &sums, u32 flip, int first_tile, int n_tiles, u32 n_tokens, int warp, int lane, Input &input) {
    if constexpr (W::IS_UNIFORM)
        if (input.holds_coded())
            return for_count<TILES / TOGETHER>(n_tiles / TOGETHER, [&](auto n) INLINED {
                constexpr int N = decltype(n)::VALUE * TOGETHER;
                float sum[(N + 1) / 2][4] = {};
                sum_held_coded_tiles<W, N, UNITS, ONE ? MOST_UNPACKED : FEW_UNPACKED, ONE>(stages, sum, warp, lane, input, n_tokens);
                leave_pairs<N, 1>(sums, flip, n_tokens, warp, lane, [&](int tile, int, int e) INLINED { return sum[tile / 2][tile % 2 * 2 + e]; });
            });
    if constexpr (TOGETHER == 2 && goes_side_by_side<W, UNITS>())
        return for_count<TILES / 2>(n_tiles / 2, [&](auto n) INLINED {
            constexpr int PAIRS = decltype(n)::VALUE;
            sum_pairs_of_tiles<W, PAIRS, UNITS, ONE>(stages, n_tokens, warp, lane, input, [&](const float (&sum)[PAIRS][4]) INLINED {
                leave_pairs<2 * PAIRS, 1>(sums, flip, n_tokens, warp, lane, [&](int tile, int, int e) INLINED { return sum[tile / 2][tile % 2 * 2 + e]; });
            });
        });
    constexpr bool ODD = TOGETHER == 1 && HiddenRows::MOST_TILES % 2 == 1;
    sum_coded_tiles<W, UNITS, ONE, ODD>(stages, first_tile, n_tiles, n_tokens, warp, lane, input, [&](int tile) INLINED { return sums.of[flip][tile][warp]; });
}

// Adds up the sums of warps of some groups of tiles, and hands them to `store(first tile, token, row,
// sums, whether there is such a row)`, by THREADS threads, of whole warps. Rows are shared out as if there
// were 1, 2, 4 or 8 tokens.
__device__ __forceinline__ u32 sum_shift(u32 n_tokens) { return n_tokens == 1 ? 3 : n_tokens == 2 ? 4 : n_tokens <= 4 ? 5 : 6; }
template <int TOGETHER, int CHAINS, int THREADS, class Store>
__device__ __forceinline__ void add_sums(const WarpSums &sums, u32 flip, int first, int n_groups, u32 shift, u32 n_tokens, u32 thread, int lane, Store store) {
#pragma unroll 1
    for (u32 i = thread; i - lane < n_groups << shift; i += THREADS) {
        const u32 group = min(i >> shift, n_groups - 1), at = i & ((1 << shift) - 1);
        float total[TOGETHER];
#pragma unroll
        for (int t = 0; t < TOGETHER; ++t) {
            const auto *of = &sums.of[flip][(group * TOGETHER + t) * CHAINS];
            total[t] = of[0][0][at];
#pragma unroll
            for (int chain = 1; chain < WARPS * CHAINS; ++chain) total[t] += of[chain % CHAINS][chain / CHAINS][at];
        }
        store(first + group * TOGETHER, at / 8, at % 8, total, i >> shift < n_groups && at / 8 < n_tokens);
    }
}
// Where sums stay with the warps that multiply: they meet, and add them up.
struct KeptSums {
    __device__ __forceinline__ void begin(u32) const {}
    __device__ __forceinline__ bool are_left() const { return false; }
    __device__ __forceinline__ void end() const {}
};

// The computing warps. `input.begin(portion)` is called before a portion of this warp's input is
// needed, `input.unit(portion, u)` is a unit of it, `input.next()` goes on to other tiles. Coded
// tiles have `input.ready(first, n)`, which awaits some units, and `input.from(unit)`, where this
// lane's part of one lies. Sums go to `store(first of TOGETHER tiles, token, row in the tile, sums,
// whether there is such a row)`, called by whole warps; unless `handed` leaves them to others, round by
// round.
template <class W, int TILES, int TOGETHER, int UNITS, int CHAINS, class Input, class Store, class Handed = KeptSums>
__device__ __forceinline__ void multiply_tiles(Stages &stages, WarpSums &sums, u32 &flip, const TileRange &own, u32 n_tokens, int warp, int lane,
                                               Input input, Store store, Handed handed = {}) {
    static_assert(TILES / TOGETHER <= 6, "each count of groups has its own number");
    const u32 shift = sum_shift(n_tokens);
#pragma unroll 1
    for (int first = own.first; first < own.end; first += TILES, input.next()) {
        const int n_groups = min(TILES, own.end - first) / TOGETHER;
        // The sums before last were read before the last meeting. The last ones may be in use for a
        // fold (attend.cuh).
        flip ^= 1;
        handed.begin(flip);
        if constexpr (W::IS_PLAIN)
            for_count<TILES / TOGETHER>(n_groups, [&](auto n) {
                constexpr int N = decltype(n)::VALUE * TOGETHER;
                static_assert(N * CHAINS <= MOST_TILES_AT_ONCE, "every chain's sums have a place");
                sum_plain_tiles<W, N, UNITS, CHAINS>(stages, sums, flip, n_tokens, warp, lane, input);
            });
        else if (n_tokens == 1) sum_any_coded_tiles<W, TILES, TOGETHER, UNITS, true>(stages, sums, flip, first, n_groups * TOGETHER, n_tokens, warp, lane, input);
        else sum_any_coded_tiles<W, TILES, TOGETHER, UNITS, false>(stages, sums, flip, first, n_groups * TOGETHER, n_tokens, warp, lane, input);
        if (handed.are_left()) continue;
        meet();
        add_sums<TOGETHER, CHAINS, WARPS * 32>(sums, flip, first, n_groups, shift, n_tokens, warp * 32 + lane, lane, store);
    }
    handed.end();
}
