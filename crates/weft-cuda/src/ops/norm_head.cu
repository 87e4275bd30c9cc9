// Computes   logits = rms_norm(x) * W_head, for up to eight of the tokens whose logits were asked for.
// Layout     weights: packed in units; x: bf16 [tokens][HIDDEN_STRIDE]; logits: f32 [outputs][VOCAB].
// Work split a block owns tiles of eight rows, a warp an eighth of the columns (matvec.cuh); every block
//            normalises x for itself. Steps of any size use this kernel, eight outputs a launch.
// Rounding   the norm as RMSNorm rounds; logits never.
// Moves      the weights once: bound by memory.
extern "C" __global__ void MATVEC_BOUNDS(HIDDEN_UNITS)
norm_head(Step step, u32 first, const u8 *weights, const uint4 *norm, const u16 *x, float *logits) {
    using M = Cut<HIDDEN_UNITS, HEAD_TILES, HEAD_STAGES, HEAD_OWN, HEAD_IN_FLIGHT>;
    const u32 outputs = n_outputs(step), count = min(8u, outputs - min(first, outputs));
    multiply_norms<M>(weights, HEAD_ALL_TILES, x, norm, count, [&](u32 i) { return load_fresh(step.outputs + first + i); },
                      [&](int set, int, u32 token, u32 row, const float (&sums)[M::STORED]) {
#pragma unroll
        for (int tile = 0; tile < M::STORED; ++tile) {
            const u32 r = (set * M::STORED + tile) * 8 + row;
            if (r < VOCAB) logits[(u64)(first + token) * VOCAB + r] = sums[tile];
        }
    });
}
