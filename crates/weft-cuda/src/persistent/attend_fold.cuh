// The end of `attend` in the persistent kernel: what sections left in parts is folded, in the order in
// which the kernel of that name folds it, and handed on. A task for a block is 32 dimensions of one
// head.
#pragma once

#include "kernels/section.cuh"
#include "persistent/bare.cuh"
#include "persistent/launch.cuh"

// Whether parts are published one by one and folded in few rounds (below): where experts follow.
// Dense models have no registers for that.
constexpr bool FOLDS_NEAR = HAS_EXPERTS;

// A pair of dimensions of a result.
template <bool BARE> __device__ __forceinline__ void publish_attended(Block &block, u32 token, int column, u32 pair) {
    if constexpr (BARE) store_bare(bare_places(block).attended(), block.n_tokens, token, column, pair, block.number);
    else store_word(block.launch.a + token * (Q_STRIDE / 2) + column / 2, pair, block.number);
    if (block.is_last()) *(u32 *)(block.launch.plain.a + (u64)token * Q_STRIDE + column) = pair;
}
__device__ __forceinline__ void add_share(float *share, bool is_first_layer, float more) {
    // The first layer begins anew for each token; a share is always added to by the same thread.
    if (is_first_layer) *share = more;
    else atomicAdd(share, more);
}

// The parts of a head as other blocks send them.
struct SentParts {
    static constexpr bool SUMS_FIRST = false;
    Block &block;
    u64 first;
    int head, d;
    // Two words, once this op has sent them.
    __device__ __forceinline__ TwoWords await_two(const u64 *at, bool there) const {
        TwoWords words = {0, 0};
        block.watch.until([&] {
            if (!there) return true;
            words = load_two_relaxed(at);
            return number_of(words.first) == block.number_before(0) && number_of(words.second) == block.number_before(0);
        });
        return words;
    }
    __device__ __forceinline__ Part weight(u32 part, bool there) const {
        const TwoWords words = await_two(block.launch.part_weights + ((first + part) * HEADS + head) * 2, there);
        __syncwarp();
        return {there ? __uint_as_float(value_of(words.first)) : NEVER, __uint_as_float(value_of(words.second))};
    }
    // This lane's dimension of N parts, none beyond `last`.
    template <int N> __device__ __forceinline__ void sums(float (&sums)[N], u32 part, u32 last) const {
        block.watch.until([&] {
            bool all = true;
#pragma unroll
            for (int i = 0; i < N; ++i) {
                const u64 word = load_relaxed(block.launch.part_sums + ((first + min(part + i, last)) * HEADS + head) * DIM + d);
                all &= number_of(word) == block.number_before(0);
                sums[i] = __uint_as_float(value_of(word));
            }
            return all;
        });
        __syncwarp();
    }
};

// The same brought near. Parts come from far and are folded one after the other: so the first warp
// folds, and all others fetch for it, as many as are folded at once and as many ahead. They put
// them where the last product had its sums, which the next one leaves alone.
struct FetchedParts {
    static constexpr bool SUMS_FIRST = false;
    static constexpr u32 EACH = (FOLDED_AT_ONCE + WARPS - 2) / (WARPS - 1); // parts of a warp that fetches
    struct Buffer {
        float sums[FOLDED_AT_ONCE][32]; // [part][lane]
        Part weights[FOLDED_AT_ONCE];
    };
    Buffer *buffers; // two, in turn
    int lane;
    __device__ __forceinline__ FetchedParts(Block &block) : buffers((Buffer *)&block.shared.scratch.sums.of[block.flip]), lane(block.lane) {
        static_assert(sizeof(Buffer) * 2 <= sizeof(block.shared.scratch.sums.of[0]), "two buffers fit");
    }
    __device__ __forceinline__ Buffer &buffer(u32 part) const { return buffers[part / FOLDED_AT_ONCE % 2]; }

    // A warp's share of a buffer.
    __device__ __forceinline__ void fetch(const SentParts &from, u32 first, u32 n_parts, int warp) const {
        const u32 own = (warp - 1) * EACH, count = min(FOLDED_AT_ONCE, n_parts - first);
        if (own < count) {
            float sums[EACH];
            from.sums(sums, first + own, first + count - 1);
#pragma unroll
            for (int i = 0; i < EACH; ++i)
                if (own + i < count) buffer(first).sums[own + i][lane] = sums[i];
        }
        if (warp == WARPS - 1) buffer(first).weights[lane] = from.weight(first + lane, lane < count);
    }
    // What `fold_some` asks for.
    __device__ __forceinline__ Part weight(u32 part, bool) const { return buffer(part).weights[part % FOLDED_AT_ONCE]; }
    template <int N> __device__ __forceinline__ void sums(float (&sums)[N], u32 part, u32) const {
#pragma unroll
        for (int i = 0; i < N; ++i) sums[i] = buffer(part).sums[part % FOLDED_AT_ONCE + i][lane];
    }
};

// 32 dimensions of one head: the work of a block.
template <bool BARE> __device__ __forceinline__ void fold_slice(Block &block, const SentParts &parts, u32 token, u32 n_parts) {
    const FetchedParts near(block);
    Folded whole;
    float sums[16];
    meet(); // nobody reads what lies in the buffers
#pragma unroll 1
    for (u32 first = 0; first < n_parts; first += FOLDED_AT_ONCE) {
        if (block.warp > 0) near.fetch(parts, first, n_parts, block.warp);
        // A buffer is full then, and the other one free. One warp that waited in vain makes all
        // wait no more, so that none takes what comes of it for a result.
        if (block.meet_and_ask()) block.watch.gone = true;
        if (block.warp == 0) fold_some<16>(whole, near, sums, first, n_parts, block.lane);
    }
    if (block.warp > 0) return;
    const u32 value = round_one(whole.sum / whole.weight), next = __shfl_down_sync(FULL, value, 1);
    if (parts.d % 2 == 0 && parts.d < HEAD_DIM) publish_attended<BARE>(block, token, parts.head * HEAD_DIM + parts.d, value | next << 16);
}
// Where all are fetched before they are folded: the first warps fetch sums, two dimensions a lane, the last one weights, from which it makes the factors of a fold.
// Then the first folds. They lie where the last product had its sums, which the next one leaves
// alone.
constexpr u32 NEAR_PARTS = 64;
struct __align__(16) NearWeight {
    Factors factors;
    float weight;
};
struct NearParts {
    float2 sums[NEAR_PARTS][16];
    NearWeight weights[NEAR_PARTS];
};
static_assert(sizeof(NearParts) <= sizeof(WarpSums::of[0]), "parts fit where sums do");

// A warp's share of the sums of `count` parts from `first` on.
__device__ __forceinline__ void fetch_sums(NearParts &to, const SentParts &from, u32 first, u32 count) {
    constexpr u32 EACH = (NEAR_PARTS / 2 + WARPS - 2) / (WARPS - 1);
    const u32 number = from.block.number_before(0), own = from.block.warp * 2 + from.block.lane / 16;
    const u64 *words = from.block.launch.part_sums + ((from.first + first + own) * HEADS + from.head) * DIM + from.d;
    TwoWords got[EACH];
    from.block.watch.until([&] {
        bool all = true;
#pragma unroll
        for (u32 i = 0; i < EACH; ++i)
            if (own + i * (WARPS - 1) * 2 < count) {
                got[i] = load_two_relaxed(words + (u64)i * ((WARPS - 1) * 2 * HEADS * DIM));
                all &= number_of(got[i].first) == number && number_of(got[i].second) == number;
            }
        return all;
    });
#pragma unroll
    for (u32 i = 0; i < EACH; ++i)
        if (own + i * (WARPS - 1) * 2 < count)
            to.sums[own + i * (WARPS - 1) * 2][from.block.lane % 16] =
                make_float2(__uint_as_float(value_of(got[i].first)), __uint_as_float(value_of(got[i].second)));
}
// The factors of `count` parts from `first` on: a lane has two that follow one another. `pivot` is that
// of all before, and after them of all. Where it has one, also a lane's cell.
__device__ __forceinline__ void fetch_factors(NearParts &to, const SentParts &from, u32 first, u32 count, float &pivot, TwoWords &cell, const u64 *cell_words,
                                              bool has_cell) {
    const int lane = from.block.lane;
    const u32 number = from.block.number_before(0), own = lane * 2;
    const u64 *words = from.block.launch.part_weights + ((from.first + first + own) * HEADS + from.head) * 2;
    TwoWords got[2];
    from.block.watch.until([&] {
        bool all = true;
#pragma unroll
        for (u32 i = 0; i < 2; ++i)
            if (own + i < count) {
                got[i] = load_two_relaxed(words + i * (HEADS * 2));
                all &= number_of(got[i].first) == number && number_of(got[i].second) == number;
            }
        if (has_cell) {
            cell = load_two_relaxed(cell_words);
            all &= number_of(cell.first) == number && number_of(cell.second) == number;
        }
        return all;
    });
    __syncwarp();
    float pivots[2];
#pragma unroll
    for (u32 i = 0; i < 2; ++i) pivots[i] = own + i < count ? __uint_as_float(value_of(got[i].first)) : NEVER;
    Factors factors[2];
    pivot = factors_of(factors, pivots, pivot, lane);
#pragma unroll
    for (u32 i = 0; i < 2; ++i)
        if (own + i < count) to.weights[own + i] = {factors[i], __uint_as_float(value_of(got[i].second))};
}

// Cells that are weighed beside a fold: 32 of every slice of a head.
constexpr u32 NEAR_CELLS = DIM_UNITS * 32;

// 32 dimensions of one head: the work of a block. Beside it, what some cells have of the head's
// attention: they are read before results are handed on, so nobody writes the next layer's there
// before.
template <bool BARE> __device__ __forceinline__ void fold_near(Block &block, SentParts parts, u32 token, u32 slice, u32 n_parts, u32 n_cells, u64 first_cell) {
    NearParts &near = *(NearParts *)&block.shared.scratch.sums.of[block.flip];
    const int lane = block.lane;
    const bool weighs = block.warp == WARPS - 1;
    const u64 cell = (first_cell + slice * 32 + lane) * HEADS + parts.head;
    const bool has_cell = weighs && slice * 32 + lane < n_cells;
    parts.d = slice * 32 + lane % 16 * 2;
    Folded whole;
    TwoWords of_cell = {0, 0};
#pragma unroll 1
    for (u32 first = 0; first < n_parts; first += NEAR_PARTS) {
        const u32 count = min(NEAR_PARTS, n_parts - first);
        meet(); // nobody reads what lies there
        if (weighs) fetch_factors(near, parts, first, count, whole.pivot, of_cell, block.launch.cells + cell * 2, has_cell);
        else fetch_sums(near, parts, first, count);
        // One warp that waited in vain makes all wait no more, so that none takes what comes of it
        // for a result.
        if (block.meet_and_ask()) block.watch.gone = true;
        if (block.warp == 0 || weighs)
#pragma unroll 8
            for (u32 i = 0; i < count; ++i) {
                const NearWeight part = near.weights[i];
                whole.sum = fold(whole.sum, part.factors.a, ((const float *)near.sums[i])[lane], part.factors.b);
                whole.weight = fold(whole.weight, part.factors.a, part.weight, part.factors.b);
            }
    }
    if (block.warp == 0) {
        const int d = slice * 32 + lane;
        const u32 value = round_one(whole.sum / whole.weight), next = __shfl_down_sync(FULL, value, 1);
        if (d % 2 == 0 && d < HEAD_DIM) publish_attended<BARE>(block, token, parts.head * HEAD_DIM + d, value | next << 16);
    } else if (has_cell) {
        const float share = part_share(whole, __uint_as_float(value_of(of_cell.first)), __uint_as_float(value_of(of_cell.second)));
        add_share(block.launch.shares_of(block.step) + cell, block.is_first_layer(), share);
    }
}
// What cells of one head have of its attention, but for those beside a fold: warps take 32 of them
// in turn.
__device__ __forceinline__ void add_shares(Block &block, const SentParts &parts, u32 n_parts, u32 n_cells, u64 first_cell) {
    constexpr u32 FIRST = FOLDS_NEAR ? NEAR_CELLS : 0;
    if (FIRST + block.warp * 32 >= n_cells) return;
    const Folded whole = fold_parts<0>(parts, n_parts, block.lane);
    for (u32 cell = FIRST + block.thread(); cell < n_cells; cell += WARPS * 32) {
        const u64 at = (first_cell + cell) * HEADS + parts.head;
        const TwoWords words = parts.await_two(block.launch.cells + at * 2, true);
        const float share = part_share(whole, __uint_as_float(value_of(words.first)), __uint_as_float(value_of(words.second)));
        add_share(block.launch.shares_of(block.step) + at, block.is_first_layer(), share);
    }
}
// Folds the parts of tokens that have several, and adds up their shares: tasks for blocks. Shares
// are added from the last block on, because everybody waits for what is folded and nobody for them;
// but only by blocks whose rows of `norm_gate_up` all others need, or of `proj_add` where experts
// follow, so that the next layer's parts do not come before these are read.
template <bool BARE> __device__ __forceinline__ void fold_sections(Block &block) {
    constexpr u32 OWNING = HAS_EXPERTS ? HiddenRows::GROUPS : GateUpRows::GROUPS, ADDING = OWNING < N_BLOCKS ? OWNING : N_BLOCKS;
    const u32 n_heads = block.n_tokens * HEADS, from_last = N_BLOCKS - 1 - blockIdx.x;
    const auto parts_of = [&](u32 head, u32 slice) { // head of all tokens
        return SentParts{block, block.shared.partials[head / HEADS][1], (int)(head % HEADS), (int)(slice * 32 + block.lane)};
    };
    const auto n_parts_of = [&](u32 head) { return block.shared.partials[head / HEADS][0]; };
    const auto n_cells_of = [&](u32 head) { return block.shared.partials[head / HEADS][2]; };
    for (u32 task = blockIdx.x; task < n_heads * DIM_UNITS; task += N_BLOCKS) {
        const u32 head = task / DIM_UNITS, n_parts = n_parts_of(head);
        if (n_parts <= 1) continue;
        const SentParts parts = parts_of(head, task % DIM_UNITS);
        if constexpr (FOLDS_NEAR) fold_near<BARE>(block, parts, head / HEADS, task % DIM_UNITS, n_parts, n_cells_of(head), block.shared.partials[head / HEADS][3]);
        else fold_slice<BARE>(block, parts, head / HEADS, n_parts);
    }
    for (u32 head = from_last; head < n_heads && from_last < ADDING; head += ADDING)
        if (n_parts_of(head) > 1 && (!FOLDS_NEAR || n_cells_of(head) > NEAR_CELLS))
            add_shares(block, parts_of(head, 0), n_parts_of(head), n_cells_of(head), block.shared.partials[head / HEADS][3]);
}
