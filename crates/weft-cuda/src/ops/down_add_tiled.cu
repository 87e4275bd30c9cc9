#include "generated/matrices.cuh"
#include "kernels/residual_tiled.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Computes   x += h * W_down, for blocks of tokens.
// Layout     weights: packed in units; h: bf16 in squares (tiled.cuh); x: bf16
//            [tokens][HIDDEN_STRIDE].
// Work split a cluster of two blocks owns some tokens x 256 rows at a time (matmul_tiled.cuh,
//            coded_tiled.cuh).
// Rounding   the sum, once.
// Moves      weights and h once from memory, then from L2: bound by arithmetic.
#define KERNEL(SUFFIX, W, TOKENS) \
    extern "C" __global__ void TILED_BOUNDS \
    down_add_tiled_##TOKENS##SUFFIX(Step step, const u8 *weights, const u8 *h, const u8 *sums, u16 *x) { \
        add_product_tiles<W, INTER_UNITS, TOKENS>(step, weights, h, sums, x); \
    }
DOWN_TILED_KERNELS(KERNEL)
#undef KERNEL

#endif
