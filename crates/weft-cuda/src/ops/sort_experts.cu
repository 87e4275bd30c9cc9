#include "kernels/norm.cuh"
#include "kernels/sorted.cuh"

// Computes   how many tokens use each expert, and which of them each route is.
// Layout     routes: [tokens][N_CHOSEN]; counts, slots: as in sorted.cuh.
// Work split a thread owns a route.
// Rounding   none. Slots are given in any order: it does not show in any result.
// Moves      routes once in, slots once out: bound by the launch.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
count_experts(Step step, const Route *routes, Sorted sorted) {
    let_next_start();
    wait_for_previous();
    const u32 route = blockIdx.x * (WARPS * 32) + threadIdx.x;
    if (route < n_tokens(step) * N_CHOSEN) sorted.slots[route] = atomicAdd(sorted.counts + load_fresh(&routes[route].expert), 1u);
}

// Computes   the first position of each expert, and the tiles of `width` positions.
// Layout     as in sorted.cuh. Counts are zero afterwards.
// Work split one block; a thread owns an expert.
// Rounding   none.
// Moves      little: bound by the launch.
extern "C" __global__ void __launch_bounds__(LAY_EXPERTS_THREADS)
lay_experts(Sorted sorted, u32 width) {
    static_assert(EXPERTS <= LAY_EXPERTS_THREADS, "a thread for each expert");
    __shared__ u32 squares[LAY_EXPERTS_THREADS], tiles[LAY_EXPERTS_THREADS];
    let_next_start();
    wait_for_previous();
    const u32 expert = threadIdx.x;
    const u32 count = expert < EXPERTS ? load_fresh(sorted.counts + expert) : 0;
    const u32 own_squares = (count + SQUARE - 1) / SQUARE, own_tiles = (count + width - 1) / width;
    u32 square = own_squares, tile = own_tiles; // sums up to this expert
    for (u32 by = 1; by < LAY_EXPERTS_THREADS; by *= 2) {
        squares[expert] = square, tiles[expert] = tile;
        __syncthreads();
        if (expert >= by) square += squares[expert - by], tile += tiles[expert - by];
        __syncthreads();
    }
    if (expert == LAY_EXPERTS_THREADS - 1) sorted.totals[0] = square * SQUARE, sorted.totals[1] = tile;
    if (expert >= EXPERTS) return;
    const u32 start = (square - own_squares) * SQUARE;
    sorted.counts[expert] = 0;
    sorted.starts[expert] = start;
    for (u32 i = 0; i < own_tiles; ++i) sorted.tiles[tile - own_tiles + i] = ExpertTile{expert, start + i * width, start + count, 0};
}

// Computes   n = rms_norm(x), at the position of each of a token's routes, and what each position is.
// Layout     x: bf16 [tokens][HIDDEN_STRIDE]; n: bf16 [positions][HIDDEN_STRIDE], in squares where
//            warpgroups multiply (tiled.cuh); weight: bf16 [HIDDEN_STRIDE].
// Work split a block owns eight tokens, a warp an eighth of their columns, a quad one token.
// Rounding   the normalised value, then its product with the weight.
// Moves      x once in, n once for each route out: bound by memory.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
place_norms(Step step, const uint4 *weight, const u16 *x, const Route *routes, Sorted sorted, u16 *n) {
    constexpr int UNITS = HIDDEN_UNITS;
    __shared__ float squares[WARPS][8];
    __shared__ u32 positions[8 * N_CHOSEN];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    let_next_start();
    wait_for_previous();
    const u32 tokens = n_tokens(step), first_route = blockIdx.x * 8 * N_CHOSEN, token = blockIdx.x * 8 + lane / 4;
    for (u32 i = threadIdx.x; i < 8 * N_CHOSEN; i += WARPS * 32) {
        const u32 route = first_route + i;
        if (route >= tokens * N_CHOSEN) break;
        positions[i] = position_of(sorted, routes, route);
        sorted.sources[positions[i]] = route;
    }
    const bool there = token < tokens;
    const int first = warp * UNITS * 32 + lane % 4 * 8;
    uint4 row[UNITS];
#pragma unroll
    for (int i = 0; i < UNITS; ++i)
        row[i] = there ? load_fresh((const uint4 *)(x + (u64)token * HIDDEN_STRIDE + first + i * 32)) : make_uint4(0, 0, 0, 0);
    // Positions are there when all have met for the norm.
    const float scale = norm_scale<UNITS, HIDDEN>(row, squares, warp, lane);
#pragma unroll
    for (int i = 0; i < UNITS; ++i) {
        const u32 column = first + i * 32;
        const uint4 chunk = normalise(row[i], weight[column / 8], scale);
        const uint4 turned = TILED ? quad_transpose(chunk, lane) : chunk;
        if (!there) continue;
#pragma unroll 4
        for (int r = 0; r < N_CHOSEN; ++r) store_chunk(n, positions[lane / 4 * N_CHOSEN + r], column, HIDDEN_STRIDE, chunk, turned, lane);
    }
}

// Computes   the experts' h of each route, at its position.
// Layout     h: bf16 [tokens][N_CHOSEN][EXPERT_STRIDE]; to: bf16 [positions][EXPERT_STRIDE], in squares
//            where warpgroups multiply (tiled.cuh).
// Work split a block owns eight routes, a warp an eighth of their columns, a quad one route.
// Rounding   none. It also says what each position is.
// Moves      h once in, once out: bound by memory.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
place_rows(Step step, const u16 *h, const Route *routes, Sorted sorted, u16 *to) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    let_next_start();
    wait_for_previous();
    const u32 route = blockIdx.x * 8 + lane / 4;
    const bool there = route < n_tokens(step) * N_CHOSEN;
    const u32 position = there ? position_of(sorted, routes, route) : 0;
    if (there && warp == 0 && lane % 4 == 0) sorted.sources[position] = route;
    const int first = warp * EXPERT_UNITS * 32 + lane % 4 * 8;
    for (int i = 0; i < EXPERT_UNITS; ++i) {
        const u32 column = first + i * 32;
        const uint4 chunk = there ? load_fresh((const uint4 *)(h + (u64)route * EXPERT_STRIDE + column)) : make_uint4(0, 0, 0, 0);
        const uint4 turned = TILED ? quad_transpose(chunk, lane) : chunk;
        if (there) store_chunk(to, position, column, EXPERT_STRIDE, chunk, turned, lane);
    }
}

// Computes   x += sum of weight * product over the routes of each token, in their order.
// Layout     routes: [tokens][N_CHOSEN]; products: f32 [tokens][N_CHOSEN][HIDDEN_STRIDE]; x: bf16
//            [tokens][HIDDEN_STRIDE].
// Work split a block owns a token.
// Rounding   the sum, once.
// Moves      products once in, x in and out: bound by memory.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
sum_experts(Step step, const Route *routes, const float *products, u16 *x) {
    let_next_start();
    wait_for_previous();
    const u32 token = blockIdx.x;
    for (u32 column = threadIdx.x * 2; column < HIDDEN; column += WARPS * 32 * 2) {
        u32 *at = (u32 *)(x + (u64)token * HIDDEN_STRIDE + column);
        const u32 before = load_fresh(at);
        float first = 0.0f, second = 0.0f;
#pragma unroll 8
        for (int i = 0; i < N_CHOSEN; ++i) {
            const u64 route = (u64)token * N_CHOSEN + i;
            const float weight = load_fresh(&routes[route].weight);
            const uint2 both = load_fresh((const uint2 *)(products + route * HIDDEN_STRIDE + column));
            first += __fmul_rn(weight, __uint_as_float(both.x)), second += __fmul_rn(weight, __uint_as_float(both.y));
        }
        // Beyond the last column there are zeros.
        if (column + 1 >= HIDDEN) second = 0.0f;
        *at = round_pair(low(before) + first, high(before) + second);
    }
}
