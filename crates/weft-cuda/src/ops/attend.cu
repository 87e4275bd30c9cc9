#include "kernels/attention_head.cuh"
#include "kernels/section.cuh"
#include "kernels/sent.cuh"
#include "ops/attend.cuh"

// Brings near what does not depend on the kernel before.
__device__ __forceinline__ void ask_early(const Item &item, u32 key_position, const u16 *q_norm, const u16 *k_norm, const float2 *rope,
                                          int warp, int lane) {
    if (warp / GROUP < item.n_queries) {
        if (QK_NORM) bring_near(q_norm, HEAD_DIM * 2, lane);
        bring_near(rope + (u64)item.queries[warp / GROUP].rotate_at * HALF_DIM, HALF_DIM * 8, lane);
    }
    if (own_store() < item.n_stores) {
        if (QK_NORM) bring_near(k_norm, HEAD_DIM * 2, lane);
        bring_near(rope + (u64)key_position * HALF_DIM, HALF_DIM * 8, lane);
    }
}

// The pages of a section in shared memory: keys, then values. Barriers report when a page is there,
// and when a side is done with.
struct Pages {
    u64 there[2][SECTION_PAGES], done[2];
};
// Copies that are on their way at once: few where all of the GPU copies, as in matvec.cuh, all
// where a few blocks could not saturate the memory anyway.
__device__ __forceinline__ int pages_in_flight(u32 n_work) { return n_work <= 32 ? 2 * SECTION_PAGES : 3; }

// The copying warp: sections in the order they are taken in, keys before values. Pages that a
// section does not have are there at once, so that all barriers turn together.
__device__ __forceinline__ void stream_pages(Pages &pages, u8 *sides, const Step &step, const u16 *kv, u32 n_work, u32 n_blocks, int lane) {
    const int in_flight = pages_in_flight(n_work);
    u32 parity = 0;
    ItemHead item(step, blockIdx.x, n_work, lane);
    for (u32 work = blockIdx.x; work < n_work; work += n_blocks, parity ^= 1) {
        const ItemHead next(step, work + n_blocks, n_work, lane);
        const int n_pages = (item.n_rows() + PAGE_ROWS - 1) / PAGE_ROWS;
        for (int side = 0; side < 2; ++side) {
            // Where there is room for one side, values take the place of this item's keys, and keys
            // that of the last one's values.
            barrier_wait(&pages.done[BOTH_SIDES ? side : side ^ 1], BOTH_SIDES || side == 0 ? parity ^ 1 : parity);
            for (int page = 0; page < SECTION_PAGES; ++page) {
                const int before = side * SECTION_PAGES + page - in_flight;
                if (before >= 0) barrier_wait(&pages.there[before / SECTION_PAGES][before % SECTION_PAGES], parity);
                u64 *there = &pages.there[side][page];
                const u16 *from = kv + page_start(item.page(page), work % KV_HEADS) + side * PAGE_SIDE;
                expect_copies(there, page < n_pages ? SIDE_BYTES : 0, lane);
                if (page < n_pages)
                    copy_passing(sides + ((BOTH_SIDES ? side * SECTION_PAGES : 0) + page) * SIDE_BYTES, from, SIDE_BYTES, there, lane);
                copies_begun(there);
            }
        }
        item = next;
    }
#if __CUDA_ARCH__ < 900
    await_copies<0>();
#endif
}

// A query of an item: normalised with `with_norm`, rotated, into shared memory.
__device__ __forceinline__ void make_query(u16 (&to)[QUERY_STRIDE], const Item &item, int row, int kv_head, bool with_norm,
                                           const u16 *q_norm, const float2 *rope, const u16 *q, int lane) {
    for (int d = HEAD_DIM + lane; d < DIM; d += 32) to[d] = 0;
    const Query &query = item.queries[row / GROUP];
    Head head = load_head(q + (u64)query.token * Q_WIDTH + (kv_head * GROUP + row % GROUP) * HEAD_DIM, lane);
    const HeadNorm norm = load_norm(q_norm, lane);
    const Turn turn = load_turn(rope, query.rotate_at, lane);
    if (with_norm) normalise_head(head, norm);
    rotate_head(head, turn);
    each_dimension(head, lane, [&](int d, u16 x) { to[d] = x; });
}

// A new row of an item: into its page, and into the copies of it at hand.
__device__ __forceinline__ void make_row(const Item &item, u32 store, u32 key_position, int kv_head, u8 *keys, u8 *values, Pages &pages,
                                         u32 parity, const u16 *k_norm, const float2 *rope, const u16 *k, const u16 *v, u16 *kv, int lane) {
    const u64 at = (u64)store_token(store) * KV_WIDTH + kv_head * HEAD_DIM;
    Head key = load_head(k + at, lane);
    const PackedHead value = load_packed(v + at, lane);
    const HeadNorm norm = load_norm(k_norm, lane);
    const Turn turn = load_turn(rope, key_position, lane);
    normalise_head(key, norm);
    rotate_head(key, turn);
    const int page = store_row_of(store) / PAGE_ROWS, row = store % PAGE_ROWS;
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

// Where the cells of one KV head go: to the warp that folds the parts; or, if the section is all
// that a token sees, into its shares of attention.
struct HeadCells {
    bool folded;
    float *to;
    int kv_head;
    __device__ __forceinline__ void leave(u32 row, u32 cell, float m, float squares, const float (&finals)[6]) const {
        const u64 at = (u64)cell * HEADS + kv_head * GROUP + row % GROUP;
        if (folded) send(to + at * 2, m), send(to + at * 2 + 1, squares);
        else atomicAdd(to + at, part_share(Folded{0.0f, finals[1], finals[0]}, m, squares));
    }
};

// What a block knows of each token's parts and cells: how many there are, and the first.
struct Parts {
    u32 n_tokens, of[8][4];
};

// Folds the parts of tokens that have several. All blocks take part: a warp has 32 dimensions of
// one head.
__device__ __forceinline__ void fold_sections(const Parts &parts, u32 n_blocks, const Attended &to, int warp, int lane) {
    for (u32 task = blockIdx.x + warp * n_blocks; task < parts.n_tokens * HEADS * DIM_UNITS; task += n_blocks * WARPS) {
        const u32 token = task / (HEADS * DIM_UNITS), head = task / DIM_UNITS % HEADS;
        const u32 (&own)[4] = parts.of[token];
        const u64 first = (u64)own[1] * HEADS + head, cell = (u64)own[3] * HEADS + head;
        if (own[0] > 1)
            fold_slice(SentSlice{to.sent + first * SENT_ROW, (int)(task % DIM_UNITS), lane}, own[0],
                       to.a + (u64)token * Q_STRIDE + head * HEAD_DIM, to.sent_cells + cell * 2, to.shares + cell, own[2]);
    }
}

// Computes   a = softmax(rotate(q) * k / sqrt(HEAD_DIM)) * v over every row that a token sees, for
//            up to eight tokens. With `with_store` it runs rope_store too: the block that needs a
//            new row makes it.
// Layout     q: bf16 [tokens][Q_WIDTH]; k, v: bf16 [tokens][KV_WIDTH]; kv: pages of one layer
//            (attention_head.cuh); rope: f32 [positions][HALF_DIM][cos, sin]; results as in
//            Attended.
// Work split a block takes one KV head of one item after another: a section and the queries, of all
//            lanes, that see it. Of scores a warp owns 16 queries x 32 rows, of values 16 queries x
//            an eighth of the dimensions. A ninth warp copies, and goes on to the next item as soon
//            as this one's keys, then its values, are done with. Parts are folded in order by all
//            blocks. Squares for shares of attention are summed with the weights, those of a
//            stretch by a lane.
// Rounding   the rotated query once; probabilities once; a once.
// Moves      the section's keys and values once, asked for before the kernel before has ended:
//            bound by memory. On sm_90 two blocks' registers fit, so that this one starts beside
//            the kernel before; larger groups need too many.
extern "C" __global__ void __launch_bounds__(RING_THREADS, GROUP <= 4 && __CUDA_ARCH__ == 900 ? 2 : 1)
attend(Step step, u32 with_store, const u16 *q_norm, const u16 *k_norm, const float2 *rope, const u16 *q, const u16 *k,
       const u16 *v, u16 *kv, Attended to) {
    u8 *keys = dynamic_shared();
    u8 *values = keys + (BOTH_SIDES ? SECTION_PAGES * SIDE_BYTES : 0);
    typedef Item TwoItems[2];
    SHARED(Pages, pages);
    SHARED(TwoItems, items);
    SHARED(SectionScratch, scratch);
    SHARED(Parts, parts);
    SHARED(u32, n_work);
    SHARED(u32, n_blocks);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 all_work = n_items(step) * KV_HEADS;
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
    if (blockIdx.x < all_work) fetch(items[0], blockIdx.x);
    if (threadIdx.x >= WARPS * 32) {
        n_work = all_work, n_blocks = taking_part(max(all_work, 1u), gridDim.x), parts.n_tokens = n_tokens(step);
        ((u32 *)parts.of)[lane] = load_fresh(step.partials + lane);
    }
    __syncthreads();
    let_next_start();
    if (warp == WARPS) return stream_pages(pages, keys, step, kv, blockIdx.x < n_blocks ? n_work : 0, n_blocks, lane);
    u32 parity = 0;
    if (blockIdx.x >= min(n_blocks, n_work)) return wait_for_previous();
    for (u32 work = blockIdx.x; work < n_work; work += n_blocks, parity ^= 1) {
        // Asked for anew, so that nothing that depends on it is kept from item to item: there are
        // no registers for that.
        const u32 thread = own_thread();
        warp = thread / 32, lane = thread % 32;
        const Item &item = items[parity];
        const int kv_head = work % KV_HEADS;
        const int n_pages = (item.n_rows + PAGE_ROWS - 1) / PAGE_ROWS;
        const bool kept = work != blockIdx.x && n_blocks % KV_HEADS == 0 && same_queries(item, items[parity ^ 1]);
        const bool stores = with_store && own_store() < item.n_stores;
        const u32 store = stores ? item.stores[own_store()] : 0;
        const u32 key_position = stores ? load_fresh(step.key_positions + store_token(store)) : 0;
        if (work == blockIdx.x) {
            ask_early(item, key_position, q_norm, k_norm, rope, warp, lane);
            wait_for_previous();
        }
        for (int row = warp; row < item.n_queries * GROUP && !kept; row += WARPS)
            make_query(scratch.queries[row], item, row, kv_head, with_store, q_norm, rope, q, lane);
        if (stores) make_row(item, store, key_position, kv_head, keys, values, pages, parity, k_norm, rope, k, v, kv, lane);
        meet();
        // Where no more items follow, no copy overwrites what is still being read; but where there
        // is room for one side, values do keys.
        const bool goes_on = work + n_blocks < n_work;
        if (goes_on) fetch(items[parity ^ 1], work + n_blocks);

        const OwnQueries queries(item.n_queries * GROUP, lane);
        HalfPage own(queries, warp);
        if (own.page < n_pages) {
            barrier_wait(&pages.there[0][own.page], parity);
            score_rows(own, scratch, keys + own.page * SIDE_BYTES, lane, item.first,
                       [&](u32 query) { return item.queries[query].seen; });
        }
        if (goes_on || !BOTH_SIDES) before_copies();
        meet();
        if (lane == 0) barrier_arrive(&pages.done[0]);
        if (own.page < n_pages) weigh_rows(own, scratch, item, lane);
        meet();

        float acc[OWN_DIM_TILES][4] = {};
        sum_values(acc, scratch, queries, n_pages, ValueMasks(item.n_rows, lane, false), warp, lane, [&](int page) {
            barrier_wait(&pages.there[1][page], parity);
            return values + page * SIDE_BYTES;
        });
        const HeadCells cells = {is_folded(item), is_folded(item) ? to.sent_cells : to.shares, kv_head};
        if (warp == 0 || warp == 1 && item.n_marks == 1) sum_weights(scratch, item, n_pages, warp, lane);
        else if (item.n_marks > 1 && warp <= SECTION_PAGES) sum_stretches(scratch, item, item.n_queries * GROUP, n_pages, warp - 1, lane, cells);
        if (goes_on) before_copies();
        meet();
        if (lane == 0) barrier_arrive(&pages.done[1]);

        // Results: whole where the section is all that a token sees, a part of them otherwise.
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (!queries.there[i]) continue;
            const Query asked = item.queries[queries.of[i] / GROUP];
            const int head = kv_head * GROUP + queries.of[i] % GROUP;
            const bool whole = asked.n_parts == 1;
            const float weight = scratch.finals[queries.of[i]][1];
            float *row = to.sent + ((u64)asked.partial * HEADS + head) * SENT_ROW;
#pragma unroll
            for (int tile = 0; tile < OWN_DIM_TILES; ++tile) {
                const int d = (warp * OWN_DIM_TILES + tile) * 8 + lane % 4 * 2;
                if (d >= DIM) continue;
                if (!whole) send(row + d, acc[tile][i * 2]), send(row + d + 1, acc[tile][i * 2 + 1]);
                else if (d < HEAD_DIM)
                    *(u32 *)(to.a + (u64)asked.token * Q_STRIDE + head * HEAD_DIM + d) =
                        round_pair(acc[tile][i * 2] / weight, acc[tile][i * 2 + 1] / weight);
            }
            if (!whole && warp == 0) send_weight(row, scratch.finals[queries.of[i]], lane);
        }
        if (item.n_marks > 1) {
            if (!cells.folded && warp < SECTION_PAGES) leave_stretches(scratch, item, item.n_queries * GROUP, warp, lane, cells);
            if (item.has_inner) leave_inner(scratch, item, item.n_queries * GROUP, warp, WARPS, lane, cells);
        } else {
            leave_sums(scratch, item, item.n_queries * GROUP, warp, lane, cells);
        }
        meet();
    }
    fold_sections(parts, min(n_blocks, n_work), to, warp, lane);
}
