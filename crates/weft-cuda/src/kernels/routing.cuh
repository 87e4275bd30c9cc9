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
        bool is_best = left[0] == best;
        if (i == 0) own.highest = route_logit(best);
        const u32 lanes = __ballot_sync(FULL, is_best);
        if (lanes & (lanes - 1)) { // a tie: by all lanes, whether they are in it or not
            const u32 first = __reduce_min_sync(FULL, is_best ? experts[0] : ~0u);
            is_best = is_best && experts[0] == first;
        }
        // Without a branch: every round waits for the one before.
        own.chosen |= is_best ? 1u << experts[0] / 32 : 0;
#pragma unroll
        for (int j = 0; j < LANE_EXPERTS; ++j) {
            left[j] = !is_best ? left[j] : j + 1 < LANE_EXPERTS ? left[min(j + 1, LANE_EXPERTS - 1)] : 0;
            experts[j] = is_best ? experts[min(j + 1, LANE_EXPERTS - 1)] : experts[j];
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
// called by a whole warp; `listed()` by all, when experts are listed but not their rows.
template <int THREADS, class Choose, class Meet, class Listed>
__device__ __forceinline__ void find_distinct(Distinct &to, u32 n_tokens, int thread, Choose choose, Meet meet, Listed listed) {
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
    listed();
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

// ---- blocks of a graph --------------------------------------------------------------------------
// The experts of each of up to eight tokens, a bit for each expert. Everything else follows from
// them, so a block meets once before its copies begin.
typedef u32 Masks[FEW][LANE_EXPERTS];
__device__ __forceinline__ u32 used_of_word(const Masks &masks, int word) {
    u32 all = 0;
#pragma unroll
    for (int token = 0; token < FEW; ++token) all |= masks[token][word];
    return all;
}
// How many experts are used, by a whole warp.
__device__ __forceinline__ int count_used(const Masks &masks, int lane) {
    static_assert(LANE_EXPERTS <= 32, "a lane for each word");
    return __reduce_add_sync(FULL, lane < LANE_EXPERTS ? __popc(used_of_word(masks, lane)) : 0);
}
// The experts that are used, one after the other.
struct UsedExperts {
    const Masks &masks;
    int word = 0;
    u32 left;
    __device__ __forceinline__ UsedExperts(const Masks &masks) : masks(masks), left(used_of_word(masks, 0)) {}
    __device__ __forceinline__ void skip(int n) {
        while (n >= __popc(left)) n -= __popc(left), left = used_of_word(masks, ++word);
        for (; n > 0; --n) left &= left - 1;
    }
    __device__ __forceinline__ int next() {
        while (left == 0) left = used_of_word(masks, ++word);
        const int expert = word * 32 + __ffs(left) - 1;
        left &= left - 1;
        return expert;
    }
};
// Chooses, by all threads of a block, and meets them.
__device__ __forceinline__ Choice find_masks(Masks &masks, Distinct &to, const RouteSource &from, u32 n_tokens) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Choice own = {};
    if (warp < FEW) {
        u32 mask = 0;
        if (warp < n_tokens) {
            Route *routes = to.routes[warp];
            if (from.logits) {
                const float *logits = from.logits + (u64)warp * EXPERTS + lane;
                own = choose_experts([&](int j) { return load_fresh(logits + j * 32); }, routes, lane);
#pragma unroll
                for (int j = 0; j < LANE_EXPERTS; ++j) {
                    const u32 word = __ballot_sync(FULL, own.chosen >> j & 1);
                    if (lane == j) mask = word;
                }
            } else {
                routes_of(from, warp, routes, lane);
                for (int i = 0; i < N_CHOSEN; ++i)
                    if (routes[i].expert / 32 == lane) mask |= 1u << routes[i].expert % 32;
            }
        }
        if (lane < LANE_EXPERTS) masks[warp][lane] = mask;
    }
    __syncthreads();
    return own;
}
// The rest, by the computing threads: the list of experts and rows and, if `owners` is there, which
// expert of the list each row is of; if WEIGHS, the weights of routes.
template <bool WEIGHS, int READERS = WARPS>
__device__ __forceinline__ void list_distinct(Distinct &to, u16 *owners, const Masks &masks, const Choice &own, const RouteSource &from, u32 n_tokens) {
    static_assert(MOST_ROWS <= WARPS * 32, "a thread for each route");
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, thread = threadIdx.x;
    const u32 token = thread / N_CHOSEN;
    if (token < n_tokens && token < FEW) {
        const u32 expert = to.routes[token][thread % N_CHOSEN].expert, last = expert / 32, bit = 1u << expert % 32;
        u32 users = 0;
        int at = 0, row = 0;
        for (u32 word = 0; word <= last; ++word) {
            u32 all = 0;
            users = 0;
#pragma unroll
            for (int i = 0; i < FEW; ++i) {
                const u32 mask = masks[i][word], before = word < last ? mask : mask & (bit - 1);
                row += __popc(before);
                all |= before;
                if (mask & bit) users |= 1u << i;
            }
            at += __popc(all);
        }
        to.experts[at] = expert;
        to.tokens[at] = users;
        to.first_row[at] = row;
        row += __popc(users & ((1u << token) - 1));
        to.sources[row] = thread;
        if (owners) owners[row] = at;
    }
    if (warp == WARPS - 1) {
        const int n = count_used(masks, lane);
        if (lane == 0) to.n = n, to.first_row[n] = min(n_tokens, (u32)FEW) * N_CHOSEN;
    }
    if (WEIGHS && warp < n_tokens && from.logits) weigh_experts(own, to.routes[warp], lane);
    meet<READERS>();
}
