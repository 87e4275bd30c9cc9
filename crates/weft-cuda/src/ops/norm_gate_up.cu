#include "kernels/matmul.cuh"
#include "kernels/matvec.cuh"
#include "ops/norm_gate_up.cuh"

template <class M>
__device__ __forceinline__ void multiply_gate_up(const Step &step, const u8 *weights, const uint4 *norm, const u16 *x, u16 *h) {
    multiply_norms<M>(weights, GATE_UP_ALL_TILES, x, norm, n_tokens(step), starts_late(step), [](u32 token) { return token; },
                      [&](int set, int, bool, u32 token, u32 row, const float (&sums)[M::STORED]) {
#pragma unroll
        for (int pair = 0; pair < M::STORED / 2; ++pair) {
            const u32 r = (set * (M::STORED / 2) + pair) * 8 + row;
            if (r < INTER) h[(u64)token * INTER_STRIDE + r] = round_one(gated(sums[pair * 2], sums[pair * 2 + 1]));
        }
    });
}

// Computes   n = rms_norm(x); h = silu(n * W_gate) * (n * W_up), for up to eight tokens.
// Layout     weights: packed in units, tiles of eight gate rows and of eight up rows in turn;
//            x: bf16 [tokens][HIDDEN_STRIDE]; h: bf16 [tokens][INTER_STRIDE].
// Work split a block owns pairs of tiles, a warp an eighth of the columns (matvec.cuh); every block
//            normalises x for itself.
// Rounding   n as RMSNorm rounds; gate, up and SiLU never; h once.
// Moves      the weights once: bound by memory.
extern "C" __global__ void MATVEC_BOUNDS(HIDDEN_UNITS)
norm_gate_up(Step step, const u8 *weights, const uint4 *norm, const u16 *x, u16 *h) {
    multiply_gate_up<Cut<HIDDEN_UNITS, GATE_UP_TILES, GATE_UP_STAGES, GATE_UP_OWN, GATE_UP_IN_FLIGHT>>(step, weights, norm, x, h);
}

// The same for up to sixteen tokens.
extern "C" __global__ void SIXTEEN_BOUNDS
norm_gate_up_sixteen(Step step, const u8 *weights, const uint4 *norm, const u16 *x, u16 *h) {
    multiply_gate_up<Cut<HIDDEN_UNITS, GATE_UP_TILES, GATE_UP_STAGES, GATE_UP_OWN, GATE_UP_IN_FLIGHT, 2>>(step, weights, norm, x, h);
}

// Computes   h = silu(n * W_gate) * (n * W_up), for blocks of tokens; n is what norm_rows made.
// Layout     as above; n: bf16 [tokens][HIDDEN_STRIDE].
// Work split a block owns 128 tokens x 128 rows, half of them gate and half of them up
//            (matmul.cuh).
// Rounding   h once.
// Moves      weights and n once from memory, then from L2: bound by arithmetic.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)
norm_gate_up_block(Step step, const u8 *weights, const u16 *n, u16 *h) {
    multiply_block<HIDDEN_UNITS, 1>(weights, n, HIDDEN_STRIDE, n_tokens(step),
                                 [&](u32 token, u32 tile, u32 column, const float (&sums)[4][2]) {
        // Rows are padded to whole pairs; what is beyond the last row is zero, like its weights.
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            const u32 r = (tile / 2 + pair) * 8 + column;
            const float (&gate)[2] = sums[pair * 2], (&up)[2] = sums[pair * 2 + 1];
            if (r < INTER)
                *(u32 *)(h + (u64)token * INTER_STRIDE + r) = round_pair(gated(gate[0], up[0]), gated(gate[1], up[1]));
        }
    });
}
