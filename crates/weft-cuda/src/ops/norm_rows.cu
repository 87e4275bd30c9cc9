#include "kernels/base.cuh"
#include "kernels/norm.cuh"
#include "kernels/tiled.cuh"

// Computes   n[t] = rms_norm(x[t]) for all tokens of a block step.
// Layout     x: bf16 [tokens][HIDDEN_STRIDE]; n: the same, or in squares where warpgroups multiply
//            (tiled.cuh); weight: bf16 [HIDDEN_STRIDE].
// Work split a block owns eight tokens, a warp an eighth of their columns, a quad one token.
// Rounding   the normalised value, then its product with the weight.
// Moves      x once in, n once out: bound by memory.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
norm_rows(Step step, const uint4 *weight, const u16 *x, u16 *n) {
    constexpr int UNITS = HIDDEN_UNITS;
    __shared__ float squares[WARPS][8];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    let_next_start();
    wait_for_previous();
    const u32 token = blockIdx.x * 8 + lane / 4;
    const bool there = token < n_tokens(step);
    const int first = warp * UNITS * 32 + lane % 4 * 8;
    uint4 row[UNITS];
#pragma unroll
    for (int i = 0; i < UNITS; ++i)
        row[i] = there ? load_fresh((const uint4 *)(x + (u64)token * HIDDEN_STRIDE + first + i * 32))
                       : make_uint4(0, 0, 0, 0);
    const float scale = norm_scale<UNITS, HIDDEN>(row, squares, warp, lane);
#pragma unroll
    for (int i = 0; i < UNITS; ++i) {
        const u32 column = first + i * 32;
        const uint4 chunk = normalise(row[i], weight[column / 8], scale);
        if (TILED) {
            const uint4 turned = quad_transpose(chunk, lane);
            u8 *to = (u8 *)n + token_row(token, column, HIDDEN_STRIDE);
            if (there) *(uint4 *)(to + half_chunk(token, column / 32 % 2, lane % 4)) = turned;
        } else if (there) {
            *(uint4 *)(n + (u64)token * HIDDEN_STRIDE + column) = chunk;
        }
    }
}
