#include "generated/matrices.cuh"
#include "kernels/residual_tiled.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Computes   x += a * W_o, for blocks of tokens.
// Layout     weights: packed in units; a: bf16 in squares (tiled.cuh); x: bf16
//            [tokens][HIDDEN_STRIDE].
// Work split a cluster of two blocks owns some tokens x 256 rows at a time (matmul_tiled.cuh,
//            coded_tiled.cuh).
// Rounding   the sum, once.
// Moves      weights and a once from memory, then from L2: bound by arithmetic.
#define KERNEL(SUFFIX, W, TOKENS) \
    extern "C" __global__ void TILED_BOUNDS \
    proj_add_tiled_##TOKENS##SUFFIX(Step step, const u8 *weights, const u8 *a, const u8 *sums, u16 *x) { \
        add_product_tiles<W, Q_UNITS, TOKENS>(step, weights, a, sums, x); \
    }
PROJ_TILED_KERNELS(KERNEL)
#undef KERNEL

#endif
