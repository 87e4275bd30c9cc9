// Attention of a block of tokens by products of warpgroups (sm_90a), for two kernels: `attend_tiled`
// has pages that `lay_pages` laid, `attend_units` pages in units. They differ in what brings pages
// (`attend_ring.cuh`), and in nothing that computes.
#pragma once

#include "ops/attend_ring.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A warp's 16 queries from row `first` of the tile on, turned for a section that is `moved` from its
// home, as products read them: rows of 64 dimensions, which lie as those of keys do. A chunk of them
// has eight dimensions of 32, and a lane turns a chunk with that half a head later. A lane has the
// `positions` of queries lane / 4 and lane / 4 + 8.
constexpr bool TURNS_CHUNKS = HEAD_DIM == DIM && HALF_DIM % 32 == 0;
constexpr int ROW_LANES = TURNS_CHUNKS ? HALF_DIM / 8 : 32, ROWS_AT_ONCE = 32 / ROW_LANES;
static_assert(32 % ROW_LANES == 0, "all lanes take as many turns");
__device__ __forceinline__ void turn_chunks(u8 *queries, int first, const int (&positions)[2], const QueryTile &tile, const float2 *rope, const u16 *q,
                                            int kv_head, int moved, int lane) {
    const int n_rows = tile.n_tokens * GROUP, c = lane % 4, block = lane % ROW_LANES / 4;
#pragma unroll 1
    for (int r = lane / ROW_LANES; r < 16; r += ROWS_AT_ONCE) {
        const int row = first + r, there = min(row, n_rows - 1);
        const int upper = __shfl_sync(FULL, positions[0], r % 8 * 4), lower = __shfl_sync(FULL, positions[1], r % 8 * 4);
        const u64 position = max((r < 8 ? upper : lower) + moved, 0);
        const u16 *head = q + (u64)(tile.first_token + there / GROUP) * Q_WIDTH + (kv_head * GROUP + there % GROUP) * HEAD_DIM + block * 32 + c * 2;
        const float2 *turn = rope + position * HALF_DIM + block * 32 + c * 2;
        // All is on its way before anything waits for it.
        u32 words[4][2], firsts[4], seconds[4];
        float4 by[4]; // cos and sin of two dimensions
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            words[k][0] = load_fresh((const u32 *)(head + k * 8)), words[k][1] = load_fresh((const u32 *)(head + k * 8 + HALF_DIM));
            by[k] = *(const float4 *)(turn + k * 8);
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const float a[2] = {low(words[k][0]), high(words[k][0])}, b[2] = {low(words[k][1]), high(words[k][1])};
            firsts[k] = row < n_rows ? round_pair(a[0] * by[k].x - b[0] * by[k].y, a[1] * by[k].z - b[1] * by[k].w) : 0;
            seconds[k] = row < n_rows ? round_pair(b[0] * by[k].x + a[0] * by[k].y, b[1] * by[k].z + a[1] * by[k].w) : 0;
        }
        const auto put = [&](int block, const u32 (&words)[4]) {
            u8 *to = queries + row / 64 * QUERY_BYTES + row % 64 * 128 + block / 2 * (64 * 128);
            *(uint4 *)(to + half_chunk(row, block % 2, c)) = make_uint4(words[0], words[1], words[2], words[3]);
        };
        put(block, firsts), put(block + HALF_DIM / 32, seconds);
    }
}

// The same, dimension by dimension, where chunks do not fit.
__device__ __forceinline__ void turn_dimensions(u8 *queries, int first, const int (&positions)[2], const QueryTile &tile, const float2 *rope, const u16 *q,
                                                int kv_head, int moved, int lane) {
    turn_rows(first, positions, tile, rope, q, kv_head, moved, lane, [&](int r, int d, u16 value) {
        const int row = first + r;
        u8 *to = queries + row / 64 * QUERY_BYTES + row % 64 * 128;
        *(u16 *)(to + d / 64 * (64 * 128) + half_chunk(row, d / 32 % 2, d % 8 / 2) + d % 32 / 8 * 4 + d % 2 * 2) = value;
    });
}

// Which rows of a page one of a lane's queries sees: of each eighth the lane has two.
struct AllRows {
    __device__ __forceinline__ bool has(int, int) const { return true; }
};
struct SeenRows {
    u32 before, n;
    __device__ __forceinline__ SeenRows(int seen, int first, int lane) : before(lane % 4 * 2 - first), n(max(seen, first) - first) {}
    __device__ __forceinline__ bool has(int eighth, int e) const { return before + eighth * 8 + e < n; } // rows before `first` wrap round
};
// Four maxima side by side: one after the other would wait for one another.
template <class Rows> __device__ __forceinline__ float top_of(const float (&products)[8][4], int i, const Rows &rows) {
    const auto seen = [&](int eighth, int e) { return score(products[eighth][i * 2 + e], rows.has(eighth, e)); };
    float tops[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) tops[t] = fmaxf(fmaxf(seen(t, 0), seen(t, 1)), fmaxf(seen(t + 4, 0), seen(t + 4, 1)));
    return fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3]));
}

// Exponents of half a page become weights, for one of a lane's queries. Rows that are not seen weigh
// nothing.
template <class Rows>
__device__ __forceinline__ void weigh_exponents(float (&exponents)[8][4], int half, int i, const Rows &rows) {
#pragma unroll
    for (int eighth = half * 4; eighth < half * 4 + 4; ++eighth)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            float &weight = exponents[eighth][i * 2 + e];
            weight = exp2_of(weight);
            if (!rows.has(eighth, e)) weight = 0.0f;
        }
}
// Rounds the weights, and returns their sum.
__device__ __forceinline__ float round_half(const float (&weights)[8][4], int half, int i, uint4 &rounded) {
    const auto of = [&](int e) { return weights[half * 4 + e / 2][i * 2 + e % 2]; };
    rounded = make_uint4(round_pair(of(0), of(1)), round_pair(of(2), of(3)), round_pair(of(4), of(5)), round_pair(of(6), of(7)));
    return sum_weights(of);
}

// Operands in shared memory are described by words whose upper halves are all the same. Only the lower
// ones are kept and counted on: a warp has few registers that all its lanes share, and moving others
// there takes as long as a product.
__device__ __forceinline__ u64 described(u32 lower) { return swizzled(0) & ~0xffffffffull | lower; }
// The scores of a page begin.
__device__ __forceinline__ void begin_scores(float (&products)[8][4], u32 queries, u32 keys) {
    float (&sums)[32] = *(float (*)[32])products;
    hold_word(queries), hold_word(keys); // the compiler must not keep all of the words below
    products_begin();
#pragma unroll
    for (int i = 0; i < DIM / 16; ++i) {
        const int at = i % 4 * 32;
        const u64 from = described(queries + (i / 4 * (64 * 128) + at) / 16), with = described(keys + (i / 4 * (PAGE_ROWS * 128) + at) / 16);
        if (i == 0) wgmma_first(sums, from, with);
        else wgmma(sums, from, with);
    }
    products_commit();
}
// And the weighted sums of its values, by weights of half a page each, upper and lower. Those of a
// section's first page do not add to anything.
__device__ __forceinline__ void begin_values(Running &state, const uint4 (&weights)[2][2], u32 values, int adds) {
    float (&sums)[DIM / 2] = *(float (*)[DIM / 2])state.acc;
    hold_word(values);
    products_begin();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const uint4 a = weights[half][0], b = weights[half][1];
        wgmma(sums, a.x, b.x, a.y, b.y, described(values + half * 4), half > 0 || adds);
        wgmma(sums, a.z, b.z, a.w, b.w, described(values + half * 4 + 2), 1);
    }
    products_commit();
}

// What a group must know of a section: all but its pages. It is read one section ahead, and taken apart
// only then: whoever takes it apart waits for it.
struct SectionView {
    u32 words[4];
    __device__ __forceinline__ explicit SectionView(const SectionHead &head) {
        static_assert(sizeof(SectionHead) == (SECTION_PAGES + 4) * 4, "four words follow the pages");
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = ((const u32 *)&head)[SECTION_PAGES + i];
    }
    __device__ __forceinline__ int position() const { return words[0]; }
    __device__ __forceinline__ int moved() const { return words[1] - words[0]; }
    __device__ __forceinline__ int n_rows() const { return words[2] & 0xffff; }
    __device__ __forceinline__ int first() const { return words[2] >> 16; }
    __device__ __forceinline__ int n_marks() const { return words[3] & 0xffff; }
    __device__ __forceinline__ u32 cell() const { return words[3] >> 16; }
    // The position that row 0 would have, and pages up to a position.
    __device__ __forceinline__ int begin() const { return position() - first(); }
    __device__ __forceinline__ int pages_to(int last) const { return (min(last + 1 - begin(), n_rows()) + PAGE_ROWS - 1) / PAGE_ROWS; }
};

// The last page's weights, by halves, upper and lower; what the sums before it shrank by; its marks.
struct Weighed {
    uint4 weights[2][2];
    float shrink[2];
    u64 marks;
    __device__ __forceinline__ void clear() {
        weights[0][0] = weights[0][1] = weights[1][0] = weights[1][1] = make_uint4(0, 0, 0, 0);
        shrink[0] = shrink[1] = 0.0f, marks = 0;
    }
};

// A warp's part of what its group attends to.
//
// A group goes through the pages of all sections in order. While it weighs the scores of a page, the
// weighted sums of the page before run; while these shrink or are folded, the scores of the next page
// do. The waits for pages lie where they are because the compiler moves nothing over them: it would
// weigh scores after the wait for sums, and shrink sums between two products. A group that has queries
// takes all pages of the tile, seen or not.
struct Attender {
    const Step &step;
    const QueryTile &tile;
    const Attended &to;
    PageBarriers &at;
    const PageMemory &memory;
    const Section *sections;
    int kv_head, warp, lane, last_position;
    int rows[2], positions[2];
    int least;      // of the group's positions
    bool has_cells; // whether this warp has any of the lane's last token
    u32 taken;      // pages so far
    u32 cell;       // the next that is left
    // The lower words of what describes the group's queries and the first stage's keys and values, and
    // the address of the barriers: found once, and the same in all lanes.
    u32 queries, first_keys, first_values, barriers;

    // All warps of a group find the same: they must run the same products.
    __device__ __forceinline__ void find_least() {
        const int first = warp / 4 * 64 + lane, theirs[2] = {first, first + 32};
        int found[2];
        find_positions(found, step, tile, theirs);
        least = __reduce_min_sync(FULL, min(found[0], found[1]));
    }
    __device__ __forceinline__ void find_places() {
        const auto same = [](u32 word) { return __reduce_min_sync(FULL, word); };
        const auto lower = [](const u8 *at) { return (u32)swizzled(shared_address(at)); };
        queries = same(lower(memory.queries + warp / 4 * QUERY_BYTES));
        first_keys = same(lower(memory.keys)), first_values = same(lower(memory.values));
        barriers = same(shared_address(&at));
    }
    __device__ __forceinline__ u32 stage(u32 page) const { return page % PAGE_STAGES; }
    __device__ __forceinline__ u32 barrier(const u64 (&all)[PAGE_STAGES], u32 page) const {
        return barriers + (u32)((const u8 *)all - (const u8 *)&at) + stage(page) * sizeof(u64);
    }
    __device__ __forceinline__ bool is_there(const u64 (&full)[PAGE_STAGES], u32 page) const { return barrier_test(barrier(full, page), page / PAGE_STAGES % 2); }
    __device__ __forceinline__ void await(const u64 (&full)[PAGE_STAGES], u32 page) const { barrier_wait(barrier(full, page), page / PAGE_STAGES % 2); }
    __device__ __forceinline__ void release(const u64 (&empty)[PAGE_STAGES], u32 page) const {
        if (lane == 0) barrier_arrive(barrier(empty, page));
    }
    __device__ __forceinline__ u32 keys(u32 page) const { return first_keys + stage(page) * (KEY_BYTES / 16); }
    __device__ __forceinline__ u32 values(u32 page) const { return first_values + stage(page) * (VALUE_BYTES / 16); }
    __device__ __forceinline__ void leave(Running &state) {
        leave_cell(state, tile, cell++, rows, kv_head, to, lane), state.squares[0] = state.squares[1] = 0.0f;
    }
    // All warps of the group turn their queries, which no product reads.
    __device__ __forceinline__ void turn(int moved, const float2 *rope, const u16 *q) const {
        meet_group(warp / 4);
        if (TURNS_CHUNKS) turn_chunks(memory.queries, warp * 16, positions, tile, rope, q, kv_head, moved, lane);
        else turn_dimensions(memory.queries, warp * 16, positions, tile, rope, q, kv_head, moved, lane);
        before_copies();
        meet_group(warp / 4);
    }

    // The marks inside a page; a stretch that ends with the page before is left.
    __device__ __forceinline__ u64 take_marks(Running &state, CutPage &cut, const SectionView &section, const u32 *all_marks, int page) {
        const int most = min(last_position + 1 - section.begin(), section.n_rows());
        u64 marks = 0;
        if (has_cells && section.n_marks() > 0) marks = all_marks[page * 2] | (u64)all_marks[page * 2 + 1] << 32;
        if (most < (page + 1) * PAGE_ROWS) marks &= (1ull << (most - page * PAGE_ROWS)) - 1;
        if (marks & 1) leave(state);
        marks &= ~1ull;
#pragma unroll
        for (int i = 0; i < 2; ++i)
            if (marks != 0) cut.before[i][0][lane] = state.m[i], cut.before[i][1][lane] = state.squares[i];
        return marks;
    }

    // Adds up the squares of the page before, while its weighted sums run.
    __device__ __forceinline__ void settle(Running &state, const Weighed &last) {
        float squares[2][2];
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int i = 0; i < 2; ++i) squares[half][i] = sum_squares(last.weights[half][i]);
        add_squares(state, last.shrink, squares);
        if (last.marks != 0) {
            CutPage &cut = memory.cuts[warp];
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int i = 0; i < 2; ++i) cut.weights[half][i][lane] = last.weights[half][i];
            cut_stretches(state, cut, last.marks, lane, [&] { leave(state); });
        }
    }

    // One page, whose scores are there. WHOLE: all queries of the group see all of its rows. `go_on` is
    // called before the scores of the next page begin, and told whether its keys are there; `finish` when
    // the weighted sums of the page before are there. What is asked of barriers comes long before it is
    // needed, because an answer takes as long as a product.
    template <bool SQUARES, bool FIRST, bool WHOLE, class Finish, class GoOn>
    __device__ __forceinline__ void take_page(Running &state, float (&products)[8][4], Weighed &last, const SectionView &section, const u32 *all_marks,
                                              int page, Finish finish, GoOn go_on) {
        const bool keys_there = is_there(at.keys_full, taken + 1), values_there = is_there(at.values_full, taken);
        if (SQUARES) last.marks = take_marks(state, memory.cuts[warp], section, all_marks, page);
        // Scores that are not seen raise no pivot, and weigh nothing.
        const auto rows = [&](int i) {
            if constexpr (WHOLE) return AllRows();
            else return SeenRows(min(positions[i] + 1 - section.begin(), section.n_rows()) - page * PAGE_ROWS, FIRST ? section.first() : 0, lane);
        };
        const float tops[2] = {top_of(products, 0, rows(0)), top_of(products, 1, rows(1))};
        bool shrinks = false;
        if (FIRST) begin_pivots(state, tops, last.shrink);
        else shrinks = raise_pivots(state, tops, last.shrink);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float pivot = finite(state.m[i]);
#pragma unroll
            for (int tile = 0; tile < 8; ++tile)
#pragma unroll
                for (int e = 0; e < 2; ++e) products[tile][i * 2 + e] = exponent_of(products[tile][i * 2 + e], pivot);
        }
        weigh_exponents(products, 0, 0, rows(0)), weigh_exponents(products, 0, 1, rows(1));
        hold(*(float (*)[32])products);
        go_on(keys_there);
        products_await<0>();
        hold(*(float (*)[DIM / 2])state.acc);
        if (!FIRST || taken > 0) release(at.values_empty, taken - 1);
        weigh_exponents(products, 1, 0, rows(0)), weigh_exponents(products, 1, 1, rows(1));
        float sums[2][2];
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                sums[half][i] = round_half(products, half, i, last.weights[half][i]);
                hold_words(last.weights[half][i]);
            }
        add_weights(state, last.shrink, sums);
        begin_scores(products, queries, keys(taken + 1));
        if (!values_there) await(at.values_full, taken);
        finish();
        if (shrinks) shrink_sums(state, last.shrink);
        hold(*(float (*)[DIM / 2])state.acc);
        begin_values(state, last.weights, values(taken), !FIRST);
        products_await<1>();
        hold(*(float (*)[32])products);
        release(at.keys_empty, taken + 1);
        ++taken;
    }

    // Sections `s` to `end` of the tile, folded into `total`, or left in parts if blocks share them.
    template <bool SQUARES>
    __device__ __forceinline__ void take_sections(u32 s, const u32 end, const float2 *rope, const u16 *q) {
        Running state, total;
        Weighed last;
        total.clear();
        last.clear();
        float products[8][4];
        SectionView next(sections[s]);
        int turned_by = next.moved();
        turn(turned_by, rope, q);
        await(at.keys_full, 0);
        // Sums must be in their registers before products run.
        state.clear();
        hold(*(float (*)[DIM / 2])state.acc);
        hold(*(float (*)[DIM / 2])total.acc);
        begin_scores(products, queries, keys(0));
        products_await<0>();
        hold(*(float (*)[32])products);
        release(at.keys_empty, 0);
        for (const u32 first = s; s < end; ++s) {
            const SectionView section = next;
            const u32 *marks = sections[s].marks;
            const int n_pages = section.pages_to(last_position);
            const int n_whole = min(min(least + 1 - section.begin(), section.n_rows()) / PAGE_ROWS, n_pages);
            const bool is_last = s + 1 == end;
            if (!is_last) next = SectionView(sections[s + 1]);
            const auto go_on = [&](int page, bool keys_there) {
                if (page + 1 == n_pages) {
                    if (is_last) return;
                    if (next.moved() != turned_by) turn(turned_by = next.moved(), rope, q);
                }
                if (!keys_there) await(at.keys_full, taken + 1);
            };
            if (SQUARES) settle(state, last);
            if (SQUARES && has_cells && s > first) leave(state);
            cell = tile.cell + section.cell();
            const float m[2] = {state.m[0], state.m[1]}, l[2] = {state.l[0], state.l[1]};
            state.clear_weights();
            const auto finish_section = [&] {
                if (gridDim.y == 1) fold_section(total, state.acc, m, l); // before the first section: nothing
                else if (s > first) leave_part(state.acc, m, l, step, tile, s - 1, rows, kv_head, to, lane);
            };
            const auto go_on_first = [&](bool there) { go_on(0, there); };
            if (section.first() == 0 && n_whole > 0) take_page<SQUARES, true, true>(state, products, last, section, marks, 0, finish_section, go_on_first);
            else take_page<SQUARES, true, false>(state, products, last, section, marks, 0, finish_section, go_on_first);
            int page = 1;
#pragma unroll 1
            for (; page < n_whole; ++page) {
                if (SQUARES) settle(state, last);
                take_page<SQUARES, false, true>(state, products, last, section, marks, page, [] {},
                                                [&](bool there) { go_on(page, there); });
            }
#pragma unroll 1
            for (; page < n_pages; ++page) {
                if (SQUARES) settle(state, last);
                take_page<SQUARES, false, false>(state, products, last, section, marks, page, [] {},
                                                 [&](bool there) { go_on(page, there); });
            }
        }
        products_await<0>();
        hold(*(float (*)[DIM / 2])state.acc);
        if (SQUARES) settle(state, last);
        if (SQUARES && has_cells) leave(state);
        if (gridDim.y > 1) return leave_part(state.acc, state.m, state.l, step, tile, end - 1, rows, kv_head, to, lane);
        fold_section(total, state.acc, state.m, state.l);
        meet(); // the other group's products have read all pages, too
        keep(total);
    }

    // Puts the sums of all sections into shared memory, in the place of pages, and takes
    // them from there: both copies of the code above leave them in one place.
    __device__ __forceinline__ void keep(const Running &total) const {
        float4 *to = (float4 *)memory.keys + threadIdx.x;
#pragma unroll
        for (int t = 0; t < DIM_TILES; ++t) to[t * ATTENDERS * 32] = make_float4(total.acc[t][0], total.acc[t][1], total.acc[t][2], total.acc[t][3]);
        ((float4 *)&memory.cuts[warp])[lane] = make_float4(total.m[0], total.m[1], total.l[0], total.l[1]);
    }
    __device__ __forceinline__ Running kept() const {
        Running total;
        const float4 *from = (const float4 *)memory.keys + threadIdx.x;
#pragma unroll
        for (int t = 0; t < DIM_TILES; ++t) {
            const float4 acc = from[t * ATTENDERS * 32];
            total.acc[t][0] = acc.x, total.acc[t][1] = acc.y, total.acc[t][2] = acc.z, total.acc[t][3] = acc.w;
        }
        const float4 weights = ((const float4 *)&memory.cuts[warp])[lane];
        total.m[0] = weights.x, total.m[1] = weights.y, total.l[0] = weights.z, total.l[1] = weights.w;
        return total;
    }
};

// What both kernels do. `pages` are those of a layer, laid or in units.
__device__ __forceinline__ void attend_tile(const Step &step, const float2 *rope, const u16 *q, const u8 *pages, const Attended &to) {
    let_next_start();
    wait_for_previous();
    __shared__ PageBarriers at;
    __shared__ float finals[TILE_QUERIES][2];
    const PageMemory memory;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = warp / 4;
    const int kv_head = blockIdx.x % KV_HEADS;
    // The last tiles of a prompt see most: they start first.
    const QueryTile tile = ((const QueryTile *)step.attention)[n_tiles(step) - 1 - blockIdx.x / KV_HEADS];
    const Section *sections = (const Section *)(step.attention + n_tiles(step) * (sizeof(QueryTile) / 4)) + tile.first_section;
    const int last_position = step.positions[tile.first_token + tile.n_tokens - 1];
    const u32 first = tile.n_sections * blockIdx.y / gridDim.y, end = tile.n_sections * (blockIdx.y + 1) / gridDim.y;
    if (first == end) return;
    // A group without queries would only take time from the other.
    const int n_attenders = gridDim.y > 1 && tile.n_tokens * GROUP <= 64 ? ATTENDERS / 2 : ATTENDERS;
    if (threadIdx.x == 0) {
        if constexpr (PAGES_LAID) barrier_init(at.partial(), COPY_ARRIVALS);
        else
            for (int i = 0; i < RAW_STAGES; ++i) barrier_init(at.raw_full(i), COPY_ARRIVALS), barrier_init(at.raw_empty(i), BRINGERS);
        for (int i = 0; i < PAGE_STAGES; ++i) {
            const int arrivals = PAGES_LAID ? COPY_ARRIVALS : BRINGERS;
            barrier_init(&at.keys_full[i], arrivals), barrier_init(&at.values_full[i], arrivals);
            barrier_init(&at.keys_empty[i], n_attenders), barrier_init(&at.values_empty[i], n_attenders);
        }
        barriers_made();
    }
    __syncthreads();
    if (group == 2) {
        leave_registers<PAGES_LAID ? 24 : 56>();
        if constexpr (!PAGES_LAID) bring_units(at, memory, PageWalk(sections, first, end, last_position), (const u16 *)pages, kv_head, warp - ATTENDERS, lane);
        else if (warp == ATTENDERS) bring_laid(at, memory, PageWalk(sections, first, end, last_position), pages, kv_head, lane);
        return;
    }
    if (warp >= n_attenders) return;
    take_registers<PAGES_LAID ? 240 : 224>();
    Attender own{step, tile, to, at, memory, sections, kv_head, warp, lane, last_position, {warp * 16 + lane / 4, warp * 16 + lane / 4 + 8}};
    find_positions(own.positions, step, tile, own.rows);
    own.find_least();
    own.has_cells = tile.cell != NOWHERE && (int)(tile.n_tokens - 1) * GROUP < warp * 16 + 16 && (int)tile.n_tokens * GROUP > warp * 16;
    own.taken = 0;
    own.find_places();
    if (tile.cell == NOWHERE) own.take_sections<false>(first, end, rope, q);
    else own.take_sections<true>(first, end, rope, q);
    if (gridDim.y > 1) return;
    leave_result(own.kept(), step, tile, own.rows, kv_head, to, finals, lane);
    if (tile.cell == NOWHERE) return;
    __threadfence_block();
    meet();
    add_shares(tile, kv_head, to, finals, ATTENDERS * 32);
}

#endif
