#include "generated/experts.cuh"
#include "kernels/coded_tiled.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Computes   logits = n * W_router, for blocks of tokens; n is what norm_rows made.
// Layout     weights: packed in units; n: bf16 in squares (tiled.cuh); logits: f32 [tokens][EXPERTS].
// Work split a cluster of two blocks owns some tokens x 256 experts at a time (matmul_tiled.cuh).
// Rounding   none.
// Moves      n once, the router from L2: bound by the launch.
#define KERNEL(SUFFIX, W, TOKENS) \
    extern "C" __global__ void TILED_BOUNDS \
    norm_route_tiled_##TOKENS##SUFFIX(Step step, const u8 *weights, const u8 *n, float *logits) { \
        multiply_router_tiles<W, TOKENS>(step, weights, n, logits); \
    }

template <class W, int TOKENS>
__device__ __forceinline__ void multiply_router_tiles(const Step &step, const u8 *weights, const u8 *n, float *logits) {
    const u32 tokens = n_tokens(step);
    multiply_matrix_tiles<W, HIDDEN_UNITS, TOKENS>(weights, (EXPERTS + BLOCK_ROWS - 1) / BLOCK_ROWS, n, nullptr, tokens,
                                                   [&](u32 first_token, u32 first_row, const float (&sums)[TOKENS / 2], u8 *) {
        const u32 lane = threadIdx.x % 32, row = first_row + threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
        for (int i = 0; i < TOKENS / 8; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const u32 token = first_token + i * 8 + lane % 4 * 2 + e % 2, expert = row + e / 2 * 8;
                if (token < tokens && expert < EXPERTS) logits[(u64)token * EXPERTS + expert] = sums[i * 4 + e];
            }
    });
}
ROUTER_TILED_KERNELS(KERNEL)
#undef KERNEL

#endif
