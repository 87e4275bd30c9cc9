// Logits as the head of the persistent kernel leaves them, and what goes with them towards the next token.
#pragma once

#include "kernels/sampling.cuh"
#include "persistent/launch.cuh"

__device__ __forceinline__ u64 better(u64 a, u64 b) { return a > b ? a : b; }
// Of a block without rows (see `candidate`); the highest bit of its row's complement is set as that of any other.
constexpr u64 NO_CANDIDATE = 0x80000000ull;

// Logits of rows `first` and `first + 8` of an output; `best` is the best candidate that this thread has seen. Where
// tokens are drawn, the best score of 16 rows, of which eight neighbouring lanes hold two each, is left behind as
// `leave_best` does. Called by whole warps; `there` is the same for the eight.
__device__ __forceinline__ void leave_logits(Block &block, u64 &best, u32 first, u32 output, const float (&logits)[2], bool there) {
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
