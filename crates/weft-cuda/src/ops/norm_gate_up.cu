#include "generated/matrices.cuh"
#include "kernels/coded_block.cuh"
#include "kernels/matvec.cuh"
#include "kernels/tiled.cuh"
#include "ops/norm_gate_up.cuh"

template <class M>
__device__ __forceinline__ void multiply_gate_up(const Step &step, const u8 *weights, const uint4 *norm, const u16 *x, u16 *h) {
    multiply_norms<M>(weights, M::W::ALL_TILES, x, norm, n_tokens(step), starts_late(step), [](u32 token) { return token; },
                      [&](int set, int, bool, u32 token, u32 row, const float (&sums)[M::STORED]) {
#pragma unroll
        for (int pair = 0; pair < M::STORED / 2; ++pair) {
            const u32 r = (set * (M::STORED / 2) + pair) * 8 + row;
            if (r < INTER) h[(u64)token * INTER_STRIDE + r] = round_one(gated(sums[pair * 2], sums[pair * 2 + 1]));
        }
    });
}
template <class W>
__device__ __forceinline__ void multiply_gate_up_block(const Step &step, const u8 *weights, const u16 *n, u16 *h) {
    multiply_matrix_block<W, HIDDEN_UNITS>(weights, n, HIDDEN_STRIDE, n_tokens(step),
                                           [&](u32 token, u32 tile, u32 column, const float (&sums)[4][2]) {
        // Rows are padded to whole pairs; what is beyond the last row is zero, like its weights.
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            const u32 r = (tile / 2 + pair) * 8 + column;
            const float (&gate)[2] = sums[pair * 2], (&up)[2] = sums[pair * 2 + 1];
            if (r < INTER)
                *(u32 *)(TILED ? (u16 *)((u8 *)h + tiled_place(token, r, INTER_STRIDE)) : h + (u64)token * INTER_STRIDE + r) =
                    round_pair(gated(gate[0], up[0]), gated(gate[1], up[1]));
        }
    });
}

// Computes   n = rms_norm(x); h = silu(n * W_gate) * (n * W_up), for up to eight tokens; `_sixteen`
//            for up to sixteen; `_block` for blocks of tokens, from what norm_rows made. There is a
//            kernel for each pair of forms that the matrices have in some layer.
// Layout     weights: packed in units, tiles of eight gate rows and of eight up rows in turn;
//            x, n: bf16 [tokens][HIDDEN_STRIDE]; h: bf16 [tokens][INTER_STRIDE].
// Work split a block owns pairs of tiles, a warp an eighth of the columns (matvec.cuh), and every
//            block normalises x for itself; or 128 tokens x 128 rows, half of them gate and half of
//            them up (matmul.cuh).
// Rounding   n as RMSNorm rounds; gate, up and SiLU never; h once.
// Moves      the weights once: bound by memory. Blocks of tokens move weights and n once from
//            memory, then from L2: bound by arithmetic.
#define NORM_GATE_UP_KERNELS(SUFFIX, W)                                                                          \
    extern "C" __global__ void MATVEC_BOUNDS(HIDDEN_UNITS)                                                       \
    norm_gate_up##SUFFIX(Step step, const u8 *weights, const uint4 *norm, const u16 *x, u16 *h) {                \
        multiply_gate_up<Cut<W, HIDDEN_UNITS>>(step, weights, norm, x, h);                                       \
    }                                                                                                            \
    extern "C" __global__ void SIXTEEN_BOUNDS                                                                    \
    norm_gate_up_sixteen##SUFFIX(Step step, const u8 *weights, const uint4 *norm, const u16 *x, u16 *h) {        \
        multiply_gate_up<Cut<W, HIDDEN_UNITS, 2>>(step, weights, norm, x, h);                                    \
    }
GATE_UP_MATRICES(NORM_GATE_UP_KERNELS)

#define NORM_GATE_UP_BLOCK(SUFFIX, W)                                                                            \
    extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)                                               \
    norm_gate_up_block##SUFFIX(Step step, const u8 *weights, const u16 *n, u16 *h) {                             \
        multiply_gate_up_block<W>(step, weights, n, h);                                                          \
    }
GATE_UP_BLOCK_MATRICES(NORM_GATE_UP_BLOCK)
