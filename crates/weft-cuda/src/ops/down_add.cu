#include "generated/matrices.cuh"
#include "kernels/residual.cuh"

// Computes   x += h * W_down, for up to eight tokens; `_sixteen` for up to sixteen, `_block` for
//            blocks of tokens. There is a kernel for each form that W_down has in some layer.
// Layout     weights: packed in units; h: bf16 [tokens][INTER_STRIDE]; x: bf16
//            [tokens][HIDDEN_STRIDE].
// Work split a block owns tiles of eight rows, a warp an eighth of the columns (matvec.cuh); or 128
//            tokens x 128 rows (matmul.cuh).
// Rounding   the sum, once.
// Moves      the weights once: bound by memory. Blocks of tokens move weights and h once from
//            memory, then from L2: bound by arithmetic.
#define DOWN_ADD_KERNELS(SUFFIX, W)                                                                              \
    extern "C" __global__ void MATVEC_BOUNDS(1)                                                                  \
    down_add##SUFFIX(Step step, const u8 *weights, const u16 *h, AddStore to) {                                  \
        add_product<Cut<W, INTER_UNITS>>(step, weights, W::ALL_TILES, h, INTER_STRIDE, to);                      \
    }                                                                                                            \
    extern "C" __global__ void SIXTEEN_BOUNDS                                                                    \
    down_add_sixteen##SUFFIX(Step step, const u8 *weights, const u16 *h, AddStore to) {                          \
        add_product<Cut<W, INTER_UNITS, 2>>(step, weights, W::ALL_TILES, h, INTER_STRIDE, to);                   \
    }
DOWN_MATRICES(DOWN_ADD_KERNELS)

#define DOWN_ADD_BLOCK(SUFFIX, W)                                                                                \
    extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)                                               \
    down_add_block##SUFFIX(Step step, const u8 *weights, const u16 *h, AddStore to) {                            \
        add_product_block<W, INTER_UNITS>(step, weights, h, INTER_STRIDE, to);                                   \
    }
DOWN_BLOCK_MATRICES(DOWN_ADD_BLOCK)
