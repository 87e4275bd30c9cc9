// `attend` in the persistent kernel, with `rope_store` in it: cut over blocks as the kernel of that
// name is, with the same functions and so the same bits. `load_attend` brings pages through the
// ring, `compute_attend` is all the rest. A launch may run several tokens of every lane: then the
// lists are those of the first, and what grows with each token is added here. What sections leave in
// parts is folded in attend_fold.cuh.
#pragma once

#include "kernels/attention_head.cuh"
#include "kernels/section.cuh"
#include "ops/attend.cuh"
#include "persistent/attend_fold.cuh"

// Stages that a block has on their way at once while it runs a layer. Where few blocks attend they
// have more to copy than others, who wait for them; and few do not keep the memory from others.
__device__ __forceinline__ int few_in_flight(const BlockShared &shared) {
    return shared.n_attending <= 16 && blockIdx.x < shared.n_attending ? 4 : FEW_IN_FLIGHT;
}

// ---- loading -----------------------------------------------------------------------------------
// The keys of a section, then its values. Pages that this launch wrote to are asked for only when
// the token before has stored its row.
__device__ __forceinline__ bool load_attend(Copier &copier, const BlockShared &shared, const Launch &launch, const u16 *kv, u32 step,
                                             u32 n_attended) {
    const u32 n_work = shared.n_work, n_blocks = shared.n_attending;
    if (blockIdx.x >= n_blocks) return true;
    copier.in_flight = few_in_flight(shared);
    ItemHead item(launch.step, blockIdx.x, n_work, copier.lane);
    for (u32 work = blockIdx.x; work < n_work; work += n_blocks) {
        const ItemHead next(launch.step, work + n_blocks, n_work, copier.lane);
        const bool grows = item.n_stores() > 0;
        if (work != blockIdx.x) copier.in_flight = PAGES_IN_FLIGHT;
        const int n_pages = (item.n_rows() + (grows ? step : 0) + PAGE_ROWS - 1) / PAGE_ROWS;
        if (grows && step > 0) {
            for (; copier.ring.attended < n_attended; look_again())
                if (copier.ring.left) return false;
            before_copies_of_stored();
        }
        for (int side = 0; side < 2; ++side)
            for (int page = 0; page < n_pages; ++page) {
                const u16 *from = kv + page_start(item.page(page), work % KV_HEADS) + side * PAGE_SIDE;
                const bool pushed = copier.push(
                    SIDE_BYTES, [&](u8 *stage, u64 *full) { copy_passing(stage, from, SIDE_BYTES, full, copier.lane); });
                if (!pushed) return false;
            }
        item = next;
    }
    copier.in_flight = few_in_flight(shared);
    return true;
}

// ---- computing: queries and new rows ------------------------------------------------------------
// A head of a row of words, and whether all of it is there.
__device__ __forceinline__ bool ask_head(Head &head, const u64 *row, int first, u32 number, int lane) {
    u64 words[2][LANE_PAIRS];
#pragma unroll
    for (int i = 0; i < LANE_PAIRS; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int d = min(lane + i * 32, HALF_DIM - 1) + half * HALF_DIM;
            words[half][i] = load_relaxed(row + (first + d) / 2);
        }
    bool all = true;
#pragma unroll
    for (int i = 0; i < LANE_PAIRS; ++i) {
        const int d = lane + i * 32;
        const auto value = [&](u64 word, int at) { return at % 2 == 0 ? low(value_of(word)) : high(value_of(word)); };
        all &= number_of(words[0][i]) == number && number_of(words[1][i]) == number;
        head.first[i] = d < HALF_DIM ? value(words[0][i], first + d) : 0.0f;
        head.second[i] = d < HALF_DIM ? value(words[1][i], first + d + HALF_DIM) : 0.0f;
    }
    return all;
}

// Rows of queries. An item has no more than the kernel is made for: `plan_for` sees to it, and for
// one token `Persistent::takes`.
__device__ __forceinline__ u32 query_rows(const Block &block, const Item &item) {
    return (block.n_tokens == 1 ? 1 : min(item.n_queries, block.n_tokens)) * GROUP;
}

// This warp's queries, rotated, into shared memory. What does not depend on the op before is asked
// for before it is waited for.
__device__ __forceinline__ void make_queries(Block &block, const Item &item, int kv_head, u32 number) {
    const int lane = block.lane;
    auto &queries = block.shared.scratch.section.queries;
    const HeadNorm norm = load_norm(block.layer().q_norm, lane);
#pragma unroll 1
    for (int row = block.warp; row < query_rows(block, item); row += WARPS) {
        const int query = row / GROUP;
        for (int d = HEAD_DIM + lane; d < DIM; d += 32) queries[row][d] = 0;
        const Turn turn = load_turn(block.launch.rope, item.queries[query].rotate_at + block.step, lane);
        const u64 *words = block.launch.qkv + item.queries[query].token * QKV_WORDS;
        const int first = (kv_head * GROUP + row % GROUP) * HEAD_DIM;
        Head head;
        block.watch.until([&] { return ask_head(head, words, first, number, lane); });
        __syncwarp();
        normalise_head(head, norm);
        rotate_head(head, turn);
        each_dimension(head, lane, [&](int d, u16 x) { queries[row][d] = x; });
    }
}

// A warp's share of an item's new rows: one of them, and where it goes. Its key, rotated, and its
// value lie in shared memory; its key also in the page, which may have been copied before the row
// was there.
struct NewRow {
    bool there, patches; // one of the pages
    int page, row;       // of the section
};
__device__ __forceinline__ NewRow make_row(Block &block, const Item &item, int kv_head, int n_pages, u32 number) {
    const int lane = block.lane;
    NewRow made = {own_store() < item.n_stores, false, 0, 0};
    if (!made.there) return made;
    const u32 store = item.stores[own_store()], token = store_token(store), row = store_row_of(store) + block.step;
    made.page = row / PAGE_ROWS, made.row = row % PAGE_ROWS;
    made.patches = made.page < n_pages;
    const HeadNorm norm = load_norm(block.layer().k_norm, lane);
    const Turn turn = load_turn(block.launch.rope, block.shared.key_positions[token] + block.step, lane);
    const u64 *words = block.launch.qkv + token * QKV_WORDS;
    auto &rows = block.shared.new_rows[block.warp];
    u16 *keys = made.patches ? (u16 *)block.stages.wait(made.page) : nullptr;
    Head key, value;
    block.watch.until([&] {
        const bool has_key = ask_head(key, words, Q_WIDTH + kv_head * HEAD_DIM, number, lane);
        return ask_head(value, words, Q_WIDTH + KV_WIDTH + kv_head * HEAD_DIM, number, lane) && has_key;
    });
    __syncwarp();
    normalise_head(key, norm);
    rotate_head(key, turn);
    each_dimension(key, lane, [&](int d, u16 x) {
        rows[0][d] = x;
        if (made.patches) keys[key_offset(made.row, d)] = x;
    });
    each_dimension(value, lane, [&](int d, u16 x) { rows[1][d] = x; });
    __syncwarp();
    return made;
}

// Puts a side of a new row into a page.
template <int SIDE> __device__ __forceinline__ void put_row(u16 *page, const Block &block, int row) {
    for (int d = block.lane; d < HEAD_DIM; d += 32)
        page[SIDE == 0 ? key_offset(row, d) : value_offset(row, d)] = block.shared.new_rows[block.warp][SIDE][d];
}
// Both where they stay. The copying warp sees to it that its copies find them. Early, a warp does it
// beside scores, of which it has none in a short section, and not when the block is to go on.
constexpr bool STORES_EARLY = HAS_EXPERTS;
__device__ __forceinline__ void store_row(Block &block, const NewRow &made, const Item &item, int kv_head) {
    u16 *page = block.layer().kv + page_start(item.pages[made.page], kv_head);
    put_row<0>(page, block, made.row);
    put_row<1>(page + PAGE_SIDE, block, made.row);
}

// ---- computing: results -------------------------------------------------------------------------
// Whole where the section is all that a token sees, a part otherwise, unless that was published.
template <bool BARE> __device__ __forceinline__ void publish_section(Block &block, const Item &item, const OwnQueries &queries, int kv_head,
                                                const float (&acc)[OWN_DIM_TILES][4]) {
    const Launch &launch = block.launch;
    const auto &finals = block.shared.scratch.section.finals;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        if (i == 1 && !queries.two) break;
        if (!queries.there[i]) continue;
        const u32 row = queries.of[i];
        const Query asked = item.queries[row / GROUP];
        const int head = kv_head * GROUP + row % GROUP;
        const bool whole = FOLDS_NEAR || asked.n_parts == 1;
        const float weight = finals[row][1];
        const u64 part = (u64)asked.partial * HEADS + head;
#pragma unroll
        for (int tile = 0; tile < OWN_DIM_TILES; ++tile) {
            const int d = (block.warp * OWN_DIM_TILES + tile) * 8 + block.lane % 4 * 2;
            const float a = acc[tile][i * 2], b = acc[tile][i * 2 + 1];
            if (d >= DIM) continue;
            if (!whole) {
                store_word(launch.part_sums + part * DIM + d, __float_as_uint(a), block.number);
                store_word(launch.part_sums + part * DIM + d + 1, __float_as_uint(b), block.number);
            } else if (d < HEAD_DIM) {
                publish_attended<BARE>(block, asked.token, head * HEAD_DIM + d, round_pair(a / weight, b / weight));
            }
        }
        // A part's pivot and weight; the pivot and the squares of its first cell, and from
        // another warp those of its second, where there are no more.
        const int word = block.warp * 4 + block.lane % 4;
        if (!whole && word < 6) {
            const u64 cell = ((u64)(asked.cell + block.warp) * HEADS + head) * 2;
            u64 *to = word < 2 ? launch.part_weights + part * 2 : launch.cells + cell;
            if (word < 2 || (item.n_marks <= 1 && block.warp <= item.n_marks && asked.cell != NO_CELL))
                store_word(to + word % 2, __float_as_uint(finals[row][word]), block.number);
        }
    }
}

// Calls `work` with each of a lane's rows of queries: which of its sums they are, the row, what is
// asked, and the head.
template <class Work> __device__ __forceinline__ void each_query(const Item &item, const OwnQueries &queries, int kv_head, Work work) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        if (i == 1 && !queries.two) break;
        if (!queries.there[i]) continue;
        const u32 row = queries.of[i];
        work(i, row, item.queries[row / GROUP], kv_head * GROUP + row % GROUP);
    }
}
// A part that goes its way at once: its sums, which need nothing from other warps.
__device__ __forceinline__ void publish_sums(Block &block, const Item &item, const OwnQueries &queries, int kv_head,
                                             const float (&acc)[OWN_DIM_TILES][4]) {
    each_query(item, queries, kv_head, [&](int i, u32, const Query &asked, int head) INLINED {
        u64 *to = block.launch.part_sums + ((u64)asked.partial * HEADS + head) * DIM;
#pragma unroll
        for (int tile = 0; tile < OWN_DIM_TILES; ++tile) {
            const int d = (block.warp * OWN_DIM_TILES + tile) * 8 + block.lane % 4 * 2;
            if (d < DIM) store_two_words(to + d, __float_as_uint(acc[tile][i * 2]), __float_as_uint(acc[tile][i * 2 + 1]), block.number);
        }
    });
}
// Its pivot and weight; the pivot and the squares of its first cell, and from another warp those
// of its second, where there are no more. A warp publishes what it has summed itself.
__device__ __forceinline__ void publish_weights(Block &block, const Item &item, const OwnQueries &queries, int kv_head) {
    const int word = block.warp * 4 + block.lane % 4;
    if (word >= 6) return;
    each_query(item, queries, kv_head, [&](int, u32 row, const Query &asked, int head) INLINED {
        const u64 part = (u64)asked.partial * HEADS + head, cell = (u64)(asked.cell + block.warp) * HEADS + head;
        u64 *to = word < 2 ? block.launch.part_weights + part * 2 : block.launch.cells + cell * 2;
        if (word < 2 || (item.n_marks <= 1 && block.warp <= item.n_marks && asked.cell != NO_CELL))
            store_word(to + word % 2, __float_as_uint(block.shared.scratch.section.finals[row][word]), block.number);
    });
}

// Where the cells of one KV head go: to the block that folds the parts; or, if the section is all
// that a token sees, into its shares of attention.
struct Cells {
    void *to;
    u32 number, kv_head;
    bool folded, is_first_layer;
    __device__ __forceinline__ Cells(Block &block, const Item &item, u32 kv_head)
        : number(block.number), kv_head(kv_head), folded(is_folded(item)), is_first_layer(block.is_first_layer()) {
        to = folded ? (void *)block.launch.cells : (void *)block.launch.shares_of(block.step);
    }
    __device__ __forceinline__ void leave(u32 row, u32 cell, float m, float squares, const float (&finals)[6]) const {
        const u64 at = (u64)cell * HEADS + kv_head * GROUP + row % GROUP;
        if (!folded) return add_share((float *)to + at, is_first_layer, part_share(Folded{0.0f, finals[1], finals[0]}, m, squares));
        store_word((u64 *)to + at * 2, __float_as_uint(m), number);
        store_word((u64 *)to + at * 2 + 1, __float_as_uint(squares), number);
    }
};

// Those of a section that is all that a token sees. Nobody waits for them.
__device__ __forceinline__ void add_section_shares(Block &block, const Item &item, int kv_head) {
    const SectionScratch &scratch = block.shared.scratch.section;
    const int warp = block.warp, lane = block.lane;
    const u32 n_queries = query_rows(block, item);
    const Cells cells(block, item, kv_head);
    if (item.n_marks > 1) {
        if (warp < SECTION_PAGES) leave_stretches(scratch, item, n_queries, warp, lane, cells);
        if (item.has_inner) leave_inner(scratch, item, n_queries, warp, WARPS, lane, cells);
    } else {
        leave_sums(scratch, item, n_queries, warp, lane, cells);
    }
}

// The item that this block takes at some time. The first ones are kept; those that follow are
// fetched, one ahead.
__device__ __forceinline__ Item &item_at(Block &block, u32 index) {
    return block.shared.items[index < KEPT_ITEMS ? index : KEPT_ITEMS + index % 2];
}
__device__ __forceinline__ void fetch_item(Block &block, u32 index, u32 work) {
    if (index >= KEPT_ITEMS && work < block.shared.n_work && block.thread() < ITEM_WORDS)
        ((u32 *)&item_at(block, index))[block.thread()] = load_fresh(block.launch.step.attention + work / KV_HEADS * ITEM_WORDS + block.thread());
}
__device__ __forceinline__ void keep_items(BlockShared &shared, const Step &step, u32 n_work) {
    const u32 n_blocks = n_work == 0 ? 0 : taking_part(n_work, N_BLOCKS);
    if (threadIdx.x == 0) shared.n_work = n_work, shared.n_attending = n_blocks;
    const u32 index = threadIdx.x / ITEM_WORDS, work = blockIdx.x + index * n_blocks;
    if (index < KEPT_ITEMS && work < n_work && blockIdx.x < n_blocks)
        ((u32 *)shared.items)[threadIdx.x] = load_fresh(step.attention + work / KV_HEADS * ITEM_WORDS + threadIdx.x % ITEM_WORDS);
}
static_assert(KEPT_ITEMS * ITEM_WORDS <= WARPS * 32, "a thread fetches a word");

// One KV head of one item. Pages are in the ring, keys first.
template <bool BARE> __device__ __forceinline__ void attend_section(Block &block, u32 index, u32 work, bool only_store) {
    SectionScratch &scratch = block.shared.scratch.section;
    const int kv_head = work % KV_HEADS, warp = block.warp, lane = block.lane;
    const u32 n_blocks = block.shared.n_attending;
    const Item &item = item_at(block, index);
    // Queries that stand in the scratch, as those of one span do for all of its sections, need
    // neither be made nor awaited.
    const bool kept = index > 0 && n_blocks % KV_HEADS == 0 && same_queries(item, item_at(block, index - 1));
    // What the scratch holds otherwise, or of the section before, must not go while a warp reads
    // it.
    meet();
    const u32 grown = item.n_stores > 0 ? block.step : 0, number = block.number_before(only_store ? 1 : 2);
    const int n_rows = item.n_rows + grown, n_pages = (n_rows + PAGE_ROWS - 1) / PAGE_ROWS;
    const ValueMasks masks(n_rows, lane, true);
    if (!kept) make_queries(block, item, kv_head, number);
    const NewRow made = make_row(block, item, kv_head, n_pages, number);
    if (!kept || item.n_stores > 0) meet();
    const OwnQueries queries(query_rows(block, item), lane);
    HalfPage own(queries, warp);
    if (own.page < n_pages)
        score_rows(own, scratch, block.stages.wait(own.page), lane, item.first, [&](u32 query) { return item.queries[query].seen + grown; });
    if (made.patches) put_row<1>((u16 *)block.stages.wait(n_pages + made.page), block, made.row);
    if (made.there && STORES_EARLY) store_row(block, made, item, kv_head);
    meet();
    block.stages.release(n_pages, lane);
    fetch_item(block, index + 1, work + n_blocks);
    if (own.page < n_pages) weigh_rows(own, scratch, item, lane);
    meet();
    float acc[OWN_DIM_TILES][4] = {};
    block.stages.wait_for_all(n_pages, lane);
    sum_values(acc, scratch, queries, n_pages, masks, warp, lane, [&](int page) { return block.stages.at(page); });
    const bool many = item.n_marks > 1 && !only_store, goes_early = FOLDS_NEAR && is_folded(item);
    // A part goes its way as soon as it can, because others wait for it.
    if (goes_early && !only_store) publish_sums(block, item, queries, kv_head, acc);
    if (warp == 0 || warp == 1 && item.n_marks == 1) sum_weights(scratch, item, n_pages, warp, lane);
    else if (many && warp <= SECTION_PAGES)
        sum_stretches(scratch, item, query_rows(block, item), n_pages, warp - 1, lane, Cells(block, item, kv_head));
    else if (many && item.has_inner && is_folded(item))
        leave_inner(scratch, item, query_rows(block, item), warp - SECTION_PAGES - 1, WARPS - SECTION_PAGES - 1, lane, Cells(block, item, kv_head));
    if (goes_early) __syncwarp();
    else meet();
    block.stages.release(n_pages, lane);
    if (!only_store) {
        if (goes_early) publish_weights(block, item, queries, kv_head);
        else publish_section<BARE>(block, item, queries, kv_head, acc);
    }
    if (made.there && !STORES_EARLY) store_row(block, made, item, kv_head);
    if (!only_store && !is_folded(item)) add_section_shares(block, item, kv_head);
}

// ---- computing: all of it -----------------------------------------------------------------------
// Or only what `rope_store` is of it.
template <bool BARE> __device__ __forceinline__ void compute_attend(Block &block, bool only_store) {
    const u32 n_work = block.shared.n_work, n_blocks = block.shared.n_attending;
    if (blockIdx.x < n_blocks) {
        for (u32 index = 0, work = blockIdx.x; work < n_work; ++index, work += n_blocks)
            attend_section<BARE>(block, index, work, only_store);
        meet();
        if (threadIdx.x == 0) {
            __threadfence_block();
            block.shared.ring.attended = block.shared.ring.attended + 1;
        }
    }
    if (!only_store && block.shared.folds) fold_sections<BARE>(block);
}
