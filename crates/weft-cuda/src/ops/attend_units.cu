#define PAGES_LAID false
#include "ops/attend_tiled.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Computes   what attend_tiled does, of pages that nobody has laid: for steps in which few tiles see
//            a page, so that laying it once takes longer than rearranging it in every block.
// Layout     as that of attend_block.
// Work split as that of attend_tiled; the third warpgroup puts the units of pages into rows.
// Rounding   the rotated query once; probabilities once; a once.
// Moves      keys and values once for 128 queries, mostly from L2: bound by arithmetic.
extern "C" __global__ void __launch_bounds__(TILED_THREADS, 1)
attend_units(Step step, const float2 *rope, const u16 *q, const u8 *kv, Attended to) {
    attend_tile(step, rope, q, kv, to);
}

#endif
