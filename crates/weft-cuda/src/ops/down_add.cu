#include "kernels/residual.cuh"

// Computes   x += h * W_down, for up to eight tokens.
// Layout     weights: packed in units; h: bf16 [tokens][INTER_STRIDE]; x: bf16
//            [tokens][HIDDEN_STRIDE].
// Work split a block owns tiles of eight rows, a warp an eighth of the columns (matvec.cuh).
// Rounding   the sum, once.
// Moves      the weights once: bound by memory.
extern "C" __global__ void MATVEC_BOUNDS(1)
down_add(Step step, const u8 *weights, const u16 *h, AddStore to) {
    add_product<Cut<INTER_UNITS, DOWN_TILES, DOWN_STAGES, DOWN_OWN, DOWN_IN_FLIGHT, 1, DOWN_CHAINS>>(step, weights, DOWN_ALL_TILES, h, INTER_STRIDE, to);
}

// The same for up to sixteen tokens.
extern "C" __global__ void SIXTEEN_BOUNDS
down_add_sixteen(Step step, const u8 *weights, const u16 *h, AddStore to) {
    add_product<Cut<INTER_UNITS, DOWN_TILES, DOWN_STAGES, DOWN_OWN, DOWN_IN_FLIGHT, 2, DOWN_CHAINS>>(step, weights, DOWN_ALL_TILES, h, INTER_STRIDE, to);
}

// Computes   x += h * W_down, for blocks of tokens.
// Layout     as above.
// Work split a block owns 128 tokens x 128 rows (matmul.cuh).
// Rounding   the sum, once.
// Moves      weights and h once from memory, then from L2: bound by arithmetic.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)
down_add_block(Step step, const u8 *weights, const u16 *h, AddStore to) {
    add_product_block<INTER_UNITS, DOWN_CHAINS>(step, weights, h, INTER_STRIDE, to);
}
