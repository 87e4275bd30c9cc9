// `expert_down_add` in the persistent kernel: a block has rows of the residual stream, as in
// `down_add`, of every expert that is used. It is empty for models without experts.
//
// Two tiles of an expert take the rows of a product, tokens its columns. The products of a pair of
// tiles wait until those of all experts are there; then they are weighed and added, token by token,
// in the order of experts: that of kernels/experts.cuh, so the same bits.
#pragma once

#include "generated/constants.cuh"
#if HAS_EXPERTS

#include "generated/experts.cuh"
#include "kernels/expert_row.cuh"
#include "kernels/routing.cuh"
#include "persistent/expert_gate_up.cuh"
#include "persistent/launch.cuh"
#include "persistent/product.cuh"

// Calls `work` with the matrix of a layer.
template <class Work> __device__ __forceinline__ void with_expert_down(u32 variant, Work work) { EXPERT_DOWN_MATRICES(CALL_WITH_MATRIX) }

// ---- loading ------------------------------------------------------------------------------------
// The copying warp: pairs of the block's tiles, each of all experts that are used. False where the
// block has left.
template <class W> __device__ __forceinline__ bool load_expert_down(Copier &copier, const Distinct &used, const u8 *weights, const TileRange &own) {
    using Stage = TileStage<W, EXPERT_UNITS>;
    copier.in_flight = Stage::in_flight(EXPERTS_IN_FLIGHT);
    const u64 each = expert_bytes<W>((HIDDEN + 7) / 8, EXPERT_UNITS);
    const int n = used.n;
    for (int pair = own.first; pair < own.end; pair += 2) {
        const int n_tiles = min(2, own.end - pair);
        const u8 *of_pair = weights + tile_place<W>(pair, EXPERT_UNITS), *second = weights + tile_place<W>(pair + 1, EXPERT_UNITS);
        const auto tile = [&](int expert, int i) { return (i == 0 ? of_pair : second) + used.experts[expert] * each; };
        if constexpr (Stage::PAIRS > 0)
            for (int first = 0; first < n; first += Stage::PAIRS) {
                const int n_experts = min(Stage::PAIRS, n - first);
                // Found before there is room for them.
                const u8 *from[Stage::PAIRS];
#pragma unroll
                for (int i = 0; i < Stage::PAIRS; ++i) from[i] = tile(min(first + i, n - 1), 0);
                const bool pushed = copier.push(n_experts * n_tiles * Stage::ROOM, [&](u8 *stage, u64 *full) {
                    // Two tiles follow one another.
#pragma unroll
                    for (int i = 0; i < Stage::PAIRS; ++i)
                        if (i < n_experts) copy_passing(stage + i * (2 * Stage::ROOM), from[i], n_tiles * Stage::ROOM, full, copier.lane);
                });
                if (!pushed) return false;
            }
        else
            for (int i = 0; i < n * Stage::STRIPS * n_tiles; ++i) {
                const int strip = i / n_tiles % Stage::STRIPS;
                const bool pushed = copier.push(WARPS * Stage::width(strip) * W::BYTES, [&](u8 *stage, u64 *full) {
                    Stage::copy_strip(stage, tile(i / (n_tiles * Stage::STRIPS), i % n_tiles), strip, W::BYTES, full, copier.lane);
                });
                if (!pushed) return false;
            }
    }
    return true;
}

// ---- computing ----------------------------------------------------------------------------------
// Sums of warps, and products: where a block's other products have their sums.
constexpr int PRODUCT_ROOM = FEW * N_CHOSEN * 16, EXPERT_SUMS = (int)(sizeof(WarpSums) / 4) - PRODUCT_ROOM;
static_assert(EXPERT_SUMS >= 2 * 2 * WARPS * 64, "there is room for two experts of eight tokens");

// A warp's eighth of rows of h, once they are there, into its stage: [row][unit][4] chunks of eight
// columns. Columns beyond the last are zero and nobody sends them.
// ONE token's rows are those of its routes, in order.
template <bool ONE> __device__ __forceinline__ void await_inputs(Block &block, const Distinct &used, u32 first_row, u32 n_rows) {
    constexpr u32 OF_ROW = EXPERT_UNITS * 8, ALL = (N_CHOSEN * OF_ROW + 31) / 32, AT_ONCE = ALL < 8 ? ALL : 8; // pieces of four columns
    const u32 n_pieces = n_rows * OF_ROW, number = block.number_before(1);
    __syncwarp();
#pragma unroll 1
    for (u32 first = 0; first < n_pieces; first += 32 * AT_ONCE) {
        const u64 *from[AT_ONCE];
        bool second[AT_ONCE];
        TwoWords got[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const u32 piece = first + i * 32 + block.lane, column = block.warp * (EXPERT_UNITS * 32) + piece % OF_ROW * 4;
            const bool there = piece < n_pieces && column < EXPERT_INTER;
            const u32 row = first_row + piece / OF_ROW;
            from[i] = there ? block.launch.h + (ONE ? row : used.sources[row]) * (EXPERT_STRIDE / 2) + column / 2 : nullptr;
            second[i] = column + 2 < EXPERT_INTER;
        }
        block.watch.until([&] {
            bool all = true;
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                got[i] = {0, 0};
                if (!from[i]) continue;
                got[i] = load_two_relaxed(from[i]);
                all &= number_of(got[i].first) == number && (number_of(got[i].second) == number || !second[i]);
            }
            return all;
        });
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const u32 piece = first + i * 32 + block.lane;
            if (piece < n_pieces) ((uint2 *)block.x)[piece] = make_uint2(value_of(got[i].first), second[i] ? value_of(got[i].second) : 0);
        }
    }
    __syncwarp();
}

// A warp's sums of a pair of tiles of an expert, whose input lies at `x`; or of two experts side by
// side, because each has few units, which wait for one another.
constexpr bool inputs_of_two_fit() {
    for (u32 n = 1; n <= FEW; ++n)
        if (x_units(n) < 2 * n * EXPERT_UNITS) return false;
    return true;
}
// Whether so many experts begin and end with stages.
template <class Stage> constexpr bool come_out_even(int n) {
    return Stage::STRIPS == 1 && (Stage::PAIRS == 0 || (Stage::PAIRS < n ? n % Stage::PAIRS == 0 : Stage::PAIRS % n == 0));
}
template <class W, bool ONE> struct ExpertPair {
    using Stage = TileStage<W, EXPERT_UNITS>;
    using F = typename W::Form;
    static constexpr bool IS_EVEN = EXPERT_UNITS % Stage::STRIP == 0 && Stage::STRIP % units_together(Stage::STRIP) == 0;
    // Of one token four, if its experts come out even and their weights take few registers.
    static constexpr bool ARE_FOUR = ONE && !W::IS_PLAIN && N_CHOSEN % 4 == 0 && come_out_even<Stage>(4);
    static constexpr int AT_ONCE = ARE_FOUR ? 4 : inputs_of_two_fit() && come_out_even<Stage>(2) ? 2 : 1;

    static __device__ __forceinline__ void add(float (&sum)[1][4], Block &block, int expert, int n_experts, int n_tiles, const uint4 *const (&x)[1], u32 zero) {
        Stages &stages = block.stages;
#pragma unroll 1
        for (int strip = 0; strip < Stage::STRIPS; ++strip) {
            const int width = Stage::width(strip), in_stage = Stage::PAIRS > 0 ? expert % max(Stage::PAIRS, 1) : 0;
            if (Stage::PAIRS == 0) stages.wait_for_all(n_tiles, block.lane);
            else if (in_stage == 0) stages.wait_for_all(1, block.lane);
            const u8 *upper = stages.at(0) + in_stage * (2 * Stage::ROOM) + block.warp * width * F::BYTES;
            // A tile without another is both.
            const u8 *lower = n_tiles == 1 ? upper : Stage::PAIRS == 0 ? stages.at(1) + block.warp * width * F::BYTES : upper + Stage::ROOM;
            add_strip<F, Stage::STRIP, IS_EVEN, ONE, false>(sum[0], upper, lower, x[0] + strip * (Stage::STRIP * 4), nullptr, width, 1, block.lane, zero);
            if (Stage::PAIRS == 0) stages.release(n_tiles, block.lane);
            else if (in_stage + 1 == Stage::PAIRS || expert + 1 == n_experts) stages.release(1, block.lane);
        }
    }
    // Those that are missing are the last one again.
    template <int N> static __device__ __forceinline__ void add(float (&sum)[N][4], Block &block, int expert, int n_experts, int n_tiles, const uint4 *const (&x)[N], u32 zero) {
        constexpr int PAIRS = Stage::PAIRS, OF_STAGE = PAIRS > 0 ? PAIRS : 1;
        Stages &stages = block.stages;
        const int n = min(N, n_experts - expert), in_stage = PAIRS > N ? expert % OF_STAGE : 0;
        const int of_one = PAIRS > 0 ? 1 : n_tiles, n_stages = (n + OF_STAGE - 1) / OF_STAGE * of_one;
        if (in_stage == 0) stages.wait_for_all(n_stages, block.lane);
        const u8 *upper[N], *lower[N];
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const int at = in_stage + min(i, n - 1), stage = at / OF_STAGE * of_one;
            const u8 *first = stages.at(stage) + (at % OF_STAGE) * (2 * Stage::ROOM) + block.warp * EXPERT_UNITS * F::BYTES;
            upper[i] = first;
            // A tile without another is both.
            lower[i] = n_tiles == 1 ? first : PAIRS > 0 ? first + Stage::ROOM : stages.at(stage + 1) + block.warp * EXPERT_UNITS * F::BYTES;
        }
#pragma unroll
        for (int i = 0; i < N * EXPERT_UNITS; ++i) {
            const int u = i / N, of = i % N;
            add_pair<F, ONE>(sum[of], upper[of] + u * F::BYTES, lower[of] + u * F::BYTES, ColumnInput<F, ONE>(x[of][u * 4], block.lane, zero), block.lane, zero);
        }
        if (PAIRS <= N || in_stage + N == PAIRS || expert + N >= n_experts) stages.release(n_stages, block.lane);
    }
};

// ---- one token ----------------------------------------------------------------------------------
// Where sums of one token are: [expert][tile][warp][row], and some room that keeps those who read
// them out of each other's way. A row's experts are lanes that follow one another.
constexpr int OF_EXPERT = 2 * WARPS * 8 + 4;
constexpr bool EXPERTS_ARE_LANES = 32 % N_CHOSEN == 0 && N_CHOSEN * OF_EXPERT * 4 <= (int)sizeof(WarpSums) / 2;

template <class W> __device__ __forceinline__ void add_products_of_one(Block &block) {
    using Pair = ExpertPair<W, true>;
    const Distinct &used = block.shared.used;
    const TileRange own = block.shared.own.hidden;
    if (own.first == own.end) return;
    const u32 zero = unknown_zero();
    await_inputs<true>(block, used, 0, N_CHOSEN);
#pragma unroll 1
    for (int pair = own.first; pair < own.end; pair += 2) {
        const int n_tiles = min(2, own.end - pair);
        block.flip ^= 1; // as `multiply_tiles` does
        float *sums = (float *)&block.shared.scratch.sums.of[block.flip];
#pragma unroll 1
        for (int expert = 0; expert < N_CHOSEN; expert += Pair::AT_ONCE) {
            float sum[Pair::AT_ONCE][4] = {};
            const uint4 *x[Pair::AT_ONCE];
#pragma unroll
            for (int i = 0; i < Pair::AT_ONCE; ++i) x[i] = block.x + min(expert + i, N_CHOSEN - 1) * (EXPERT_UNITS * 4) + block.lane % 4;
            Pair::add(sum, block, expert, N_CHOSEN, n_tiles, x, zero);
#pragma unroll
            for (int i = 0; i < Pair::AT_ONCE; ++i)
                if (block.lane % 4 == 0 && expert + i < N_CHOSEN) {
                    float *to = sums + (expert + i) * OF_EXPERT + block.warp * 8 + block.lane / 4;
                    to[0] = sum[i][0], to[WARPS * 8] = sum[i][2];
                }
        }
        meet();
#pragma unroll 1
        for (u32 i = block.thread(); i - block.lane < 16 * N_CHOSEN; i += WARPS * 32) {
            const u32 row = min(i / N_CHOSEN, 15u), route = i % N_CHOSEN, r = pair * 8 + row;
            const float *of = sums + route * OF_EXPERT + row / 8 * (WARPS * 8) + row % 8;
            float total = of[0], sum = 0.0f;
#pragma unroll
            for (int w = 1; w < WARPS; ++w) total += of[w * 8];
            total = __fmul_rn(used.routes[0][route].weight, total);
#pragma unroll
            for (int other = 0; other < N_CHOSEN; ++other) sum += __shfl_sync(FULL, total, block.lane / N_CHOSEN * N_CHOSEN + other);
            const bool there = i < 16 * N_CHOSEN && row / 8 < n_tiles && r < HIDDEN;
            u16 value = 0;
            if (there) {
                u16 &before = block.shared.residual[r - own.first * 8][0];
                value = round_one(widen(before) + sum);
                if (route == 0) {
                    before = value;
                    if (block.is_last()) block.launch.plain.x[r] = value;
                }
            }
            const u32 next = __shfl_down_sync(FULL, (u32)value, N_CHOSEN);
            if (there && route == 0 && row % 2 == 0) store_word(block.launch.x + r / 2, value | next << 16, block.number);
        }
    }
}

// ---- several tokens, a row at a time -------------------------------------------------------------
// A warp's row of h as words: eighth g in lanes 4g to 4g + 3, as `multiply_row` takes it.
struct AskedRow {
    TwoWords words[EXPERT_UNITS][2];
    // Columns beyond the last are zero and nobody sends them.
    static __device__ __forceinline__ u32 column(int unit, int half, int lane) { return (lane / 4 * EXPERT_UNITS + unit) * 32 + lane % 4 * 8 + half * 4; }
    static __device__ __forceinline__ bool is_sent(u32 column) { return EXPERT_STRIDE == EXPERT_INTER || column < EXPERT_INTER; }
    __device__ __forceinline__ void ask(const u64 *row, int lane) {
#pragma unroll
        for (int i = 0; i < 2 * EXPERT_UNITS; ++i) {
            const u32 first = column(i / 2, i % 2, lane);
            if (is_sent(first)) words[i / 2][i % 2] = load_two_relaxed(row + first / 2);
        }
    }
    __device__ __forceinline__ bool is_there(u32 number, int lane) const {
        bool all = true;
#pragma unroll
        for (int i = 0; i < 2 * EXPERT_UNITS; ++i) {
            const TwoWords &two = words[i / 2][i % 2];
            const u32 first = column(i / 2, i % 2, lane);
            all &= !is_sent(first) || number_of(two.first) == number && (!is_sent(first + 2) || number_of(two.second) == number);
        }
        return all;
    }
    __device__ __forceinline__ ExpertRow values(int lane) const {
        ExpertRow row;
#pragma unroll
        for (int u = 0; u < EXPERT_UNITS; ++u) {
            const auto value = [&](int half, u64 word, int of) INLINED { return is_sent(column(u, half, lane) + of * 2) ? value_of(word) : 0; };
            row.units[u] = make_uint4(value(0, words[u][0].first, 0), value(0, words[u][0].second, 1), value(1, words[u][1].first, 0), value(1, words[u][1].second, 1));
        }
        return row;
    }
};
// Whether a row's products are those of one warp: an expert's tiles lie in one stage, and registers
// have room for them.
template <class W> constexpr bool goes_by_rows() {
    if constexpr (W::IS_PLAIN || !W::IS_UNIFORM) return false;
    else return TileStage<W, EXPERT_UNITS>::PAIRS > 0 && has_small_units<typename W::Form>() && EXPERT_UNITS <= 4;
}
// The stages of a pair of tiles of all experts that are used, as a warp takes those that it reads. Few
// are skipped at once, because the ring may have no room for more.
template <class Stage> struct OwnStages {
    static constexpr int AT_ONCE = 4;
    Stages &stages;
    int lane, n = 0;    // that were given back
    bool reads = false; // the next one
    // Up to a stage, without it.
    __device__ __forceinline__ void skip_to(int end) {
        if (reads && n < end) stages.release(1, lane), ++n, reads = false;
        for (; n < end; n = min(n + AT_ONCE, end)) stages.skip(min(end - n, AT_ONCE), lane);
    }
    // Where an expert's tiles lie, once they are there.
    __device__ __forceinline__ const u8 *await(int expert) {
        skip_to(expert / Stage::PAIRS);
        stages.wait_for_all(1, lane);
        reads = true;
        return stages.at(0) + expert % Stage::PAIRS * (2 * Stage::ROOM);
    }
};
// Products of all rows of a pair of tiles, to products[source][row]. Warps take rows in turn, and give
// back every stage.
template <class W> __device__ __forceinline__ void multiply_rows(Block &block, float *products, int n_tiles) {
    using Stage = TileStage<W, EXPERT_UNITS>;
    const Distinct &used = block.shared.used;
    const u32 number = block.number_before(1), n_rows = used.first_row[used.n];
    const auto words_of = [&](u32 row) { return block.launch.h + used.sources[row] * (EXPERT_STRIDE / 2); };
    OwnStages<Stage> own{block.stages, block.lane};
    AskedRow asked;
    int expert = 0;
    if (block.warp < n_rows) asked.ask(words_of(block.warp), block.lane);
#pragma unroll 1
    for (u32 row = block.warp; row < n_rows; row += WARPS) {
        while (row >= used.first_row[expert + 1]) ++expert;
        const u8 *tiles = own.await(expert);
        const u32 source = used.sources[row];
        block.watch.until([&] {
            if (asked.is_there(number, block.lane)) return true;
            asked.ask(words_of(row), block.lane);
            return false;
        });
        __syncwarp();
        const ExpertRow input = asked.values(block.lane);
        // The next one comes meanwhile.
        if (row + WARPS < n_rows) asked.ask(words_of(row + WARPS), block.lane);
        float total[2];
        multiply_row<typename W::Form>(total, tiles, n_tiles == 1 ? 0 : Stage::ROOM, input, block.lane);
        if (block.lane % 4 == 3) {
            float *to = products + source * 16 + block.lane / 4;
            to[0] = total[0], to[8] = total[1];
        }
    }
    own.skip_to((used.n + Stage::PAIRS - 1) / Stage::PAIRS);
}

// ---- several tokens, in batches of experts ------------------------------------------------------
// The same products, where warps share the columns: as many experts at a time as there is room for.
template <class W, bool ONE> __device__ __forceinline__ void multiply_batches(Block &block, float *sums, float *products, int n_tiles) {
    constexpr int AT_ONCE = ExpertPair<W, ONE>::AT_ONCE;
    const Distinct &used = block.shared.used;
    const u32 n_tokens = ONE ? 1 : block.n_tokens, each = n_tokens * 8, zero = unknown_zero(); // sums of a tile
    const int n = ONE ? N_CHOSEN : used.n, most_experts = EXPERT_SUMS / (2 * WARPS * each);
    const u32 most_rows = x_units(n_tokens) / EXPERT_UNITS, own_token = min((u32)block.lane / 4, n_tokens - 1);
    int end = 0;
#pragma unroll 1
    for (int first = 0; first < n; first = end) {
        for (end = min(first + AT_ONCE, n); end < n && end + AT_ONCE <= first + most_experts; end = min(end + AT_ONCE, n))
            if (used.first_row[min(end + AT_ONCE, n)] - used.first_row[first] > most_rows) break;
        const u32 first_row = used.first_row[first];
        await_inputs<false>(block, used, first_row, used.first_row[end] - first_row);
#pragma unroll 1
        for (int i = first; i < end; i += AT_ONCE) {
            float sum[AT_ONCE][4] = {};
            const uint4 *x[AT_ONCE];
#pragma unroll
            for (int of = 0; of < AT_ONCE; ++of) {
                // Tokens that do not use the expert may have any input: columns do not mix.
                const int expert = min(i + of, end - 1);
                const u32 row = used.has(expert, own_token) ? used.row(expert, own_token) : used.first_row[expert];
                x[of] = block.x + (row - first_row) * (EXPERT_UNITS * 4) + block.lane % 4;
            }
            ExpertPair<W, ONE>::add(sum, block, i, n, n_tiles, x, zero);
#pragma unroll
            for (int of = 0; of < AT_ONCE; ++of) {
                float *to = sums + ((min(i + of, end - 1) - first) * 2 * WARPS + block.warp) * each;
                const PairPlace place = {to, to + WARPS * each, n_tokens, block.lane};
                place.each([&](float &upper, float &lower, int e) INLINED { upper = sum[of][e], lower = sum[of][2 + e]; });
            }
        }
        meet();
        // A thread adds up the eighths of one product.
#pragma unroll 1
        for (u32 i = block.thread(); i < (end - first) * 2 * each; i += WARPS * 32) {
            const u32 tile = i / each, at = i % each, expert = first + tile / 2;
            if (!used.has(expert, at / 8)) continue;
            const float *of = sums + tile * WARPS * each + at;
            float total = of[0];
#pragma unroll
            for (int w = 1; w < WARPS; ++w) total += of[w * each];
            products[used.sources[used.row(expert, at / 8)] * 16 + tile % 2 * 8 + at % 8] = total;
        }
        meet();
    }
}

// x += sum of weight * (h * W), rounded once.
template <class W, bool ONE> __device__ __forceinline__ void add_expert_products(Block &block) {
    const Launch &launch = block.launch;
    const Distinct &used = block.shared.used;
    const TileRange own = block.shared.own.hidden;
    if (own.first == own.end) return;
    float *sums = (float *)&block.shared.scratch.sums, *products = sums + EXPERT_SUMS;
    const u32 n_tokens = ONE ? 1 : block.n_tokens;
    meet(); // the sums of the product before have been read
#pragma unroll 1
    for (int pair = own.first; pair < own.end; pair += 2) {
        const int n_tiles = min(2, own.end - pair);
        if constexpr (!ONE && goes_by_rows<W>()) {
            multiply_rows<W>(block, products, n_tiles);
            meet();
        } else multiply_batches<W, ONE>(block, sums, products, n_tiles);
#pragma unroll 1
        for (u32 i = block.thread(); i - block.lane < n_tokens * 16; i += WARPS * 32) {
            const u32 token = min(i / 16, n_tokens - 1), r = pair * 8 + i % 16;
            const bool there = i < n_tokens * 16 && i % 16 / 8 < n_tiles;
            u16 value = 0;
            if (there && r < HIDDEN) {
                float sum = 0.0f;
#pragma unroll 4
                for (int route = 0; route < N_CHOSEN; ++route)
                    sum += __fmul_rn(used.routes[token][route].weight, products[(token * N_CHOSEN + route) * 16 + i % 16]);
                u16 &before = block.shared.residual[r - own.first * 8][token];
                before = value = round_one(widen(before) + sum);
                if (block.is_last()) launch.plain.x[(u64)token * HIDDEN_STRIDE + r] = value;
            }
            publish_row(launch.x + token * (HIDDEN_STRIDE / 2), r, HIDDEN, there, value, block.number);
        }
        if (!ONE && goes_by_rows<W>() && pair + 2 < own.end) meet(); // products have been read
    }
}
__device__ __forceinline__ void compute_expert_down(Block &block) {
    with_expert_down(block.layer().variants.down, [&](auto matrix) INLINED {
        if (EXPERTS_ARE_LANES && block.n_tokens == 1) add_products_of_one<decltype(matrix)>(block);
        else if (block.n_tokens == 1) add_expert_products<decltype(matrix), true>(block);
        else add_expert_products<decltype(matrix), false>(block);
    });
}

#endif
