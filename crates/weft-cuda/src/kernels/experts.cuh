// Products of experts' matrices with up to eight tokens, at the speed of memory.
//
// The matrices of a layer's experts lie one after the other, each packed like any other matrix
// (matvec.cuh), and sums are cut and added in the same order. A block finds the experts that its
// tokens use (routing.cuh), so the host knows nothing of them. Each of them is read once: products
// are computed for all tokens, and only those that use the expert keep theirs.
#pragma once

#include "kernels/expert_row.cuh"
#include "kernels/matvec.cuh"
#include "kernels/routing.cuh"
#include "ops/norm_gate_up.cuh"

// A kernel of experts lets the next one start only when routes can be read, so that it may read
// them before it waits.
__device__ __forceinline__ void wait_for_routes() {
    wait_for_previous();
    let_next_start();
}

// The copying warp: groups of tiles of experts, in the order in which they are used.
// `place(i, expert, group)` says which group of which of the block's experts comes i-th.
template <class M, class Place>
__device__ __forceinline__ void stream_experts(Ring<M> &ring, u8 *stages, const u8 *weights, int first, int end, Place place, int lane) {
#if __CUDA_ARCH__ >= 900
    if (lane != 0) return; // one lane begins bulk copies
#endif
    RingPlace<M> to, oldest;
    int on_their_way = 0;
    for (int i = first; i < end; ++i) {
        int expert, group;
        place(i, expert, group);
        const u8 *matrix = weights + (u64)expert * M::W::EXPERT_BYTES;
        for (int j = 0; j < M::STRIPS * M::TILES; ++j) {
            const int strip = j / M::TILES;
            // The last group may have fewer tiles than others: what is copied instead is not used.
            const int tile = min(group * M::TILES + j % M::TILES, M::W::ALL_TILES - 1), unit_bytes = M::W::unit_bytes(tile);
            const u32 bytes = WARPS * min(M::STRIP, M::UNITS - strip * M::STRIP) * unit_bytes;
            const u8 *from = matrix + tile_place<typename M::W>(tile, M::UNITS) + strip * (WARPS * M::STRIP) * unit_bytes;
            if (on_their_way == M::IN_FLIGHT) {
                barrier_wait(&ring.full[oldest.stage], oldest.parity);
                oldest.next();
                --on_their_way;
            }
            u64 *full = &ring.full[to.stage];
            barrier_wait(&ring.empty[to.stage], to.parity ^ 1);
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

// h = silu(n * W_gate) * (n * W_up) of the experts of up to eight tokens.
template <class W>
__device__ __forceinline__ void multiply_expert_gate_up(const Step &step, const u8 *weights, const uint4 *norm, const u16 *x, const RouteSource &routes, u16 *h) {
    using M = Cut<W, HIDDEN_UNITS>;
    static_assert(M::GOES_ROUND && M::STORED == 2 && M::TILES == 2, "a group is a tile of gate and its tile of up");
    constexpr int GROUPS = W::ALL_TILES / 2;
    u8 *stages = dynamic_shared();
    __shared__ Ring<M> ring;
    __shared__ __align__(16) Sums<M> sums;
    __shared__ float squares[WARPS][8];
    __shared__ Distinct used;
    __shared__ Masks masks;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    ring_make(ring);
    const u32 tokens = n_tokens(step);
    const Rows<1> rows(x, HIDDEN_STRIDE, tokens, [](u32 token) { return token; }, lane);
    // What is normalised is asked for before copies begin: behind those it would wait for long.
    const NormWeights<M::UNITS> norm_weights(norm, min(warp, WARPS - 1), lane);
    uint4 held[1][M::UNITS];
    wait_for_routes();
    if (warp < WARPS) rows.load(held, warp * M::UNITS);
    const Choice choice = find_masks(masks, used, routes, tokens);
    const auto own_groups = [&](u32 n_experts) {
        const u64 n_groups = n_experts * GROUPS;
        return Groups{(int)(n_groups * blockIdx.x / gridDim.x), (int)(n_groups * (blockIdx.x + 1) / gridDim.x)};
    };
    if (warp == WARPS) {
        // Copies begin while the others make the list.
        const Groups own = own_groups(count_used(masks, lane));
        if (own.first == own.end) return;
        UsedExperts experts(masks);
        experts.skip(own.first / GROUPS);
        int last = 0;
        return stream_experts<M>(ring, stages, weights, own.first, own.end, [&](int i, int &expert, int &group) {
            group = i % GROUPS;
            if (i == own.first || group == 0) last = experts.next();
            expert = last;
        }, lane);
    }
    // The input is normalised while the first weights come.
    const float scale = norm_scale<M::UNITS, HIDDEN>(held[0], squares, warp, lane);
#pragma unroll
    for (int i = 0; i < M::UNITS; ++i) held[0][i] = normalise(held[0][i], norm_weights.of(i, lane), scale);
    list_distinct<false>(used, nullptr, masks, choice, routes, tokens);
    const Groups own = own_groups(used.n);
    auto store = [&](int set, int, bool, u32 token, u32 row, const float (&sums)[2]) {
        const int i = set / GROUPS;
        const u32 r = set % GROUPS * 8 + row;
        if (used.has(i, token) && r < EXPERT_INTER)
            h[(u64)used.sources[used.row(i, token)] * EXPERT_STRIDE + r] = round_one(gated(sums[0], sums[1]));
    };
    multiply<M, true>(ring, stages, sums, held, rows, own, tokens, store);
}

// ---- down ---------------------------------------------------------------------------------------
// Groups of a block of `down` in the order in which they are copied: every expert's of one group of
// tiles, then of the next.
struct OwnGroups {
    UsedExperts experts;
    int group, n, left;
    __device__ __forceinline__ OwnGroups(const Masks &masks, int first, int n) : experts(masks), group(first), n(n), left(n) {}
    __device__ __forceinline__ void operator()(int, int &expert, int &of) {
        if (left == 0) left = n, ++group, experts.word = 0, experts.left = used_of_word(experts.masks, 0);
        --left;
        expert = experts.next(), of = group;
    }
};
// x += sum of weight * (h * W_down) over the routes of up to eight tokens, in their order, where warps
// share the tiles.
template <class W>
__device__ __forceinline__ void multiply_expert_down_together(const Step &step, const u8 *weights, const u16 *h, const RouteSource &routes, u16 *x) {
    using M = Cut<W, EXPERT_UNITS>;
    static_assert(M::GOES_ROUND && M::TILES <= 2, "sums of a thread");
    constexpr int GROUPS = (W::ALL_TILES + M::TILES - 1) / M::TILES, BATCH = 4 / M::TILES, VALUES = M::TILES * 64;
    constexpr int ROW_BYTES = EXPERT_STRIDE * 2, CHUNKS = ROW_BYTES / 16;
    u8 *stages = dynamic_shared(), *input = stages + M::STAGES * M::STAGE_BYTES;
    __shared__ Ring<M> ring;
    __shared__ __align__(16) float sums[2][BATCH][M::TILES][WARPS][64];
    __shared__ float products[N_CHOSEN][VALUES];
    __shared__ Distinct used;
    __shared__ Masks masks;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, thread = threadIdx.x;
    ring_make(ring);
    let_next_start();
    const u32 tokens = n_tokens(step);
    const Choice choice = find_masks(masks, used, routes, tokens);
    const Groups own{(int)((u64)GROUPS * blockIdx.x / gridDim.x), (int)((u64)GROUPS * (blockIdx.x + 1) / gridDim.x)};
    if (warp == WARPS) {
        const int n = count_used(masks, lane);
        return stream_experts<M>(ring, stages, weights, 0, (own.end - own.first) * n, OwnGroups(masks, own.first, n), lane);
    }
    list_distinct<true>(used, nullptr, masks, choice, routes, tokens);
    const int n = used.n;
    wait_for_previous();
    RingPlace<M> place;
    const u32 token = thread % 64 / 8;
    for (int group = own.first; group < own.end; ++group) {
        // This thread's element of x, if it has one.
        const u32 row = group * (M::TILES * 8) + thread / 64 * 8 + thread % 8;
        const bool stores = thread < VALUES && token < tokens && row < HIDDEN;
        u16 *to = x + (u64)token * HIDDEN_STRIDE + row;
        const u16 before = stores ? load_fresh(to) : 0;
        int in_batch = 0, buffer = 0, end = 0;
        // Inputs lie in shared memory, as many experts' at a time as there is room for.
        for (int first = 0; first < n; first = end) {
            for (end = first + 1; end < n && used.first_row[end + 1] - used.first_row[first] <= EXPERT_INPUT_ROWS;) ++end;
            const int first_row = used.first_row[first], n_rows = used.first_row[end] - first_row;
            if (first > 0 || group > own.first) meet(); // those before have been read
            for (int i = thread; i < n_rows * CHUNKS; i += WARPS * 32)
                copy_chunk(input + i * 16, (const u8 *)h + (u64)used.sources[first_row + i / CHUNKS] * ROW_BYTES + i % CHUNKS * 16);
            commit_copies();
            await_copies<0>();
            meet();
            for (int i = first; i < end; ++i) {
                uint4 held[1][M::UNITS];
                const bool is_used = used.has(i, lane / 4);
                const u8 *from = input + (used.row(i, lane / 4) - first_row) * ROW_BYTES + warp * M::UNITS * 64 + lane % 4 * 16;
#pragma unroll
                for (int u = 0; u < M::UNITS; ++u) held[0][u] = is_used ? *(const uint4 *)(from + u * 64) : make_uint4(0, 0, 0, 0);
                float sum[M::TILES][4] = {};
                multiply_held(ring, stages, place, held, 0, sum);
#pragma unroll
                for (int tile = 0; tile < M::TILES; ++tile) {
                    float *part = sums[buffer][in_batch][tile][warp];
                    const bool is_second = tile % 2 == 1;
                    if constexpr (M::IN_PAIRS)
#pragma unroll
                        for (int e = 0; e < 2; ++e) part[(lane % 4 * 2 + e) * 8 + lane / 4] = is_second ? sum[tile - is_second][2 + e] : sum[tile][e];
                    else *(float2 *)&part[lane * 2] = make_float2(sum[tile][0], sum[tile][1]);
                }
                if (++in_batch < BATCH && i + 1 < n) continue;
                meet();
                // A thread adds up the eighths of one product of one expert of the batch.
                const int which = thread / VALUES, of = i + 1 - in_batch + which;
                if (which < in_batch && used.has(of, token)) {
                    const auto &parts = sums[buffer][which][thread % VALUES / 64];
                    float total = parts[0][thread % 64];
#pragma unroll
                    for (int w = 1; w < WARPS; ++w) total += parts[w][thread % 64];
                    products[used.sources[used.row(of, token)] % N_CHOSEN][thread % VALUES] = total;
                }
                in_batch = 0, buffer ^= 1;
            }
        }
        meet();
        if (stores) {
            float sum = 0.0f;
#pragma unroll 4
            for (int i = 0; i < N_CHOSEN; ++i) sum += __fmul_rn(used.routes[token][i].weight, products[i][thread]);
            *to = round_one(widen(before) + sum);
        }
    }
}

// ---- slots --------------------------------------------------------------------------------------
// Where codes of a group of an expert's tiles, of which none lies in strips, come in one piece: the ring
// as slots for such groups, in the shared memory that the launch has for its stages and besides.
template <class W, int UNITS_, int MORE_BYTES> struct GroupSlots {
    static constexpr int UNITS = WARPS * UNITS_, TILE_BYTES = UNITS * W::BYTES, BYTES = W::TILES * TILE_BYTES;
    static constexpr int STAGE_BYTES = WARPS * strip_units(UNITS_, W::CODED_BYTES) * W::BYTES;
    static constexpr int ALL = (W::STAGES * STAGE_BYTES + MORE_BYTES) / BYTES, N = ALL < 1 ? 1 : ALL < 32 ? ALL : 32;
    static constexpr bool IS_POSSIBLE = !W::IS_PLAIN && W::IS_UNIFORM && strips(UNITS_, W::CODED_BYTES) == 1 && ALL > 1;
};
template <int N> struct SlotBarriers {
    u64 full[N], empty[N];
    __device__ __forceinline__ void make(int readers) {
        if (threadIdx.x == 0) {
            for (int i = 0; i < N; ++i) {
                barrier_init(&full[i], COPY_ARRIVALS);
                barrier_init(&empty[i], readers);
            }
            barriers_made();
        }
        __syncthreads();
    }
    // Called by a whole warp that has read a slot, for some of its readers.
    __device__ __forceinline__ void release(int slot, int readers, int lane) {
        before_copies();
        __syncwarp();
        if (lane < readers) barrier_arrive(&empty[slot]);
    }
};
// The copying warp: groups of tiles of experts, as `stream_experts` takes them.
template <class W, class Slots, class Place>
__device__ __forceinline__ void fill_slots(SlotBarriers<Slots::N> &barriers, u8 *slots, const u8 *weights, int first, int end, Place place, int lane) {
#if __CUDA_ARCH__ >= 900
    if (lane != 0) return; // one lane begins bulk copies
#endif
    int slot = 0;
    u32 parity = 1;
    for (int i = first; i < end; ++i) {
        int expert, group;
        place(i, expert, group);
        u64 *full = &barriers.full[slot];
        barrier_wait(&barriers.empty[slot], parity);
        expect_copies(full, Slots::BYTES, lane);
        copy_passing(slots + slot * Slots::BYTES, weights + (u64)expert * W::EXPERT_BYTES + (u64)group * Slots::BYTES, Slots::BYTES, full, lane);
        copies_begun(full);
        if (++slot == Slots::N) slot = 0, parity ^= 1;
    }
#if __CUDA_ARCH__ < 900
    await_copies<0>();
#endif
}

// ---- down, in four bits -------------------------------------------------------------------------
// A warp has a group of tiles of an expert and one of its tokens by itself, all eighths of its columns:
// those are so short that warps who share a tile would do little else than meet. The eighths of the
// token's row are the columns of a product: so a lane holds all of the row that it needs in a few
// registers, and of the products of an eighth one column counts.
template <class W> struct DownSlots : GroupSlots<W, EXPERT_UNITS, EXPERT_INPUT_ROWS * EXPERT_STRIDE * 2> {
    using Slots = GroupSlots<W, EXPERT_UNITS, EXPERT_INPUT_ROWS * EXPERT_STRIDE * 2>;
    // Units of more than four bits, or with offsets, take more registers than there are.
    static constexpr bool IS_SMALL = W::BYTES <= 144;
    static constexpr bool ARE_ENOUGH = Slots::IS_POSSIBLE && IS_SMALL && Slots::N >= WARPS && EXPERT_UNITS <= 12;
    // Warps that multiply: not more than slots (`multiply_expert_down_apart`).
    static constexpr int READERS = W::READERS;
    static_assert(READERS == WARPS || (ARE_ENOUGH && Slots::N >= READERS), "a slot for each warp");
    // Whether a warp asks for its next row before it multiplies one: where they are few, and have
    // registers for it.
    static constexpr bool IS_AHEAD = EXPERT_UNITS <= 4 && READERS == WARPS;
};
// A row of the input, as `multiply_row` takes it.
struct DownRow : ExpertRow {
    __device__ __forceinline__ void load(const u16 *row, int lane) {
        const uint4 *own = (const uint4 *)row + lane / 4 * (EXPERT_UNITS * 4) + lane % 4;
#pragma unroll
        for (int u = 0; u < EXPERT_UNITS; ++u) units[u] = load_fresh(own + u * 4);
    }
};

// The same sum, where each warp has its own tiles.
template <class W>
__device__ __forceinline__ void multiply_expert_down_apart(const Step &step, const u8 *weights, const u16 *h, const RouteSource &routes, u16 *x) {
    using Slots = DownSlots<W>;
    constexpr int GROUPS = (W::ALL_TILES + W::TILES - 1) / W::TILES, ROWS = W::TILES * 8;
    u8 *slots = dynamic_shared();
    __shared__ SlotBarriers<Slots::N> barriers;
    __shared__ float products[MOST_ROWS][ROWS];
    __shared__ Distinct used;
    __shared__ Masks masks;
    __shared__ u16 owners[MOST_ROWS];
    constexpr int READERS = Slots::READERS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    barriers.make(FEW);
    let_next_start();
    const u32 tokens = n_tokens(step);
    const Choice choice = find_masks(masks, used, routes, tokens);
    const Groups own{(int)((u64)GROUPS * blockIdx.x / gridDim.x), (int)((u64)GROUPS * (blockIdx.x + 1) / gridDim.x)};
    if (warp == READERS) {
        const int n = count_used(masks, lane);
        return fill_slots<W, Slots>(barriers, slots, weights, 0, (own.end - own.first) * n, OwnGroups(masks, own.first, n), lane);
    }
    list_distinct<true, READERS>(used, owners, masks, choice, routes, tokens);
    const int n = used.n, n_rows = used.first_row[n];
    wait_for_previous();
    for (int group = own.first; group < own.end; ++group) {
        // A thread's element of x, or none.
        const auto element = [&](u32 thread) {
            const u32 token = thread / ROWS, row = group * ROWS + thread % ROWS;
            return token < min(tokens, (u32)FEW) && row < HIDDEN ? x + (u64)token * HIDDEN_STRIDE + row : nullptr;
        };
        // Rows of all of a block's groups come one after the other, and warps take turns.
        const int first = group - own.first;
        int row = (warp - first * n_rows % READERS + READERS) % READERS;
        DownRow next;
        if (Slots::IS_AHEAD && row < n_rows) next.load(h + (u32)used.sources[row] * EXPERT_STRIDE, lane);
        const u16 *from = element(own_thread());
        const u16 before = from ? load_fresh(from) : 0;
        for (; row < n_rows; row += READERS) {
            DownRow input = next;
            const u32 source = used.sources[row];
            if (!Slots::IS_AHEAD) input.load(h + source * EXPERT_STRIDE, lane);
            else if (row + READERS < n_rows) next.load(h + (u32)used.sources[row + READERS] * EXPERT_STRIDE, lane);
            const int expert = owners[row], at = first * n + expert, slot = at % Slots::N;
            const u32 turn = at / Slots::N % 2;
            float total[2];
            // Copies end in any order, so the slot's last one may still be on its way, and a barrier
            // knows its turns only as odd or even. That one began before the warp's own last copy
            // ended, since no more warps take turns than there are slots: so once it has been read,
            // the next turn is this one.
            barrier_wait(&barriers.empty[slot], turn ^ 1);
            barrier_wait(&barriers.full[slot], turn);
            multiply_row<typename W::Form>(total, slots + slot * Slots::BYTES, (W::TILES - 1) * Slots::TILE_BYTES, input, lane);
            // The first of an expert's rows counts for those that it does not have.
            const int begin = used.first_row[expert];
            barriers.release(slot, row > begin ? 1 : FEW + 1 - (used.first_row[expert + 1] - begin), lane);
            if (lane % 4 == 3) {
                float *to = products[source] + lane / 4;
                to[0] = total[0];
                if (W::TILES == 2) to[8] = total[1];
            }
        }
        meet<READERS>();
        const u32 thread = own_thread(), token = thread / ROWS;
        if (u16 *to = element(thread)) {
            float sum = 0.0f;
#pragma unroll 4
            for (int i = 0; i < N_CHOSEN; ++i) sum += __fmul_rn(used.routes[token][i].weight, products[token * N_CHOSEN + i][thread % ROWS]);
            *to = round_one(widen(before) + sum);
        }
        if (group + 1 < own.end) meet<READERS>(); // products have been read
    }
}
template <class W>
__device__ __forceinline__ void multiply_expert_down(const Step &step, const u8 *weights, const u16 *h, const RouteSource &routes, u16 *x) {
    if constexpr (DownSlots<W>::ARE_ENOUGH) multiply_expert_down_apart<W>(step, weights, h, routes, x);
    else multiply_expert_down_together<W>(step, weights, h, routes, x);
}
