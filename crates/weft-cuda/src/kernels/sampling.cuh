// A token from logits, as weft::sampling::Sampler defines it, without a pass of one block over the
// vocabulary.
//
// A *score* is a logit after bias, penalties and masks, as an integer that rises with it. While the
// head is computed, the best score of every 16 rows is left behind (`leave_best`). One block per
// output then needs those alone: the k best scores all lie in groups whose best is at least the
// k-th best of *any* set of scores, such as the best that each of its 256 threads holds
// (`choose_token`). What the block cannot decide it declines, and the host chooses from the logits:
// scores that are not numbers, more candidates than it has room for. Draws among more than
// MOST_RANKS ranks are in wide.cuh.
#pragma once

#include "kernels/base.cuh"

// MOST_RANKS are weighed. With half as many as there are threads, the threshold leaves one group in
// fifty of a large vocabulary; a vocabulary of fewer groups than ranks is gathered whole.
constexpr int MOST_GROUPS = 1024, MOST_CANDIDATES = MOST_RANKS * SCORE_ROWS;

// How the token of one output is chosen. The host calls it `DrawWords`.
struct Draw {
    u32 flags;
    u32 vocab; // rows from here on are padding
    u32 top_k; // WIDE: 0, or more than MOST_RANKS; otherwise 1 to MOST_RANKS
    u32 index; // of the token in its answer
    float repetition, frequency, presence;
    u32 min_tokens;
    double scale;     // what turns a difference of logits into the distance of a weight
    u64 least_weight; // that may be drawn
    u64 share;        // top_p in units of 2^-32
    u64 seed;
    u32 token_number, share_number; // under which the host waits for the token, and for its shares of attention
    u32 n_ranks;                    // REPORTED: the likeliest tokens that are published, 1 to 20
    u32 gap;
};

// The draws of a step, and what they need.
struct Sampling {
    Draw *draws;       // [8]
    u32 *best;         // [8][N_BEST]: the best score of every SCORE_ROWS rows
    const float *bias; // f32 [8][VOCAB]
    u32 *marks;        // [8][VOCAB]: see below
    u64 *published_tokens;  // the host's: [PUBLISHED_STEPS][8], a token and in the upper half the number of its step
    u64 *published_shares;  // the host's: [PUBLISHED_STEPS][cells], the same with the share of a cell
    u64 n_cells;
    u64 *parts;        // [8][2][WIDE_BLOCKS][DIGITS]: see wide.cuh
    u32 *gates;        // [8]: how often a block has come to a place where all of its output's meet
    u32 *likely;       // [8][N_BEST]: REPORTED: as `best`, of logits as they come (report.cuh)
    u64 *weights;      // [8]: REPORTED: the sum of the weights of all tokens
    u64 *told_logits;  // the host's: [PUBLISHED_STEPS][8][REPORT_WORDS], as `published_tokens`
    const u64 *given_masks; // the host's: [8][MASK_WORDS], 32 bits and in the upper half the number of their step
    u32 *masks;        // [8][MASK_WORDS]: MASKED: a bit for every token that may be chosen (mask.cuh)
    u32 *late;         // [8]: the number of a step whose mask did not come
};

// A mark: 1 + how often the output has the token, where it was seen at all; and whether it is ruled
// out.
constexpr u32 SEEN = RULED_OUT_EARLY - 1;

// A token whose logit is not taken as it comes.
struct Adjustment {
    u32 token, mark;
    float bias;
    u32 output;
};

__device__ __forceinline__ Draw load_draw(const Sampling &from, u32 output) {
    Draw draw;
    const uint4 *at = (const uint4 *)(from.draws + output);
#pragma unroll
    for (int i = 0; i < sizeof(Draw) / 16; ++i) ((uint4 *)&draw)[i] = load_fresh(at + i);
    return draw;
}

// ---- scores ------------------------------------------------------------------------------------
constexpr u32 SCORE_OF_NOTHING = 0x007fffffu;  // minus infinity: no rank
constexpr u32 SCORE_OF_INFINITY = 0xff800000u; // from here on scores say nothing

__device__ __forceinline__ u32 score_of(float logit) {
    if (logit != logit) return 0xffffffffu;
    const u32 bits = __float_as_uint(logit + 0.0f); // 0 and -0 are a tie
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float logit_of(u32 score) {
    return __uint_as_float(score >> 31 ? score & 0x7fffffffu : ~score);
}

// Steps 1 to 4 of the definition, each operation rounded.
__device__ __forceinline__ float adjusted(const Draw &draw, const Sampling &from, u32 output, u32 row, float logit) {
    const u64 at = (u64)output * VOCAB + row;
    const u32 mark = load_fresh(from.marks + at), seen = mark & SEEN;
    logit += load_fresh(from.bias + at);
    if (seen > 0) logit = logit < 0.0f ? logit * draw.repetition : logit / draw.repetition;
    if (seen > 1) {
        logit -= draw.frequency * (float)(seen - 1);
        logit -= draw.presence;
    }
    const bool out = (mark & RULED_OUT) || ((mark & RULED_OUT_EARLY) && draw.index < draw.min_tokens);
    // A mask must not hide that the model went wrong.
    return out && logit < __uint_as_float(0x7f800000u) ? NEVER : logit;
}
// Whether the mask forbids a row.
__device__ __forceinline__ bool is_forbidden(const Sampling &from, u32 output, u32 row) {
    return !(load_fresh(from.masks + (u64)output * MASK_WORDS + row / 32) >> row % 32 & 1);
}
// The score of a row by some of a draw's flags.
__device__ __forceinline__ u32 score_row(const Draw &draw, u32 flags, const Sampling &from, u32 output, u32 row, float logit) {
    if (row >= draw.vocab) return 0;
    if (flags & ADJUSTED) logit = adjusted(draw, from, output, row, logit);
    if (flags & MASKED && logit < __uint_as_float(0x7f800000u) && is_forbidden(from, output, row)) logit = NEVER;
    return score_of(logit);
}
__device__ __forceinline__ u32 score_row(const Draw &draw, const Sampling &from, u32 output, u32 row, float logit) {
    return score_row(draw, draw.flags, from, output, row, logit);
}

// Leaves the best of 16 rows behind, of which eight neighbouring lanes hold two each.
__device__ __forceinline__ void leave_best(u32 *to, u32 output, u32 group, u32 best) {
    const u32 lanes = 0xffu << (threadIdx.x & 24);
#pragma unroll
    for (int other = 4; other > 0; other /= 2) best = max(best, __shfl_xor_sync(lanes, best, other));
    if (threadIdx.x % 8 == 0) to[(u64)output * N_BEST + group] = best;
}

// ---- the draw ----------------------------------------------------------------------------------
__device__ __forceinline__ u64 mix(u64 z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}
// weft::sampling::uniform times a total, rounded down.
__device__ __forceinline__ u64 random_below(const Draw &draw, u64 total) {
    const u64 bits = mix(mix(draw.seed) + 0x9E3779B97F4A7C15ull * (draw.index + 1ull));
    return __umul64hi(bits >> 11 << 11, total);
}

// The weight of a score, as weft's sampling/weight.rs defines it: the first rank's is 2^40.
__device__ __forceinline__ u64 times_rest(u64 q, u32 rest) {
    return (u64)(u32)(q >> 32) * rest + ((u64)(u32)q * rest >> 32);
}
__device__ __forceinline__ u64 weight_of(double scale, u32 top, u32 score) {
    const double below = __dsub_rn((double)logit_of(top), (double)logit_of(score));
    const double exact = __dmul_rn(below, scale);
    if (exact >= 41.0 * 4294967296.0) return 0;
    const u64 distance = __double2ull_rz(exact);
    const u32 halvings = (u32)(distance >> 32), rest = (u32)distance;
    u64 q = 0x00000140F3AA7C4Aull;
    q = 0x0000155DE54941DDull - times_rest(q, rest);
    q = 0x0000FF1B3319FE1Aull - times_rest(q, rest);
    q = 0x000A17D2F4587138ull - times_rest(q, rest);
    q = 0x005761D74B3F265Bull - times_rest(q, rest);
    q = 0x027655662C942664ull - times_rest(q, rest);
    q = 0x0E35846AC0C5CC29ull - times_rest(q, rest);
    q = 0x3D7F7BFEFE4CDD7Bull - times_rest(q, rest);
    q = 0xB17217F7D1C408AAull - times_rest(q, rest);
    const u64 power = (1ull << 63) - (times_rest(q, rest) >> 1);
    const u32 shift = 23 + halvings;
    return (power + (1ull << (shift - 1))) >> shift;
}
__device__ __forceinline__ u64 weight_of(const Draw &draw, u32 top, u32 score) { return weight_of(draw.scale, top, score); }
// The least sum of first ranks that top_p is content with.
__device__ __forceinline__ u64 border_of(const Draw &draw, u64 total) {
    const u64 whole = __umul64hi(draw.share << 31, total << 1), rest = draw.share * total & 0xffffffffull;
    return max(whole + (rest > 0), 1ull);
}

// What the 256 threads of a block that chooses share.
struct Choosing {
    u32 maxima[256];
    u32 of_warps[WARPS];
    u32 threshold, n_groups, n_candidates;
    u32 groups[MOST_GROUPS];
    u64 candidates[MOST_CANDIDATES]; // the better the larger: score, then the id turned round
    u64 ranked[MOST_RANKS];
    u64 sums[256];
};
__device__ __forceinline__ u64 candidate(u32 score, u32 token) { return (u64)score << 32 | ~token; }
__device__ __forceinline__ u32 token_of(u64 candidate) { return ~(u32)candidate; }

// The largest, or the smallest, that any thread of the block has. Between two calls all threads
// meet.
__device__ __forceinline__ u32 largest(u32 own, Choosing &at) {
    own = __reduce_max_sync(FULL, own);
    const u32 thread = own_thread();
    if (thread % 32 == 0) at.of_warps[thread / 32] = own;
    meet();
    for (int warp = 0; warp < WARPS; ++warp) own = max(own, at.of_warps[warp]);
    meet();
    return own;
}
__device__ __forceinline__ u32 smallest(u32 own, Choosing &at) { return ~largest(~own, at); }

// The best scores of all groups, shared out over the threads.
struct BestScores {
    static constexpr int LOADS = (N_BEST + 255) / 256;
    u32 own[LOADS];
    __device__ __forceinline__ BestScores(const u32 *scores, u32 output) {
        const u32 *best = scores + (u64)output * N_BEST;
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const int group = threadIdx.x + i * 256;
            own[i] = group < N_BEST ? load_fresh(best + group) : 0;
        }
    }
    template <class Visit> __device__ __forceinline__ void each(Visit visit) const {
#pragma unroll
        for (int i = 0; i < LOADS; ++i) visit(threadIdx.x + i * 256, own[i]);
    }
};

// The first rank, whose score is `top`: the lowest row of the lowest group that has it.
template <class Best>
__device__ __forceinline__ u32 first_rank(const Draw &draw, const Sampling &from, u32 output, const float *logits,
                                          const Best &best, u32 top, Choosing &at) {
    u32 first = DECLINED;
    best.each([&](u32 group, u32 score) { if (score == top) first = min(first, group); });
    const u32 own = own_thread() % SCORE_ROWS, row = smallest(first, at) * SCORE_ROWS + own;
    const bool is_top = row < VOCAB && score_row(draw, from, output, row, load_fresh(logits + row)) == top;
    return row - own + __ffs(__ballot_sync(FULL, is_top) & 0xffffu) - 1;
}

// Groups that hold all of the first `wanted` ranks, in no order; those beyond MOST_GROUPS are only
// counted.
template <class Best> __device__ __forceinline__ void gather_groups(const Best &best, u32 own_top, u32 wanted, Choosing &at) {
    const u32 thread = own_thread();
    at.maxima[thread] = own_top;
    if (thread == 0) at.n_groups = at.n_candidates = 0;
    meet();
    // Of equal maxima the first thread's comes first, so that each rank is one thread's.
    u32 rank = 0;
    for (int i = 0; i < 64; ++i) {
        const uint4 m = ((const uint4 *)at.maxima)[i];
        const u32 others[4] = {m.x, m.y, m.z, m.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) rank += others[j] > own_top || (others[j] == own_top && i * 4 + j < thread);
    }
    if (rank == wanted - 1) at.threshold = max(own_top, SCORE_OF_NOTHING + 1);
    meet();
    const u32 threshold = at.threshold;
    best.each([&](u32 group, u32 score) {
        if (score < threshold) return;
        const u32 place = atomicAdd(&at.n_groups, 1);
        if (place < MOST_GROUPS) at.groups[place] = group;
    });
    meet();
}
// The rows of these groups that reach the threshold, scored by some of the draw's flags; false if
// there is no room for them.
__device__ __forceinline__ bool gather_rows(const Draw &draw, u32 flags, const Sampling &from, u32 output, const float *logits, Choosing &at) {
    const u32 threshold = at.threshold;
    for (u32 i = own_thread(); i < at.n_groups * SCORE_ROWS; i += 256) {
        const u32 row = at.groups[i / SCORE_ROWS] * SCORE_ROWS + i % SCORE_ROWS;
        if (row >= VOCAB) continue;
        const u32 score = score_row(draw, flags, from, output, row, load_fresh(logits + row));
        if (score < threshold) continue;
        const u32 place = atomicAdd(&at.n_candidates, 1);
        if (place < MOST_CANDIDATES) at.candidates[place] = candidate(score, row);
    }
    meet();
    return at.n_candidates <= MOST_CANDIDATES;
}
// Puts the first `wanted` candidates in order; how many there are.
__device__ __forceinline__ u32 rank_candidates(u32 wanted, Choosing &at) {
    const u32 n = at.n_candidates;
    for (u32 i = own_thread(); i < n; i += 256) {
        const u64 own = at.candidates[i];
        u32 better = 0;
        for (u32 j = 0; j < n; ++j) better += at.candidates[j] > own;
        if (better < wanted) at.ranked[better] = own;
    }
    meet();
    return min(n, wanted);
}

// Steps 5 to 10 of the definition for a draw among the first `wanted` ranks.
__device__ __forceinline__ u32 draw_rank(const Draw &draw, u32 wanted, Choosing &at) {
    const u32 rank = own_thread(), n_ranks = rank_candidates(wanted, at);
    const u64 weight = rank < n_ranks ? weight_of(draw, at.ranked[0] >> 32, at.ranked[rank] >> 32) : 0;
    at.sums[rank] = weight;
    meet();
    if (rank == 0) {
        u64 sum = 0;
        for (u32 i = 0; i < n_ranks; ++i) at.sums[i] = sum += at.sums[i];
    }
    meet();
    // Of the ranks that stay the first one always does.
    const u64 border = border_of(draw, at.sums[n_ranks - 1]);
    const bool stays = weight >= draw.least_weight && (rank == 0 || at.sums[rank - 1] < border);
    const u32 n_kept = smallest(stays ? DECLINED : rank, at);
    const u64 target = random_below(draw, at.sums[n_kept - 1]);
    return token_of(at.ranked[smallest(rank < n_kept && at.sums[rank] > target ? rank : DECLINED, at)]);
}

// The token of an output, or DECLINED; the same in all of the block's first 256 threads, which all
// call it. `Best` is how they have the best scores: a kernel without registers for them reads them
// as often as it needs them.
template <class Best = BestScores>
__device__ __forceinline__ u32 choose_token(const Draw &draw, const Sampling &from, u32 output, const float *logits,
                                            Choosing &at) {
    const Best best(from.best, output);
    u32 own_top = 0;
    best.each([&](u32, u32 score) { own_top = max(own_top, score); });
    const u32 top = largest(own_top, at);
    if (top >= SCORE_OF_INFINITY || top <= SCORE_OF_NOTHING) return DECLINED;
    if (!(draw.flags & DRAWN)) return first_rank(draw, from, output, logits, best, top, at);
    gather_groups(best, own_top, draw.top_k, at);
    if (at.n_groups > MOST_GROUPS || !gather_rows(draw, draw.flags, from, output, logits, at)) return DECLINED;
    return draw_rank(draw, draw.top_k, at);
}

// A word for the host: the number of the step makes it new, so no order between words is needed.
__device__ __forceinline__ void publish(u64 *at, u32 number, u32 value) {
    store_relaxed_system(at, (u64)number << 32 | value);
}
