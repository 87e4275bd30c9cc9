struct Query {
    u32 token;     // of the step
    u32 seen;      // rows of the section that it sees
    u32 rotate_at; // the position that it has seen from the section's home
    u32 partial;   // where its part of the result goes, and its share of attention
};
// Some queries against one section; 192 bytes.
struct Item {
    u32 pages[SECTION_PAGES];
    u32 n_rows, n_queries, n_stores, pad;
    u32 stores[8]; // rows of the section that this step writes: token << 16 | row
    Query queries[8];
};

// Where results go.
struct Attended {
    u16 *a;         // bf16 [tokens][Q_STRIDE]
    float *sums;    // f32 [partials][HEADS][DIM]: weighted sums of values
    float2 *weights; // f32 [partials][HEADS]: maximum and sum of weights
    u32 *arrived;   // [tokens][KV_HEADS]: parts that are there; zero between launches
    float *shares;  // f32 [partials][KV_HEADS]: attention given to each part, added over layers
};

// Norms (where rope_store has not), rotates and rounds two of an item's 16 queries into shared memory.
__device__ __forceinline__ void prepare_queries(u16 (&queries)[16][QUERY_STRIDE], const Item &item, int kv_head,
                                                bool with_store, const u16 *q_norm, const float2 *rope, const u16 *q) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Head heads[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = warp * 2 + i, query = row / GROUP;
        if (query < item.n_queries)
            heads[i] = load_head(q + (u64)item.queries[query].token * Q_WIDTH + (kv_head * GROUP + row % GROUP) * HEAD_DIM, lane);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = warp * 2 + i, query = row / GROUP;
        for (int d = lane; d < DIM; d += 32)
            if (query >= item.n_queries || d >= HEAD_DIM) queries[row][d] = 0;
        if (query < item.n_queries) {
            if (with_store && QK_NORM) normalise_head(heads[i], q_norm, lane);
            rotate_head(heads[i], rope, item.queries[query].rotate_at, lane);
            each_dimension(heads[i], lane, [&](int d, u16 value) { queries[row][d] = value; });
        }
    }
}

// Stores what this step adds to the section, in its pages and in the copy of them at hand.
__device__ __forceinline__ void store_rows(const Step &step, const Item &item, int kv_head, u8 *keys, u8 *values,
                                           const u16 *k_norm, const float2 *rope, const u16 *k, const u16 *v, u16 *kv) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = warp; i < item.n_stores; i += WARPS) {
        const u32 token = item.stores[i] >> 16, at = item.stores[i] & 0xffff;
        const int page = at / PAGE_ROWS, row = at % PAGE_ROWS;
        u16 *stored = kv + page_start(item.pages[page], kv_head);
        const Head key = stored_key(step, token, kv_head, k, k_norm, rope, lane);
        const Head value = load_head(v + (u64)token * KV_WIDTH + kv_head * HEAD_DIM, lane);
        u16 *near_key = (u16 *)(keys + page * SIDE_BYTES), *near_value = (u16 *)(values + page * SIDE_BYTES);
        each_dimension(key, lane, [&](int d, u16 x) { near_key[key_offset(row, d)] = stored[key_offset(row, d)] = x; });
        each_dimension(value, lane, [&](int d, u16 x) {
            near_value[value_offset(row, d)] = stored[PAGE_SIDE + value_offset(row, d)] = x;
        });
    }
}

// Folds the parts of one token's heads of one KV head, in order, and adds up what each was given.
__device__ __forceinline__ void merge(const Step &step, u32 token, int kv_head, const Attended &to,
                                      float (&finals)[16][2]) {
    constexpr int AT_ONCE = WARPS * 32 / DIM;
    const int lane = threadIdx.x % 32, d = threadIdx.x % DIM;
    const u32 n_parts = step.partials[token * 2], first = step.partials[token * 2 + 1];
    for (int g = threadIdx.x / DIM; g < GROUP && threadIdx.x < AT_ONCE * DIM; g += AT_ONCE) {
        const int head = kv_head * GROUP + g;
        float total = 0.0f, weight = 0.0f, before = NEVER;
        for (u32 block = 0; block < n_parts; block += 32) {
            const u32 count = min(32u, n_parts - block);
            const float *at = (const float *)(to.weights + (u64)(first + block + lane) * HEADS + head);
            const float m = lane < count ? load_fresh(at) : NEVER, l = lane < count ? load_fresh(at + 1) : 0.0f;
            float after = fmaxf(before, m);
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const float left = __shfl_up_sync(FULL, after, step);
                if (lane >= step) after = fmaxf(after, left);
            }
            const float left = __shfl_up_sync(FULL, after, 1);
            const Factors factors = fold_factors(lane == 0 ? before : left, m, after);
            for (u32 j = 0; j < count; j += 8) {
                float parts[8];
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    const u64 part = first + block + min(j + i, count - 1);
                    parts[i] = load_fresh(to.sums + (part * HEADS + head) * DIM + d);
                }
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    const float a = __shfl_sync(FULL, factors.a, j + i), b = __shfl_sync(FULL, factors.b, j + i);
                    const float part_weight = __shfl_sync(FULL, l, j + i);
                    if (j + i < count) {
                        total = fold(total, a, parts[i], b);
                        weight = fold(weight, a, part_weight, b);
                    }
                }
            }
            before = __shfl_sync(FULL, after, 31);
        }
        if (d < HEAD_DIM) to.a[(u64)token * Q_STRIDE + head * HEAD_DIM + d] = round_one(total / weight);
        if (d == 0) finals[g][0] = before, finals[g][1] = weight;
    }
    __syncthreads();
    for (u32 part = threadIdx.x; part < n_parts; part += WARPS * 32) {
        float share = 0.0f;
        for (int g = 0; g < GROUP; ++g) {
            const float *at = (const float *)(to.weights + (u64)(first + part) * HEADS + kv_head * GROUP + g);
            share += load_fresh(at + 1) * exp2_of(load_fresh(at) - finals[g][0]) / finals[g][1];
        }
        to.shares[(u64)(first + part) * KV_HEADS + kv_head] += share;
    }
    __syncthreads();
}

// Computes   a = softmax(rotate(q) * k / sqrt(HEAD_DIM)) * v over every row that a token sees, for up to
//            eight tokens. With `with_store` it runs rope_store too: the block that needs a new row makes it.
// Layout     q: bf16 [tokens][Q_WIDTH]; k, v: bf16 [tokens][KV_WIDTH]; kv: pages of one layer (head.cuh);
//            rope: f32 [positions][HALF_DIM][cos, sin]; results as in Attended.
// Work split a block owns one KV head of one item: a section of four pages and the queries, of all lanes,
//            that see it. Of scores a warp owns 16 queries x 32 rows, of values 16 queries x an eighth of the
//            dimensions. Parts are folded in order by whichever block of a token's comes last.
// Rounding   the rotated query once; probabilities to 16 bits; a once.
// Moves      the section's keys and values once, asked for before the kernel before has ended: bound by memory.
extern "C" __global__ void __launch_bounds__(WARPS * 32, 1)
attend(Step step, u32 with_store, const u16 *q_norm, const u16 *k_norm, const float2 *rope, const u16 *q, const u16 *k,
       const u16 *v, u16 *kv, Attended to) {
    constexpr int OWN_TILES = (DIM_TILES + WARPS - 1) / WARPS;
    extern __shared__ __align__(128) u8 keys[];
    u8 *values = keys + SECTION_PAGES * SIDE_BYTES;
    __shared__ u64 there[2];
    __shared__ Item item;
    __shared__ __align__(16) u16 queries[16][QUERY_STRIDE];
    __shared__ uint4 probabilities[SECTION_PAGES][2][2][2][32]; // page, half, coarse and fine, upper and lower
    __shared__ float maxima[SECTION_PAGES][2][16], sums[SECTION_PAGES][2][16][4], finals[16][2];
    __shared__ u32 is_last[8];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, kv_head = blockIdx.x % KV_HEADS;
    if (threadIdx.x == 0) {
        barrier_init(&there[0], COPY_ARRIVALS), barrier_init(&there[1], COPY_ARRIVALS);
        barriers_made();
    }
    let_next_start();
    u32 parity = 0;
    bool waited = false;
    for (u32 index = blockIdx.x / KV_HEADS; index < n_items(step); index += gridDim.x / KV_HEADS, parity ^= 1) {
        if (threadIdx.x < sizeof(Item) / 4)
            ((u32 *)&item)[threadIdx.x] = step.attention[index * (sizeof(Item) / 4) + threadIdx.x];
        __syncthreads();
        const int n_pages = (item.n_rows + PAGE_ROWS - 1) / PAGE_ROWS;
        if (warp == 0) {
            for (int side = 0; side < 2; ++side) {
                expect_copies(&there[side], n_pages * SIDE_BYTES, lane);
                for (int page = 0; page < n_pages; ++page)
                    copy((side ? values : keys) + page * SIDE_BYTES,
                         kv + page_start(item.pages[page], kv_head) + side * PAGE_SIDE, SIDE_BYTES, &there[side], lane);
                copies_begun(&there[side]);
            }
        }
        if (!waited) wait_for_previous(), waited = true;
        prepare_queries(queries, item, kv_head, with_store, q_norm, rope, q);
        barrier_wait(&there[0], parity);
        barrier_wait(&there[1], parity);
        if (with_store) store_rows(step, item, kv_head, keys, values, k_norm, rope, k, v, kv);
        __syncthreads();

        // Scores: this warp's half of a page.
        const int page = warp / 2, half = warp % 2, upper = lane / 4, lower = upper + 8, c = lane % 4;
        const int own_rows[2] = {upper, lower};
        float scores[2][8];
        if (page < n_pages) {
            float products[4][4] = {};
            const uint4 *units = (const uint4 *)(keys + page * SIDE_BYTES) + lane;
#pragma unroll
            for (int unit = 0; unit < DIM_UNITS; ++unit) {
                const uint4 a = *(const uint4 *)&queries[upper][unit * 32 + c * 8];
                const uint4 b = *(const uint4 *)&queries[lower][unit * 32 + c * 8];
#pragma unroll
                for (int tile = 0; tile < 4; ++tile)
                    mma32(products[tile], a, b, units[((half * 4 + tile) * DIM_UNITS + unit) * UNIT]);
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const u32 query = own_rows[i] / GROUP;
                const int seen = query < item.n_queries ? item.queries[query].seen : 0;
                float top = NEVER;
#pragma unroll
                for (int e = 0; e < 8; ++e) {
                    const int row = page * PAGE_ROWS + half * 32 + e / 2 * 8 + c * 2 + e % 2;
                    scores[i][e] = score(products[e / 2][i * 2 + e % 2], row < seen);
                    top = fmaxf(top, scores[i][e]);
                }
                top = quad_max(top);
                if (c == 0) maxima[page][half][own_rows[i]] = top;
            }
        }
        __syncthreads();
        if (page < n_pages) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float m = NEVER;
                for (int p = 0; p <= page; ++p)
                    m = fmaxf(m, fmaxf(maxima[p][0][own_rows[i]], maxima[p][1][own_rows[i]]));
                sums[page][half][own_rows[i]][c] =
                    weigh(scores[i], finite(m), probabilities[page][half][0][i][lane], probabilities[page][half][1][i][lane]);
            }
        }
        __syncthreads();

        // Values: this warp's dimensions. Sixteen threads also add up the weights.
        float acc[OWN_TILES][4] = {};
        float m[2] = {NEVER, NEVER};
        for (int p = 0; p < n_pages; ++p) {
            float shrink[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float after = fmaxf(m[i], fmaxf(maxima[p][0][own_rows[i]], maxima[p][1][own_rows[i]]));
                shrink[i] = exp2_of(m[i] - finite(after));
                m[i] = after;
            }
#pragma unroll
            for (int tile = 0; tile < OWN_TILES; ++tile)
#pragma unroll
                for (int e = 0; e < 4; ++e) acc[tile][e] = __fmul_rn(acc[tile][e], shrink[e / 2]);
            const uint4 *units = (const uint4 *)(values + p * SIDE_BYTES) + lane;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const uint4 mask = value_mask(item.n_rows - p * PAGE_ROWS, h, lane);
#pragma unroll
                for (int tile = 0; tile < OWN_TILES; ++tile) {
                    const int dims = warp * OWN_TILES + tile;
                    if (dims < DIM_TILES) {
                        const uint4 unit = masked(units[(dims * 2 + h) * UNIT], mask);
#pragma unroll
                        for (int f = 0; f < 2; ++f)
                            mma32(acc[tile], probabilities[p][h][f][0][lane], probabilities[p][h][f][1][lane], unit);
                    }
                }
            }
        }
        if (threadIdx.x < 16) {
            float lanes[4] = {}, top = NEVER;
            for (int p = 0; p < n_pages; ++p) {
                const float after = fmaxf(top, fmaxf(maxima[p][0][threadIdx.x], maxima[p][1][threadIdx.x]));
                const float shrink = exp2_of(top - finite(after));
                for (int i = 0; i < 4; ++i)
                    lanes[i] = __fmaf_rn(lanes[i], shrink, sums[p][0][threadIdx.x][i] + sums[p][1][threadIdx.x][i]);
                top = after;
            }
            finals[threadIdx.x][0] = top;
            finals[threadIdx.x][1] = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
        }
        __syncthreads();

        // Results: whole where the section is all that a token sees, a part of them otherwise.
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const u32 query = own_rows[i] / GROUP;
            if (query >= item.n_queries) continue;
            const Query own = item.queries[query];
            const int head = kv_head * GROUP + own_rows[i] % GROUP;
            const bool whole = step.partials[own.token * 2] == 1;
            const float weight = finals[own_rows[i]][1];
#pragma unroll
            for (int tile = 0; tile < OWN_TILES; ++tile) {
                const int d = (warp * OWN_TILES + tile) * 8 + c * 2;
                if (d >= DIM) continue;
                if (!whole)
                    *(float2 *)(to.sums + ((u64)own.partial * HEADS + head) * DIM + d) =
                        make_float2(acc[tile][i * 2], acc[tile][i * 2 + 1]);
                else if (d < HEAD_DIM)
                    *(u32 *)(to.a + (u64)own.token * Q_STRIDE + head * HEAD_DIM + d) =
                        round_pair(acc[tile][i * 2] / weight, acc[tile][i * 2 + 1] / weight);
            }
            if (!whole && warp == 0 && c == 0)
                to.weights[(u64)own.partial * HEADS + head] = make_float2(finals[own_rows[i]][0], weight);
        }
        __threadfence();
        __syncthreads();
        if (threadIdx.x < 8) {
            is_last[threadIdx.x] = 0;
            if (threadIdx.x < item.n_queries) {
                const Query own = item.queries[threadIdx.x];
                const u32 n_parts = step.partials[own.token * 2];
                u32 *arrived = to.arrived + own.token * KV_HEADS + kv_head;
                if (n_parts == 1) {
                    to.shares[(u64)own.partial * KV_HEADS + kv_head] += GROUP;
                } else if (atomicAdd(arrived, 1) == n_parts - 1) {
                    is_last[threadIdx.x] = 1;
                    *arrived = 0;
                }
                __threadfence();
            }
        }
        __syncthreads();
        for (int query = 0; query < item.n_queries; ++query)
            if (is_last[query]) merge(step, item.queries[query].token, kv_head, to, finals);
        __syncthreads();
#if __CUDA_ARCH__ >= 900
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    }
    if (!waited) wait_for_previous();
}
