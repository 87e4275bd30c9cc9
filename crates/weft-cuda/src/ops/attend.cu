struct Query {
    u16 token;     // of the step
    u16 n_parts;   // that its result is folded from
    u32 seen;      // rows of the section that it sees
    u32 rotate_at; // the position that it has seen from the section's home
    u32 partial;   // where its part of the result goes, and its share of attention
};
// Some queries against one section.
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
    float *squares; // f32 [partials][HEADS]: sum of the weights' squares
    u32 *arrived;   // [tokens][KV_HEADS]: parts that are there; zero between launches
    float *shares;  // f32 [partials][HEADS]: squared probabilities of each part's rows, added over layers
};

// A warp's share of what must be ready before scores: two of an item's 16 queries, and one of the rows
// that the step adds to the section. What does not depend on the kernel before comes first.
struct Preparation {
    Turn query_turns[2], key_turn;
    HeadNorm query_norm, key_norm;
};
__device__ __forceinline__ int own_query_row(int i) { return threadIdx.x / 32 + i * WARPS; }
// The last warps make new rows: the first ones have queries where there are few.
__device__ __forceinline__ int own_store() { return WARPS - 1 - threadIdx.x / 32; }

__device__ __forceinline__ Preparation prepare(const Step &step, const Item &item, bool kept, const u16 *q_norm, const u16 *k_norm,
                                               const float2 *rope, int lane) {
    Preparation ready;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int query = own_query_row(i) / GROUP;
        if (!kept && query < item.n_queries) ready.query_turns[i] = load_turn(rope, item.queries[query].rotate_at, lane);
    }
    if (!kept) ready.query_norm = load_norm(q_norm, lane);
    if (own_store() < item.n_stores) {
        ready.key_turn = load_turn(rope, load_fresh(step.key_positions + (item.stores[own_store()] >> 16)), lane);
        ready.key_norm = load_norm(k_norm, lane);
    }
    return ready;
}

// The pages of a section in shared memory: keys, then values. Barriers tell when a page is there, and when a
// side is done with.
struct Pages {
    u64 there[2][SECTION_PAGES], done[2];
};
// Copies that are on their way at once: few where all of the GPU copies, as in matvec.cuh, all where a few blocks
// could not saturate the memory anyway.
__device__ __forceinline__ int pages_in_flight(u32 n_work) { return n_work <= 32 ? 2 * SECTION_PAGES : 3; }

// The copying warp: sections in the order they are taken in, keys before values. Pages that a section does not
// have are there at once, so that all barriers turn together.
__device__ __forceinline__ void stream_pages(Pages &pages, u8 *sides, const Step &step, const u16 *kv, u32 n_work, int lane) {
    const int in_flight = pages_in_flight(n_work);
    u32 parity = 0;
    for (u32 work = blockIdx.x; work < n_work; work += gridDim.x, parity ^= 1) {
        const Item *item = (const Item *)step.attention + work / KV_HEADS;
        const int n_pages = (load_fresh(&item->n_rows) + PAGE_ROWS - 1) / PAGE_ROWS;
        for (int side = 0; side < 2; ++side) {
            // Where there is room for one side, values take the place of this item's keys, and keys that of the last one's values.
            barrier_wait(&pages.done[BOTH_SIDES ? side : side ^ 1], BOTH_SIDES || side == 0 ? parity ^ 1 : parity);
            for (int page = 0; page < SECTION_PAGES; ++page) {
                const int before = side * SECTION_PAGES + page - in_flight;
                if (before >= 0) barrier_wait(&pages.there[before / SECTION_PAGES][before % SECTION_PAGES], parity);
                u64 *there = &pages.there[side][page];
                expect_copies(there, page < n_pages ? SIDE_BYTES : 0, lane);
                if (page < n_pages)
                    copy(sides + ((BOTH_SIDES ? side * SECTION_PAGES : 0) + page) * SIDE_BYTES,
                         kv + page_start(load_fresh(&item->pages[page]), work % KV_HEADS) + side * PAGE_SIDE, SIDE_BYTES, there, lane);
                copies_begun(there);
            }
        }
    }
#if __CUDA_ARCH__ < 900
    await_copies<0>();
#endif
}

// Whether two items have the same queries, turned alike: those of one span do.
__device__ __forceinline__ bool same_queries(const Item &a, const Item &b) {
    bool same = a.n_queries == b.n_queries;
    for (u32 i = 0; same && i < a.n_queries; ++i)
        same = a.queries[i].token == b.queries[i].token && a.queries[i].rotate_at == b.queries[i].rotate_at;
    return same;
}

// Queries into shared memory, unless they are there; new rows into their pages, and into the copy of them at hand.
__device__ __forceinline__ void finish(const Preparation &ready, const Item &item, bool kept, int kv_head, bool with_store,
                                       u16 (&queries)[16][QUERY_STRIDE], u8 *keys, u8 *values, Pages &pages,
                                       u32 parity, const u16 *q, const u16 *k, const u16 *v, u16 *kv, int lane) {
    const bool stores = with_store && own_store() < item.n_stores;
    const u32 store = stores ? item.stores[own_store()] : 0;
    const u64 stored_head = (u64)(store >> 16) * KV_WIDTH + kv_head * HEAD_DIM;
    Head heads[2], key, value;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = own_query_row(i), query = row / GROUP;
        if (!kept && query < item.n_queries)
            heads[i] = load_head(q + (u64)item.queries[query].token * Q_WIDTH + (kv_head * GROUP + row % GROUP) * HEAD_DIM, lane);
    }
    if (stores) key = load_head(k + stored_head, lane), value = load_head(v + stored_head, lane);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = own_query_row(i), query = row / GROUP;
        if (kept) break;
        for (int d = lane; d < DIM; d += 32)
            if (query >= item.n_queries || d >= HEAD_DIM) queries[row][d] = 0;
        if (query < item.n_queries) {
            if (with_store) normalise_head(heads[i], ready.query_norm);
            rotate_head(heads[i], ready.query_turns[i]);
            each_dimension(heads[i], lane, [&](int d, u16 x) { queries[row][d] = x; });
        }
    }
    if (stores) {
        const int page = (store & 0xffff) / PAGE_ROWS, row = store % PAGE_ROWS;
        normalise_head(key, ready.key_norm);
        rotate_head(key, ready.key_turn);
        u16 *stored = kv + page_start(item.pages[page], kv_head);
        u16 *near_key = (u16 *)(keys + page * SIDE_BYTES), *near_value = (u16 *)(values + page * SIDE_BYTES);
        // The copies of old rows must have come before new ones are put among them.
        barrier_wait(&pages.there[0][page], parity);
        if (BOTH_SIDES) barrier_wait(&pages.there[1][page], parity);
        each_dimension(key, lane, [&](int d, u16 x) { near_key[key_offset(row, d)] = stored[key_offset(row, d)] = x; });
        each_dimension(value, lane, [&](int d, u16 x) {
            stored[PAGE_SIDE + value_offset(row, d)] = x;
            if (BOTH_SIDES) near_value[value_offset(row, d)] = x;
        });
        // Values that are not there yet are copied from where they were just stored.
        if (BOTH_SIDES) before_copies();
        else before_copies_of_stored();
    }
}

// A lane's part of 32: its maximum and weight.
struct Part {
    float m, l;
};
__device__ __forceinline__ Part load_part(const Attended &to, u64 part, int head, bool there) {
    const float *at = (const float *)(to.weights + part * HEADS + head);
    return {there ? load_fresh(at) : NEVER, there ? load_fresh(at + 1) : 0.0f};
}

// Folds the parts of one token's heads of one KV head, in order. A warp has 32 dimensions of one head;
// the first of a head's also tells what each part was given.
__device__ __forceinline__ void merge(const Step &step, u32 token, int kv_head, const Attended &to) {
    constexpr int AT_ONCE = WARPS * 32 / DIM, LOADS = 8;
    const int lane = threadIdx.x % 32, d = threadIdx.x % DIM;
    const u32 n_parts = load_fresh(step.partials + token * 2);
    const u64 first = load_fresh(step.partials + token * 2 + 1);
    for (int g = threadIdx.x / DIM; g < GROUP && threadIdx.x < AT_ONCE * DIM; g += AT_ONCE) {
        const int head = kv_head * GROUP + g;
        float total = 0.0f, weight = 0.0f, before = NEVER;
        for (u32 block = 0; block < n_parts; block += 32) {
            const u32 count = min(32u, n_parts - block);
            const Part part = load_part(to, first + block + lane, head, lane < count);
            float after = fmaxf(before, part.m);
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const float left = __shfl_up_sync(FULL, after, step);
                if (lane >= step) after = fmaxf(after, left);
            }
            const float left = __shfl_up_sync(FULL, after, 1);
            const Factors factors = fold_factors(lane == 0 ? before : left, part.m, after);
#pragma unroll 1
            for (u32 j = 0; j < count; j += LOADS) {
                float sums[LOADS];
#pragma unroll
                for (int i = 0; i < LOADS; ++i)
                    sums[i] = load_fresh(to.sums + ((first + block + min(j + i, count - 1)) * HEADS + head) * DIM + d);
#pragma unroll
                for (int i = 0; i < LOADS; ++i) {
                    const float a = __shfl_sync(FULL, factors.a, j + i), b = __shfl_sync(FULL, factors.b, j + i);
                    const float part_weight = __shfl_sync(FULL, part.l, j + i);
                    if (j + i < count) {
                        total = fold(total, a, sums[i], b);
                        weight = fold(weight, a, part_weight, b);
                    }
                }
            }
            before = __shfl_sync(FULL, after, 31);
        }
        if (d < HEAD_DIM) to.a[(u64)token * Q_STRIDE + head * HEAD_DIM + d] = round_one(total / weight);
        for (u32 block = 0; block < n_parts && d < 32; block += 32) {
            if (block + lane >= n_parts) continue;
            const u64 at = (first + block + lane) * HEADS + head;
            const float scale = exp2_of(load_fresh((const float *)(to.weights + at)) - before) / weight;
            atomicAdd(to.shares + at, load_fresh(to.squares + at) * scale * scale);
        }
    }
}

// Computes   a = softmax(rotate(q) * k / sqrt(HEAD_DIM)) * v over every row that a token sees, for up to
//            eight tokens. With `with_store` it runs rope_store too: the block that needs a new row makes it.
// Layout     q: bf16 [tokens][Q_WIDTH]; k, v: bf16 [tokens][KV_WIDTH]; kv: pages of one layer (head.cuh);
//            rope: f32 [positions][HALF_DIM][cos, sin]; results as in Attended.
// Work split a block takes one KV head of one item after another: a section and the queries, of
//            all lanes, that see it. Of scores a warp owns 16 queries x 32 rows, of values 16 queries x an
//            eighth of the dimensions. A ninth warp copies, and goes on to the next item as soon as this
//            one's keys, then its values, are done with. Parts are folded in order by whichever block of a token's comes last.
// Rounding   the rotated query once; probabilities to 16 bits; a once.
// Moves      the section's keys and values once, asked for before the kernel before has ended: bound by memory.
extern "C" __global__ void __launch_bounds__(WARPS * 32 + 32, 1)
attend(Step step, u32 with_store, const u16 *q_norm, const u16 *k_norm, const float2 *rope, const u16 *q, const u16 *k,
       const u16 *v, u16 *kv, Attended to) {
    constexpr int OWN_TILES = (DIM_TILES + WARPS - 1) / WARPS;
    extern __shared__ __align__(128) u8 keys[];
    u8 *values = keys + (BOTH_SIDES ? SECTION_PAGES * SIDE_BYTES : 0);
    __shared__ Pages pages;
    __shared__ Item items[2];
    __shared__ __align__(16) u16 queries[16][QUERY_STRIDE];
    static_assert(SECTION_PAGES * 2 <= WARPS, "a warp scores half a page");
    __shared__ uint4 probabilities[SECTION_PAGES][2][2][2][32]; // page, half, coarse and fine, upper and lower
    __shared__ float maxima[SECTION_PAGES][2][16], finals[16][3];
    __shared__ float sums[2][SECTION_PAGES][2][16][4]; // of weights, and of their squares
    __shared__ u32 is_last[8];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 n_work = n_items(step) * KV_HEADS;
    const auto fetch = [&](Item &to, u32 work) {
        if (threadIdx.x < sizeof(Item) / 4)
            ((u32 *)&to)[threadIdx.x] = load_fresh(step.attention + work / KV_HEADS * (sizeof(Item) / 4) + threadIdx.x);
    };
    if (threadIdx.x == 0) {
        for (int side = 0; side < 2; ++side) {
            for (int page = 0; page < SECTION_PAGES; ++page) barrier_init(&pages.there[side][page], COPY_ARRIVALS);
            barrier_init(&pages.done[side], WARPS);
        }
        barriers_made();
    }
    if (blockIdx.x < n_work) fetch(items[0], blockIdx.x);
    __syncthreads();
    let_next_start();
    if (threadIdx.x < 8) is_last[threadIdx.x] = 0;
    bool folds = false;
    if (warp == WARPS) return stream_pages(pages, keys, step, kv, n_work, lane);
    u32 parity = 0;
    for (u32 work = blockIdx.x; work < n_work; work += gridDim.x, parity ^= 1) {
        const Item &item = items[parity];
        const int kv_head = work % KV_HEADS;
        const int n_pages = (item.n_rows + PAGE_ROWS - 1) / PAGE_ROWS;
        // A block has one KV head throughout, so queries may serve again.
        const bool kept = work != blockIdx.x && same_queries(item, items[parity ^ 1]);
        const Preparation ready = prepare(step, item, kept, q_norm, k_norm, rope, lane);
        if (work == blockIdx.x) wait_for_previous();
        finish(ready, item, kept, kv_head, with_store, queries, keys, values, pages, parity, q, k, v, kv, lane);
        meet();
        if (work + gridDim.x < n_work) fetch(items[parity ^ 1], work + gridDim.x);

        // Scores: this warp's half of a page.
        const int page = warp / 2, half = warp % 2, upper = lane / 4, lower = upper + 8, c = lane % 4;
        const int own_rows[2] = {upper, lower};
        float scores[2][8];
        if (page < n_pages) {
            barrier_wait(&pages.there[0][page], parity);
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
                if (c == 0) maxima[page][half][own_rows[i]] = top * SCALE_LOG2;
            }
        }
        before_copies();
        meet();
        if (lane == 0) barrier_arrive(&pages.done[0]);
        if (page < n_pages) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float m = NEVER;
                for (int p = 0; p <= page; ++p)
                    m = fmaxf(m, fmaxf(maxima[p][0][own_rows[i]], maxima[p][1][own_rows[i]]));
                const float2 sum = weigh<true>(scores[i], finite(m), probabilities[page][half][0][i][lane],
                                         probabilities[page][half][1][i][lane]);
                sums[0][page][half][own_rows[i]][c] = sum.x;
                sums[1][page][half][own_rows[i]][c] = sum.y;
            }
        }
        meet();

        // Values: this warp's dimensions. The first warp also adds up the weights, and their squares.
        float acc[OWN_TILES][4] = {};
        float m[2] = {NEVER, NEVER};
#pragma unroll 1
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
            barrier_wait(&pages.there[1][p], parity);
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
        if (threadIdx.x < 32) {
            const int row = threadIdx.x % 16, which = threadIdx.x / 16; // of weights, or of their squares
            float lanes[4] = {}, top = NEVER;
            for (int p = 0; p < n_pages; ++p) {
                const float after = fmaxf(top, fmaxf(maxima[p][0][row], maxima[p][1][row]));
                const float once = exp2_of(top - finite(after)), shrink = which == 0 ? once : once * once;
                for (int i = 0; i < 4; ++i)
                    lanes[i] = __fmaf_rn(lanes[i], shrink, sums[which][p][0][row][i] + sums[which][p][1][row][i]);
                top = after;
            }
            finals[row][0] = top;
            finals[row][1 + which] = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
        }
        before_copies();
        meet();
        if (lane == 0) barrier_arrive(&pages.done[1]);

        // Results: whole where the section is all that a token sees, a part of them otherwise.
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const u32 query = own_rows[i] / GROUP;
            if (query >= item.n_queries) continue;
            const Query own = item.queries[query];
            const int head = kv_head * GROUP + own_rows[i] % GROUP;
            const bool whole = own.n_parts == 1;
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
            if (!whole && warp == 0 && c == 0) {
                to.weights[(u64)own.partial * HEADS + head] = make_float2(finals[own_rows[i]][0], weight);
                to.squares[(u64)own.partial * HEADS + head] = finals[own_rows[i]][2];
            }
        }
        if (threadIdx.x < item.n_queries * GROUP && item.queries[threadIdx.x / GROUP].n_parts == 1)
            atomicAdd(to.shares + (u64)item.queries[threadIdx.x / GROUP].partial * HEADS + kv_head * GROUP +
                          threadIdx.x % GROUP,
                      finals[threadIdx.x][2] / (finals[threadIdx.x][1] * finals[threadIdx.x][1]));
        folds |= item.n_queries > 0 && item.queries[0].n_parts > 1;
        for (u32 query = 1; query < item.n_queries; ++query) folds |= item.queries[query].n_parts > 1;
        meet();
    }
    if (blockIdx.x >= n_work) return wait_for_previous();
    if (!folds) return;

    // Tells, once for all its parts, that they are there; and folds those of tokens that have all of theirs.
    __threadfence();
    meet();
    const int kv_head = blockIdx.x % KV_HEADS;
    for (u32 block = 0; blockIdx.x + block * gridDim.x < n_work; block += WARPS * 32 / 8) {
        const u32 work = blockIdx.x + (block + threadIdx.x / 8) * gridDim.x, query = threadIdx.x % 8;
        bool last = false;
        u32 token = 0;
        if (work < n_work) {
            const Item *item = (const Item *)step.attention + work / KV_HEADS;
            const u32 n_parts = load_fresh(&item->queries[query].n_parts);
            if (query < load_fresh(&item->n_queries) && n_parts > 1) {
                token = load_fresh(&item->queries[query].token);
                u32 *arrived = to.arrived + token * KV_HEADS + kv_head;
                last = atomicAdd(arrived, 1) == n_parts - 1;
                if (last) *arrived = 0;
            }
        }
        if (last) is_last[token] = 1;
        __threadfence();
        meet();
        for (u32 t = 0; t < 8; ++t)
            if (is_last[t]) merge(step, t, kv_head, to);
        meet();
        if (threadIdx.x < 8) is_last[threadIdx.x] = 0;
        meet();
    }
}
