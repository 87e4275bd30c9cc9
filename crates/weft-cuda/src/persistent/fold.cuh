// Parts of attention folded in the persistent kernel, in the order in which `attend` folds them; and the whole op.
#pragma once

#include "persistent/attention.cuh"
#include "persistent/launch.cuh"

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

// The same brought near. Parts come from far and are folded one after the other: so the first warp folds, and all others fetch for it, as
// many as are folded at once and as many ahead. They put them where the last product had its sums, which the next one leaves alone.
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
__device__ __forceinline__ void fold_slice(Block &block, const SentParts &parts, u32 token, u32 n_parts) {
    const FetchedParts near(block);
    Folded whole;
    float sums[16];
    meet(); // nobody reads what lies in the buffers
#pragma unroll 1
    for (u32 first = 0; first < n_parts; first += FOLDED_AT_ONCE) {
        if (block.warp > 0) near.fetch(parts, first, n_parts, block.warp);
        // A buffer is full then, and the other one free. One warp that waited in vain makes all wait no more, so that none takes what comes
        // of it for a result.
        if (block.meet_and_ask()) block.watch.gone = true;
        if (block.warp == 0) fold_some<16>(whole, near, sums, first, n_parts, block.lane);
    }
    if (block.warp > 0) return;
    const u32 value = round_one(whole.sum / whole.weight), next = __shfl_down_sync(FULL, value, 1);
    if (parts.d % 2 == 0 && parts.d < HEAD_DIM) publish_attended(block, token, parts.head * HEAD_DIM + parts.d, value | next << 16);
}
// What slots of one head have of its attention: warps take 32 of them in turn.
__device__ __forceinline__ void add_shares(Block &block, const SentParts &parts, u32 n_parts, u32 n_slots, u64 first_slot) {
    if (block.warp * 32 >= n_slots) return;
    const Folded whole = fold_parts<0>(parts, n_parts, block.lane);
    for (u32 slot = block.thread(); slot < n_slots; slot += WARPS * 32) {
        const u64 at = (first_slot + slot) * HEADS + parts.head;
        const TwoWords words = parts.await_two(block.launch.slots + at * 2, true);
        const float share = part_share(whole, __uint_as_float(value_of(words.first)), __uint_as_float(value_of(words.second)));
        add_share(block.launch.shares_of(block.step) + at, block.is_first_layer(), share);
    }
}
// Folds the parts of tokens that have several, and adds up their shares: tasks for blocks. Shares are added from the last
// block on, because everybody waits for what is folded and nobody for them; but only by blocks whose rows of `norm_gate_up`
// all others need, so that the next layer's parts do not come before these are read.
__device__ __forceinline__ void fold_sections(Block &block) {
    constexpr u32 ADDING = GateUpRows::GROUPS < N_BLOCKS ? GateUpRows::GROUPS : N_BLOCKS;
    const u32 n_heads = block.n_tokens * HEADS, from_last = N_BLOCKS - 1 - blockIdx.x;
    const auto parts_of = [&](u32 head, u32 slice) { // head of all tokens
        return SentParts{block, block.shared.partials[head / HEADS][1], (int)(head % HEADS), (int)(slice * 32 + block.lane)};
    };
    const auto n_parts_of = [&](u32 head) { return block.shared.partials[head / HEADS][0]; };
    const auto n_slots_of = [&](u32 head) { return block.shared.partials[head / HEADS][2]; };
    for (u32 task = blockIdx.x; task < n_heads * DIM_UNITS; task += N_BLOCKS) {
        const u32 head = task / DIM_UNITS, n_parts = n_parts_of(head);
        if (n_parts > 1) fold_slice(block, parts_of(head, task % DIM_UNITS), head / HEADS, n_parts);
    }
    for (u32 head = from_last; head < n_heads && from_last < ADDING; head += ADDING)
        if (n_parts_of(head) > 1)
            add_shares(block, parts_of(head, 0), n_parts_of(head), n_slots_of(head), block.shared.partials[head / HEADS][3]);
}

// ---- the op ------------------------------------------------------------------------------------
// All of it, or only what `rope_store` is of it.
__device__ __forceinline__ void run_attend(Block &block, bool only_store) {
    const u32 n_work = block.shared.n_work, n_blocks = block.shared.n_attending;
    if (blockIdx.x < n_blocks) {
        for (u32 index = 0, work = blockIdx.x; work < n_work; ++index, work += n_blocks)
            attend_section(block, index, work, only_store);
        meet();
        if (threadIdx.x == 0) {
            __threadfence_block();
            block.shared.ring.attended = block.shared.ring.attended + 1;
        }
    }
    if (!only_store && block.shared.folds) fold_sections(block);
}
