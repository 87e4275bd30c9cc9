// `norm_head` in the persistent kernel: what it loads, what it makes of its sums, and how its
// logits lead to the next token (next_token.cuh). The product itself is that of all norms
// (norm_product.cuh).
#pragma once

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
        u32 top = 0;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const u32 row = first + i * 8;
            if (!there || row >= VOCAB) continue;
            launch.logits[(u64)output * VOCAB + row] = logits[i];
            if (launch.chooses == CHOOSES_NOTHING) continue;
            const u32 score = block.draws ? score_row(draw, launch.sampling, output, row, logits[i]) : row < draw.vocab ? score_of(logits[i]) : 0;
            top = max(top, score);
            best = better(best, candidate(score, row));
        }
        if (!block.draws) return;
#pragma unroll
        for (int other = 4; other > 0; other /= 2) top = max(top, __shfl_xor_sync(FULL, top, other));
        if (there && block.lane % 8 == 0 && (draw.flags & CHOSEN) && first / SCORE_ROWS < N_BEST)
            launch.sampling.best[(u64)output * N_BEST + first / SCORE_ROWS] = top;
    }

    // Before the product, in the first block: whether the host wants to stop. Asked for early,
    // because the host's memory is far.
    static __device__ __forceinline__ void begin(Block &block) {
        if (block.thread() == 0) block.shared.asked_to_stop = *(volatile u32 *)&block.launch.mailbox->stop;
    }
    // After it: what this block knows of the next token, from the best of the logits that it
    // computed.
    static __device__ __forceinline__ void end(Block &block, u64 best) {
        if (block.draws) publish_drawn(block);
        else publish_best(block, best);
    }
};
