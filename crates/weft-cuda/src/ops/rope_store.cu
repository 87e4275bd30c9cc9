#include "kernels/attention_head.cuh"

// Computes   q, k = per-head rms_norm where the model has it; kv[slot] = rotate(k, key position),
//            and v with `with_values`.
// Layout     q: bf16 [tokens][Q_WIDTH]; k, v: bf16 [tokens][KV_WIDTH]; kv: pages of one layer
//            (attention_head.cuh); rope: f32 [positions][HALF_DIM][cos, sin].
// Work split a warp owns one head of one token.
// Rounding   the norms as RMSNorm rounds; the rotated key once. q stays unrotated, see attend.
// Moves      q, k, v once in and out: bound by latency.
extern "C" __global__ void __launch_bounds__(256)
rope_store(Step step, u32 with_values, const u16 *q_norm, const u16 *k_norm, const float2 *rope, u16 *q, u16 *k, const u16 *v,
           u16 *kv) {
    const int lane = threadIdx.x % 32;
    let_next_start();
    wait_for_previous();
    const u32 item = blockIdx.x * 8 + threadIdx.x / 32;
    const u32 token = item / (HEADS + KV_HEADS), head = item % (HEADS + KV_HEADS);
    if (token >= n_tokens(step)) return;
    if (head < HEADS) {
        if (!QK_NORM) return;
        u16 *at = q + (u64)token * Q_WIDTH + head * HEAD_DIM;
        Head query = load_head(at, lane);
        normalise_head(query, load_norm(q_norm, lane));
        each_dimension(query, lane, [&](int d, u16 value) { at[d] = value; });
        return;
    }
    const int kv_head = head - HEADS;
    const u32 slot = load_fresh(step.slots + token);
    u16 *page = kv + page_start(slot / PAGE_ROWS, kv_head);
    const int row = slot % PAGE_ROWS;
    u16 *at = k + (u64)token * KV_WIDTH + kv_head * HEAD_DIM;
    Head key = load_head(at, lane);
    if (QK_NORM) {
        normalise_head(key, load_norm(k_norm, lane));
        each_dimension(key, lane, [&](int d, u16 value) { at[d] = value; });
    }
    rotate_head(key, load_turn(rope, load_fresh(step.key_positions + token), lane));
    each_dimension(key, lane, [&](int d, u16 value) { page[key_offset(row, d)] = value; });
    if (!with_values) return;
    const PackedHead value = load_packed(v + (u64)token * KV_WIDTH + kv_head * HEAD_DIM, lane);
    each_dimension(value, lane, [&](int d, u16 v) { page[PAGE_SIDE + value_offset(row, d)] = v; });
}

// Computes   kv[slot] = v, for blocks of tokens.
// Layout     v: bf16 [tokens][KV_WIDTH]; kv: pages of one layer (attention_head.cuh).
// Work split a block owns 32 tokens of one KV head. Mostly they are half a page; then values are
//            turned round in shared memory and go out in whole chunks, which hold eight rows of one
//            dimension each.
// Rounding   none.
// Moves      v once in and out: bound by memory.
extern "C" __global__ void __launch_bounds__(VALUE_THREADS)
store_values(Step step, const u16 *v, u16 *kv) {
    let_next_start();
    wait_for_previous();
    __shared__ u16 rows[VALUE_TOKENS][DIM + 2]; // the gap spreads banks
    __shared__ u32 slots[VALUE_TOKENS];
    const u32 first = blockIdx.x * VALUE_TOKENS, there = min((u32)VALUE_TOKENS, n_tokens(step) - first);
    static_assert(VALUE_TOKENS == 32, "half a page, and a lane has a slot");
    const int kv_head = blockIdx.y;
    if (threadIdx.x < there) slots[threadIdx.x] = step.slots[first + threadIdx.x];
    for (u32 i = threadIdx.x; i < there * HEAD_DIM; i += VALUE_THREADS)
        rows[i / HEAD_DIM][i % HEAD_DIM] = v[(u64)(first + i / HEAD_DIM) * KV_WIDTH + kv_head * HEAD_DIM + i % HEAD_DIM];
    __syncthreads();
    const u32 begin = slots[0];
    const bool as_it_comes = threadIdx.x % 32 < there && slots[threadIdx.x % 32] == begin + threadIdx.x % 32;
    if (begin % 32 == 0 && __all_sync(FULL, as_it_comes)) {
        uint4 *to = (uint4 *)(kv + page_start(begin / PAGE_ROWS, kv_head) + PAGE_SIDE) + begin % PAGE_ROWS / 32 * UNIT;
        for (int i = threadIdx.x; i < HEAD_DIM * 4; i += VALUE_THREADS) {
            const int d = i / 4, c = i % 4;
            u32 pairs[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int row = j * 8 + c * 2;
                pairs[j] = rows[row][d] | (u32)rows[row + 1][d] << 16;
            }
            to[d / 8 * 2 * UNIT + d % 8 * 4 + c] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        }
        return;
    }
    for (u32 i = threadIdx.x; i < there * HEAD_DIM; i += VALUE_THREADS) {
        const u32 slot = slots[i / HEAD_DIM];
        kv[page_start(slot / PAGE_ROWS, kv_head) + PAGE_SIDE + value_offset(slot % PAGE_ROWS, i % HEAD_DIM)] = rows[i / HEAD_DIM][i % HEAD_DIM];
    }
}
