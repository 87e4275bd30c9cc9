#include "generated/matrices.cuh"
#include "kernels/coded_block.cuh"
#include "kernels/matvec.cuh"
#include "ops/norm_qkv.cuh"

template <class M>
__device__ __forceinline__ void multiply_qkv(const Step &step, const u8 *weights, const uint4 *norm, const u16 *x, const QkvStore &to) {
    multiply_norms<M>(weights, M::W::ALL_TILES, x, norm, n_tokens(step), false, [](u32 token) { return token; },
                      [&](int set, int, bool, u32 token, u32 row, const float (&sums)[M::STORED]) {
#pragma unroll
        for (int tile = 0; tile < M::STORED; ++tile) {
            const u32 r = (set * M::STORED + tile) * 8 + row;
            if (r < QKV_ROWS) *to.place(token, r) = round_one(to.biased(r, sums[tile]));
        }
    });
}
template <class W>
__device__ __forceinline__ void multiply_qkv_block(const Step &step, const u8 *weights, const u16 *n, const QkvStore &to) {
    multiply_matrix_block<W, HIDDEN_UNITS>(weights, n, HIDDEN_STRIDE, n_tokens(step),
                                           [&](u32 token, u32 tile, u32 column, const float (&sums)[4][2]) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const u32 r = (tile + j) * 8 + column;
            if (r < QKV_ROWS)
                *(u32 *)to.place(token, r) = round_pair(to.biased(r, sums[j][0]), to.biased(r + 1, sums[j][1]));
        }
    });
}

// Computes   n = rms_norm(x); q, k, v = n * W (+ bias), for up to eight tokens; `_sixteen` for up
//            to sixteen; `_block` for blocks of tokens, from what norm_rows made. There is a kernel
//            for each form that W has in some layer.
// Layout     weights: packed in units, rows of q, then k, then v; x, n: bf16
//            [tokens][HIDDEN_STRIDE]; q: bf16 [tokens][Q_WIDTH]; k, v: bf16 [tokens][KV_WIDTH].
// Work split a block owns tiles of eight rows, a warp an eighth of the columns (matvec.cuh), and
//            every block normalises x for itself; or 128 tokens x 128 rows (matmul.cuh).
// Rounding   n as RMSNorm rounds; q, k, v once, after the bias.
// Moves      the weights once: bound by memory. Blocks of tokens move weights and n once from
//            memory, then from L2: bound by arithmetic.
#define NORM_QKV_KERNELS(SUFFIX, W)                                                                              \
    extern "C" __global__ void MATVEC_BOUNDS(HIDDEN_UNITS)                                                       \
    norm_qkv##SUFFIX(Step step, const u8 *weights, const uint4 *norm, const u16 *x, QkvStore to) {               \
        multiply_qkv<Cut<W, HIDDEN_UNITS>>(step, weights, norm, x, to);                                          \
    }                                                                                                            \
    extern "C" __global__ void SIXTEEN_BOUNDS                                                                    \
    norm_qkv_sixteen##SUFFIX(Step step, const u8 *weights, const uint4 *norm, const u16 *x, QkvStore to) {       \
        multiply_qkv<Cut<W, HIDDEN_UNITS, 2>>(step, weights, norm, x, to);                                       \
    }
QKV_MATRICES(NORM_QKV_KERNELS)

#define NORM_QKV_BLOCK(SUFFIX, W)                                                                                \
    extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)                                               \
    norm_qkv_block##SUFFIX(Step step, const u8 *weights, const u16 *n, QkvStore to) {                            \
        multiply_qkv_block<W>(step, weights, n, to);                                                             \
    }
QKV_BLOCK_MATRICES(NORM_QKV_BLOCK)
