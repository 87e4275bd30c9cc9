// Which experts a token uses, and with which weights: `weft_core::routing` is the definition. Every
// kernel that routes calls `choose_experts` and `weigh_experts`, so all have the same routes.
#pragma once

#include "generated/experts.cuh"
#include "kernels/base.cuh"
#include "kernels/routes.cuh"

// Experts of a lane: every 32nd.
constexpr int LANE_EXPERTS = (EXPERTS + 31) / 32;

// A logit as an integer that rises with it, never 0. NaN is the lowest; both zeros are equal.
__device__ __forceinline__ u32 route_key(float logit) {
    const float value = logit != logit ? NEVER : logit + 0.0f;
    const u32 bits = __float_as_uint(value);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float route_logit(u32 key) { return __uint_as_float(key >> 31 ? key ^ 0x80000000u : ~key); }

// A lane's part of a token's choice: which of its experts are chosen, where those are among all that
// are, and its logits.
struct Choice {
    u32 chosen, keys[LANE_EXPERTS], places[LANE_EXPERTS];
    float highest; // of all logits
};
// The experts of a token from its logits, by one warp: to[N_CHOSEN] in shared memory, in order. Ties
// go to the lower index. `logit(j)` is that of this lane's j-th expert, if it has one.
template <class Logit> __device__ __forceinline__ Choice choose_experts(Logit logit, Route *to, int lane) {
    Choice own = {};
    u32 left[LANE_EXPERTS], experts[LANE_EXPERTS], before = 0;
#pragma unroll
    for (int j = 0; j < LANE_EXPERTS; ++j) {
        own.keys[j] = left[j] = j * 32 + lane < EXPERTS ? route_key(logit(j)) : 0;
        experts[j] = j * 32 + lane;
    }
    // A lane's own experts in order, so that its next best is at hand.
#pragma unroll
    for (int pass = 1; pass < LANE_EXPERTS; ++pass)
#pragma unroll
        for (int j = 0; j + pass < LANE_EXPERTS; ++j) {
            const u32 key = left[j], expert = experts[j];
            if (left[j + 1] > key) left[j] = left[j + 1], experts[j] = experts[j + 1], left[j + 1] = key, experts[j + 1] = expert;
        }
#pragma unroll 1
    for (int i = 0; i < N_CHOSEN; ++i) {
        const u32 best = __reduce_max_sync(FULL, left[0]);
        const bool is_best = left[0] == best;
        if (i == 0) own.highest = route_logit(best);
        u32 first = experts[0];
        if (__popc(__ballot_sync(FULL, is_best)) > 1) first = __reduce_min_sync(FULL, is_best ? experts[0] : ~0u); // a tie
        if (is_best && experts[0] == first) {
            own.chosen |= 1u << experts[0] / 32;
#pragma unroll
            for (int j = 0; j + 1 < LANE_EXPERTS; ++j) left[j] = left[j + 1], experts[j] = experts[j + 1];
            left[LANE_EXPERTS - 1] = 0;
        }
    }
#pragma unroll
    for (int j = 0; j < LANE_EXPERTS; ++j) {
        const u32 lanes = __ballot_sync(FULL, own.chosen >> j & 1);
        own.places[j] = before + __popc(lanes & ((1u << lane) - 1));
        if (own.chosen >> j & 1) to[own.places[j]].expert = j * 32 + lane;
        before += __popc(lanes);
    }
    __syncwarp();
    return own;
}
// Their weights, beside them.
__device__ __forceinline__ void weigh_experts(const Choice &own, Route *to, int lane) {
    float weights[LANE_EXPERTS], all = 0.0f;
#pragma unroll
    for (int j = 0; j < LANE_EXPERTS; ++j) {
        const bool counts = NORMALISED ? own.chosen >> j & 1 : j * 32 + lane < EXPERTS;
        weights[j] = expf(route_logit(own.keys[j]) - own.highest);
        if (counts) all += weights[j];
    }
#pragma unroll
    for (int other = 1; other < 32; other *= 2) all += __shfl_xor_sync(FULL, all, other);
#pragma unroll
    for (int j = 0; j < LANE_EXPERTS; ++j)
        if (own.chosen >> j & 1) to[own.places[j]].weight = weights[j] / all;
    __syncwarp();
}
// Both.
__device__ __forceinline__ void choose_routes(const float *logits, Route *to, int lane) {
    weigh_experts(choose_experts([&](int j) { return load_fresh(logits + j * 32 + lane); }, to, lane), to, lane);
}

// The routes of a token, by one warp, to shared memory.
__device__ __forceinline__ void routes_of(const RouteSource &from, u32 token, Route *to, int lane) {
    if (from.logits) return choose_routes(from.logits + (u64)token * EXPERTS, to, lane);
    for (int i = lane; i < N_CHOSEN; i += 32) {
        const uint2 route = load_fresh((const uint2 *)(from.routes + (u64)token * N_CHOSEN + i));
        to[i] = Route{route.x, __uint_as_float(route.y)};
    }
    __syncwarp();
}

// The experts that up to eight tokens use, each once, in order, and their rows: one for each token
// that uses the expert, in the order of experts and then of tokens.
constexpr int MOST_ROWS = FEW * N_CHOSEN;
constexpr int MOST_DISTINCT = MOST_ROWS < EXPERTS ? MOST_ROWS : EXPERTS;
struct Distinct {
    Route routes[FEW][N_CHOSEN];
    u32 words[LANE_EXPERTS];        // a bit for each expert
    u32 tokens[MOST_DISTINCT];      // a bit for each token that uses the expert
    u16 experts[MOST_DISTINCT];
    u16 first_row[MOST_DISTINCT + 1];
    u16 sources[MOST_ROWS];         // token * N_CHOSEN + which of its routes, for each row
    u32 n;

    // The row of a token that uses an expert, if it does.
    __device__ __forceinline__ bool has(int i, u32 token) const { return tokens[i] >> token & 1; }
    __device__ __forceinline__ int row(int i, u32 token) const { return first_row[i] + __popc(tokens[i] & ((1u << token) - 1)); }
};

// Called by the first THREADS threads of a block, which `meet()` joins. `choose(token, routes)` is
// called by a whole warp.
template <int THREADS, class Choose, class Meet>
__device__ __forceinline__ void find_distinct(Distinct &to, u32 n_tokens, int thread, Choose choose, Meet meet) {
    static_assert(MOST_ROWS <= THREADS, "a thread for each route");
    const int warp = thread / 32, lane = thread % 32;
    for (int i = thread; i < LANE_EXPERTS; i += THREADS) to.words[i] = 0;
    for (int i = thread; i < MOST_DISTINCT; i += THREADS) to.tokens[i] = 0;
    if (warp < n_tokens && warp < FEW) choose(warp, to.routes[warp]);
    meet();
    const u32 token = thread / N_CHOSEN, route = thread % N_CHOSEN;
    const bool is_one = token < n_tokens && token < FEW;
    const u32 expert = is_one ? to.routes[token][route].expert : 0;
    if (is_one) atomicOr(&to.words[expert / 32], 1u << expert % 32);
    meet();
    int own = __popc(to.words[expert / 32] & ((1u << expert % 32) - 1));
    for (u32 i = 0; i < expert / 32; ++i) own += __popc(to.words[i]);
    if (is_one) {
        to.experts[own] = expert;
        atomicOr(&to.tokens[own], 1u << token);
    }
    if (thread == 0) {
        u32 n = 0;
        for (int i = 0; i < LANE_EXPERTS; ++i) n += __popc(to.words[i]);
        to.n = n;
    }
    meet();
    if (warp == 0) {
        int before = 0;
        for (int first = 0; first < (int)to.n; first += 32) {
            int count = first + lane < (int)to.n ? __popc(to.tokens[first + lane]) : 0, sum = count;
#pragma unroll
            for (int by = 1; by < 32; by *= 2) {
                const int other = __shfl_up_sync(FULL, sum, by);
                if (lane >= by) sum += other;
            }
            if (first + lane < (int)to.n) to.first_row[first + lane] = before + sum - count;
            before += __shfl_sync(FULL, sum, 31);
        }
        if (lane == 0) to.first_row[to.n] = before;
    }
    meet();
    if (is_one) to.sources[to.row(own, token)] = token * N_CHOSEN + route;
    meet();
}
// By all RING_THREADS threads of a block.
__device__ __forceinline__ void find_distinct(Distinct &to, const RouteSource &from, u32 n_tokens) {
    const int lane = threadIdx.x % 32;
    find_distinct<RING_THREADS>(to, n_tokens, threadIdx.x, [&](u32 token, Route *routes) { routes_of(from, token, routes, lane); },
                                [] { __syncthreads(); });
}
