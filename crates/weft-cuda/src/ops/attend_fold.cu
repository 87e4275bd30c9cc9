#include "ops/attend_block.cuh"

// The parts of a head as ordinary memory holds them.
struct StoredParts {
    static constexpr bool SUMS_FIRST = true;
    const Attended &to;
    u64 first;
    int head, d;
    __device__ __forceinline__ Part weight(u32 part, bool there) const {
        const float *at = (const float *)(to.weights + (first + part) * HEADS + head);
        return {there ? load_fresh(at) : NEVER, there ? load_fresh(at + 1) : 0.0f};
    }
    template <int N> __device__ __forceinline__ void sums(float (&sums)[N], u32 part, u32 last) const {
#pragma unroll
        for (int i = 0; i < N; ++i)
            sums[i] = load_fresh(to.sums + ((first + min(part + i, last)) * HEADS + head) * DIM + d);
    }
};

// Folds the parts of one token's heads of one KV head. A warp has 32 dimensions of one head, and
// adds what as many of its cells were given.
__device__ __forceinline__ void merge(const Step &step, u32 token, u32 n_parts, u64 first, u32 n_cells, u64 first_cell, int kv_head, const Attended &to) {
    constexpr int AT_ONCE = WARPS * 32 / DIM;
    const int lane = threadIdx.x % 32, d = threadIdx.x % DIM;
    for (int g = threadIdx.x / DIM; g < GROUP && threadIdx.x < AT_ONCE * DIM; g += AT_ONCE) {
        const int head = kv_head * GROUP + g;
        // The pivot and the squares of a lane's cell, asked for one fold ahead.
        const auto ask = [&](u32 cell, float &m, float &squares) {
            if (cell >= n_cells) return;
            const float *at = (const float *)(to.cells + (first_cell + cell) * HEADS + head);
            m = load_fresh(at), squares = load_fresh(at + 1);
        };
        float m, squares;
        ask(d, m, squares);
        const StoredParts parts{to, first, head, d};
        // All that are asked for at once are loaded, there or not.
        const Folded whole = n_parts > 16 ? fold_parts<32>(parts, n_parts, lane) : fold_parts<16>(parts, n_parts, lane);
        if (d < HEAD_DIM) *place_of(step, to, token, head * HEAD_DIM + d) = round_one(whole.sum / whole.weight);
        for (u32 cell = d; cell < n_cells; cell += DIM, ask(cell, m, squares))
            atomicAdd(to.shares + (first_cell + cell) * HEADS + head, part_share(whole, m, squares));
    }
}

// Computes   a from the parts that attend_block left.
// Layout     as in Attended.
// Work split a block owns one KV head of one token.
// Rounding   a once.
// Moves      the parts once, from L2.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
attend_fold(Step step, Attended to) {
    let_next_start();
    wait_for_previous();
    const u32 token = blockIdx.x / KV_HEADS, *own = step.partials + token * 4;
    merge(step, token, load_fresh(own), load_fresh(own + 1), load_fresh(own + 2), load_fresh(own + 3), blockIdx.x % KV_HEADS, to);
}
