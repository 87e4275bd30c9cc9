#include "generated/matrices.cuh"
#include "kernels/matvec.cuh"
#include "kernels/sampling.cuh"

// Computes   logits = rms_norm(x) * W_head, for up to eight of the tokens whose logits were asked
//            for; and the best scores of those whose token is chosen on the GPU (sampling.cuh).
// Layout     weights: packed in units; x: bf16 [tokens][HIDDEN_STRIDE]; logits: f32
//            [outputs][VOCAB].
// Work split a block owns tiles of eight rows, a warp an eighth of the columns (matvec.cuh); every
//            block normalises x for itself. Steps of any size use this kernel, eight outputs a
//            launch.
// Rounding   the norm as RMSNorm rounds; logits never.
// Moves      the weights once: bound by memory.
extern "C" __global__ void MATVEC_BOUNDS(HIDDEN_UNITS)
norm_head(Step step, u32 first, const u8 *weights, const uint4 *norm, const u16 *x, float *logits,
          u32 draws, Sampling sampling) {
    using M = Cut<HeadMatrix, HIDDEN_UNITS>;
    static_assert(M::STORED * 8 == SCORE_ROWS, "a set of tiles leaves one best score");
    const u32 outputs = n_outputs(step), count = min(8u, outputs - min(first, outputs));
    // Draws do not change while a step runs, so they are read early. Before they are used the block
    // meets.
    __shared__ Draw near[8];
    if (threadIdx.x < sizeof(near) / 4)
        ((u32 *)near)[threadIdx.x] = draws && first == 0 ? load_fresh((const u32 *)sampling.draws + threadIdx.x) : 0;
    multiply_norms<M>(weights, HeadMatrix::ALL_TILES, x, norm, count, false, [&](u32 i) { return load_fresh(step.outputs + first + i); },
                      [&](int set, int, bool, u32 token, u32 row, const float (&sums)[M::STORED]) {
#pragma unroll
        for (int tile = 0; tile < M::STORED; ++tile) {
            const u32 r = (set * M::STORED + tile) * 8 + row;
            if (r < VOCAB) logits[(u64)(first + token) * VOCAB + r] = sums[tile];
        }
        const Draw &draw = near[token];
        if (!(draw.flags & CHOSEN)) return;
        u32 best = 0;
#pragma unroll
        for (int tile = 0; tile < M::STORED; ++tile)
            best = max(best, score_row(draw, sampling, token, (set * M::STORED + tile) * 8 + row, sums[tile]));
        if (set < N_BEST) leave_best(sampling.best, token, set, best);
        if (!(draw.flags & REPORTED)) return;
        best = 0;
#pragma unroll
        for (int tile = 0; tile < M::STORED; ++tile)
            best = max(best, score_row(draw, 0, sampling, token, (set * M::STORED + tile) * 8 + row, sums[tile]));
        if (set < N_BEST) leave_best(sampling.likely, token, set, best);
    });
}
