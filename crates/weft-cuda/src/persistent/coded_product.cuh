// Products of coded matrices in the persistent kernel: the sums of `matvec.cuh` in their order, so
// the same bits. A stage holds a strip of a tile; where a warp has few units of each tile, it holds
// several tiles. Two tiles take the rows of a product, tokens its columns.
#pragma once

#include "kernels/coded.cuh"
#include "persistent/ring.cuh"

template <class W, int UNITS> struct CodedStage {
    static constexpr int STRIP = strip_units(UNITS, W::CODED_BYTES), STRIPS = strips(UNITS, W::CODED_BYTES);
    static constexpr int STRIP_ROOM = WARPS * STRIP * W::BYTES;
    // Tiles of a stage: an even number, or one.
    static constexpr int TILES = STRIPS > 1 || LONG_STAGE_BYTES < 2 * STRIP_ROOM ? 1 : LONG_STAGE_BYTES / STRIP_ROOM / 2 * 2;
    static_assert(STRIP_ROOM <= LONG_STAGE_BYTES, "a stage holds a strip");
    // Stages on their way at once, instead of `n` full ones.
    static constexpr int in_flight(int n) { return (n * WEIGHT_STAGE_BYTES + TILES * STRIP_ROOM - 1) / (TILES * STRIP_ROOM); }
    // Stages of some tiles.
    static constexpr int stages(int n_tiles) { return (n_tiles + TILES - 1) / TILES; }
};

// The copying warp, where tiles differ in form: stages in the order the computing warps take them
// in. False where the block has left.
template <class W, int UNITS> __device__ __forceinline__ bool load_mixed_tiles(Copier &copier, const u8 *weights, int first_tile, int end_tile, int at_once) {
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
                const bool pushed = copier.push(bytes, [&](u8 *stage, u64 *full) { copy_passing(stage, first, bytes, full, copier.lane); });
                if (!pushed) return false;
            }
        }
    return true;
}

// ---- input that is there first -----------------------------------------------------------------
// Units of a strip that are computed without a condition between them.
constexpr int units_together(int strip) {
    for (int n = 8; n > 4; --n)
        if (strip % n == 0) return n;
    return strip < 4 ? strip : 4;
}

// Numbers that follow one another, by as large loads as they allow.
template <int N> __device__ __forceinline__ void read_numbers(float (&to)[N], const float *from) {
#pragma unroll
    for (int i = 0; i < N; i += N % 4 == 0 ? 4 : N % 2 == 0 ? 2 : 1) {
        if constexpr (N % 4 == 0) {
            const uint4 four = *(const uint4 *)(from + i);
            to[i] = __uint_as_float(four.x), to[i + 1] = __uint_as_float(four.y), to[i + 2] = __uint_as_float(four.z), to[i + 3] = __uint_as_float(four.w);
        } else if constexpr (N % 2 == 0) {
            const float2 two = *(const float2 *)(from + i);
            to[i] = two.x, to[i + 1] = two.y;
        } else to[i] = from[i];
    }
}

// N units of two tiles, from those at `upper` and `lower` on, with those of the input at `x`. Its sums
// over runs are at `sums` if they are KNOWN.
template <class F, int N, bool ONE, bool KNOWN>
__device__ __forceinline__ void add_pairs(float (&sum)[4], const u8 *upper, const u8 *lower, const uint4 *x, const float *sums, u32 n_tokens, int lane, u32 zero) {
    float of_runs[N * F::RUNS];
    if constexpr (KNOWN) read_numbers(of_runs, sums);
#pragma unroll
    for (int u = 0; u < N; ++u) {
        const uint4 unit = x[u * n_tokens * 4];
        const u8 *first = upper + u * F::BYTES, *second = lower + u * F::BYTES;
        if constexpr (KNOWN) add_pair<F, ONE>(sum, first, second, ColumnInput<F, ONE>(unit, lane, of_runs + u * F::RUNS), lane, zero);
        else add_pair<F, ONE>(sum, first, second, ColumnInput<F, ONE>(unit, lane, zero), lane, zero);
    }
}
template <class F, int STRIP, bool IS_EVEN, bool ONE, bool KNOWN>
__device__ __forceinline__ void add_strip(float (&sum)[4], const u8 *upper, const u8 *lower, const uint4 *x, const float *sums, int width, u32 n_tokens, int lane, u32 zero) {
    constexpr int N = units_together(STRIP);
    int u = 0;
#pragma unroll 1
    for (; u + N <= width; u += N)
        add_pairs<F, N, ONE, KNOWN>(sum, upper + u * F::BYTES, lower + u * F::BYTES, x + u * n_tokens * 4, sums + u * F::RUNS, n_tokens, lane, zero);
    if constexpr (!IS_EVEN)
#pragma unroll 1
        for (; u < width; ++u)
            add_pairs<F, 1, ONE, KNOWN>(sum, upper + u * F::BYTES, lower + u * F::BYTES, x + u * n_tokens * 4, sums + u * F::RUNS, n_tokens, lane, zero);
}

// The same of one token and a tile without another: two units at a time, where there are two.
template <class F, int N> __device__ __forceinline__ void add_twos(float &sum, const u8 *units, const uint4 *x, int lane) {
#pragma unroll
    for (int u = 0; u < N; u += 2) add_two<F>(sum, units + u * F::BYTES, ColumnInput<F, false>(x[u * 4 + lane / 4 % 2 * 4], lane, 0u), lane);
}
template <class F, int STRIP> __device__ __forceinline__ void add_odd_strip(float (&sum)[4], const u8 *tile, const uint4 *x, int width, int lane, u32 zero) {
    constexpr int N = STRIP % 10 == 0 ? 10 : STRIP % 8 == 0 ? 8 : STRIP % 6 == 0 ? 6 : STRIP < 4 ? 2 : 4;
    int u = 0;
#pragma unroll 1
    for (; u + N <= width; u += N) add_twos<F, N>(sum[0], tile + u * F::BYTES, x + u * 4, lane);
#pragma unroll 1
    for (; u + 2 <= width; u += 2) add_twos<F, 2>(sum[0], tile + u * F::BYTES, x + u * 4, lane);
    if (u < width) add_pairs<F, 1, true, false>(sum, tile + u * F::BYTES, tile + u * F::BYTES, x + u * 4, nullptr, 1, lane, zero);
}

// Two tiles' sums of a warp where they wait for those of all warps: tokens 2c and 2c + 1 of row g,
// in lane 4g + c.
struct PairPlace {
    float *upper, *lower;
    u32 n_tokens;
    int lane;
    template <class Move> __device__ __forceinline__ void each(Move move) const {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const u32 token = lane % 4 * 2 + e;
            if (token >= n_tokens) continue;
            move(upper[token * 8 + lane / 4], lower[token * 8 + lane / 4], e);
        }
    }
};

// A warp's sums of some tiles, a strip of a pair at a time: what a stage holds is given back as
// soon as it is read. `input.ready(first, n)` awaits some units, `input.from(unit)` is where this
// lane's part of one lies. `place(tile)` is where sums of a tile wait; behind those of the first, one
// token has room for the sums of its input over the runs of a strip. Where the blocks with the most
// tiles have an ODD number, the last tile takes half as long as a pair.
template <class W, int UNITS, bool ONE, bool ODD, class Input, class Place>
__device__ __forceinline__ void sum_coded_tiles(Stages &stages, int first_tile, int n_tiles, u32 n_tokens, int warp, int lane, Input &input, Place place) {
    using Stage = CodedStage<W, UNITS>;
    constexpr bool IS_EVEN = UNITS % Stage::STRIP == 0 && Stage::STRIP % units_together(Stage::STRIP) == 0;
    constexpr int SUMS_AT = 16; // of 64 numbers, of which a token has eight
    constexpr bool KNOWN = ONE && W::IS_UNIFORM && W::SUMMED_RUNS > 0 && (Stage::STRIP + 7) / 8 * 8 * W::SUMMED_RUNS <= 64 - SUMS_AT;
    const u32 zero = unknown_zero();
#pragma unroll 1
    for (int strip = 0; strip < Stage::STRIPS; ++strip) {
        const int width = UNITS % Stage::STRIP == 0 ? Stage::STRIP : min(Stage::STRIP, UNITS - strip * Stage::STRIP);
        input.ready(strip * Stage::STRIP, width);
        const uint4 *x = input.from(strip * Stage::STRIP);
        float *input_sums = place(0) + SUMS_AT;
        if constexpr (KNOWN) {
            __syncwarp();
            sum_input_runs<typename W::Form>(input_sums, x - lane % 4, width, lane, zero);
        }
#pragma unroll 1
        for (int i = 0; i < n_tiles; i += 2) {
            const int tile = first_tile + i, n = min(2, n_tiles - i), in_stage = i % Stage::TILES;
            if (Stage::TILES == 1) stages.wait_for_all(n, lane);
            else if (in_stage == 0) stages.wait_for_all(1, lane);
            const u32 before = Stage::TILES == 1 ? 0 : (u32)(tile_place<W>(tile, UNITS) - tile_place<W>(tile - in_stage, UNITS));
            const u32 after = (u32)(tile_place<W>(tile + 1, UNITS) - tile_place<W>(tile, UNITS));
            const u8 *upper = stages.at(0) + before + warp * width * W::unit_bytes(tile);
            // A tile without another is both.
            const u8 *lower = n == 1 ? upper : (Stage::TILES == 1 ? stages.at(1) : stages.at(0) + before + after) + warp * width * W::unit_bytes(tile + 1);
            const PairPlace own = {place(i), place(i + n - 1), n_tokens, lane};
            float sum[4] = {};
            if (Stage::STRIPS > 1 && strip > 0) own.each([&](float &first, float &second, int e) INLINED { sum[e] = first, sum[2 + e] = second; });
            if constexpr (W::IS_UNIFORM) {
                if (ONE && ODD && n == 1) add_odd_strip<typename W::Form, Stage::STRIP>(sum, upper, x, width, lane, zero);
                else add_strip<typename W::Form, Stage::STRIP, IS_EVEN, ONE, KNOWN>(sum, upper, lower, x, input_sums, width, n_tokens, lane, zero);
            } else {
                // Two forms: one after the other, each as both.
                const bool is_one = n == 1 || W::form_of(tile) == W::form_of(tile + 1);
                const float before_strip[4] = {sum[0], sum[1], sum[2], sum[3]};
#pragma unroll 1
                for (int t = is_one ? 1 : 0; t < 2; ++t) {
                    float of_both[4] = {before_strip[0], before_strip[1], before_strip[2], before_strip[3]};
                    const u8 *both[2] = {is_one || t == 0 ? upper : lower, t == 0 ? upper : lower};
                    W::with(is_one ? tile : tile + t, [&](auto form) INLINED {
                        add_strip<decltype(form), Stage::STRIP, IS_EVEN, ONE, false>(of_both, both[0], both[1], x, input_sums, width, n_tokens, lane, zero);
                    });
                    if (is_one || t == 0) sum[0] = of_both[0], sum[1] = of_both[1];
                    sum[2] = of_both[2], sum[3] = of_both[3];
                }
            }
            own.each([&](float &first, float &last, int e) INLINED { first = sum[e], last = n == 1 ? sum[e] : sum[2 + e]; });
            if (Stage::TILES == 1) stages.release(n, lane);
            else if (in_stage + 2 == Stage::TILES || i + 2 >= n_tiles) stages.release(1, lane);
        }
    }
}

// The same of some pairs of tiles at once, where a stage holds whole pairs of one form: a unit of the
// input is read once for all of them, and stages are awaited and given back together. `leave` has the
// sums of each pair, as `add_pair` gives them.
template <class W, int UNITS> constexpr bool goes_side_by_side() {
    if constexpr (!W::IS_UNIFORM || CodedStage<W, UNITS>::TILES == 1) return false;
    else return W::Form::RUNS == 1 && !W::Form::HAS_OFFSET;
}
template <class W, int PAIRS, int UNITS, bool ONE, class Input, class Leave>
__device__ __forceinline__ void sum_pairs_of_tiles(Stages &stages, u32 n_tokens, int warp, int lane, Input &input, Leave leave) {
    using Stage = CodedStage<W, UNITS>;
    using F = typename W::Form;
    constexpr int AT_ONCE = UNITS % 4 == 0 ? 4 : UNITS % 3 == 0 ? 3 : UNITS % 2 == 0 ? 2 : 1;
    const u32 zero = unknown_zero();
    constexpr int N_STAGES = Stage::stages(2 * PAIRS);
    input.ready(0, UNITS);
    const uint4 *x = input.from(0);
    stages.wait_for_all(N_STAGES, lane);
    const u8 *tiles[2 * PAIRS];
#pragma unroll
    for (int i = 0; i < 2 * PAIRS; ++i) tiles[i] = stages.at(i / Stage::TILES) + (i % Stage::TILES * (WARPS * UNITS) + warp * UNITS) * F::BYTES;
    float sum[PAIRS][4] = {};
#pragma unroll 1
    for (int first = 0; first < UNITS; first += AT_ONCE) {
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u) {
            const ColumnInput<F, ONE> unit(x[u * n_tokens * 4], lane, zero);
#pragma unroll
            for (int pair = 0; pair < PAIRS; ++pair) add_pair<F, ONE>(sum[pair], tiles[2 * pair] + u * F::BYTES, tiles[2 * pair + 1] + u * F::BYTES, unit, lane, zero);
        }
        x += AT_ONCE * n_tokens * 4;
#pragma unroll
        for (int i = 0; i < 2 * PAIRS; ++i) tiles[i] += AT_ONCE * F::BYTES;
    }
    leave(sum);
    stages.release(N_STAGES, lane);
}

// ---- weights that are there first --------------------------------------------------------------
// The same for a few tokens of a narrow model, whose N tiles have one form. MOST_HELD pairs of units
// are unpacked before the input is awaited. All strips are taken at once if there is room for their
// input.
template <class W, int N, int UNITS, int MOST_HELD, bool ONE, class Input>
__device__ __forceinline__ void sum_held_coded_tiles(Stages &stages, float (&sum)[(N + 1) / 2][4], int warp, int lane, Input &input, u32 n_tokens) {
    using Stage = CodedStage<W, UNITS>;
    using F = typename W::Form;
    constexpr int PAIRS = (N + 1) / 2;
    constexpr bool IS_WHOLE = Stage::STRIPS == 1 || PAIRS * UNITS <= LONGEST_STRIP && Stage::stages(N) * Stage::STRIPS <= 4;
    constexpr int STRIPS = IS_WHOLE ? Stage::STRIPS : 1, AT_ONCE = IS_WHOLE ? UNITS : Stage::STRIP; // strips and units that are taken at once
    constexpr int ALL = PAIRS * AT_ONCE, HELD = MOST_HELD < ALL ? MOST_HELD : ALL;
    const u32 zero = unknown_zero();
#pragma unroll 1
    for (int first = 0; first < UNITS; first += AT_ONCE) {
        const int width = min(Stage::STRIP, UNITS - first); // of a strip, but for the last of several
        stages.wait_for_all(STRIPS * Stage::stages(N), lane);
        const u8 *tiles[STRIPS][N];
#pragma unroll
        for (int i = 0; i < STRIPS * N; ++i) {
            const int strip = i / N, tile = i % N, own = STRIPS > 1 && strip == STRIPS - 1 ? UNITS - strip * Stage::STRIP : width;
            tiles[strip][tile] = stages.at(strip * Stage::stages(N) + tile / Stage::TILES) + (tile % Stage::TILES * (WARPS * UNITS) + warp * own) * F::BYTES;
        }
        const auto unit = [&](int i, int second) INLINED {
            const int u = i / PAIRS, tile = i % PAIRS * 2;
            return tiles[u / Stage::STRIP][tile + 1 < N ? tile + second : tile] + u % Stage::STRIP * F::BYTES;
        };
        Interleaved held[HELD];
#pragma unroll
        for (int i = 0; i < HELD; ++i)
            if (STRIPS > 1 || i / PAIRS < width) held[i] = unpack_pair<F>(unit(i, 0), unit(i, 1), lane, zero);
        input.ready(first, STRIPS > 1 ? UNITS : width);
        const uint4 *own = input.from(first);
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u) {
            if (STRIPS == 1 && u >= width) break;
            const ColumnInput<F, ONE> x(own[u * n_tokens * 4], lane, zero);
#pragma unroll
            for (int i = u * PAIRS; i < (u + 1) * PAIRS; ++i) {
                const Interleaved codes = i < HELD ? held[i < HELD ? i : 0] : unpack_pair<F>(unit(i, 0), unit(i, 1), lane, zero);
                add_pair<F, ONE>(sum[i % PAIRS], codes, PairNumbers<F>(unit(i, 0), unit(i, 1), lane), x);
            }
        }
        stages.release(STRIPS * Stage::stages(N), lane);
    }
}
