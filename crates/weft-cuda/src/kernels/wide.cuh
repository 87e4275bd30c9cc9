// A token drawn among more ranks than one block can hold: sixteen blocks share an output's scores
// and keep them in registers. No ranks are sorted.
//
// top_k, top_p and min_p each leave first ranks, so all that is needed of them is the sum of the
// weights that stay: the least of three. Whatever the filters, the token is then the first rank at
// which the running sum over *all* ranks exceeds a target below that sum. One question answers
// top_k, top_p and the draw: which is the first rank at which a running sum exceeds a target?
// `Search` finds its score eight bits at a time, from sums over the 256 values that the eight bits
// have. Weights are integers, so sums do not depend on who adds them when.
//
// Blocks wait for one another, so an output's must be there at once; they follow one another in the
// grid, and a GPU has room for sixteen (`sampling.rs`).
#pragma once

#include "kernels/sampling.cuh"
#include "kernels/sent.cuh"

constexpr int WIDE_WARPS = WIDE_THREADS / 32;
constexpr int WIDE_ROWS_OF_BLOCK = (VOCAB + WIDE_BLOCKS - 1) / WIDE_BLOCKS;
// A vocabulary of more than MOST_WIDE_ROWS a thread is not drawn from here: sums of halves of
// weights would not fit into 32 bits.
constexpr int WIDE_ROWS_OF_THREAD = (WIDE_ROWS_OF_BLOCK + WIDE_THREADS - 1) / WIDE_THREADS;
constexpr int WIDE_ROWS = WIDE_ROWS_OF_THREAD < MOST_WIDE_ROWS ? WIDE_ROWS_OF_THREAD : MOST_WIDE_ROWS;
// Lanes that add to the same sum of a block wait for one another, so each sum is kept in several
// places.
constexpr int SUM_COPIES = 8;
constexpr u32 HALF_WEIGHT = 20, LOW_HALF = (1 << HALF_WEIGHT) - 1;
static_assert((u64)MOST_WIDE_ROWS * WIDE_THREADS / SUM_COPIES << HALF_WEIGHT < 1ull << 32, "sums fit into 32 bits");

// What the threads of a block share.
struct WideShared {
    Draw draw;
    u32 low[256 * SUM_COPIES], high[256 * SUM_COPIES]; // sums of halves of weights
    u64 of_warps[3][WIDE_WARPS];
    u64 before;
    u32 digit;
};

__device__ __forceinline__ u32 wide_row(int i) {
    return blockIdx.x * WIDE_ROWS_OF_BLOCK + i * WIDE_THREADS + threadIdx.x;
}

// The rows of a block; a thread's follow one another at a distance of WIDE_THREADS.
struct WideRows {
    u32 scores[WIDE_ROWS];
    u64 weights[WIDE_ROWS];
    __device__ __forceinline__ WideRows(const Sampling &from, u32 output, const float *logits, u32 top, const Draw &draw) {
        // All are on their way before the first is needed.
        float loaded[WIDE_ROWS];
#pragma unroll
        for (int i = 0; i < WIDE_ROWS; ++i) loaded[i] = load_fresh(logits + min(wide_row(i), (u32)VOCAB - 1));
        const u32 end = min((blockIdx.x + 1) * WIDE_ROWS_OF_BLOCK, (u32)VOCAB);
#pragma unroll
        for (int i = 0; i < WIDE_ROWS; ++i) {
            const u32 row = wide_row(i);
            scores[i] = row < end ? score_row(draw, from, output, row, loaded[i]) : 0;
            weights[i] = scores[i] > SCORE_OF_NOTHING ? weight_of(draw, top, scores[i]) : 0;
        }
    }
};

// The score of the first rank.
__device__ __forceinline__ u32 best_score(const Sampling &from, u32 output, WideShared &at) {
    constexpr int LOADS = (N_BEST + WIDE_THREADS - 1) / WIDE_THREADS;
    const u32 *best = from.best + (u64)output * N_BEST;
    u32 loaded[LOADS], top = 0;
#pragma unroll
    for (int i = 0; i < LOADS; ++i) loaded[i] = load_fresh(best + min(threadIdx.x + i * WIDE_THREADS, (u32)N_BEST - 1));
#pragma unroll
    for (int i = 0; i < LOADS; ++i) top = max(top, loaded[i]);
    top = __reduce_max_sync(FULL, top);
    if (threadIdx.x % 32 == 0) at.of_warps[0][threadIdx.x / 32] = top;
    __syncthreads();
    top = __reduce_max_sync(FULL, (u32)at.of_warps[0][threadIdx.x % WIDE_WARPS]);
    __syncthreads();
    return top;
}

// Where the blocks of an output leave sums for one another: in turn here and there, so that a block
// that is early does not overwrite what another still reads.
struct Meeting {
    u64 *parts; // [2][WIDE_BLOCKS][DIGITS]
    u32 *gate;
    u32 turn;
    __device__ __forceinline__ u64 *of_block(u32 block) const {
        return parts + (turn % 2 * WIDE_BLOCKS + block) * DIGITS;
    }
    // All blocks of the output have come here: what they left is there for all.
    __device__ __forceinline__ void meet() const {
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            // The count never starts again: each meeting adds WIDE_BLOCKS, which divides where it
            // wraps round.
            const u32 all = (atomicAdd(gate, 1) / WIDE_BLOCKS + 1) * WIDE_BLOCKS;
            u32 looks = 0;
            while ((int)(load_relaxed(gate) - all) < 0)
                if (++looks == MOST_LOOKS) trap();
            __threadfence();
        }
        __syncthreads();
    }
    __device__ __forceinline__ u64 sum(u32 word) const {
        u64 sum = 0;
#pragma unroll
        for (int block = 0; block < WIDE_BLOCKS; ++block) sum += load_fresh(of_block(block) + word);
        return sum;
    }
};

// Sums over all threads of all blocks, the same in each.
template <int N>
__device__ __forceinline__ void sum_over_blocks(u64 (&values)[N], Meeting &meeting, WideShared &at) {
    meeting.turn += 1;
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
        for (int other = 16; other > 0; other /= 2) values[i] += __shfl_xor_sync(FULL, values[i], other);
        if (threadIdx.x % 32 == 0) at.of_warps[i][threadIdx.x / 32] = values[i];
    }
    __syncthreads();
    if (threadIdx.x < N) {
        u64 sum = 0;
        for (int warp = 0; warp < WIDE_WARPS; ++warp) sum += at.of_warps[threadIdx.x][warp];
        meeting.of_block(blockIdx.x)[threadIdx.x] = sum;
    }
    meeting.meet();
    if (threadIdx.x < N) at.of_warps[threadIdx.x][0] = meeting.sum(threadIdx.x);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = at.of_warps[i][0];
    __syncthreads();
}

// The first rank at which a running sum exceeds a target.
struct Search {
    u32 score;  // of that rank
    u64 before; // the sum over all better scores
};

// Leaves the sums of this block over the values of eight bits of scores, for those whose upper bits
// are known.
template <class Measure>
__device__ __forceinline__ void leave_digits(const WideRows &rows, u32 known, int level, Measure measure, Meeting &meeting,
                                             WideShared &at) {
    for (u32 i = threadIdx.x; i < 256 * SUM_COPIES; i += WIDE_THREADS) at.low[i] = at.high[i] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WIDE_ROWS; ++i) {
        const u32 bits = rows.scores[i] >> (24 - 8 * level);
        const u64 value = measure(i);
        if (value == 0 || (level > 0 && bits >> 8 != known)) continue;
        const u32 place = (bits & 255) * SUM_COPIES + threadIdx.x % SUM_COPIES;
        if (value & LOW_HALF) atomicAdd(&at.low[place], (u32)value & LOW_HALF);
        if (value >> HALF_WEIGHT) atomicAdd(&at.high[place], (u32)(value >> HALF_WEIGHT));
    }
    __syncthreads();
    if (threadIdx.x >= 256) return;
    u64 sum = 0;
#pragma unroll
    for (int copy = 0; copy < SUM_COPIES; ++copy) {
        const u32 place = threadIdx.x * SUM_COPIES + copy;
        sum += at.low[place] + ((u64)at.high[place] << HALF_WEIGHT);
    }
    meeting.of_block(blockIdx.x)[threadIdx.x] = sum;
}

// Finds among the sums that all blocks left the value, from the highest on, at which the running
// sum exceeds the target.
__device__ __forceinline__ void find_digit(Search &found, u64 target, const Meeting &meeting, WideShared &at) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, digit = 255 - threadIdx.x;
    const u64 own = threadIdx.x < 256 ? meeting.sum(digit) : 0;
    u64 sum = own;
#pragma unroll
    for (int before = 1; before < 32; before *= 2) {
        const u64 other = __shfl_up_sync(FULL, sum, before);
        if (lane >= before) sum += other;
    }
    if (lane == 31) at.of_warps[0][warp] = sum;
    __syncthreads();
    sum += found.before;
    for (u32 other = 0; other < min(warp, 8u); ++other) sum += at.of_warps[0][other];
    // The running sum passes the target once.
    if (threadIdx.x < 256 && sum > target && sum - own <= target) at.digit = digit, at.before = sum - own;
    __syncthreads();
    found = {found.score << 8 | at.digit, at.before};
}

template <class Measure>
__device__ __forceinline__ Search search(const WideRows &rows, u64 target, Measure measure, Meeting &meeting, WideShared &at) {
    Search found = {0, 0};
#pragma unroll 1
    for (int level = 0; level < 4; ++level) {
        meeting.turn += 1;
        leave_digits(rows, found.score, level, measure, meeting, at);
        meeting.meet();
        find_digit(found, target, meeting, at);
    }
    return found;
}

// The sum of the weights that top_k leaves, where there are more ranks.
__device__ __forceinline__ u64 sum_of_top_k(u32 top, const WideRows &rows, Meeting &meeting, WideShared &at) {
    const u32 top_k = at.draw.top_k;
    const auto one = [&](int i) -> u64 { return rows.scores[i] > SCORE_OF_NOTHING; };
    const Search last = search(rows, top_k - 1, one, meeting, at);
    u64 better[1] = {0};
#pragma unroll
    for (int i = 0; i < WIDE_ROWS; ++i) better[0] += rows.scores[i] > last.score ? rows.weights[i] : 0;
    sum_over_blocks(better, meeting, at);
    // Of equals as many as are still wanted.
    return better[0] + (top_k - last.before) * weight_of(at.draw, top, last.score);
}

// The token, if it is one of this block's rows: of those that have the score, the lowest come
// first.
__device__ __forceinline__ u32 own_token(const WideRows &rows, const Search &found, u64 target, u64 weight, const Meeting &meeting,
                                         WideShared &at) {
    u64 earlier = found.before, own = 0;
#pragma unroll
    for (u32 block = 0; block < WIDE_BLOCKS; ++block) {
        const u64 sum = load_fresh(meeting.of_block(block) + (found.score & 255));
        earlier += block < blockIdx.x ? sum : 0;
        own = block == blockIdx.x ? sum : own;
    }
    if (target < earlier || target >= earlier + own) return DECLINED;
    u64 index = (target - earlier) / weight;
    u32 row = DECLINED;
    bool is_found = false, is_equal = false;
#pragma unroll
    for (int i = 0; i < WIDE_ROWS; ++i) {
        const bool equal = rows.scores[i] == found.score;
        const u32 equals = __syncthreads_count(equal);
        if (is_found) continue;
        is_found = index < equals;
        if (!is_found) index -= equals;
        else row = wide_row(i), is_equal = equal;
    }
    const u32 equals = __ballot_sync(FULL, is_equal), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane == 0) at.of_warps[0][warp] = __popc(equals);
    __syncthreads();
    u64 before = __popc(equals & ((1u << lane) - 1));
    for (u32 other = 0; other < warp; ++other) before += at.of_warps[0][other];
    if (is_equal && before == index) at.digit = row;
    __syncthreads();
    return at.digit;
}

// The token of an output in the one block that has its row; DECLINED in all others.
__device__ __forceinline__ u32 draw_wide(u32 top, const WideRows &rows, Meeting &meeting, WideShared &at) {
    const Draw &draw = at.draw;
    u64 sums[3] = {0, 0, 0}; // of all weights, of those that min_p leaves, and how many ranks there are
#pragma unroll
    for (int i = 0; i < WIDE_ROWS; ++i) {
        const u64 weight = rows.weights[i];
        sums[0] += weight;
        sums[1] += weight >= draw.least_weight ? weight : 0;
        sums[2] += rows.scores[i] > SCORE_OF_NOTHING;
    }
    sum_over_blocks(sums, meeting, at);
    u64 total = sums[0];
    if (draw.top_k > 0 && sums[2] > draw.top_k) total = sum_of_top_k(top, rows, meeting, at);
    Search found = {0, 0};
    u64 target = 0, weight = 0;
    // First where top_p ends, then the token.
#pragma unroll 1
    for (bool is_last = draw.share >> 32;; is_last = true) {
        target = is_last ? random_below(draw, min(total, sums[1])) : border_of(draw, total) - 1;
        found = search(rows, target, [&](int i) { return rows.weights[i]; }, meeting, at);
        weight = weight_of(draw, top, found.score);
        if (is_last) break;
        total = found.before + ((target - found.before) / weight + 1) * weight;
    }
    return own_token(rows, found, target, weight, meeting, at);
}
