// `norm_head` in the persistent kernel: what it loads, what it makes of its sums, and how its
// logits lead to the next token (next_token.cuh). The product itself is that of all norms
// (norm_product.cuh).
#pragma once

#include "kernels/mask.cuh"
#include "kernels/sampling.cuh"
#include "persistent/launch.cuh"
#include "persistent/next_token.cuh"
#include "persistent/product.cuh"

struct NormHead {
    // Loaded: the norm's weights, before those of the product.
    static __device__ __forceinline__ const uint4 *norm(const Launch &launch) { return launch.final_norm; }

    // Computed: Logits of rows `first` and `first + 8` of an output; `best` is the best candidate
    // that this thread has seen. Where tokens are drawn, the best score of 16 rows, of which eight
    // neighbouring lanes hold two each, is left behind as `leave_best` does. Called by whole warps;
    // `there` is the same for the eight.
    static __device__ __forceinline__ void store(Block &block, u64 &best, u32 first, u32 output, const float (&logits)[2], bool there) {
        const Launch &launch = block.launch;
        const Draw &draw = block.shared.draws[output];
        u32 top = 0, likely = 0;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const u32 row = first + i * 8;
            if (!there || row >= VOCAB) continue;
            launch.logits[(u64)output * VOCAB + row] = logits[i];
            if (launch.chooses == CHOOSES_NOTHING) continue;
            const u32 score = block.draws ? score_row(draw, launch.sampling, output, row, logits[i]) : row < draw.vocab ? score_of(logits[i]) : 0;
            top = max(top, score);
            best = better(best, candidate(score, row));
            if (block.draws) likely = max(likely, score_row(draw, 0, launch.sampling, output, row, logits[i]));
        }
        if (!block.draws) return;
#pragma unroll
        for (int other = 4; other > 0; other /= 2) {
            top = max(top, __shfl_xor_sync(FULL, top, other));
            likely = max(likely, __shfl_xor_sync(FULL, likely, other));
        }
        const u64 group = (u64)output * N_BEST + first / SCORE_ROWS;
        if (!there || block.lane % 8 != 0 || first / SCORE_ROWS >= N_BEST) return;
        if (draw.flags & CHOSEN) launch.sampling.best[group] = top;
        if (draw.flags & REPORTED) launch.sampling.likely[group] = likely;
    }

    // Before the product, in the first block: whether the host wants to stop. Asked for early,
    // because the host's memory is far.
    static __device__ __forceinline__ void begin(Block &block) {
        if (block.thread() == 0) block.shared.asked_to_stop = *(volatile u32 *)&block.launch.mailbox->stop;
    }
    // Before it, where tokens are drawn: what the masks of outputs say of this block's rows. A warp
    // takes an output's; before rows are scored the warps meet.
    static __device__ __forceinline__ void take_masks(Block &block) {
        const Sampling &sampling = block.launch.sampling;
        const u32 output = block.warp;
        if (output >= block.shared.n_outputs || !(block.shared.draws[output].flags & MASKED)) return;
        const TileRange own = block.shared.own.vocabulary;
        const u32 number = block.shared.draws[output].token_number + block.step;
        const u32 first = own.first * 8 / 32, end = own.first == own.end ? first : min((own.end * 8 + 31) / 32, MASK_WORDS);
        const auto stopped = [&] { return *(volatile u32 *)&block.launch.mailbox->stop != 0; };
        if (!take_mask(sampling, output, number, first + block.lane, end, 32, stopped)) sampling.late[output] = number;
        __syncwarp();
    }
    // After it: what this block knows of the next token, from the best of the logits that it
    // computed.
    static __device__ __forceinline__ void end(Block &block, u64 best) {
        if (block.draws) publish_drawn(block);
        else publish_best(block, best);
    }
};
