// Products of coded matrices in the persistent kernel: the sums of `matvec.cuh` in their order, so
// the same bits. A stage holds a strip of a tile; where a warp has few units of each tile, it holds
// several tiles.
#pragma once

#include "kernels/coded.cuh"
#include "persistent/ring.cuh"

template <class W, int UNITS> struct CodedStage {
    static constexpr int STRIP = strip_units(UNITS, W::CODED_BYTES), STRIPS = strips(UNITS, W::CODED_BYTES);
    static constexpr int STRIP_ROOM = WARPS * STRIP * W::BYTES;
    static constexpr int TILES = STRIPS > 1 ? 1 : LONG_STAGE_BYTES / STRIP_ROOM;
    static_assert(TILES > 0, "a stage holds a strip");
    // Stages on their way at once, instead of `n` full ones.
    static constexpr int in_flight(int n) { return (n * WEIGHT_STAGE_BYTES + TILES * STRIP_ROOM - 1) / (TILES * STRIP_ROOM); }
    // Stages of some tiles.
    static constexpr int stages(int n_tiles) { return (n_tiles + TILES - 1) / TILES; }
};

// The copying warp: stages in the order `sum_coded_tiles` takes them in. False where the block has
// left.
template <class W, int UNITS> __device__ __forceinline__ bool load_coded_tiles(Copier &copier, const u8 *weights, int first_tile, int end_tile, int at_once) {
    using Stage = CodedStage<W, UNITS>;
    for (int group = first_tile; group < end_tile; group += at_once)
        for (int strip = 0; strip < Stage::STRIPS; ++strip) {
            const int end = min(group + at_once, end_tile), units = min(Stage::STRIP, UNITS - strip * Stage::STRIP);
            for (int tile = group; tile < end; tile += Stage::TILES) {
                const u64 from = tile_place<W>(tile, UNITS);
                // Several tiles follow one another; of one, a strip does.
                const u32 unit_bytes = W::unit_bytes(tile);
                const u32 bytes = Stage::TILES > 1 ? tile_place<W>(min(tile + Stage::TILES, end), UNITS) - from : WARPS * units * unit_bytes;
                const u8 *first = weights + from + strip * (WARPS * Stage::STRIP) * unit_bytes;
                const bool pushed = copier.push(bytes, [&](u8 *stage, u64 *full) { copy(stage, first, bytes, full, copier.lane); });
                if (!pushed) return false;
            }
        }
    return true;
}

// This warp's units of each of N tiles, in the stages of a strip.
template <class W, int N, int UNITS> struct StripUnits {
    using Stage = CodedStage<W, UNITS>;
    int width; // units of each
    const u8 *tiles[N];
    __device__ __forceinline__ StripUnits(Stages &stages, int strip, int first_tile, int warp, int lane)
        : width(Stage::STRIPS == 1 ? UNITS : min(Stage::STRIP, UNITS - strip * Stage::STRIP)) {
        stages.wait_for_all(Stage::stages(N), lane);
#pragma unroll
        for (int tile = 0; tile < N; ++tile) {
            const int in_stage = first_tile + tile / Stage::TILES * Stage::TILES; // the first of its stage
            const u32 before = Stage::TILES > 1 ? (u32)(tile_place<W>(first_tile + tile, UNITS) - tile_place<W>(in_stage, UNITS)) : 0;
            tiles[tile] = stages.at(tile / Stage::TILES) + before + warp * width * W::unit_bytes(first_tile + tile);
        }
    }
};

// A warp's sums of N tiles from `first_tile` on. Tokens are the rows of a product, which all tiles
// share. Units are taken four at a time: `input.ready(first, n)` awaits them, `input.at(unit)` is
// one of them. Up to EARLY units of each tile are unpacked before; then all tiles have one form.
constexpr int UNITS_AT_ONCE = 4;
template <class W, int N, int UNITS, int EARLY, class Input>
__device__ __forceinline__ void sum_coded_tiles(Stages &stages, float (&sum)[N][4], int first_tile, int warp, int lane, Input &input) {
    using Stage = CodedStage<W, UNITS>;
    const u32 zero = unknown_zero();
#pragma unroll 1
    for (int strip = 0; strip < Stage::STRIPS; ++strip) {
        const StripUnits<W, N, UNITS> units(stages, strip, first_tile, warp, lane);
        uint4 early[N][EARLY > 0 ? EARLY : 1];
        if constexpr (EARLY > 0)
#pragma unroll
            for (int i = 0; i < N * EARLY; ++i)
                early[i / EARLY][i % EARLY] = unpack<typename W::Form>(units.tiles[i / EARLY] + i % EARLY * W::BYTES, lane);
#pragma unroll 1
        for (int first = 0; first < units.width; first += UNITS_AT_ONCE) {
            input.ready(strip * Stage::STRIP + first, min(UNITS_AT_ONCE, units.width - first));
#pragma unroll
            for (int i = 0; i < UNITS_AT_ONCE; ++i) {
                const int u = first + i;
                if (u >= units.width) break;
                const Interleaved x(input.at(strip * Stage::STRIP + u), make_uint4(0, 0, 0, 0), zero);
                if constexpr (W::IS_UNIFORM) {
                    using F = typename W::Form;
                    const UnitInput<F> of_unit(x, lane);
#pragma unroll
                    for (int tile = 0; tile < N; ++tile) {
                        const u8 *unit = units.tiles[tile] + u * F::BYTES;
                        if (i < EARLY) add_unit<F, false>(sum[tile], of_unit, unit, early[tile][i < EARLY ? i : 0], lane);
                        else add_unit<F, false>(sum[tile], of_unit, unit, lane);
                    }
                } else {
#pragma unroll
                    for (int tile = 0; tile < N; ++tile)
                        W::with(first_tile + tile, [&](auto form) INLINED {
                            using F = decltype(form);
                            add_unit<F, false>(sum[tile], UnitInput<F>(x, lane), units.tiles[tile] + u * F::BYTES, lane);
                        });
                }
            }
        }
        stages.release(Stage::stages(N), lane);
    }
}

// The same for a few tokens of a narrow model: two tiles take the rows of a product, tokens its
// columns. As many units as registers can hold are unpacked before the input is awaited.
constexpr int MOST_HELD_NUMBERS = 64;
template <class W, int N, int UNITS, bool ONE, class Input>
__device__ __forceinline__ void sum_held_coded_tiles(Stages &stages, float (&sum)[(N + 1) / 2][4], int first_tile, int warp, int lane, Input &input) {
    using Stage = CodedStage<W, UNITS>;
    using F = typename W::Form;
    constexpr int PAIRS = (N + 1) / 2, ALL = PAIRS * Stage::STRIP, FIT = MOST_HELD_NUMBERS / (8 + 2 * F::RUNS * (1 + F::HAS_OFFSET));
    constexpr int HELD = FIT < ALL ? FIT : ALL;
    const u32 zero = unknown_zero();
#pragma unroll 1
    for (int strip = 0; strip < Stage::STRIPS; ++strip) {
        const StripUnits<W, N, UNITS> units(stages, strip, first_tile, warp, lane);
        const auto pair = [&](int i) INLINED {
            const int u = i / PAIRS, tile = i % PAIRS * 2;
            const u8 *lower = tile + 1 < N ? units.tiles[tile + 1 < N ? tile + 1 : 0] + u * F::BYTES : nullptr;
            return UnitPair<F>(units.tiles[tile] + u * F::BYTES, lower, lane, zero);
        };
        UnitPair<F> held[HELD];
#pragma unroll
        for (int i = 0; i < HELD; ++i)
            if (i / PAIRS < units.width) held[i] = pair(i);
        input.ready(strip * Stage::STRIP, units.width);
#pragma unroll
        for (int u = 0; u < Stage::STRIP; ++u) {
            if (u >= units.width) break;
            const ColumnInput<F> x(input.at(strip * Stage::STRIP + u), lane, zero);
#pragma unroll
            for (int i = u * PAIRS; i < (u + 1) * PAIRS; ++i) {
                if (i < HELD) held[i < HELD ? i : 0].template add<ONE>(sum[i % PAIRS], x);
                else pair(i).template add<ONE>(sum[i % PAIRS], x);
            }
        }
        stages.release(Stage::stages(N), lane);
    }
}
