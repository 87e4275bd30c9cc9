// Computes   q, k = per-head rms_norm where the model has it; kv[slot] = rotate(k, key position), v.
// Layout     q: bf16 [tokens][Q_WIDTH]; k, v: bf16 [tokens][KV_WIDTH]; kv: pages of one layer (head.cuh);
//            rope: f32 [positions][HALF_DIM][cos, sin].
// Work split a warp owns one head of one token.
// Rounding   the norms as RMSNorm rounds; the rotated key once. q stays unrotated, see attend.
// Moves      q, k, v once in and out: bound by latency.
extern "C" __global__ void __launch_bounds__(256)
rope_store(Step step, const u16 *q_norm, const u16 *k_norm, const float2 *rope, u16 *q, u16 *k, const u16 *v, u16 *kv) {
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
    const Head value = load_head(v + (u64)token * KV_WIDTH + kv_head * HEAD_DIM, lane);
    each_dimension(value, lane, [&](int d, u16 v) { page[PAGE_SIDE + value_offset(row, d)] = v; });
}
