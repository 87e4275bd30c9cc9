#include "generated/matrices.cuh"
#include "kernels/residual.cuh"

// Computes   x += a * W_o, for up to eight tokens; `_sixteen` for up to sixteen, `_block` for
//            blocks of tokens. There is a kernel for each form that W_o has in some layer.
// Layout     weights: packed in units; a: bf16 [tokens][Q_STRIDE]; x: bf16 [tokens][HIDDEN_STRIDE].
// Work split a block owns tiles of eight rows, a warp an eighth of the columns (matvec.cuh); or 128
//            tokens x 128 rows (matmul.cuh).
// Rounding   the sum, once.
// Moves      the weights once: bound by memory. Blocks of tokens move weights and a once from
//            memory, then from L2: bound by arithmetic.
#define PROJ_ADD_KERNELS(SUFFIX, W)                                                                              \
    extern "C" __global__ void MATVEC_BOUNDS(1)                                                                  \
    proj_add##SUFFIX(Step step, const u8 *weights, const u16 *a, AddStore to) {                                  \
        add_product<Cut<W, Q_UNITS>>(step, weights, W::ALL_TILES, a, Q_STRIDE, to);                              \
    }                                                                                                            \
    extern "C" __global__ void SIXTEEN_BOUNDS                                                                    \
    proj_add_sixteen##SUFFIX(Step step, const u8 *weights, const u16 *a, AddStore to) {                          \
        add_product<Cut<W, Q_UNITS, 2>>(step, weights, W::ALL_TILES, a, Q_STRIDE, to);                           \
    }
PROJ_MATRICES(PROJ_ADD_KERNELS)

#define PROJ_ADD_BLOCK(SUFFIX, W)                                                                                \
    extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)                                               \
    proj_add_block##SUFFIX(Step step, const u8 *weights, const u16 *a, AddStore to) {                            \
        add_product_block<W, Q_UNITS>(step, weights, a, Q_STRIDE, to);                                           \
    }
PROJ_BLOCK_MATRICES(PROJ_ADD_BLOCK)
