// `attend` in the persistent kernel, with `rope_store` in it: cut over blocks as the kernel of that
// name is, with the same functions and so the same bits. `load_attend` brings pages through the
// ring, `compute_attend` is all the rest. A launch may run several tokens of every lane: then the
// lists are those of the first, and what grows with each token is added here.
#pragma once

#include "kernels/attention_head.cuh"
#include "kernels/section.cuh"
#include "ops/attend.cuh"
#include "persistent/bare.cuh"
#include "persistent/launch.cuh"

// Whether parts are published one by one and folded in few rounds (below): where experts follow.
// Dense models have no registers for that.
constexpr bool FOLDS_NEAR = HAS_EXPERTS;

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
// A pair of dimensions of a result.
template <bool BARE> __device__ __forceinline__ void publish_attended(Block &block, u32 token, int column, u32 pair) {
    if constexpr (BARE) store_bare(bare_places(block).attended(), block.n_tokens, token, column, pair, block.number);
    else store_word(block.launch.a + token * (Q_STRIDE / 2) + column / 2, pair, block.number);
    if (block.is_last()) *(u32 *)(block.launch.plain.a + (u64)token * Q_STRIDE + column) = pair;
}
__device__ __forceinline__ void add_share(float *share, bool is_first_layer, float more) {
    // The first layer begins anew for each token; a share is always added to by the same thread.
    if (is_first_layer) *share = more;
    else atomicAdd(share, more);
}

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
        // A part's maximum and weight; the maximum and the squares of its first cell, and from
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
// Its maximum and weight; the maximum and the squares of its first cell, and from another warp those
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

// ---- computing: parts are folded ---------------------------------------------------------------
// Parts of several sections, folded in the order in which the kernel `attend` folds them.

// The parts of a head as other blocks send them.
struct SentParts {
    static constexpr bool SUMS_FIRST = false;
    Block &block;
    u64 first;
    int head, d;
    // Two words, once this op has sent them.
    __device__ __forceinline__ TwoWords await_two(const u64 *at, bool there) const {
        TwoWords words = {0, 0};
        block.watch.until([&] {
            if (!there) return true;
            words = load_two_relaxed(at);
            return number_of(words.first) == block.number_before(0) && number_of(words.second) == block.number_before(0);
        });
        return words;
    }
    __device__ __forceinline__ Part weight(u32 part, bool there) const {
        const TwoWords words = await_two(block.launch.part_weights + ((first + part) * HEADS + head) * 2, there);
        __syncwarp();
        return {there ? __uint_as_float(value_of(words.first)) : NEVER, __uint_as_float(value_of(words.second))};
    }
    // This lane's dimension of N parts, none beyond `last`.
    template <int N> __device__ __forceinline__ void sums(float (&sums)[N], u32 part, u32 last) const {
        block.watch.until([&] {
            bool all = true;
#pragma unroll
            for (int i = 0; i < N; ++i) {
                const u64 word = load_relaxed(block.launch.part_sums + ((first + min(part + i, last)) * HEADS + head) * DIM + d);
                all &= number_of(word) == block.number_before(0);
                sums[i] = __uint_as_float(value_of(word));
            }
            return all;
        });
        __syncwarp();
    }
};

// The same brought near. Parts come from far and are folded one after the other: so the first warp
// folds, and all others fetch for it, as many as are folded at once and as many ahead. They put
// them where the last product had its sums, which the next one leaves alone.
struct FetchedParts {
    static constexpr bool SUMS_FIRST = false;
    static constexpr u32 EACH = (FOLDED_AT_ONCE + WARPS - 2) / (WARPS - 1); // parts of a warp that fetches
    struct Buffer {
        float sums[FOLDED_AT_ONCE][32]; // [part][lane]
        Part weights[FOLDED_AT_ONCE];
    };
    Buffer *buffers; // two, in turn
    int lane;
    __device__ __forceinline__ FetchedParts(Block &block) : buffers((Buffer *)&block.shared.scratch.sums.of[block.flip]), lane(block.lane) {
        static_assert(sizeof(Buffer) * 2 <= sizeof(block.shared.scratch.sums.of[0]), "two buffers fit");
    }
    __device__ __forceinline__ Buffer &buffer(u32 part) const { return buffers[part / FOLDED_AT_ONCE % 2]; }

    // A warp's share of a buffer.
    __device__ __forceinline__ void fetch(const SentParts &from, u32 first, u32 n_parts, int warp) const {
        const u32 own = (warp - 1) * EACH, count = min(FOLDED_AT_ONCE, n_parts - first);
        if (own < count) {
            float sums[EACH];
            from.sums(sums, first + own, first + count - 1);
#pragma unroll
            for (int i = 0; i < EACH; ++i)
                if (own + i < count) buffer(first).sums[own + i][lane] = sums[i];
        }
        if (warp == WARPS - 1) buffer(first).weights[lane] = from.weight(first + lane, lane < count);
    }
    // What `fold_some` asks for.
    __device__ __forceinline__ Part weight(u32 part, bool) const { return buffer(part).weights[part % FOLDED_AT_ONCE]; }
    template <int N> __device__ __forceinline__ void sums(float (&sums)[N], u32 part, u32) const {
#pragma unroll
        for (int i = 0; i < N; ++i) sums[i] = buffer(part).sums[part % FOLDED_AT_ONCE + i][lane];
    }
};

// 32 dimensions of one head: the work of a block.
template <bool BARE> __device__ __forceinline__ void fold_slice(Block &block, const SentParts &parts, u32 token, u32 n_parts) {
    const FetchedParts near(block);
    Folded whole;
    float sums[16];
    meet(); // nobody reads what lies in the buffers
#pragma unroll 1
    for (u32 first = 0; first < n_parts; first += FOLDED_AT_ONCE) {
        if (block.warp > 0) near.fetch(parts, first, n_parts, block.warp);
        // A buffer is full then, and the other one free. One warp that waited in vain makes all
        // wait no more, so that none takes what comes of it for a result.
        if (block.meet_and_ask()) block.watch.gone = true;
        if (block.warp == 0) fold_some<16>(whole, near, sums, first, n_parts, block.lane);
    }
    if (block.warp > 0) return;
    const u32 value = round_one(whole.sum / whole.weight), next = __shfl_down_sync(FULL, value, 1);
    if (parts.d % 2 == 0 && parts.d < HEAD_DIM) publish_attended<BARE>(block, token, parts.head * HEAD_DIM + parts.d, value | next << 16);
}
// Where all are fetched before they are folded: the first warps fetch sums, two dimensions a lane, the last one weights, from which it makes the factors of a fold.
// Then the first folds. They lie where the last product had its sums, which the next one leaves
// alone.
constexpr u32 NEAR_PARTS = 64;
struct __align__(16) NearWeight {
    Factors factors;
    float weight;
};
struct NearParts {
    float2 sums[NEAR_PARTS][16];
    NearWeight weights[NEAR_PARTS];
};
static_assert(sizeof(NearParts) <= sizeof(WarpSums::of[0]), "parts fit where sums do");

// A warp's share of the sums of `count` parts from `first` on.
__device__ __forceinline__ void fetch_sums(NearParts &to, const SentParts &from, u32 first, u32 count) {
    constexpr u32 EACH = (NEAR_PARTS / 2 + WARPS - 2) / (WARPS - 1);
    const u32 number = from.block.number_before(0), own = from.block.warp * 2 + from.block.lane / 16;
    const u64 *words = from.block.launch.part_sums + ((from.first + first + own) * HEADS + from.head) * DIM + from.d;
    TwoWords got[EACH];
    from.block.watch.until([&] {
        bool all = true;
#pragma unroll
        for (u32 i = 0; i < EACH; ++i)
            if (own + i * (WARPS - 1) * 2 < count) {
                got[i] = load_two_relaxed(words + (u64)i * ((WARPS - 1) * 2 * HEADS * DIM));
                all &= number_of(got[i].first) == number && number_of(got[i].second) == number;
            }
        return all;
    });
#pragma unroll
    for (u32 i = 0; i < EACH; ++i)
        if (own + i * (WARPS - 1) * 2 < count)
            to.sums[own + i * (WARPS - 1) * 2][from.block.lane % 16] =
                make_float2(__uint_as_float(value_of(got[i].first)), __uint_as_float(value_of(got[i].second)));
}
// The factors of `count` parts from `first` on: a lane has two that follow one another. `top` is the
// maximum of all before, and of all after. Where it has one, also a lane's cell.
__device__ __forceinline__ void fetch_factors(NearParts &to, const SentParts &from, u32 first, u32 count, float &top, TwoWords &cell, const u64 *cell_words,
                                              bool has_cell) {
    const int lane = from.block.lane;
    const u32 number = from.block.number_before(0), own = lane * 2;
    const u64 *words = from.block.launch.part_weights + ((from.first + first + own) * HEADS + from.head) * 2;
    TwoWords got[2];
    from.block.watch.until([&] {
        bool all = true;
#pragma unroll
        for (u32 i = 0; i < 2; ++i)
            if (own + i < count) {
                got[i] = load_two_relaxed(words + i * (HEADS * 2));
                all &= number_of(got[i].first) == number && number_of(got[i].second) == number;
            }
        if (has_cell) {
            cell = load_two_relaxed(cell_words);
            all &= number_of(cell.first) == number && number_of(cell.second) == number;
        }
        return all;
    });
    __syncwarp();
    float maxima[2];
#pragma unroll
    for (u32 i = 0; i < 2; ++i) maxima[i] = own + i < count ? __uint_as_float(value_of(got[i].first)) : NEVER;
    float after = fmaxf(top, fmaxf(maxima[0], maxima[1]));
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const float left = __shfl_up_sync(FULL, after, step);
        if (lane >= step) after = fmaxf(after, left);
    }
    float before = __shfl_up_sync(FULL, after, 1);
    if (lane == 0) before = top;
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        const float with = fmaxf(before, maxima[i]);
        const Factors factors = fold_factors(before, maxima[i], with);
        if (own + i < count) to.weights[own + i] = {factors, __uint_as_float(value_of(got[i].second))};
        before = with;
    }
    top = __shfl_sync(FULL, after, 31);
}

// Cells that are weighed beside a fold: 32 of every slice of a head.
constexpr u32 NEAR_CELLS = DIM_UNITS * 32;

// 32 dimensions of one head: the work of a block. Beside it, what some cells have of the head's
// attention: they are read before results are handed on, so nobody writes the next layer's there
// before.
template <bool BARE> __device__ __forceinline__ void fold_near(Block &block, SentParts parts, u32 token, u32 slice, u32 n_parts, u32 n_cells, u64 first_cell) {
    NearParts &near = *(NearParts *)&block.shared.scratch.sums.of[block.flip];
    const int lane = block.lane;
    const bool weighs = block.warp == WARPS - 1;
    const u64 cell = (first_cell + slice * 32 + lane) * HEADS + parts.head;
    const bool has_cell = weighs && slice * 32 + lane < n_cells;
    parts.d = slice * 32 + lane % 16 * 2;
    Folded whole;
    TwoWords of_cell = {0, 0};
#pragma unroll 1
    for (u32 first = 0; first < n_parts; first += NEAR_PARTS) {
        const u32 count = min(NEAR_PARTS, n_parts - first);
        meet(); // nobody reads what lies there
        if (weighs) fetch_factors(near, parts, first, count, whole.top, of_cell, block.launch.cells + cell * 2, has_cell);
        else fetch_sums(near, parts, first, count);
        // One warp that waited in vain makes all wait no more, so that none takes what comes of it
        // for a result.
        if (block.meet_and_ask()) block.watch.gone = true;
        if (block.warp == 0 || weighs)
#pragma unroll 8
            for (u32 i = 0; i < count; ++i) {
                const NearWeight part = near.weights[i];
                whole.sum = fold(whole.sum, part.factors.a, ((const float *)near.sums[i])[lane], part.factors.b);
                whole.weight = fold(whole.weight, part.factors.a, part.weight, part.factors.b);
            }
    }
    if (block.warp == 0) {
        const int d = slice * 32 + lane;
        const u32 value = round_one(whole.sum / whole.weight), next = __shfl_down_sync(FULL, value, 1);
        if (d % 2 == 0 && d < HEAD_DIM) publish_attended<BARE>(block, token, parts.head * HEAD_DIM + d, value | next << 16);
    } else if (has_cell) {
        const float share = part_share(whole, __uint_as_float(value_of(of_cell.first)), __uint_as_float(value_of(of_cell.second)));
        add_share(block.launch.shares_of(block.step) + cell, block.is_first_layer(), share);
    }
}
// What cells of one head have of its attention, but for those beside a fold: warps take 32 of them
// in turn.
__device__ __forceinline__ void add_shares(Block &block, const SentParts &parts, u32 n_parts, u32 n_cells, u64 first_cell) {
    constexpr u32 FIRST = FOLDS_NEAR ? NEAR_CELLS : 0;
    if (FIRST + block.warp * 32 >= n_cells) return;
    const Folded whole = fold_parts<0>(parts, n_parts, block.lane);
    for (u32 cell = FIRST + block.thread(); cell < n_cells; cell += WARPS * 32) {
        const u64 at = (first_cell + cell) * HEADS + parts.head;
        const TwoWords words = parts.await_two(block.launch.cells + at * 2, true);
        const float share = part_share(whole, __uint_as_float(value_of(words.first)), __uint_as_float(value_of(words.second)));
        add_share(block.launch.shares_of(block.step) + at, block.is_first_layer(), share);
    }
}
// Folds the parts of tokens that have several, and adds up their shares: tasks for blocks. Shares
// are added from the last block on, because everybody waits for what is folded and nobody for them;
// but only by blocks whose rows of `norm_gate_up` all others need, or of `proj_add` where experts
// follow, so that the next layer's parts do not come before these are read.
template <bool BARE> __device__ __forceinline__ void fold_sections(Block &block) {
    constexpr u32 OWNING = HAS_EXPERTS ? HiddenRows::GROUPS : GateUpRows::GROUPS, ADDING = OWNING < N_BLOCKS ? OWNING : N_BLOCKS;
    const u32 n_heads = block.n_tokens * HEADS, from_last = N_BLOCKS - 1 - blockIdx.x;
    const auto parts_of = [&](u32 head, u32 slice) { // head of all tokens
        return SentParts{block, block.shared.partials[head / HEADS][1], (int)(head % HEADS), (int)(slice * 32 + block.lane)};
    };
    const auto n_parts_of = [&](u32 head) { return block.shared.partials[head / HEADS][0]; };
    const auto n_cells_of = [&](u32 head) { return block.shared.partials[head / HEADS][2]; };
    for (u32 task = blockIdx.x; task < n_heads * DIM_UNITS; task += N_BLOCKS) {
        const u32 head = task / DIM_UNITS, n_parts = n_parts_of(head);
        if (n_parts <= 1) continue;
        const SentParts parts = parts_of(head, task % DIM_UNITS);
        if constexpr (FOLDS_NEAR) fold_near<BARE>(block, parts, head / HEADS, task % DIM_UNITS, n_parts, n_cells_of(head), block.shared.partials[head / HEADS][3]);
        else fold_slice<BARE>(block, parts, head / HEADS, n_parts);
    }
    for (u32 head = from_last; head < n_heads && from_last < ADDING; head += ADDING)
        if (n_parts_of(head) > 1 && (!FOLDS_NEAR || n_cells_of(head) > NEAR_CELLS))
            add_shares(block, parts_of(head, 0), n_parts_of(head), n_cells_of(head), block.shared.partials[head / HEADS][3]);
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
