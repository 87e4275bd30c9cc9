#include "kernels/attention_head.cuh"

// A warp's N heads of tokens, from `first` on: those of q, then those of k, token by token.
template <int N>
__device__ __forceinline__ void store_heads(const Step &step, u32 first, const u16 *q_norm, const u16 *k_norm, const float2 *rope, u16 *q, u16 *k,
                                            const u16 *v, bool with_values, u16 *kv, int lane) {
    const HeadNorm norms[2] = {load_norm(q_norm, lane), load_norm(k_norm, lane)};
    wait_for_previous();
    const u32 n_heads = n_tokens(step) * (HEADS + KV_HEADS);
    const auto token = [&](int i) { return min(first + i, n_heads - 1) / (HEADS + KV_HEADS); };
    const auto of_token = [&](int i) { return (int)(min(first + i, n_heads - 1) % (HEADS + KV_HEADS)); };
    const auto is_key = [&](int i) { return of_token(i) >= HEADS; };
    const auto place = [&](int i) {
        return is_key(i) ? k + (u64)token(i) * KV_WIDTH + (of_token(i) - HEADS) * HEAD_DIM : q + (u64)token(i) * Q_WIDTH + of_token(i) * HEAD_DIM;
    };
    // All that memory takes long for is on its way before anything waits.
    Head heads[N];
    u32 slots[N], positions[N];
    Turn turns[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
        if (is_key(i)) slots[i] = load_fresh(step.slots + token(i)), positions[i] = load_fresh(step.key_positions + token(i));
        if (is_key(i) || QK_NORM) heads[i] = load_head(place(i), lane);
    }
#pragma unroll
    for (int i = 0; i < N; ++i)
        if (is_key(i)) turns[i] = load_turn(rope, positions[i], lane);
#pragma unroll
    for (int i = 0; i < N; ++i) {
        if (first + i >= n_heads) return;
        if (QK_NORM) {
            u16 *at = place(i);
            normalise_head(heads[i], norms[is_key(i)]);
            each_dimension(heads[i], lane, [&](int d, u16 value) { at[d] = value; });
        }
        if (!is_key(i)) continue;
        const int kv_head = of_token(i) - HEADS, row = slots[i] % PAGE_ROWS;
        u16 *page = kv + page_start(slots[i] / PAGE_ROWS, kv_head);
        rotate_head(heads[i], turns[i]);
        each_dimension(heads[i], lane, [&](int d, u16 value) { page[key_offset(row, d)] = value; });
        if (!with_values) continue;
        const PackedHead value = load_packed(v + (u64)token(i) * KV_WIDTH + kv_head * HEAD_DIM, lane);
        each_dimension(value, lane, [&](int d, u16 v) { page[PAGE_SIDE + value_offset(row, d)] = v; });
    }
}

// Computes   q, k = per-head rms_norm where the model has it; kv[slot] = rotate(k, key position), and
//            v; `_block` for blocks of tokens, without v.
// Layout     q: bf16 [tokens][Q_WIDTH]; k, v: bf16 [tokens][KV_WIDTH]; kv: pages of one layer
//            (attention_head.cuh); rope: f32 [positions][HALF_DIM][cos, sin].
// Work split a warp owns one head of one token; or a few heads one after the other.
// Rounding   the norms as RMSNorm rounds; the rotated key once. q stays unrotated, see attend.
// Moves      q, k, v once in and out: bound by latency.
extern "C" __global__ void __launch_bounds__(256)
rope_store(Step step, const u16 *q_norm, const u16 *k_norm, const float2 *rope, u16 *q, u16 *k, const u16 *v, u16 *kv) {
    let_next_start();
    store_heads<1>(step, blockIdx.x * 8 + threadIdx.x / 32, q_norm, k_norm, rope, q, k, v, true, kv, threadIdx.x % 32);
}
extern "C" __global__ void __launch_bounds__(256, 4)
rope_store_block(Step step, const u16 *q_norm, const u16 *k_norm, const float2 *rope, u16 *q, u16 *k, u16 *kv) {
    let_next_start();
    store_heads<STORED_HEADS>(step, (blockIdx.x * 8 + threadIdx.x / 32) * STORED_HEADS, q_norm, k_norm, rope, q, k, nullptr, false, kv, threadIdx.x % 32);
}

// The values of a block's tokens, to shared memory; by chunks of eight where they fit.
template <int WIDTH>
__device__ __forceinline__ void read_values(u16 (*rows)[DIM + 2], const u16 *values, u32 n_tokens) {
    if constexpr (WIDTH % 8 == 0) {
        constexpr int CHUNKS = WIDTH / 8, MOST = (VALUE_TOKENS * CHUNKS + VALUE_THREADS - 1) / VALUE_THREADS;
        uint4 chunks[MOST];
#pragma unroll
        for (int i = 0; i < MOST; ++i) {
            const u32 at = threadIdx.x + i * VALUE_THREADS;
            if (at < n_tokens * CHUNKS) chunks[i] = *(const uint4 *)(values + (u64)(at / CHUNKS) * KV_WIDTH + at % CHUNKS * 8);
        }
#pragma unroll
        for (int i = 0; i < MOST; ++i) {
            const u32 at = threadIdx.x + i * VALUE_THREADS;
            if (at >= n_tokens * CHUNKS) break;
            u32 *to = (u32 *)&rows[at / CHUNKS][at % CHUNKS * 8];
            to[0] = chunks[i].x, to[1] = chunks[i].y, to[2] = chunks[i].z, to[3] = chunks[i].w;
        }
    } else {
        for (u32 i = threadIdx.x; i < n_tokens * WIDTH; i += VALUE_THREADS) rows[i / WIDTH][i % WIDTH] = values[(u64)(i / WIDTH) * KV_WIDTH + i % WIDTH];
    }
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
    __shared__ __align__(4) u16 rows[VALUE_TOKENS][DIM + 2]; // the gap spreads banks
    __shared__ u32 slots[VALUE_TOKENS];
    const u32 first = blockIdx.x * VALUE_TOKENS, there = min((u32)VALUE_TOKENS, n_tokens(step) - first);
    static_assert(VALUE_TOKENS == 32, "half a page, and a lane has a slot");
    const int kv_head = blockIdx.y;
    if (threadIdx.x < there) slots[threadIdx.x] = step.slots[first + threadIdx.x];
    read_values<HEAD_DIM>(rows, v + (u64)first * KV_WIDTH + kv_head * HEAD_DIM, there);
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
