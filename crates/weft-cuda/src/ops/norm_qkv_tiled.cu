#include "generated/matrices.cuh"
#include "kernels/coded_tiled.cuh"
#include "ops/norm_qkv.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class W, int TOKENS>
__device__ __forceinline__ void multiply_qkv_tiles(const Step &step, const u8 *weights, const u8 *n, const u8 *sums_of_runs, const QkvStore &to) {
    const u32 tokens = n_tokens(step);
    multiply_matrix_tiles<W, HIDDEN_UNITS, TOKENS>(weights, (QKV_ROWS + BLOCK_ROWS - 1) / BLOCK_ROWS, n, sums_of_runs, tokens,
                                                   [&](u32 first_token, u32 first_row, const float (&sums)[TOKENS / 2], u8 *memory) {
        const Staged staged(memory);
        const u32 upper = min(first_row + staged.warp * 16 + staged.lane / 4, QKV_ROWS - 1u), lower = min(upper + 8, QKV_ROWS - 1u);
#pragma unroll
        for (int part = 0; part < TOKENS / STAGED_TOKENS; ++part) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float *s = sums + (part * 4 + i) * 8;
                store_transposed(staged.fragments(i), round_pair(to.biased(upper, s[0]), to.biased(upper, s[1])),
                                 round_pair(to.biased(lower, s[2]), to.biased(lower, s[3])),
                                 round_pair(to.biased(upper, s[4]), to.biased(upper, s[5])),
                                 round_pair(to.biased(lower, s[6]), to.biased(lower, s[7])));
            }
            staged.meet();
#pragma unroll
            for (int i = 0; i < STAGED_CHUNKS; ++i) {
                const u32 token = first_token + part * STAGED_TOKENS + staged.token(i), row = first_row + staged.row();
                const uint4 chunk = *staged.chunk(i);
                if (token >= tokens) continue;
                if (Q_WIDTH % 8 == 0 && KV_WIDTH % 8 == 0) {
                    if (row < QKV_ROWS) *(uint4 *)to.place(token, row) = chunk;
                } else {
                    const u32 pairs[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
                    for (int j = 0; j < 4; ++j)
                        if (row + 2 * j < QKV_ROWS) *(u32 *)to.place(token, row + 2 * j) = pairs[j];
                }
            }
            staged.meet();
        }
    });
}

// Computes   q, k, v = n * W (+ bias), for blocks of tokens; n is what norm_rows made.
// Layout     weights: packed in units, rows of q, then k, then v; n: bf16 in squares (tiled.cuh);
//            q: bf16 [tokens][Q_WIDTH]; k, v: bf16 [tokens][KV_WIDTH].
// Work split a cluster of two blocks owns some tokens x 256 rows at a time (matmul_tiled.cuh,
//            coded_tiled.cuh).
// Rounding   q, k, v once, after the bias.
// Moves      weights and n once from memory, then from L2: bound by arithmetic.
#define KERNEL(SUFFIX, W, TOKENS) \
    extern "C" __global__ void TILED_BOUNDS \
    norm_qkv_tiled_##TOKENS##SUFFIX(Step step, const u8 *weights, const u8 *n, const u8 *sums, QkvStore to) { \
        multiply_qkv_tiles<W, TOKENS>(step, weights, n, sums, to); \
    }
QKV_TILED_KERNELS(KERNEL)
#undef KERNEL

#endif
