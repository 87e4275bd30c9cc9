// The product of a matrix with up to eight tokens, or sixteen, at the speed of memory.
//
// The matrix lies packed in units, tile by tile of eight rows: [tile][unit of 32 columns][lane]. A
// block owns some tiles; each of its eight warps owns an eighth of the columns and adds its units
// in order, in one chain or, where a block has a single tile and would wait for that chain, in two:
// the first half of them and the second. The sums of a row are added in the order of the columns.
// `matmul.cuh` adds in the same order, so a row is the same whatever the number of tokens. A ninth
// warp copies weights into a ring of stages. It waits for room, and for nothing of the kernel
// before: weights do not depend on it. But it never has more than IN_FLIGHT stages on their way:
// that saturates the memory, and what the kernel before still has to load is not queued behind
// more; but for blocks that start late.
#pragma once

#include "kernels/base.cuh"
#include "kernels/coded.cuh"
#include "kernels/norm.cuh"

// Units that a warp has in registers at most: of its input, and of weights.
constexpr int MOST_KEPT = 15;

// How the host cut a matrix W (generated/matrices.cuh): units of a warp in a row, tiles that share
// the reading of the input, stages of the ring, groups of tiles that a block has at most, stages on
// their way at once, halves of a product's 16 tokens that there are, and chains. A stage is a strip
// of one tile, which lies in memory in one piece (base.cuh).
template <class W_, int UNITS_, int HALVES_ = 1> struct Cut {
    using W = W_;
    static constexpr int UNITS = UNITS_, TILES = W::TILES, STAGES = W::STAGES, IN_FLIGHT = W::IN_FLIGHT, HALVES = HALVES_, CHAINS = W::CHAINS, GROUPS = W::OWN;
    // Groups whose sums are added at once; halves take turns with the room of one.
    static constexpr int BATCH = HALVES > 1 ? 1 : GROUPS <= 4 ? GROUPS : 2;
    static constexpr int BATCHES = HALVES == 1 && GROUPS > BATCH ? 2 : 1; // of which the next does not wait
    static constexpr int STORED = TILES % 2 == 0 ? 2 : 1;          // tiles whose sums a thread stores together: a set
    static constexpr int SETS = BATCH * TILES / STORED;           // such sets of a batch
    static constexpr int STRIPS = strips(UNITS, W::CODED_BYTES), STRIP = strip_units(UNITS, W::CODED_BYTES);
    static constexpr int MOST = (TILES == 1 ? 6 : 4) / HALVES;    // units of the input that are read at once, by registers
    static constexpr int PORTIONS = (STRIP + MOST - 1) / MOST;     // such portions of a strip
    static constexpr int PORTION = (STRIP + PORTIONS - 1) / PORTIONS;
    static constexpr int STAGE_BYTES = WARPS * STRIP * W::BYTES;
    static constexpr bool GOES_ROUND = GROUPS * TILES * STRIPS > STAGES; // otherwise no stage is used twice
    // Whether a block's only group of plain tiles lies in the ring at once; then so many units of
    // its tiles are kept in registers.
    static constexpr bool IS_WHOLE = W::IS_PLAIN && !GOES_ROUND && GROUPS == 1 && STRIPS == 1;
    static constexpr int ROOM = MOST_KEPT > HALVES * UNITS ? (MOST_KEPT - HALVES * UNITS) / TILES : 0;
    static constexpr int KEPT = ROOM < UNITS ? ROOM : UNITS;
    // Whether two coded tiles take the rows of a product, and tokens its columns. Then sums are those
    // of rows g with tokens 2c and 2c + 1, in lane 4g + c; of tiles of one form, the second's are
    // beside the first's.
    static constexpr bool IN_PAIRS = !W::IS_PLAIN && HALVES == 1;
    static_assert(CHAINS == 1 || (IS_WHOLE && TILES == 1), "chains are those of one tile at hand");
    static_assert(IN_FLIGHT <= STAGES && TILES <= STAGES, "the ring holds what is used together");
};

// Two blocks share an SM: this kernel's, and the next one's that waits with its weights at hand.
// A kernel that holds more units of its input in registers than this gives that up.
#define MATVEC_BOUNDS(held_units) __launch_bounds__(RING_THREADS, (held_units) <= TWO_BLOCKS_UNITS ? 2 : 1)
#define SIXTEEN_BOUNDS __launch_bounds__(RING_THREADS, 1)

template <class M> struct Ring {
    u64 full[M::STAGES], empty[M::STAGES];
};

// Sums of each warp's chains: of a group's tiles, eight tokens x eight rows.
template <class M> struct Sums {
    float of[M::BATCHES][M::BATCH][M::TILES][WARPS * M::CHAINS][64];
};

template <class M> __device__ __forceinline__ void ring_make(Ring<M> &ring) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < M::STAGES; ++i) {
            barrier_init(&ring.full[i], COPY_ARRIVALS);
            barrier_init(&ring.empty[i], WARPS);
        }
        barriers_made();
    }
    __syncthreads();
}

// Tiles that a block owns: groups of M::TILES, shared out evenly.
struct Groups {
    int first, end;
};
template <class M> __device__ __forceinline__ Groups own_groups(int n_tiles) {
    const int n_groups = (n_tiles + M::TILES - 1) / M::TILES;
    return {(int)((u64)n_groups * blockIdx.x / gridDim.x), (int)((u64)n_groups * (blockIdx.x + 1) / gridDim.x)};
}

// A place in the ring, and which time round.
template <class M> struct RingPlace {
    int stage = 0;
    u32 parity = 0;
    __device__ __forceinline__ void next() {
        if (++stage == M::STAGES) stage = 0, parity ^= 1;
    }
};

// Whether this block may start only when one of `attend` has ended, whose shared memory it needs.
// Blocks start in their order.
__device__ __forceinline__ bool starts_late(const Step &step) {
    const u32 attending = n_items(step) * KV_HEADS;
    return attending <= 32 && blockIdx.x + attending >= gridDim.x;
}

// The copying warp. Stages come in the order they are used in: group, strip, tile. All are on their
// way at once where `hurries`.
template <class M>
__device__ __forceinline__ void stream_weights(Ring<M> &ring, u8 *stages, const u8 *weights, int n_tiles, Groups own, bool hurries, int lane) {
#if __CUDA_ARCH__ >= 900
    if (lane != 0) return; // one lane begins bulk copies
#endif
    RingPlace<M> to, oldest;
    int on_their_way = 0;
    for (int group = own.first; group < own.end; ++group) {
        for (int i = 0; i < M::STRIPS * M::TILES; ++i) {
            const int strip = i / M::TILES, tile = i % M::TILES;
            // The last group may have fewer tiles than others: what is copied instead is not used.
            const int own_tile = min(group * M::TILES + tile, n_tiles - 1), unit_bytes = M::W::unit_bytes(own_tile);
            const u32 bytes = WARPS * min(M::STRIP, M::UNITS - strip * M::STRIP) * unit_bytes;
            const u8 *from = weights + tile_place<typename M::W>(own_tile, M::UNITS) + strip * (WARPS * M::STRIP) * unit_bytes;
            if (on_their_way == M::IN_FLIGHT && !hurries) {
                barrier_wait(&ring.full[oldest.stage], oldest.parity);
                oldest.next();
                --on_their_way;
            }
            u64 *full = &ring.full[to.stage];
            if (M::GOES_ROUND) barrier_wait(&ring.empty[to.stage], to.parity ^ 1);
            expect_copies(full, bytes, lane);
            copy_passing(stages + to.stage * M::STAGE_BYTES, from, bytes, full, lane);
            copies_begun(full);
            to.next();
            ++on_their_way;
        }
    }
#if __CUDA_ARCH__ < 900
    await_copies<0>();
#endif
}

// Up to eight rows of activations, or sixteen, of which a lane reads its token's of each half.
template <int HALVES> struct Rows {
    const uint4 *own[HALVES]; // this lane's chunk of its token's first unit, or null
    template <class Row> __device__ __forceinline__ Rows(const u16 *values, int stride, u32 n_tokens, Row row, int lane) {
#pragma unroll
        for (int half = 0; half < HALVES; ++half) {
            const u32 token = lane / 4 + half * 8;
            own[half] = token < n_tokens ? (const uint4 *)(values + (u64)row(token) * stride) + lane % 4 : nullptr;
        }
    }
    // Units from `first` on.
    template <int N> __device__ __forceinline__ void load(uint4 (&units)[HALVES][N], int first) const {
#pragma unroll
        for (int half = 0; half < HALVES; ++half) {
#pragma unroll
            for (int i = 0; i < N; ++i) units[half][i] = make_uint4(0, 0, 0, 0);
            if (own[half])
#pragma unroll
                for (int i = 0; i < N; ++i) units[half][i] = load_fresh(own[half] + (first + i) * 4);
        }
    }
};

// A portion of a strip: units of a warp from `first` on, of `width` that the strip has.
struct Piece {
    int first, width;
    bool begins, ends; // whether it is the first of its strip, and the last
};

// One portion of N tiles from one on, whose chains of products run side by side. x are the input's
// units of each half.
template <class M, int N, int UNITS>
__device__ __forceinline__ void multiply_portion(Ring<M> &ring, const u8 *stages, RingPlace<M> &place, const uint4 *const (&x)[M::HALVES],
                                              Piece portion, int first_tile, float (*sum)[4]) {
    using W = typename M::W;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u8 *stage[N];
    u64 *used[N];
#pragma unroll
    for (int tile = 0; tile < N; ++tile) {
        if (portion.begins) barrier_wait(&ring.full[place.stage], place.parity);
        stage[tile] = stages + place.stage * M::STAGE_BYTES;
        used[tile] = &ring.empty[place.stage];
        place.next();
    }
    const auto lower = [&](int u) { return M::HALVES > 1 ? x[M::HALVES - 1][u] : make_uint4(0, 0, 0, 0); };
    const int first = warp * portion.width + portion.first;
    if constexpr (W::IS_PLAIN) {
#pragma unroll
        for (int u = 0; u < UNITS; ++u)
            if (portion.first + u < portion.width)
#pragma unroll
                for (int tile = 0; tile < N; ++tile) mma32(sum[tile], x[0][u], lower(u), ((const uint4 *)stage[tile])[(first + u) * UNIT + lane]);
    } else {
        // Tiles of one form share what is made of the input.
        constexpr int SHARED_BY = W::IS_UNIFORM ? N : 1;
        constexpr bool IS_FULL = M::UNITS % M::STRIP == 0 && M::STRIP % UNITS == 0;
        const u32 zero = unknown_zero();
#pragma unroll
        for (int from = 0; from < N; from += SHARED_BY)
            W::with(first_tile + from, [&](auto form) INLINED {
                using F = decltype(form);
#pragma unroll
                for (int u = 0; u < UNITS; ++u) {
                    if (!IS_FULL && portion.first + u >= portion.width) break;
                    const auto unit = [&](int tile) { return stage[tile] + (first + u) * F::BYTES; };
                    if constexpr (M::IN_PAIRS) {
                        const ColumnInput<F, false> input(x[0][u], lane, zero);
#pragma unroll
                        for (int tile = from; tile < from + SHARED_BY; tile += 2)
                            add_pair<F, false>(sum[tile], unit(tile), unit(tile + 1 < from + SHARED_BY ? tile + 1 : tile), input, lane, zero);
                    } else {
                        const UnitInput<F> input(Interleaved(x[0][u], lower(u), zero), lane);
#pragma unroll
                        for (int tile = from; tile < from + SHARED_BY; ++tile) add_unit<F, (M::HALVES > 1)>(sum[tile], input, unit(tile), lane);
                    }
                }
            });
    }
    if (!M::GOES_ROUND || !portion.ends) return;
    // Loads from shared memory may still wait behind others when a warp goes on, and a copy begun
    // by then would overwrite what they are to read.
    before_copies();
    __syncwarp();
    if (lane == 0)
#pragma unroll
        for (int tile = 0; tile < N; ++tile) barrier_arrive(used[tile]);
}

// The same of all tiles of a group; `place` goes on to the stages of the next strip.
template <class M, int UNITS>
__device__ __forceinline__ void multiply_tiles(Ring<M> &ring, const u8 *stages, RingPlace<M> &place, const uint4 *const (&x)[M::HALVES],
                                               Piece portion, int first_tile, float (&sum)[M::TILES][4]) {
    // Where all weights are at hand nothing but the chains takes time, and all of them run at once.
    constexpr int AT_ONCE = M::GOES_ROUND ? 2 : M::TILES;
#pragma unroll
    for (int tile = 0; tile < M::TILES; tile += AT_ONCE) {
        if (tile + AT_ONCE <= M::TILES) multiply_portion<M, AT_ONCE, UNITS>(ring, stages, place, x, portion, first_tile + tile, &sum[tile]);
        else multiply_portion<M, 1, UNITS>(ring, stages, place, x, portion, first_tile + tile, &sum[tile]);
    }
}

// Each half of some units, from one on.
template <class M, int N> struct Halves {
    const uint4 *of[M::HALVES];
    __device__ __forceinline__ Halves(const uint4 (&units)[M::HALVES][N], int first) {
#pragma unroll
        for (int half = 0; half < M::HALVES; ++half) of[half] = units[half] + first;
    }
};

// The sums of a group whose input is held in registers.
template <class M, int N>
__device__ __forceinline__ void multiply_held(Ring<M> &ring, const u8 *stages, RingPlace<M> &place, const uint4 (&held)[M::HALVES][N],
                                              int first_tile, float (&sum)[M::TILES][4]) {
#pragma unroll
    for (int strip = 0; strip < M::STRIPS; ++strip) {
        const Piece whole{0, min(M::STRIP, M::UNITS - strip * M::STRIP), true, true};
        multiply_tiles<M, M::STRIP>(ring, stages, place, Halves<M, N>(held, strip * M::STRIP).of, whole, first_tile, sum);
    }
}

// The sums of a group whose input is read portion by portion, one portion ahead. What is read
// beyond the last is not used.
template <class M>
__device__ __forceinline__ void multiply_read(Ring<M> &ring, const u8 *stages, RingPlace<M> &place, const Rows<M::HALVES> &rows,
                                              int first_tile, float (&sum)[M::TILES][4]) {
    const int own = threadIdx.x / 32 * M::UNITS;
    uint4 ahead[M::HALVES][M::PORTION], now[M::HALVES][M::PORTION];
    rows.load(ahead, own);
#pragma unroll 1
    for (int strip = 0; strip < M::STRIPS; ++strip) {
        const int width = min(M::STRIP, M::UNITS - strip * M::STRIP);
        const RingPlace<M> begin = place;
#pragma unroll
        for (int portion = 0; portion < M::PORTIONS; ++portion) {
            const bool ends = portion + 1 == M::PORTIONS;
#pragma unroll
            for (int half = 0; half < M::HALVES; ++half)
#pragma unroll
                for (int u = 0; u < M::PORTION; ++u) now[half][u] = ahead[half][u];
            if (!ends || strip + 1 < M::STRIPS)
                rows.load(ahead, own + (ends ? (strip + 1) * M::STRIP : strip * M::STRIP + (portion + 1) * M::PORTION));
            place = begin;
            multiply_tiles<M, M::PORTION>(ring, stages, place, Halves<M, M::PORTION>(now, 0).of, Piece{portion * M::PORTION, width, portion == 0, ends}, first_tile, sum);
        }
    }
}

// Adds the warps' sums of a batch of groups, and hands them on.
template <class M, class Store>
__device__ __forceinline__ void store_batch(const float (&batch)[M::BATCH][M::TILES][WARPS * M::CHAINS][64], int n_groups, int first_group,
                                            bool is_first, int half, u32 n_tokens, Store &store) {
    const u32 token = threadIdx.x % 64 / 8 + half * 8, row = threadIdx.x % 8;
#pragma unroll
    for (int i = 0; i < (M::SETS + 3) / 4; ++i) {
        const int set = threadIdx.x / 64 + i * 4;
        if (token >= n_tokens || set >= n_groups * (M::TILES / M::STORED)) continue;
        float total[M::STORED];
#pragma unroll
        for (int tile = 0; tile < M::STORED; ++tile) {
            const auto &of = batch[set * M::STORED / M::TILES][set * M::STORED % M::TILES + tile];
            total[tile] = of[0][threadIdx.x % 64];
#pragma unroll
            for (int chain = 1; chain < WARPS * M::CHAINS; ++chain) total[tile] += of[chain][threadIdx.x % 64];
        }
        store(first_group * (M::TILES / M::STORED) + set, i, is_first && half == 0, token, row, total);
    }
}

// The computing warps. `held` are this warp's units of the input, where they fit into registers.
// Hands sums to `store(set of tiles, which of the thread's it is, whether of the first batch and
// half, token, row in the tile, sums)`.
template <class M, bool HELD, int N, class Store>
__device__ __forceinline__ void multiply(Ring<M> &ring, const u8 *stages, Sums<M> &sums, const uint4 (&held)[M::HALVES][N],
                                         const Rows<M::HALVES> &rows, Groups own, u32 n_tokens, Store &store) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    RingPlace<M> place;
    int in_batch = 0;
    for (int group = own.first; group < own.end; ++group) {
        float sum[M::TILES][4] = {};
        if constexpr (HELD) multiply_held(ring, stages, place, held, group * M::TILES, sum);
        else multiply_read(ring, stages, place, rows, group * M::TILES, sum);
        auto &batch = sums.of[in_batch / M::BATCH];
#pragma unroll
        for (int half = 0; half < M::HALVES; ++half) {
            // Halves take turns: what was there before must have been read.
            if (M::HALVES > 1 && (half > 0 || group > own.first)) meet();
#pragma unroll
            for (int tile = 0; tile < M::TILES; ++tile) {
                float *to = batch[in_batch % M::BATCH][tile][warp];
                const bool is_second = M::W::IS_UNIFORM && tile % 2 == 1;
                if constexpr (M::IN_PAIRS)
#pragma unroll
                    for (int e = 0; e < 2; ++e) to[(lane % 4 * 2 + e) * 8 + lane / 4] = is_second ? sum[tile - is_second][2 + e] : sum[tile][e];
                else *(float2 *)&to[lane * 2] = make_float2(sum[tile][half * 2], sum[tile][half * 2 + 1]);
            }
            if ((in_batch + 1) % M::BATCH != 0 && group + 1 < own.end) continue;
            meet();
            const int n_groups = in_batch % M::BATCH + 1;
            store_batch<M>(batch, n_groups, group + 1 - n_groups, group - own.first < M::BATCH, half, n_tokens, store);
        }
        if (++in_batch == M::BATCHES * M::BATCH) in_batch = 0;
    }
}

// A block's only group of tiles, all of it in the ring at once. Its first units are read into
// registers before the input is there, because reading them takes longer than the products. Two
// tiles take the sixteen rows of a product and tokens its columns: units of the input as rows would
// need twice their registers.
template <class M> struct Whole {
    static constexpr int ODD = M::TILES % 2, N = M::TILES / 2;
    Interleaved pairs[N > 0 ? N : 1][M::KEPT > 0 ? M::KEPT : 1];
    uint4 last[M::KEPT > 0 ? M::KEPT : 1]; // of the last tile where their number is odd

    __device__ __forceinline__ static uint4 unit(const u8 *stages, int tile, int u) {
        return ((const uint4 *)(stages + tile * M::STAGE_BYTES))[(threadIdx.x / 32 * M::UNITS + u) * UNIT + threadIdx.x % 32];
    }
    __device__ __forceinline__ static bool is_there(Ring<M> &ring) {
        bool all = true;
        for (int tile = 0; tile < M::TILES; ++tile) all &= barrier_passed(&ring.full[tile], 0);
        return all;
    }
    __device__ __forceinline__ void await(Ring<M> &ring, const u8 *stages) {
        for (int tile = 0; tile < M::TILES; ++tile) barrier_wait(&ring.full[tile], 0);
        read(stages);
    }
    __device__ __forceinline__ void read(const u8 *stages) {
        const u32 zero = unknown_zero();
#pragma unroll
        for (int u = 0; u < M::KEPT; ++u) {
#pragma unroll
            for (int pair = 0; pair < N; ++pair) pairs[pair][u] = Interleaved(unit(stages, pair * 2, u), unit(stages, pair * 2 + 1, u), zero);
            if (ODD) last[u] = unit(stages, M::TILES - 1, u);
        }
    }
    template <class Store>
    __device__ __forceinline__ void multiply(const u8 *stages, Sums<M> &sums, const uint4 (&x)[M::HALVES][M::UNITS], int group, u32 n_tokens,
                                             Store &store) const {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const uint4 nothing = make_uint4(0, 0, 0, 0);
        float sum[M::CHAINS][N + ODD][M::HALVES][4] = {};
#pragma unroll
        for (int u = 0; u < M::UNITS; ++u) {
            auto &of = sum[u / chain_units(M::UNITS, M::CHAINS)];
#pragma unroll
            for (int half = 0; half < M::HALVES; ++half) {
#pragma unroll
                for (int pair = 0; pair < N; ++pair) {
                    if (u < M::KEPT) mma32(of[pair][half], pairs[pair][u], x[half][u]);
                    else mma32(of[pair][half], unit(stages, pair * 2, u), unit(stages, pair * 2 + 1, u), x[half][u]);
                }
                if (ODD) mma32(of[N][half], u < M::KEPT ? last[u] : unit(stages, M::TILES - 1, u), nothing, x[half][u]);
            }
        }
#pragma unroll
        for (int half = 0; half < M::HALVES; ++half) {
            if (half > 0) meet();
#pragma unroll
            for (int i = 0; i < M::TILES * M::CHAINS; ++i)
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    sums.of[0][0][i / M::CHAINS][warp * M::CHAINS + i % M::CHAINS][(lane % 4 * 2 + e) * 8 + lane / 4] =
                        sum[i % M::CHAINS][i / M::CHAINS / 2][half][i / M::CHAINS % 2 * 2 + e];
            meet();
            store_batch<M>(sums.of[0], 1, group, true, half, n_tokens, store);
        }
    }
};

// The whole kernel, where the input is a row of activations as it lies in memory.
// `store.begin(first set, tokens)` is called when memory may be read.
template <class M, class Store>
__device__ __forceinline__ void multiply_rows(const u8 *weights, int n_tiles, const u16 *x, int stride,
                                              const Step &step, Store store) {
    u8 *stages = dynamic_shared();
    __shared__ Ring<M> ring;
    __shared__ __align__(16) Sums<M> sums;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Groups own = own_groups<M>(n_tiles);
    ring_make(ring);
    let_next_start();
    if (warp == WARPS) return stream_weights(ring, stages, weights, n_tiles, own, false, lane);
    const u32 tokens = n_tokens(step);
    Whole<M> whole;
    if constexpr (M::IS_WHOLE) whole.await(ring, stages);
    wait_for_previous();
    store.begin(own.first * (M::TILES / M::STORED), tokens);
    const Rows<M::HALVES> rows(x, stride, tokens, [](u32 token) { return token; }, lane);
    constexpr bool HELD = M::IS_WHOLE || M::UNITS * M::TILES * M::HALVES <= 8;
    uint4 held[M::HALVES][HELD ? M::UNITS : 1];
    if constexpr (HELD) rows.load(held, warp * M::UNITS);
    if constexpr (M::IS_WHOLE) whole.multiply(stages, sums, held, own.first, tokens, store);
    else multiply<M, HELD>(ring, stages, sums, held, rows, own, tokens, store);
}

// The whole kernel, if it is the norm of a row. `row` returns which row token i of `tokens` is.
template <class M, class Row, class Store>
__device__ __forceinline__ void multiply_norms(const u8 *weights, int n_tiles, const u16 *x, const uint4 *norm,
                                               u32 count, bool hurries, Row row, Store store) {
    u8 *stages = dynamic_shared();
    __shared__ Ring<M> ring;
    __shared__ __align__(16) Sums<M> sums;
    __shared__ float squares[M::HALVES][WARPS][8];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Groups own = own_groups<M>(n_tiles);
    ring_make(ring);
    let_next_start();
    if (warp == WARPS) return stream_weights(ring, stages, weights, n_tiles, own, M::IS_WHOLE && hurries, lane);
    const u32 tokens = count;
    const Rows<M::HALVES> rows(x, HIDDEN_STRIDE, tokens, row, lane);
    uint4 held[M::HALVES][M::UNITS];
    // Weights are read while the input is on its way, or after it where this block could start only
    // late.
    Whole<M> whole;
    bool is_read = false;
    const auto read_early = [&] {
        if constexpr (M::IS_WHOLE)
            if (is_read = whole.is_there(ring)) whole.read(stages);
    };
    // A norm's weights are asked for early too.
    constexpr bool IS_NARROW = M::UNITS <= TWO_BLOCKS_UNITS;
    if (IS_NARROW && M::HALVES == 1 && tokens == 1) {
        // Where this warp's first sums will be, there is room until they are.
        typedef typename OneRow<M::UNITS>::Stage Stage;
        static_assert(!IS_NARROW || sizeof(Stage) <= sizeof(sums.of[0][0][0][0]), "a row's columns of a warp fit");
        OneRow<M::UNITS> one(*(Stage *)sums.of[0][0][0][warp], norm, warp, lane);
        const u16 *only = x + (u64)row(0) * HIDDEN_STRIDE;
        wait_for_previous();
        one.load(only, warp);
        read_early();
        one.template normalised<HIDDEN>(held[0], squares[0], warp);
    } else {
        const NormWeights<M::UNITS> norm_weights(norm, warp, lane);
        wait_for_previous();
        rows.load(held, warp * M::UNITS);
        read_early();
#pragma unroll
        for (int half = 0; half < M::HALVES; ++half) {
            const float scale = norm_scale<M::UNITS, HIDDEN>(held[half], squares[half], warp, lane);
#pragma unroll
            for (int i = 0; i < M::UNITS; ++i)
                held[half][i] = normalise(held[half][i], norm_weights.of(i, lane), scale);
        }
    }
    if constexpr (M::IS_WHOLE) {
        if (!is_read) whole.await(ring, stages);
        whole.multiply(stages, sums, held, own.first, tokens, store);
    } else multiply<M, true>(ring, stages, sums, held, rows, own, tokens, store);
}
