// The product of a coded matrix with a block of tokens by products of warpgroups (sm_90a).
//
// As in `matmul_tiled.cuh`, two warpgroups compute 64 rows x TOKENS tokens each and a third one
// copies. A stage has four units of columns. Rows lie in shared memory as codes; each warp unpacks
// those of its rows into the registers of the first operand while the product before is computed.
// The products of a run are summed from zero and added to the sums of their eighth as `coded.cuh`
// says: while the next product runs if runs have nothing but a scale, otherwise while the other group
// multiplies. The tiles of a group have one form.
#pragma once

#include "kernels/coded.cuh"
#include "kernels/matmul_tiled.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int STAGE_UNITS = 4, GROUP_TILES = 8;

template <class W, int TOKENS> struct CodedTiledShape {
    static constexpr int GROUP_BYTES = STAGE_UNITS * GROUP_TILES * W::BYTES; // of a group's rows in a stage
    static constexpr int TOKENS_AT = 2 * GROUP_BYTES, SUMS_AT = TOKENS_AT + STAGE_UNITS * TOKENS * 64;
    static constexpr int SUMS_BYTES = STAGE_UNITS * W::SUMMED_RUNS * TOKENS * 4; // of the input over runs
    static constexpr int STAGE = SUMS_AT + SUMS_BYTES;
    static constexpr int ROOM = (TILED_SHARED - 1024 - 2 * STAGED_TOKENS * STAGED_STRIDE) / STAGE;
    static constexpr int STAGES = ROOM < 6 ? ROOM : 6;
    static_assert(STAGES >= 2 && STAGE % 1024 == 0, "a ring");
};

// Copies a unit of each of a group's tiles, or of those of two groups. Where a lane's chunks lie takes
// divisions to find, so offsets are found once if all tiles have one form.
template <int BYTES, int UNITS> struct UnitCopies {
    static constexpr int CHUNKS = BYTES / 16, ALL = GROUP_TILES * CHUNKS, OWN = (ALL + 31) / 32;
    static constexpr u32 TILE_BYTES = WARPS * UNITS * BYTES;
    u32 offsets[OWN];
    __device__ __forceinline__ explicit UnitCopies(int lane) {
#pragma unroll
        for (int i = 0; i < OWN; ++i) offsets[i] = (i * 32 + lane) / CHUNKS * TILE_BYTES + (i * 32 + lane) % CHUNKS * 16;
    }
    // Groups' units lie `stride` apart in a stage.
    template <int GROUPS> __device__ __forceinline__ void copy(u8 *to, int stride, const u8 *from, int lane) const {
        to += lane * 16;
#pragma unroll
        for (int i = 0; i < OWN; ++i)
            if ((i + 1) * 32 <= ALL || lane < ALL % 32)
#pragma unroll
                for (int group = 0; group < GROUPS; ++group) copy_chunk(to + group * stride + i * 512, from + offsets[i] + group * GROUP_TILES * TILE_BYTES);
    }
};

// Copies the stages of all tiles: each of four warps a unit of every tile.
template <class W, int UNITS, int TOKENS, class Walk>
__device__ __forceinline__ void copy_coded_tiles(TiledRing<CodedTiledShape<W, TOKENS>::STAGES> &ring, u8 *stages, const u8 *weights, int n_blocks,
                                                 const u8 *x, const u8 *sums, const Walk &walk, u32 rank, int warp, int lane) {
    using Shape = CodedTiledShape<W, TOKENS>;
    constexpr int COLUMNS = UNITS * WARPS / 2, SQUARES = STAGE_UNITS / 2;
    constexpr int SUMS_BYTES = Shape::SUMS_BYTES / (TOKENS / SQUARE); // of a square of tokens
    const UnitCopies<W::BYTES, UNITS> units(lane);
    TokenCopies<TOKENS> tokens(rank, lane);
    int stage = 0;
    u32 parity = 1;
    // Rows do not depend on the kernel before; tokens do, and so does all that is stored later.
    if (warp == 0) wait_for_previous();
    for (int tile = walk.first; tile < walk.end; tile += walk.step) {
        const int first_tile = min(walk.pair(tile) * 2 + rank, n_blocks - 1u) * 2 * GROUP_TILES;
        const u32 first_square = walk.tokens(tile) / SQUARE, n_squares = walk.n_squares();
        const u8 *matrix = weights + walk.matrix(tile);
        tokens.go_to(x, first_square, n_squares, COLUMNS);
        for (int k = 0; k < COLUMNS / SQUARES; ++k) {
            barrier_wait(&ring.empty[stage], parity);
            u8 *to = stages + stage * Shape::STAGE;
            if (warp == 0) {
                expect_copies(&ring.full[stage], STAGE_UNITS * TOKENS * 64 + Shape::SUMS_BYTES, lane);
                __syncwarp();
#pragma unroll
                for (int i = 0; i < SQUARES; ++i) tokens.copy(to + Shape::TOKENS_AT + i * TOKENS * 128, k * SQUARES + i, &ring.full[stage], lane);
                if (Shape::SUMS_BYTES > 0 && lane < TOKENS / SQUARE) {
                    const u64 square = min(first_square + lane, n_squares - 1);
                    copy(to + Shape::SUMS_AT + lane * SUMS_BYTES, sums + (square * (COLUMNS / SQUARES) + k) * SUMS_BYTES, SUMS_BYTES, &ring.full[stage], 0);
                }
            }
            const u64 place = unit_place<UNITS, W::CODED_BYTES>(k * STAGE_UNITS + warp);
            // Both groups' tiles at once if they have one form, which takes fewer instructions.
            if constexpr (W::IS_UNIFORM) {
                const u8 *from = matrix + tile_place<W>(first_tile, UNITS) + place * W::BYTES;
                units.template copy<2>(to + warp * GROUP_TILES * W::BYTES, Shape::GROUP_BYTES, from, lane);
            } else {
#pragma unroll
                for (int group = 0; group < 2; ++group)
                    W::with(first_tile + group * GROUP_TILES, [&](auto form) INLINED {
                        using F = decltype(form);
                        const u8 *from = matrix + tile_place<W>(first_tile + group * GROUP_TILES, UNITS) + place * F::BYTES;
                        u8 *own = to + group * Shape::GROUP_BYTES + warp * GROUP_TILES * F::BYTES;
                        UnitCopies<F::BYTES, UNITS>(lane).template copy<1>(own, 0, from, lane);
                    });
            }
            arrive_after_copies(&ring.full[stage]);
            if (++stage == Shape::STAGES) stage = 0, parity ^= 1;
        }
    }
}

// A lane's part of 16 rows x 32 columns, with the scales and minimums of rows g and g + 8.
template <class F> struct CodedRows {
    uint4 upper, lower;
    float scales[2][F::RUNS], minimums[2][F::RUNS];
    __device__ __forceinline__ void load(const u8 *rows, int lane) {
        upper = unpack<F>(rows, lane), lower = unpack<F>(rows + F::BYTES, lane);
        if constexpr (!F::IS_PLAIN)
#pragma unroll
            for (int run = 0; run < F::RUNS; ++run)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const RowNumbers numbers = row_numbers<F>(rows + i * F::BYTES, run, lane / 4);
                    scales[i][run] = numbers.scale;
                    if constexpr (F::HAS_OFFSET) minimums[i][run] = numbers.minimum;
                }
    }
    // Keeps the compiler from unpacking later than here.
    __device__ __forceinline__ void hold() {
        hold_word(upper.x), hold_word(upper.y), hold_word(upper.z), hold_word(upper.w);
        hold_word(lower.x), hold_word(lower.y), hold_word(lower.z), hold_word(lower.w);
        if constexpr (!F::IS_PLAIN)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                ::hold(scales[i]);
                if constexpr (F::HAS_OFFSET) ::hold(minimums[i]);
            }
    }
    // Begins the products of a run: of 32 columns, or of the 16 that two lanes of a quad hold.
    // `tokens` describes them, as `swizzled` does.
    template <int N> __device__ __forceinline__ void begin(float (&d)[N], u64 tokens, int run, int adds, int lane) const {
        const u32 mask = F::RUNS > 1 && lane % 4 / 2 != run ? 0 : FULL;
        const auto of = [&](u32 pair) { return F::RUNS > 1 ? pair & mask : pair; };
        const u32 a[8] = {of(upper.x), of(lower.x), of(upper.y), of(lower.y), of(upper.z), of(lower.z), of(upper.w), of(lower.w)};
        products_begin();
        wgmma(d, a[0], a[1], a[2], a[3], tokens, adds);
        wgmma(d, a[4], a[5], a[6], a[7], tokens + 32 / 16, 1);
        products_commit();
    }
    // Adds a run. Tokens' sums lie as `sum_runs` leaves them.
    template <bool FIRST, int N> __device__ __forceinline__ void add(float (&sum)[N], const float (&of_run)[N], int run, const u8 *input_sums, int sums_stride, int lane) const {
#pragma unroll
        for (int i = 0; i < N; ++i) sum[i] = FIRST ? __fmul_rn(scales[i / 2 % 2][run], of_run[i]) : __fmaf_rn(scales[i / 2 % 2][run], of_run[i], sum[i]);
        if constexpr (F::HAS_OFFSET)
#pragma unroll
            for (int i = 0; i < N / 8; ++i) {
                const float4 x = *(const float4 *)(input_sums + i / 4 * sums_stride + run * SQUARE * 4 + i % 4 * 64 + lane % 4 * 16);
                float *s = sum + i * 8;
#pragma unroll
                for (int row = 0; row < 2; ++row) {
                    s[row * 2] = __fmaf_rn(minimums[row][run], x.x, s[row * 2]), s[row * 2 + 1] = __fmaf_rn(minimums[row][run], x.y, s[row * 2 + 1]);
                    s[row * 2 + 4] = __fmaf_rn(minimums[row][run], x.z, s[row * 2 + 4]), s[row * 2 + 5] = __fmaf_rn(minimums[row][run], x.w, s[row * 2 + 5]);
                }
            }
    }
};

// The sums of a group's 64 rows x TOKENS tokens, whose rows have form F.
template <class W, class F, int UNITS, int TOKENS>
__device__ __forceinline__ void sum_coded_tile(float (&total)[TOKENS / 2], Reader<CodedTiledShape<W, TOKENS>::STAGES> &reader, const u8 *stages, int warp, int lane) {
    using Shape = CodedTiledShape<W, TOKENS>;
    constexpr int N = TOKENS / 2;
    constexpr bool EVEN = UNITS % STAGE_UNITS == 0; // eighths begin with stages
    constexpr int SUMS_STRIDE = Shape::SUMS_BYTES / (TOKENS / SQUARE), UNIT_SUMS = W::SUMMED_RUNS * SQUARE * 4;
    const u8 *rows = stages + warp / 4 * Shape::GROUP_BYTES + warp % 4 * 2 * F::BYTES;
    const u32 tokens = shared_address(stages) + Shape::TOKENS_AT;
    const u8 *input_sums = stages + Shape::SUMS_AT;
    float run[N], sum[N];
    CodedRows<F> pairs[2];
#pragma unroll
    for (int i = 0; i < N; ++i) total[i] = sum[i] = 0.0f;
    const auto load = [&](CodedRows<F> &pair, int unit) { pair.load(rows + reader.stage * Shape::STAGE + unit * GROUP_TILES * F::BYTES, lane); };
    reader.await();
    load(pairs[0], 0);
    int in_eighth = 0;
#pragma unroll 1
    for (int left = UNITS * WARPS / STAGE_UNITS; left > 0; --left) {
        const int stage = reader.stage, at = stage * Shape::STAGE;
        const u64 own_tokens = swizzled(tokens + at);
#pragma unroll
        for (int unit = 0; unit < STAGE_UNITS; ++unit) {
            CodedRows<F> &now = pairs[unit % 2], &next = pairs[(unit + 1) % 2];
            const bool is_first = (!EVEN || unit == 0) && in_eighth == 0;
#pragma unroll
            for (int r = 0; r < F::RUNS; ++r) {
                now.begin(run, own_tokens + (unit / 2 * TOKENS * 128 + unit % 2 * 64) / 16, r, F::IS_PLAIN && !is_first, lane);
                if (r == F::RUNS - 1) {
                    if (unit + 1 < STAGE_UNITS) load(next, unit + 1);
                    else if (left > 1) {
                        reader.next();
                        reader.await();
                        load(next, 0);
                    } else reader.next();
                }
                next.hold();
                products_await<0>();
                ::hold(run);
                if constexpr (!F::IS_PLAIN) {
                    const u8 *of_unit = input_sums + at + unit * UNIT_SUMS;
                    if (EVEN && unit == 0 && r == 0 && in_eighth == 0) now.template add<true>(sum, run, r, of_unit, SUMS_STRIDE, lane);
                    else now.template add<false>(sum, run, r, of_unit, SUMS_STRIDE, lane);
                }
                if (unit == STAGE_UNITS - 1 && r == F::RUNS - 1) {
                    // All that was read of the stage is used.
                    if (!F::IS_PLAIN) ::hold(sum);
                    reader.release(stage, lane);
                }
            }
            ++in_eighth;
            if ((!EVEN || unit == STAGE_UNITS - 1) && in_eighth == UNITS) {
                in_eighth = 0;
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    total[i] += F::IS_PLAIN ? run[i] : sum[i];
                    if (!EVEN) sum[i] = 0.0f;
                }
            }
        }
    }
}

// Whether all rows have one form, whose runs have 32 columns and nothing but a scale.
template <class W> constexpr bool is_scaled() {
    if constexpr (W::IS_UNIFORM) return !W::IS_PLAIN && W::Form::RUNS == 1 && !W::Form::HAS_OFFSET;
    else return false;
}

constexpr int gcd(int a, int b) { return b == 0 ? a : gcd(b, a % b); }

// The same for such a form. A step is the product of a unit with 64 tokens: registers hold the
// products of two steps, so that one is on its way while the one before is added.
template <class W, class F, int UNITS, int TOKENS>
__device__ __forceinline__ void sum_scaled_tile(float (&total)[TOKENS / 2], Reader<CodedTiledShape<W, TOKENS>::STAGES> &reader, const u8 *stages, int warp, int lane) {
    using Shape = CodedTiledShape<W, TOKENS>;
    constexpr int N = TOKENS / 2, PARTS = TOKENS / SQUARE, PART = N / PARTS;
    // The compiler would serialise products that are on their way from one iteration to the next. So
    // all are awaited at the end of one, and iterations have as many stages as divide a tile's.
    constexpr int AT_ONCE = UNITS % 2 == 0 ? 4 : 2, UNITS_AT_ONCE = AT_ONCE * STAGE_UNITS, STEPS = UNITS_AT_ONCE * PARTS;
    constexpr int EIGHTHS_AT = gcd(UNITS, UNITS_AT_ONCE); // eighths begin at multiples of it only
    const u8 *rows = stages + warp / 4 * Shape::GROUP_BYTES + warp % 4 * 2 * F::BYTES;
    const u32 tokens = shared_address(stages) + Shape::TOKENS_AT;
    float runs[2][PART], sum[N];
    CodedRows<F> pairs[2];
#pragma unroll
    for (int i = 0; i < N; ++i) total[i] = sum[i] = 0.0f;
    const auto load = [&](CodedRows<F> &pair, int unit) INLINED { pair.load(rows + reader.stage * Shape::STAGE + unit * GROUP_TILES * F::BYTES, lane); };
    const auto begin = [&](int stage, int step) INLINED {
        const int unit = step / PARTS % STAGE_UNITS, at = unit / 2 * TOKENS * 128 + unit % 2 * 64 + step % PARTS * SQUARE_BYTES;
        pairs[unit % 2].begin(runs[step % 2], swizzled(tokens + stage * Shape::STAGE) + at / 16, 0, 0, lane);
    };
    reader.await();
    load(pairs[0], 0), load(pairs[1], 1);
    int in_eighth = 0;
    const auto end_eighth = [&]() INLINED {
        in_eighth = 0;
#pragma unroll
        for (int i = 0; i < N; ++i) total[i] += sum[i], sum[i] = 0.0f;
    };
#pragma unroll 1
    for (int left = UNITS * WARPS / STAGE_UNITS; left > 0; left -= AT_ONCE) {
        int stage = reader.stage;
        begin(stage, 0);
        if (in_eighth == UNITS) end_eighth();
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const int unit = step / PARTS, part = step % PARTS;
            const bool ends_unit = part == PARTS - 1, ends_stage = ends_unit && unit % STAGE_UNITS == STAGE_UNITS - 1;
            if (step + 1 < STEPS) begin(ends_stage ? reader.stage : stage, step + 1);
            // Codes are loaded two units ahead: from here on those of the next stage.
            if (ends_unit && unit % STAGE_UNITS == STAGE_UNITS - 2) {
                reader.next();
                if (unit + 2 < UNITS_AT_ONCE || left > AT_ONCE) reader.await();
            }
            if (step + 1 < STEPS) products_await<1>();
            else products_await<0>();
            ::hold(runs[step % 2]);
            if (ends_stage) reader.release(stage, lane), stage = reader.stage;
            CodedRows<F> &pair = pairs[unit % 2];
            const float scales[2] = {pair.scales[0][0], pair.scales[1][0]};
            // Behind the last stage, what is loaded is not used.
            if (ends_unit) load(pair, (unit + 2) % STAGE_UNITS);
#pragma unroll
            for (int i = 0; i < PART; ++i) sum[part * PART + i] = __fmaf_rn(scales[i / 2 % 2], runs[step % 2][i], sum[part * PART + i]);
            // Keeps the compiler from adding behind the next wait.
            ::hold(sum);
            pair.hold();
            if (!ends_unit) continue;
            ++in_eighth;
            // An eighth that ends with the iteration is added beside the next one's first product.
            if (step + 1 < STEPS && (unit + 1) % EIGHTHS_AT == 0 && in_eighth == UNITS) end_eighth();
        }
    }
#pragma unroll
    for (int i = 0; i < N; ++i) total[i] += sum[i];
}

// Hands the sums of 64 rows x TOKENS tokens to `store`, as `multiply_tiles` does. `sums` are those of
// the input over runs, if W has offsets.
template <class W, int UNITS, int TOKENS, class MakeWalk, class Store>
__device__ __forceinline__ void multiply_coded_tiles(const u8 *weights, int n_blocks, const u8 *x, const u8 *sums, MakeWalk make_walk, Store store) {
    using Shape = CodedTiledShape<W, TOKENS>;
    u8 *memory = dynamic_shared();
    u8 *stages = memory + (1024 - shared_address(memory) % 1024) % 1024;
    __shared__ TiledRing<Shape::STAGES> ring;
    const int group = threadIdx.x / 128, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 rank = cluster_rank();
    if (threadIdx.x == 0) {
        for (int i = 0; i < Shape::STAGES; ++i) barrier_init(&ring.full[i], 1 + 128), barrier_init(&ring.empty[i], 16);
        barriers_made();
    }
    cluster_meet();
    let_next_start();
    const auto walk = make_walk();
    if (group == 2) {
        leave_registers<TOKENS == 64 ? 72 : 40>();
        copy_coded_tiles<W, UNITS, TOKENS>(ring, stages, weights, n_blocks, x, sums, walk, rank, warp - 8, lane);
    } else {
        take_registers<TOKENS == 64 ? 216 : 232>();
        Reader<Shape::STAGES> reader{ring};
        u8 *staged = stages + Shape::STAGES * Shape::STAGE + group * STAGED_TOKENS * STAGED_STRIDE;
        float total[TOKENS / 2];
        for (int tile = walk.first; tile < walk.end; tile += walk.step) {
            const u32 block = walk.pair(tile) * 2 + rank;
            const int first_tile = min(block, n_blocks - 1u) * 16 + group * GROUP_TILES;
            if constexpr (is_scaled<W>())
                // Summed outside of a lambda, or stored outside of this one, the compiler schedules the loop
                // over stages otherwise.
                W::with(first_tile, [&](auto form) INLINED {
                    sum_scaled_tile<W, decltype(form), UNITS, TOKENS>(total, reader, stages, warp, lane);
                    if (block < (u32)n_blocks) store(walk.at(tile), block * 128 + group * 64, total, staged);
                });
            else {
                W::with(first_tile, [&](auto form) INLINED { sum_coded_tile<W, decltype(form), UNITS, TOKENS>(total, reader, stages, warp, lane); });
                if (block < (u32)n_blocks) store(walk.at(tile), block * 128 + group * 64, total, staged);
            }
        }
    }
    cluster_meet();
}

// The product of a matrix in any form, or of several matrices that a walk leads to.
template <class W, int UNITS, int TOKENS, class MakeWalk, class Store>
__device__ __forceinline__ void multiply_walked_tiles(const u8 *weights, int n_blocks, const u8 *x, const u8 *sums, MakeWalk make_walk, Store store) {
    if constexpr (W::IS_PLAIN) multiply_tiles<UNITS, W::CHAINS, TOKENS>(weights, n_blocks, x, make_walk, store);
    else multiply_coded_tiles<W, UNITS, TOKENS>(weights, n_blocks, x, sums, make_walk, store);
}
template <class W, int UNITS, int TOKENS, class Store>
__device__ __forceinline__ void multiply_matrix_tiles(const u8 *weights, int n_blocks, const u8 *x, const u8 *sums, u32 tokens, Store store) {
    multiply_walked_tiles<W, UNITS, TOKENS>(weights, n_blocks, x, sums, [&] { return TileWalk<TOKENS>(n_blocks, tokens); }, store);
}

#endif
