// The next token in the persistent kernel, and what is published to the host.
//
// Two ways lead to the next token. Where it is the best logit of every lane, blocks hand each other
// their candidates and all find it for themselves: one hop. Where lanes draw, or adjust their
// logits, scores lie in memory: every block says that it is done, one block per output chooses as
// the kernel `choose` does, and hands its token to all.
#pragma once

#include "kernels/mask.cuh"
#include "kernels/report.cuh"
#include "kernels/sampling.cuh"
#include "persistent/launch.cuh"
#include "persistent/product.cuh"

constexpr u32 LAST = 0x80000000u; // beside a token: none follows. No row has the bit, and DECLINED has it.

// ---- done --------------------------------------------------------------------------------------
// Says that logits, scores and shares of attention that this block wrote are there. Called after
// all warps met, by the last one: the first has candidates to hand on.
__device__ __forceinline__ void publish_done(Block &block) {
    if (block.thread() != (WARPS - 1) * 32) return;
    __threadfence();
    store_word(block.launch.done + blockIdx.x, 0, block.number);
}
// Whether a block is done with the op of a number. Those that owe nothing to whoever asks may have
// done more since.
__device__ __forceinline__ bool is_done(const Launch &launch, u32 block, u32 number) {
    return (int)(number_of(load_relaxed(launch.done + block)) - number) >= 0;
}
// Waits until all blocks are; whether they are.
__device__ __forceinline__ bool await_done(Block &block, u32 number) {
    for (u32 from = block.thread(); from < N_BLOCKS; from += WARPS * 32)
        block.watch.until([&] { return is_done(block.launch, from, number); });
    __threadfence();
    return !block.meet_and_ask();
}

// ---- shares ------------------------------------------------------------------------------------
// The copying warp publishes shares, because it has time, and the computing warps need no
// instructions for it. It publishes the shares of a step when the second layer of the next step
// comes, and those of the last step when the computing warps are done. The step after the next adds
// up shares in the same place. It cannot begin before they are published: the publishing blocks own
// rows of the op that follows.
__device__ __forceinline__ bool publishes_shares(const BlockShared &shared, u32 op) {
#if HAS_EXPERTS
    return shared.ops[op] == (PROJ_ADD | (LAYERS > 1) << 8);
#else
    return op == (LAYERS > 1 ? 10 : 4); // of the plan: the second `proj_add`
#endif
}
constexpr u32 PUBLISHING_BLOCKS = HiddenRows::GROUPS < N_BLOCKS ? HiddenRows::GROUPS : N_BLOCKS; // the last ones

// Waits until all blocks are done with a step's head. False if the computing warps have left
// before. They time out on their own waits, and everything they finished has already been
// published.
__device__ __forceinline__ bool await_heads(const BlockShared &shared, const Launch &launch, u32 step, int lane) {
    const u32 number = launch.number + (step + 1) * launch.n_ops;
    for (u32 from = lane; from < N_BLOCKS; from += 32)
        while (!is_done(launch, from, number))
            if (shared.ring.left && shared.n_steps <= step) return false;
    __threadfence();
    return true;
}
// Publishes to the host how the tokens of a step attended: a block for each output, from the last
// block on. False if the computing warps have left before.
__device__ __forceinline__ bool publish_shares(const BlockShared &shared, const Launch &launch, u32 step, int lane) {
    const Sampling &to = launch.sampling;
    const float *shares = launch.shares_of(step);
    const u32 from_last = N_BLOCKS - 1 - blockIdx.x;
    for (u32 output = from_last; output < shared.n_outputs && from_last < PUBLISHING_BLOCKS; output += PUBLISHING_BLOCKS) {
        const Draw &draw = shared.draws[output];
        if (!(draw.flags & CHOSEN)) continue;
        if (!__all_sync(FULL, await_heads(shared, launch, step, lane))) return false;
        __syncwarp();
        const u32 n_cells = shared.partials[shared.outputs[output]][2], first = shared.partials[shared.outputs[output]][3];
        const u32 published = draw.share_number + step;
        for (u32 cell = first + lane; cell < first + n_cells; cell += 32) {
            float sum = 0.0f;
            for (int head = 0; head < HEADS; ++head) sum += load_fresh(shares + (u64)cell * HEADS + head);
            publish(to.published_shares + published % PUBLISHED_STEPS * to.n_cells + cell, published, __float_as_uint(sum));
        }
    }
    return true;
}
__device__ __forceinline__ void publish_last_shares(const BlockShared &shared, const Launch &launch, u32 n_published, int lane) {
    while (!shared.ring.left) look_again();
    while (n_published < shared.n_steps) publish_shares(shared, launch, n_published++, lane);
}
__device__ __forceinline__ void publish_token(Block &block, u32 output, u32 token) {
    const u32 number = block.shared.draws[output].token_number + block.step;
    publish(block.launch.sampling.published_tokens + number % PUBLISHED_STEPS * FEW + output, number, token);
}

// ---- the best logit ----------------------------------------------------------------------------
__device__ __forceinline__ u64 better(u64 a, u64 b) { return a > b ? a : b; }
// Of a block without rows (see `candidate`); the highest bit of its row's complement is set as that
// of any other.
constexpr u64 NO_CANDIDATE = 0x80000000ull;

// Where a block's candidate for an output lies. Steps take turns: a block that has no part in a
// step's ops is late without holding it up, and reads the last one's when others are at this one's.
__device__ __forceinline__ u64 *candidate_words(const Block &block, u32 output, u32 from) {
    return block.launch.candidates + ((block.step % 2 * FEW + output) * N_BLOCKS + from) * 2;
}
// Publishes the best of this block's rows to all blocks; the first block also publishes whether the
// host wants to stop. `best` is that of the rows this thread had, all of the same output: eight
// threads have the rows of one, 1, 2, 4 or 8 outputs take turns.
__device__ __forceinline__ void publish_best(Block &block, u64 best) {
#pragma unroll
    for (int other = 1; other < 8; other *= 2) best = better(best, __shfl_xor_sync(FULL, best, other));
    if (block.lane % 8 == 0) block.shared.best[block.thread() / 8] = best;
    meet();
    publish_done(block);
    if (block.thread() < block.shared.n_outputs) {
        u64 of_block = NO_CANDIDATE;
        const u32 turns = block.shared.n_outputs <= 2 ? block.shared.n_outputs : block.shared.n_outputs <= 4 ? 4 : 8;
        for (int i = block.thread(); i < WARPS * 4; i += turns) of_block = better(of_block, block.shared.best[i]);
        u64 *to = candidate_words(block, block.thread(), blockIdx.x);
        store_word(to, (u32)(of_block >> 32), block.number);
        store_word(to + 1, (u32)of_block ^ block.shared.asked_to_stop << 31, block.number);
    }
}
// The best of all blocks' rows of a warp's output, or DECLINED where scores say nothing; with LAST
// where the host wants to stop.
__device__ __forceinline__ u32 take_best(Block &block) {
    const u32 number = block.number_before(0);
    u64 best = 0;
    u32 last = 0;
    // All are asked for at once, because they are far. A lane without a block has the last one's too.
    constexpr int EACH = (N_BLOCKS + 31) / 32;
    const u64 *from[EACH];
    TwoWords words[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) from[i] = candidate_words(block, block.warp, min(i * 32 + block.lane, N_BLOCKS - 1));
    block.watch.until([&] {
        bool all = true;
#pragma unroll
        for (int i = 0; i < EACH; ++i) words[i] = load_two_relaxed(from[i]);
#pragma unroll
        for (int i = 0; i < EACH; ++i) all &= number_of(words[i].first) == number && number_of(words[i].second) == number;
        return all;
    });
    __syncwarp();
    // A row's complement has its highest bit set; where the first block wants to stop it is not.
    if (block.lane == 0 && !(value_of(words[0].second) & 0x80000000u)) last = LAST;
#pragma unroll
    for (int i = 0; i < EACH; ++i) best = better(best, (u64)value_of(words[i].first) << 32 | value_of(words[i].second) | 0x80000000u);
#pragma unroll
    for (int other = 1; other < 32; other *= 2) best = better(best, __shfl_xor_sync(FULL, best, other));
    const u32 top = (u32)(best >> 32);
    const u32 token = top >= SCORE_OF_INFINITY || top <= SCORE_OF_NOTHING ? DECLINED : token_of(best);
    const bool gone = __any_sync(FULL, block.watch.gone); // a lane whose block is missing in the best
    if (blockIdx.x == 0 && block.lane == 0 && !gone) publish_token(block, block.warp, token);
    return token | __shfl_sync(FULL, last, 0);
}

// ---- a draw ------------------------------------------------------------------------------------
// The best scores of all groups, shared out over the threads as `BestScores` are.
struct ReadScores {
    const u32 *best;
    u32 thread;
    __device__ __forceinline__ ReadScores(const u32 *scores, u32 output) : best(scores + (u64)output * N_BEST), thread(own_thread()) {}
    template <class Visit> __device__ __forceinline__ void each(Visit visit) const {
#pragma unroll 8
        for (u32 group = thread; group < N_BEST; group += WARPS * 32) visit(group, load_fresh(best + group));
    }
};
// Adds this block's part to the sums of weights of outputs that report log-probabilities. Of a sum
// all blocks' parts must be there before it is published, and before logits change: the block that
// chooses awaits them. It chooses afterwards, so parts are added while nothing else can be done.
constexpr u32 ADDED = 1; // beside the number of `done`: and its part is added
__device__ __forceinline__ void add_own_weights(Block &block) {
    const Launch &launch = block.launch;
    u32 n_reported = 0;
    for (u32 output = 0; output < block.shared.n_outputs; ++output) n_reported += (block.shared.draws[output].flags & REPORTED) != 0;
    if (n_reported == 0 || !await_done(block, block.number_before(0))) return;
    for (u32 output = 0; output < block.shared.n_outputs; ++output) {
        const Draw &draw = block.shared.draws[output];
        if (!(draw.flags & REPORTED)) continue;
        add_weights<ReadScores>(draw, launch.sampling, output, launch.logits + (u64)output * VOCAB, own_block(), N_BLOCKS, block.shared.scratch.choosing);
    }
    if (block.thread() != 0) return;
    __threadfence();
    store_word(launch.done + own_block(), ADDED, block.number);
}
// Waits until all parts are added; whether they are.
__device__ __forceinline__ bool await_added(Block &block, u32 number) {
    for (u32 from = block.thread(); from < N_BLOCKS; from += WARPS * 32)
        block.watch.until([&] {
            const u64 word = load_relaxed(block.launch.done + from);
            return number_of(word) == number && value_of(word) == ADDED;
        });
    __threadfence();
    return !block.meet_and_ask();
}
// Chooses the tokens of this block's outputs from what all blocks left, and hands them to all.
__device__ __forceinline__ void publish_drawn(Block &block) {
    const Launch &launch = block.launch;
    meet();
    publish_done(block);
    add_own_weights(block);
    // As in `Block::begin`.
    for (u32 output = own_block(); output < block.shared.n_outputs; output += N_BLOCKS) {
        const Draw &draw = block.shared.draws[output];
        u32 token = DECLINED;
        if (draw.flags & CHOSEN && await_done(block, block.number_before(0))) {
            const Sampling &sampling = launch.sampling;
            const float *logits = launch.logits + (u64)output * VOCAB;
            const u32 number = draw.token_number + block.step;
            Choosing &choosing = block.shared.scratch.choosing;
            if (!is_late(sampling, draw, output, number)) token = choose_token<ReadScores>(draw, sampling, output, logits, choosing);
            if (block.thread() == 0) publish_token(block, output, token);
            if (draw.flags & REPORTED && await_added(block, block.number_before(0))) {
                if (block.thread() == 0) tell_logit(sampling, number, output, logits, token);
                tell_likeliest<ReadScores>(draw, sampling, output, number, logits, choosing);
            }
        }
        if (block.thread() != 0) continue;
        if (token != DECLINED && draw.flags & ADJUSTED) {
            u32 &mark = launch.sampling.marks[(u64)output * VOCAB + token];
            const u32 before = load_fresh(&mark);
            mark = before + (before & SEEN ? 1 : 2);
        }
        // Scores of the next token depend on the mark.
        __threadfence();
        store_word(launch.chosen + output, output == 0 && block.shared.asked_to_stop ? token | LAST : token, block.number);
    }
}
// The token of a warp's output; with LAST where none follows.
__device__ __forceinline__ u32 take_drawn(Block &block) {
    u64 word = 0;
    block.watch.until([&] {
        word = load_relaxed(block.launch.chosen + block.warp);
        return number_of(word) == block.number_before(0);
    });
    __threadfence();
    return value_of(word);
}

// ---- the step after it -------------------------------------------------------------------------
// The next token of every lane; whether it is the last.
__device__ __forceinline__ bool take_tokens(Block &block) {
    if (block.warp < block.shared.n_outputs) {
        const u32 token = block.draws ? take_drawn(block) : take_best(block);
        if (block.lane == 0) {
            block.shared.tokens[block.warp] = min(token & ~LAST, (u32)VOCAB - 1);
            block.shared.draws[block.warp].index += 1;
            if (token & LAST) block.shared.stop = 1;
        }
    }
    const bool gone = block.meet_and_ask(), stop = block.shared.stop || gone;
    if (block.thread() == 0 && !gone) block.shared.n_steps = block.step + 1;
    meet();
    return stop;
}
