#include "kernels/residual.cuh"

// Computes   x += a * W_o, for up to eight tokens.
// Layout     weights: packed in units; a: bf16 [tokens][Q_STRIDE]; x: bf16 [tokens][HIDDEN_STRIDE].
// Work split a block owns tiles of eight rows, a warp an eighth of the columns (matvec.cuh).
// Rounding   the sum, once.
// Moves      the weights once: bound by memory.
extern "C" __global__ void MATVEC_BOUNDS(1)
proj_add(Step step, const u8 *weights, const u16 *a, AddStore to) {
    add_product<Cut<Q_UNITS, PROJ_TILES, PROJ_STAGES, PROJ_OWN, PROJ_IN_FLIGHT, 1, PROJ_CHAINS>>(step, weights, PROJ_ALL_TILES, a, Q_STRIDE, to);
}

// The same for up to sixteen tokens.
extern "C" __global__ void SIXTEEN_BOUNDS
proj_add_sixteen(Step step, const u8 *weights, const u16 *a, AddStore to) {
    add_product<Cut<Q_UNITS, PROJ_TILES, PROJ_STAGES, PROJ_OWN, PROJ_IN_FLIGHT, 2, PROJ_CHAINS>>(step, weights, PROJ_ALL_TILES, a, Q_STRIDE, to);
}

// Computes   x += a * W_o, for blocks of tokens.
// Layout     as above.
// Work split a block owns 128 tokens x 128 rows (matmul.cuh).
// Rounding   the sum, once.
// Moves      weights and a once from memory, then from L2: bound by arithmetic.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)
proj_add_block(Step step, const u8 *weights, const u16 *a, AddStore to) {
    add_product_block<Q_UNITS, PROJ_CHAINS>(step, weights, a, Q_STRIDE, to);
}
