// What a block does with one KV head of one section, whichever kernel it belongs to: the scores of
// up to 16 queries, their weights, the weighted sum of values. A warp scores half a page, and sums
// an eighth of the dimensions. Callers bring pages into shared memory, and meet between the three.
#pragma once

#include "kernels/attention_head.cuh"
#include "kernels/softmax.cuh"

struct Query {
    u16 token;     // of the step
    u16 n_parts;   // that its result is folded from
    u16 seen;      // the row of the section up to which it sees
    u16 cell;      // the first of this section's shares of attention that it keeps, or NO_CELL
    u32 rotate_at; // the position that it has seen from the section's home
    u32 partial;   // where its part of the result goes
};
// Some queries against one section. Rows are counted from the first page's row 0; those before
// `first` are not the section's.
struct Item {
    u32 pages[SECTION_PAGES];
    u32 n_rows, n_queries, n_stores;
    u8 first;
    u8 n_marks;
    u8 first_pages; // up to the last that the first of two stretches has rows in
    u8 has_inner;   // whether some of more than two stretches end in the half of a page that they begin in
    u16 stores[FEW]; // rows of the section that this step writes: token << 8 | row
    // Where the squares of each half of a page are cut in two: before and after the only mark; or,
    // if there are more, at the first that is inside the half.
    u8 cuts[SECTION_PAGES * 2];
    // Of the last stretch that begins in each half of a page: a bit for each half that it has rows
    // in, and which stretch of the section it is, << 8. Zero if none does.
    u16 stretches[SECTION_PAGES * 2];
    u32 marks[SECTION_PAGES * 2]; // a bit for each row: whether a stretch begins there
    Query queries[FEW];
};
__device__ __forceinline__ u32 store_token(u32 store) { return store >> 8; }
__device__ __forceinline__ u32 store_row_of(u32 store) { return store & 0xff; }
static_assert(SECTION_PAGES * PAGE_ROWS <= 256, "a row of a section has eight bits");

constexpr u32 ITEM_WORDS = sizeof(Item) / 4;

// Whether two items have the same queries, turned alike: those of one span do.
__device__ __forceinline__ bool same_queries(const Item &a, const Item &b) {
    bool same = a.n_queries == b.n_queries;
    for (u32 i = 0; same && i < a.n_queries; ++i)
        same = a.queries[i].token == b.queries[i].token && a.queries[i].rotate_at == b.queries[i].rotate_at;
    return same;
}

// Blocks that take part where each has one KV head of one item at a time: as many of every KV head,
// so that a block keeps to one and its queries serve again; or all, where that spares a round.
__device__ __forceinline__ u32 taking_part(u32 n_work, u32 n_blocks) {
    const u32 all = min(n_blocks, n_work), even = all / KV_HEADS * KV_HEADS;
    return even == 0 || (n_work + all - 1) / all < (n_work + even - 1) / even ? all : even;
}

// What the copying warp must know of an item: its pages and counts, a word per lane.
struct ItemHead {
    u32 word;
    __device__ __forceinline__ ItemHead(const Step &step, u32 work, u32 n_work, int lane)
        : word(work < n_work && lane < 8 ? load_fresh(step.attention + work / KV_HEADS * ITEM_WORDS + lane) : 0) {}
    __device__ __forceinline__ u32 page(int i) const { return __shfl_sync(FULL, word, i); }
    __device__ __forceinline__ u32 n_rows() const { return __shfl_sync(FULL, word, SECTION_PAGES); }
    __device__ __forceinline__ u32 n_stores() const { return __shfl_sync(FULL, word, SECTION_PAGES + 2); }
};

constexpr int OWN_DIM_TILES = (DIM_TILES + WARPS - 1) / WARPS; // of a warp, when values are summed
static_assert(SECTION_PAGES * 2 <= WARPS, "a warp scores half a page");

struct SectionScratch {
    __align__(16) u16 queries[16][QUERY_STRIDE];      // rotated, bf16
    uint4 probabilities[SECTION_PAGES][2][2][32];     // page, half, upper and lower
    float maxima[SECTION_PAGES][2][16];
    __align__(16) float sums[3][SECTION_PAGES][2][16][4]; // of weights; of squares before and after a half is cut
    float finals[16][6];                              // pivot and sum of weights; of the first stretch, and the second
    float2 stretches[SECTION_PAGES * 2][16];          // if there are more: pivot and squares, by the half they begin in
};

// Which of an item's queries a lane holds: up to two, of the first eight and of the next. What it
// does not hold is nothing, and is not read: reading shared memory is what takes longest.
struct OwnQueries {
    int of[2];
    bool there[2];
    bool two; // whether any lane has a second
    __device__ __forceinline__ OwnQueries(u32 n, int lane) : of{lane / 4, lane / 4 + 8}, there{of[0] < n, of[1] < n}, two(n > 8) {}
    __device__ __forceinline__ uint4 read(int i, const void *from) const { return there[i] ? *(const uint4 *)from : make_uint4(0, 0, 0, 0); }
};

// A warp's half of a page.
struct HalfPage {
    int page, half;
    OwnQueries queries;
    float scores[2][8];
    __device__ __forceinline__ HalfPage(const OwnQueries &queries, int warp) : page(warp / 2), half(warp % 2), queries(queries) {}
};

// Scores, and their maximum. A query sees the rows from `first` on, up to row `seen(query)`.
template <class Seen>
__device__ __forceinline__ void score_rows(HalfPage &own, SectionScratch &to, const u8 *keys, int lane, u32 first, Seen seen) {
    const int c = lane % 4;
    const u32 zero = unknown_zero();
    float products[4][4] = {};
    const uint4 *units = (const uint4 *)keys + lane;
#pragma unroll
    for (int unit = 0; unit < DIM_UNITS; ++unit) {
        const uint4 a = own.queries.read(0, &to.queries[own.queries.of[0]][unit * 32 + c * 8]);
        const uint4 b = own.queries.read(1, &to.queries[own.queries.of[1]][unit * 32 + c * 8]);
        const Interleaved both(a, b, zero);
#pragma unroll
        for (int tile = 0; tile < 4; ++tile)
            mma32(products[tile], both, units[((own.half * 4 + tile) * DIM_UNITS + unit) * UNIT]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        if (i == 1 && !own.queries.two) break;
        const u32 rows = own.queries.there[i] ? seen(own.queries.of[i] / GROUP) - first : 0;
        const u32 before = own.page * PAGE_ROWS + own.half * 32 + c * 2 - first; // rows before `first` wrap round
        float top = NEVER;
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            own.scores[i][e] = score(products[e / 2][i * 2 + e % 2], before + (e / 2 * 8 + e % 2) < rows);
            top = fmaxf(top, own.scores[i][e]);
        }
        top = quad_max(top);
        if (c == 0) to.maxima[own.page][own.half][own.queries.of[i]] = top * SCALE_LOG2;
    }
}

// The pivot of a query after each page.
struct PagePivots {
    float after[SECTION_PAGES];
    __device__ __forceinline__ PagePivots(const SectionScratch &from, int query, int n_pages) {
#pragma unroll
        for (int p = 0; p < SECTION_PAGES; ++p)
            after[p] = p < n_pages ? fmaxf(from.maxima[p][0][query], from.maxima[p][1][query]) : NEVER;
#pragma unroll
        for (int p = 1; p < SECTION_PAGES; ++p) after[p] = raised(after[p - 1], after[p]);
    }
    __device__ __forceinline__ float last() const { return after[SECTION_PAGES - 1]; }
    // What the sums of the pages before a page are multiplied by.
    __device__ __forceinline__ float shrink(int p) const { return exp2_of((p == 0 ? NEVER : after[p - 1]) - finite(after[p])); }
};

// The squares from the last mark on, in a half of a page that has several inside. Not inlined, as
// all that few sections need: others would have to jump over it, and what a block reads next of its
// code is not near after a jump.
__device__ __noinline__ float squares_of_last(uint4 weights, u32 marks, int lane) {
    return squares_between(weights, lane % 4 * 2, 31 - __clz(marks), 32);
}

// Weights, against the pivot after this page.
__device__ __forceinline__ void weigh_rows(const HalfPage &own, SectionScratch &to, const Item &item, int lane) {
    const int c = lane % 4, half = own.page * 2 + own.half, cut = item.cuts[half];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        if (i == 1 && !own.queries.two) break;
        const int query = own.queries.of[i];
        const float m = PagePivots(to, query, own.page + 1).last();
        uint4 weights;
        const float sum = weigh(own.scores[i], finite(m), weights);
        float2 squares = make_float2(0.0f, 0.0f);
        if (cut >= 32) {
            squares.x = sum_squares(weights);
        } else {
            squares = cut_squares(weights, cut - c * 2);
            const u32 inside = item.marks[half] & ~1u;
            if (inside & (inside - 1)) squares.y = squares_of_last(weights, inside, lane);
        }
        to.probabilities[own.page][own.half][i][lane] = weights;
        to.sums[0][own.page][own.half][query][c] = sum;
        to.sums[1][own.page][own.half][query][c] = squares.x;
        to.sums[2][own.page][own.half][query][c] = squares.y;
    }
}

// A warp's values of half a page.
struct HalfValues {
    uint4 units[OWN_DIM_TILES];
    __device__ __forceinline__ void read(const u8 *values, int half, int warp, int lane) {
#pragma unroll
        for (int tile = 0; tile < OWN_DIM_TILES; ++tile) {
            const int dims = warp * OWN_DIM_TILES + tile;
            const bool there = WARPS * OWN_DIM_TILES == DIM_TILES || dims < DIM_TILES;
            units[tile] = there ? ((const uint4 *)values)[(dims * 2 + half) * UNIT + lane] : make_uint4(0, 0, 0, 0);
        }
    }
    __device__ __forceinline__ void blank(uint4 mask) {
#pragma unroll
        for (int tile = 0; tile < OWN_DIM_TILES; ++tile) units[tile] = masked(units[tile], mask);
    }
};

// What blanks the rows of a section's last page that are not there. Early masks are made before
// they are needed, because making them takes as long as a page's sum; but they are kept in
// registers all the while.
struct ValueMasks {
    int n_rows, lane;
    bool early;
    uint4 of[2]; // halves of the last page
    __device__ __forceinline__ ValueMasks(int n_rows, int lane, bool early) : n_rows(n_rows), lane(lane), early(early) {
#pragma unroll
        for (int half = 0; half < 2 && early; ++half) of[half] = made((n_rows - 1) / PAGE_ROWS, half);
    }
    __device__ __forceinline__ uint4 made(int page, int half) const { return value_mask(n_rows - page * PAGE_ROWS, half, lane); }
    __device__ __forceinline__ bool needed(int page) const { return n_rows < (page + 1) * PAGE_ROWS; }
    __device__ __forceinline__ uint4 operator()(int page, int half) const { return early ? of[half] : made(page, half); }
};

// Weighted sums of values, pages in order: this warp's dimensions, for its lanes' queries.
// `values(page)` is called when a page is to be read, half a page before it is needed.
template <class Values>
__device__ __forceinline__ void sum_values(float (&acc)[OWN_DIM_TILES][4], const SectionScratch &from, const OwnQueries &queries, int n_pages,
                                           const ValueMasks &masks, int warp, int lane, Values values) {
    const PagePivots pivots[2] = {PagePivots(from, queries.of[0], n_pages), PagePivots(from, queries.of[1], queries.two ? n_pages : 0)};
    const u32 zero = unknown_zero();
    const u8 *near = values(0);
    HalfValues ahead;
    ahead.read(near, 0, warp, lane);
#pragma unroll
    for (int p = 0; p < SECTION_PAGES; ++p) {
        if (p >= n_pages) break;
        const float shrink[2] = {pivots[0].shrink(p), pivots[1].shrink(p)};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            HalfValues now = ahead;
            const uint4 upper = queries.read(0, &from.probabilities[p][half][0][lane]);
            const uint4 lower = queries.read(1, &from.probabilities[p][half][1][lane]);
            const Interleaved both(upper, lower, zero);
            if (half == 0) ahead.read(near, 1, warp, lane);
            else if (p + 1 < SECTION_PAGES && p + 1 < n_pages) ahead.read(near = values(p + 1), 0, warp, lane);
            if (masks.needed(p)) now.blank(masks(p, half));
#pragma unroll
            for (int tile = 0; tile < OWN_DIM_TILES; ++tile) {
#pragma unroll
                for (int e = 0; e < 4; ++e) // before the first page, and of queries that no lane has, there is nothing to shrink
                    if (half == 0 && p > 0 && (e < 2 || queries.two)) acc[tile][e] = __fmul_rn(acc[tile][e], shrink[e / 2]);
                mma32(acc[tile], both, now.units[tile]);
            }
        }
    }
}

// ---- sums --------------------------------------------------------------------------------------
// Marks cut a section into stretches. All queries of an item are folded from parts, or none is, and
// those that keep shares see all of its rows.
__device__ __forceinline__ bool is_folded(const Item &item) { return item.queries[0].n_parts > 1; }

// Adds up the weights of each query, pages in order, and their squares: of the only stretch, or of
// two. The work of one warp, and of another if there are two.
__device__ __forceinline__ void sum_weights(SectionScratch &scratch, const Item &item, int n_pages, int warp, int lane) {
    const int query = lane % 16, which = min(warp * 2 + lane / 16, 2); // of weights, of squares
    const int until = which == 1 ? item.first_pages : SECTION_PAGES;
    const PagePivots pivots(scratch, query, n_pages);
    float lanes[4] = {}, m = NEVER;
#pragma unroll
    for (int p = 0; p < SECTION_PAGES; ++p) {
        if (p >= n_pages) break;
        const float once = pivots.shrink(p), shrink = which == 0 ? once : p < until ? once * once : 1.0f;
        if (p < until) m = pivots.after[p];
        const auto &halves = scratch.sums[which][p];
#pragma unroll
        for (int i = 0; i < 4; ++i) lanes[i] = __fmaf_rn(lanes[i], shrink, halves[0][query][i] + halves[1][query][i]);
    }
    scratch.finals[query][which * 2] = m;
    scratch.finals[query][which * 2 + 1] = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

// Leaves the squares of one stretch, or of two: a warp has one, a lane a row of queries.
template <class Cells>
__device__ __forceinline__ void leave_sums(const SectionScratch &from, const Item &item, u32 n_queries, int warp, int lane, Cells cells) {
    if (warp > item.n_marks || lane >= n_queries) return;
    const u32 cell = item.queries[lane / GROUP].cell;
    const auto &finals = from.finals[lane];
    if (cell != NO_CELL) cells.leave(lane, cell + warp, finals[2 + warp * 2], finals[3 + warp * 2], finals);
}

// The stretch that is the last to begin in a half of a page, for a row of queries.
struct Stretch {
    u32 half, query, takes, cell;
    bool there; // and the query keeps shares
    __device__ __forceinline__ Stretch(const Item &item, u32 n_queries, u32 half, u32 query) : half(half), query(query) {
        const u32 stretch = item.stretches[half], first_cell = item.queries[query / GROUP % 8].cell;
        takes = stretch & 0xff, cell = first_cell + (stretch >> 8);
        there = takes != 0 && query < n_queries && first_cell != NO_CELL;
    }
};

// Adds up the squares of these stretches, if there are more than two: the work of SECTION_PAGES
// warps. What is folded is left.
template <class Cells>
__device__ __noinline__ void sum_stretches(SectionScratch &scratch, const Item &item, u32 n_queries, u32 n_pages, int warp, int lane, Cells cells) {
    const Stretch own(item, n_queries, warp * 2 + lane / 16, lane % 16);
    if (!own.there) return;
    const int head = item.marks[own.half] & ~1u ? 2 : 1; // which of the sums its first rows are in
    float lanes[4] = {}, m = PagePivots(scratch, own.query, warp).last();
#pragma unroll 1
    for (u32 p = warp; p < n_pages && own.takes >> (p * 2); ++p) {
        const u32 here = own.takes >> (p * 2);
        const float before = m;
        m = raised(m, fmaxf(scratch.maxima[p][0][own.query], scratch.maxima[p][1][own.query]));
        const float once = exp2_of(before - finite(m)), shrink = once * once;
        const auto &one = scratch.sums[p * 2 == own.half ? head : 1][p][0][own.query];
        const auto &other = scratch.sums[p * 2 + 1 == own.half ? head : 1][p][1][own.query];
#pragma unroll
        for (int i = 0; i < 4; ++i) lanes[i] = __fmaf_rn(lanes[i], shrink, (here & 1 ? one[i] : 0.0f) + (here & 2 ? other[i] : 0.0f));
    }
    const float squares = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
    if (cells.folded) cells.leave(own.query, own.cell, m, squares, scratch.finals[own.query]);
    else scratch.stretches[own.half][own.query] = make_float2(m, squares);
}
// Leaves what is not folded, when weights are summed.
template <class Cells>
__device__ __noinline__ void leave_stretches(const SectionScratch &from, const Item &item, u32 n_queries, int warp, int lane, Cells cells) {
    const Stretch own(item, n_queries, warp * 2 + lane / 16, lane % 16);
    const float2 of = from.stretches[own.half][own.query];
    if (own.there) cells.leave(own.query, own.cell, of.x, of.y, from.finals[own.query]);
}
// Leaves stretches that end in the half of a page that they begin in. `n_warps` warps take one half
// after another, a quad one row of queries of one stretch after another.
template <class Cells>
__device__ __noinline__ void leave_inner(const SectionScratch &from, const Item &item, u32 n_queries, u32 warp, u32 n_warps, int lane, Cells cells) {
    const u32 log = 32 - __clz(n_queries - 1); // rows of queries, to the next power of two
#pragma unroll 1
    for (u32 half = warp; half < SECTION_PAGES * 2; half += n_warps) {
        u32 begins = item.marks[half] | (half == item.first / 32 ? 1u << item.first % 32 : 0), nth = 0;
        if ((begins & (begins - 1)) == 0) continue;
        const u32 n_inner = __popc(begins) - 1, before = (item.stretches[half] >> 8) - n_inner;
#pragma unroll 1
        for (u32 done = 0; done < n_inner << log; done += 8) {
            const u32 pair = done + lane / 4, row = pair & ((1u << log) - 1);
#pragma unroll 1
            for (; nth < pair >> log; ++nth) begins &= begins - 1;
            const u32 begin = __ffs(begins) - 1, end = __ffs(begins & (begins - 1)) - 1; // of the half
            const uint4 weights = from.probabilities[half / 2][half % 2][row / 8][row % 8 * 4 + lane % 4];
            const float squares = quad_sum(squares_between(weights, lane % 4 * 2, begin, end));
            const u32 first_cell = item.queries[row / GROUP % 8].cell;
            if (lane % 4 == 0 && nth < n_inner && row < n_queries && first_cell != NO_CELL)
                cells.leave(row, first_cell + before + nth, PagePivots(from, row, half / 2 + 1).last(), squares, from.finals[row]);
        }
    }
}

// ---- parts of a result -------------------------------------------------------------------------
// A section's pivot and sum of weights; and a head's dimension folded from all of them.
struct Part {
    float m, l;
};
struct Folded {
    float sum = 0.0f, weight = 0.0f, pivot = NEVER;
};

// The factors of parts in order, EACH of which a lane has, one after the other: from their pivots, and
// the pivot of all before them. Returns that of all. Where a part raises it, all lanes hear of it.
template <int EACH>
__device__ __forceinline__ float factors_of(Factors (&factors)[EACH], const float (&pivots)[EACH], float pivot, int lane) {
    float after[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) after[i] = pivot;
    float before = pivot;
    for (int next = 0;;) {
        int raising = EACH; // the first of this lane's parts that does
#pragma unroll
        for (int i = EACH - 1; i >= 0; --i)
            if (lane * EACH + i >= next && is_raised(pivot, pivots[i])) raising = i;
        const u32 votes = __ballot_sync(FULL, raising < EACH);
        if (votes == 0) break;
        const int by = __ffs(votes) - 1;
        float higher = pivots[0];
#pragma unroll
        for (int i = 1; i < EACH; ++i)
            if (raising == i) higher = pivots[i];
        pivot = __shfl_sync(FULL, higher, by);
        const int part = by * EACH + (EACH > 1 ? __shfl_sync(FULL, raising, by) : 0);
#pragma unroll
        for (int i = 0; i < EACH; ++i)
            if (lane * EACH + i >= part) after[i] = pivot;
        if (lane * EACH > part) before = pivot;
        next = part + 1;
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) factors[i] = fold_factors(i == 0 ? before : after[i - 1], pivots[i], after[i]);
    return pivot;
}

// Folds one dimension of one head per lane, parts in order: up to FOLDED_AT_ONCE from `first` on,
// into what is folded already. `parts.weight(part, there)` gives a lane one part's pivot and
// weight, `parts.sums(sums, part, last)` LOADS of its dimension from `part` on, none beyond `last`.
// Where SUMS_FIRST, those of the very first parts are in `sums` already. Where LOADS is zero, only
// weights are folded.
constexpr u32 FOLDED_AT_ONCE = 32;
constexpr int sums_at_once(int loads) { return loads > 0 ? loads : 8; }
template <int LOADS, class Parts>
__device__ __forceinline__ void fold_some(Folded &whole, const Parts &parts, float (&sums)[sums_at_once(LOADS)], u32 first, u32 n_parts, int lane) {
    constexpr int AT_ONCE = sums_at_once(LOADS);
    static_assert(FOLDED_AT_ONCE % AT_ONCE == 0 && FOLDED_AT_ONCE == 32, "a lane has a part's weight");
    const u32 count = min(FOLDED_AT_ONCE, n_parts - first);
    const Part part = parts.weight(first + lane, lane < count);
    Factors factors[1];
    whole.pivot = factors_of<1>(factors, {part.m}, whole.pivot, lane);
#pragma unroll 1
    for (u32 j = 0; j < count; j += AT_ONCE) {
        if constexpr (LOADS > 0)
            if (!Parts::SUMS_FIRST || first + j > 0) parts.sums(sums, first + j, n_parts - 1);
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const float a = __shfl_sync(FULL, factors[0].a, j + i), b = __shfl_sync(FULL, factors[0].b, j + i);
            const float part_weight = __shfl_sync(FULL, part.l, j + i);
            if (j + i < count) {
                whole.sum = fold(whole.sum, a, sums[i], b);
                whole.weight = fold(whole.weight, a, part_weight, b);
            }
        }
    }
}
// All of them. Where SUMS_FIRST, the first sums are asked for before any weight, so that both are
// on their way at once.
template <int LOADS, class Parts> __device__ __forceinline__ Folded fold_parts(const Parts &parts, u32 n_parts, int lane) {
    Folded whole;
    float sums[sums_at_once(LOADS)] = {};
    if constexpr (LOADS > 0 && Parts::SUMS_FIRST) parts.sums(sums, 0, n_parts - 1);
#pragma unroll 1
    for (u32 first = 0; first < n_parts; first += FOLDED_AT_ONCE)
        fold_some<LOADS>(whole, parts, sums, first, n_parts, lane);
    return whole;
}

// The squared probabilities of a cell's rows, from its pivot and the sum of its squared weights.
__device__ __forceinline__ float part_share(const Folded &whole, float m, float squares) {
    const float scale = exp2_of(m - whole.pivot) / whole.weight;
    return squares * scale * scale;
}
