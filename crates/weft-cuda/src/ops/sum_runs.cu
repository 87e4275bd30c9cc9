#include "kernels/base.cuh"
#include "kernels/coded.cuh"
#include "kernels/tiled.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Computes   what minimums are multiplied by: the sums of every token's input over runs of 32
//            columns, or of 16, for blocks of tokens.
// Layout     x: bf16 in squares (tiled.cuh); sums: f32 [64 tokens][unit][run][token], tokens in the
//            order in which a lane of a product holds them (coded_tiled.cuh).
// Work split a block owns 64 tokens x 8 units, a warp 16 tokens of every other unit.
// Rounding   that of the tensor cores, as `UnitInput` has it.
// Moves      x once in, a sixteenth of its bytes, or an eighth, out: bound by memory.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
sum_runs(Step step, const u8 *x, u32 n_units, u32 runs, float *sums) {
    let_next_start();
    wait_for_previous();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 square = blockIdx.x, first = warp % 4 * 16 + lane / 4;
    const u32 zero = unknown_zero();
    if (square * SQUARE >= n_tokens(step)) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const u32 unit = blockIdx.y * 8 + i * 2 + warp / 4;
        const u8 *rows = x + ((u64)square * (n_units / 2) + unit / 2) * SQUARE_BYTES;
        const auto row = [&](u32 token) {
            return quad_transpose(load_fresh((const uint4 *)(rows + token * 128 + half_chunk(token, unit % 2, lane % 4))), lane);
        };
        const Interleaved all(row(first), row(first + 8), zero);
        for (u32 run = 0; run < runs; ++run) {
            Interleaved own = all;
            if (runs > 1 && lane % 4 / 2 != run)
#pragma unroll
                for (int j = 0; j < 8; ++j) own.of[j] = 0;
            float sum[4] = {};
            mma32(sum, own, make_uint4(ONES, ONES, ONES, ONES));
            float *to = sums + (((u64)square * n_units + unit) * runs + run) * SQUARE + warp % 4 * 16 + lane / 8 * 4 + lane / 4 % 2;
            if (lane % 4 == 0) to[0] = sum[0], to[2] = sum[2];
        }
    }
}

#endif
