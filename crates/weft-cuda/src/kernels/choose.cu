#include "kernels/mask.cuh"
#include "kernels/report.cuh"
#include "kernels/sampling.cuh"
#include "kernels/section.cuh"
#include "kernels/wide.cuh"

// Moves the lists of a step on to a lane's next token: one row further, in the same page.
__device__ __forceinline__ void advance(const Step &step, u32 token_index, u32 token) {
    if (threadIdx.x == 0) {
        ((u32 *)step.tokens)[token_index] = token;
        ((u32 *)step.positions)[token_index] += 1;
        ((u32 *)step.key_positions)[token_index] += 1;
        ((u32 *)step.slots)[token_index] += 1;
    }
    const u32 items = n_items(step);
    for (u32 i = threadIdx.x; i < items; i += blockDim.x) {
        Item &item = ((Item *)step.attention)[i];
        u32 grows = 0;
        for (u32 s = 0; s < item.n_stores; ++s) {
            if (store_token(item.stores[s]) != token_index) continue;
            item.stores[s] += 1;
            grows = 1;
        }
        // A section that one lane adds to is seen by no other.
        if (grows) item.n_rows += 1;
        for (u32 q = 0; q < item.n_queries; ++q) {
            if (item.queries[q].token != token_index) continue;
            item.queries[q].rotate_at += 1;
            item.queries[q].seen += grows;
        }
    }
}

// Publishes the token of an output, and leaves what the next step needs to follow it. All threads of
// one block call it.
__device__ __forceinline__ void conclude(const Step &step, const Sampling &sampling, const Draw &draw, u32 output, u32 token_index,
                                         u32 token, const float *logits) {
    Draw &next = sampling.draws[output];
    if (threadIdx.x == 0) {
        if (draw.flags & REPORTED) tell_logit(sampling, draw.token_number, output, logits, token);
        publish(sampling.published_tokens + draw.token_number % PUBLISHED_STEPS * FEW + output, draw.token_number, token);
        next.token_number = draw.token_number + 1;
    }
    // A lane whose token the host must choose stays where it is: a step that was begun too early
    // runs it again.
    if (token == DECLINED) return;
    if (threadIdx.x == 0) {
        next.index = draw.index + 1;
        u32 &mark = sampling.marks[(u64)output * VOCAB + token];
        if (draw.flags & ADJUSTED) mark += mark & SEEN ? 1 : 2;
    }
    if (draw.flags & FOLLOWED) advance(step, token_index, token);
}

// Computes   the token of each output that has a draw, and what the next step needs to follow it;
//            but for draws among more ranks than it weighs.
// Layout     logits: f32 [outputs][VOCAB]; shares: f32 [cells][HEADS]; sampling.cuh describes the rest.
// Work split block (o, 0) chooses the token of output o and moves its lane on; block (o, 1) publishes
//            the host how the token attended, a thread a cell.
// Rounding   none of its own; shares are added over heads in their order.
// Moves      a sixteenth of the logits: bound by latency.
extern "C" __global__ void __launch_bounds__(256, 1)
choose(Step step, const float *logits, const float *shares, Sampling sampling) {
    __shared__ Choosing at;
    const u32 output = blockIdx.x;
    let_next_start();
    wait_for_previous();
    if (output >= n_outputs(step)) return;
    const Draw draw = load_draw(sampling, output);
    if (!(draw.flags & CHOSEN)) return;
    const u32 token_index = load_fresh(step.outputs + output);
    if (blockIdx.y == 1) {
        const u32 n_cells = load_fresh(step.partials + token_index * 4 + 2), first = load_fresh(step.partials + token_index * 4 + 3);
        u64 *published = sampling.published_shares + draw.share_number % PUBLISHED_STEPS * sampling.n_cells;
        for (u32 cell = first + threadIdx.x; cell < first + n_cells; cell += 256) {
            float sum = 0.0f;
            for (int head = 0; head < HEADS; ++head) sum += load_fresh(shares + (u64)cell * HEADS + head);
            publish(published + cell, draw.share_number, __float_as_uint(sum));
        }
        if (threadIdx.x == 0) sampling.draws[output].share_number = draw.share_number + 1;
        return;
    }
    const float *own = logits + (u64)output * VOCAB;
    if (draw.flags & REPORTED) tell_likeliest<BestScores>(draw, sampling, output, draw.token_number, own, at);
    const bool late = is_late(sampling, draw, output, draw.token_number);
    // What is no number declines in `choose_wide`, and is the same for all of its blocks.
    if (late && threadIdx.x == 0) sampling.best[(u64)output * N_BEST] = ~0u;
    if (draw.flags & WIDE) return;
    const u32 token = late ? DECLINED : choose_token(draw, sampling, output, own, at);
    conclude(step, sampling, draw, output, token_index, token, own);
}

// Computes   the sum of the weights of all tokens, for outputs whose log-probabilities are published.
// Layout     logits: f32 [outputs][VOCAB]; the rest as in report.cuh.
// Work split block (b, o) has every WEIGHT_BLOCKS-th 256 rows of output o.
// Rounding   that of weights, which are integers.
// Moves      the logits once: bound by arithmetic.
extern "C" __global__ void __launch_bounds__(256)
sum_weights(Step step, const float *logits, Sampling sampling) {
    __shared__ Choosing at;
    const u32 output = blockIdx.y;
    let_next_start();
    wait_for_previous();
    if (output >= n_outputs(step)) return;
    const Draw draw = load_draw(sampling, output);
    if ((draw.flags & (CHOSEN | REPORTED)) != (CHOSEN | REPORTED)) return;
    add_weights<BestScores>(draw, sampling, output, logits + (u64)output * VOCAB, blockIdx.x, WEIGHT_BLOCKS, at);
}

// Computes   nothing: brings the masks of outputs that have one from the host, before the head.
// Layout     mask.cuh.
// Work split block (b, o) has the b-th 256 words of output o.
// Rounding   none.
// Moves      the masks once, from the host's memory: bound by latency.
extern "C" __global__ void __launch_bounds__(256)
take_masks(Step step, Sampling sampling) {
    const u32 output = blockIdx.y, word = blockIdx.x * 256 + threadIdx.x;
    let_next_start();
    wait_for_previous();
    if (output >= n_outputs(step)) return;
    const Draw draw = load_draw(sampling, output);
    if ((draw.flags & (CHOSEN | MASKED)) != (CHOSEN | MASKED)) return;
    const u32 end = min(word + 1, (u32)MASK_WORDS);
    if (!take_mask(sampling, output, draw.token_number, word, end, 1, [] { return false; })) sampling.late[output] = draw.token_number;
}

// Computes   the tokens of outputs that draw among more ranks than `choose` weighs.
// Layout     logits: f32 [outputs][VOCAB]; wide.cuh describes the rest.
// Work split block (b, o) has the b-th sixteenth of the rows of output o.
// Rounding   none.
// Moves      the logits once: bound by the times that blocks wait for one another, five without
//            filters.
extern "C" __global__ void __launch_bounds__(WIDE_THREADS)
choose_wide(Step step, const float *logits, Sampling sampling) {
    __shared__ WideShared at;
    const u32 output = blockIdx.y;
    wait_for_previous();
    if (output >= n_outputs(step)) return;
    if (threadIdx.x < sizeof(Draw) / 4)
        ((u32 *)&at.draw)[threadIdx.x] = load_fresh((const u32 *)(sampling.draws + output) + threadIdx.x);
    __syncthreads();
    const Draw &draw = at.draw;
    if ((draw.flags & (CHOSEN | WIDE)) != (CHOSEN | WIDE)) return;
    const u32 top = best_score(sampling, output, at);
    // All blocks find the same.
    const float *own = logits + (u64)output * VOCAB;
    if (top >= SCORE_OF_INFINITY || top <= SCORE_OF_NOTHING) {
        if (blockIdx.x == 0) conclude(step, sampling, draw, output, 0, DECLINED, own);
        return;
    }
    const WideRows rows(sampling, output, own, top, draw);
    Meeting meeting = {sampling.parts + output * 2 * WIDE_BLOCKS * DIGITS, sampling.gates + output, 0};
    const u32 token = draw_wide(top, rows, meeting, at);
    if (token != DECLINED) conclude(step, sampling, draw, output, load_fresh(step.outputs + output), token, own);
}

// Computes   marks and biases of the tokens of a list; all others are zero already.
// Layout     list: Adjustment [n]; sampling.cuh describes the rest.
// Work split a thread takes an entry.
// Rounding   none.
// Moves      the list once: bound by latency.
extern "C" __global__ void __launch_bounds__(256)
mark_tokens(const Adjustment *list, u32 n, float *bias, u32 *marks) {
    const u32 i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const u64 at = (u64)list[i].output * VOCAB + list[i].token;
    marks[at] = list[i].mark;
    bias[at] = list[i].bias;
}
