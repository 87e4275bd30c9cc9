// What the host computes log-probabilities from, as weft's sampling/logprobs.rs defines them: the
// sum of the weights of all tokens, the likeliest tokens, and the logit of the one that was chosen.
// Logits are taken as they come, without bias, penalties and masks.
//
// The sum is that of many blocks, each with some of the rows (`add_weights`). Weights are integers,
// so it does not matter who adds when. The block that chooses publishes it and ranks the likeliest
// (`tell_likeliest`); unlike a draw, that never declines.
#pragma once

#include "kernels/sampling.cuh"

constexpr double LOG_SCALE = 1.4426950408889634 * 4294967296.0; // temperature 1

__device__ __forceinline__ u64 *report_words(const Sampling &to, u32 number, u32 output) {
    return to.told_logits + ((u64)(number % PUBLISHED_STEPS) * FEW + output) * REPORT_WORDS;
}
// Called by one thread.
__device__ __forceinline__ void tell_logit(const Sampling &to, u32 number, u32 output, const float *logits, u32 token) {
    if (token != DECLINED) publish(report_words(to, number, output), number, __float_as_uint(load_fresh(logits + token)));
}

// Adds up the weights of every `n_parts`-th 256 rows from those of `part` on. The 256 threads of a
// block call it.
template <class Best>
__device__ __forceinline__ void add_weights(const Draw &draw, const Sampling &sampling, u32 output, const float *logits, u32 part, u32 n_parts,
                                            Choosing &at) {
    const Best likely(sampling.likely, output);
    u32 top = 0;
    likely.each([&](u32, u32 score) { top = max(top, score); });
    top = largest(top, at);
    u64 sum = 0;
    const u32 thread = own_thread();
    for (u32 row = part * 256 + thread; row < draw.vocab; row += n_parts * 256)
        sum += weight_of(LOG_SCALE, top, score_of(load_fresh(logits + row)));
#pragma unroll
    for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(FULL, sum, other);
    if (thread % 32 == 0) at.sums[thread / 32] = sum;
    meet();
    if (thread == 0) {
        for (int warp = 1; warp < WARPS; ++warp) sum += at.sums[warp];
        atomicAdd((unsigned long long *)(sampling.weights + output), (unsigned long long)sum);
    }
    meet();
}

// The first `wanted` groups, one after the other: where so many are equal that there is no room for
// all of them. A group's best row comes before all rows of the groups after it, so no more groups
// than ranks are needed.
template <class Best> __device__ __forceinline__ void pick_groups(const Best &best, u32 wanted, Choosing &at) {
    u32 n = 0, last_score = ~0u, last_group = 0;
    const u32 threshold = at.threshold;
    for (; n < wanted; ++n) {
        const auto follows = [&](u32 group, u32 score) { return score < last_score || (score == last_score && group > last_group); };
        u32 top = 0, first = DECLINED;
        best.each([&](u32 group, u32 score) { if (follows(group, score)) top = max(top, score); });
        top = largest(top, at);
        if (top < threshold) break;
        best.each([&](u32 group, u32 score) { if (score == top && follows(group, score)) first = min(first, group); });
        last_group = smallest(first, at), last_score = top;
        if (own_thread() == 0) at.groups[n] = last_group;
    }
    if (own_thread() == 0) at.n_groups = n;
    meet();
}

// Publishes the likeliest tokens and the sum of all weights, which is there and is cleared for the next
// step. The 256 threads of the block that chooses call it.
template <class Best>
__device__ __forceinline__ void tell_likeliest(const Draw &draw, const Sampling &sampling, u32 output, u32 number, const float *logits, Choosing &at) {
    const Best likely(sampling.likely, output);
    u32 own_top = 0;
    likely.each([&](u32, u32 score) { own_top = max(own_top, score); });
    const u32 wanted = draw.n_ranks, rank = own_thread();
    gather_groups(likely, own_top, wanted, at);
    if (at.n_groups > MOST_RANKS) pick_groups(likely, wanted, at);
    gather_rows(draw, 0, sampling, output, logits, at);
    const u32 n_ranks = rank_candidates(wanted, at);
    u64 *to = report_words(sampling, number, output) + 1;
    if (rank == 0) {
        const u64 sum = load_fresh(sampling.weights + output);
        sampling.weights[output] = 0;
        publish(to, number, (u32)sum), publish(to + 1, number, (u32)(sum >> 32));
    }
    if (rank < wanted) {
        const u64 own = rank < n_ranks ? at.ranked[rank] : 0;
        publish(to + 2 + 2 * rank, number, rank < n_ranks ? token_of(own) : DECLINED);
        publish(to + 3 + 2 * rank, number, __float_as_uint(logit_of((u32)(own >> 32))));
    }
    meet();
}
