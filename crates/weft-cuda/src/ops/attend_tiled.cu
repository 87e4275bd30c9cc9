#define PAGES_LAID true
#include "ops/attend_tiled.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Computes   a = softmax(rotate(q) * k / sqrt(HEAD_DIM)) * v over every row that a token sees, for
//            blocks of tokens.
// Layout     as that of attend_block.
// Work split a block owns one KV head and up to 128 queries (tokens x heads of the group) of one
//            lane, a warpgroup 64 of them; a third warpgroup brings the lane's pages in order. A
//            group weighs scores while its products and those of the other run. Where there are few blocks,
//            gridDim.y of them share the sections of a tile, as in attend_block.
// Rounding   the rotated query once; probabilities once; a once.
// Moves      keys and values once for 128 queries, mostly from L2: bound by arithmetic.
extern "C" __global__ void __launch_bounds__(TILED_THREADS, 1)
attend_tiled(Step step, const float2 *rope, const u16 *q, const u8 *laid, Attended to) {
    attend_tile(step, rope, q, laid, to);
}

#endif
