#include "generated/experts.cuh"
#include "kernels/coded_block.cuh"
#include "kernels/matvec.cuh"
#include "kernels/routing.cuh"

// Computes   n = rms_norm(x); logits = n * W_router, for eight tokens in each row of the grid;
//            `_block` for blocks of tokens, of which n is already there.
// Layout     weights: packed in units; norm: bf16 [HIDDEN_STRIDE]; x, n: bf16
//            [tokens][HIDDEN_STRIDE]; logits: f32 [tokens][EXPERTS].
// Work split a block owns tiles of eight experts, a warp an eighth of the columns (matvec.cuh), and
//            every block normalises x for itself; or 128 tokens x 128 experts (matmul.cuh).
// Rounding   n as RMSNorm rounds; logits never.
// Moves      the router once, then from L2: bound by the launch.
extern "C" __global__ void MATVEC_BOUNDS(HIDDEN_UNITS)
norm_route(Step step, const u8 *weights, const uint4 *norm, const u16 *x, float *logits) {
    using M = Cut<RouterMatrix, HIDDEN_UNITS>;
    const u32 first = blockIdx.y * FEW;
    const u16 *own = x + (u64)first * HIDDEN_STRIDE;
    multiply_norms<M>(weights, RouterMatrix::ALL_TILES, own, norm, min(n_tokens(step) - first, FEW), false, [](u32 token) { return token; },
                      [&](int set, int, bool, u32 token, u32 row, const float (&sums)[M::STORED]) {
#pragma unroll
        for (int tile = 0; tile < M::STORED; ++tile) {
            const u32 expert = (set * M::STORED + tile) * 8 + row;
            if (expert < EXPERTS) logits[(u64)(first + token) * EXPERTS + expert] = sums[tile];
        }
    });
}

#define NORM_ROUTE_BLOCK(SUFFIX, W)                                                                              \
    extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)                                               \
    norm_route_block##SUFFIX(Step step, const u8 *weights, const u16 *n, float *logits) {                        \
        multiply_matrix_block<W, HIDDEN_UNITS>(weights, n, HIDDEN_STRIDE, n_tokens(step),                        \
                                               [&](u32 token, u32 tile, u32 column, const float (&sums)[4][2]) { \
            for (int i = 0; i < 8; ++i) {                                                                        \
                const u32 expert = (tile + i / 2) * 8 + column + i % 2;                                          \
                if (expert < EXPERTS) logits[(u64)token * EXPERTS + expert] = sums[i / 2][i % 2];                \
            }                                                                                                    \
        });                                                                                                      \
    }
ROUTER_BLOCK_MATRICES(NORM_ROUTE_BLOCK)

// Computes   the routes of tokens from the router's logits. In a graph of few tokens the kernels of
//            experts choose for themselves.
// Layout     logits: f32 [tokens][EXPERTS]; routes: [tokens][N_CHOSEN], in the order of experts.
// Work split a warp owns a token.
// Rounding   weights never.
// Moves      logits once in, routes once out: bound by the launch.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
choose_experts(Step step, const float *logits, Route *routes) {
    __shared__ Route chosen[WARPS][N_CHOSEN];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    let_next_start();
    wait_for_previous();
    const u32 token = blockIdx.x * WARPS + warp;
    if (token >= n_tokens(step)) return;
    choose_routes(logits + (u64)token * EXPERTS, chosen[warp], lane);
    for (int i = lane; i < N_CHOSEN; i += 32) routes[(u64)token * N_CHOSEN + i] = chosen[warp][i];
}
