#include "kernels/attention_head.cuh"
#include "kernels/section.cuh"
#include "ops/attend.cuh"

constexpr int TILE_WARPS = TILE_THREADS / 32;
static_assert(TILE_QUERIES == TILE_WARPS * 16, "a warp has 16 queries");

// What the squares of a page that marks cut are added up from: maxima and squares from before it,
// then its rounded weights. A warp keeps them where it turned its queries, which are in registers
// by then.
struct CutPage {
    float before[2][2][32]; // maximum and squares, upper and lower
    uint4 weights[2][2][32]; // half, upper and lower
};
constexpr int TURNED_STRIDE = QUERY_STRIDE < 80 ? 80 : QUERY_STRIDE;
static_assert(sizeof(CutPage) <= 16 * TURNED_STRIDE * 2, "a page's weights fit a warp's queries");

// Copies a page's keys and values.
__device__ __forceinline__ void load_page(u8 *to, const u16 *kv, u32 page, int kv_head) {
    constexpr int AT_ONCE = TILE_WARPS * 32 * 16;
    static_assert(2 * SIDE_BYTES % AT_ONCE == 0, "all threads copy as much");
    const u8 *from = (const u8 *)(kv + page_start(page, kv_head)) + threadIdx.x * 16;
    to += threadIdx.x * 16;
#pragma unroll
    for (int i = 0; i < 2 * SIDE_BYTES; i += AT_ONCE) copy_chunk(to + i, from + i);
}

// Blanks the values from row `rows` on.
__device__ __forceinline__ void blank_values(u8 *values, int rows) {
    for (int i = threadIdx.x; i < SIDE_BYTES / 16; i += TILE_WARPS * 32) {
        uint4 &chunk = ((uint4 *)values)[i];
        chunk = masked(chunk, value_mask(rows, i / UNIT % 2, i % 32));
    }
}

// The state of a warp's 16 queries: rows g and g + 8 of the lane's quad. Squares are those of the
// stretch that is not over.
struct Running {
    float acc[DIM_TILES][4];
    float m[2], l[2], squares[2];
};

// The scores of some eighths of a page, from `eighth` on. Rows count from `first` on, up to `seen`.
template <int EIGHTHS>
__device__ __forceinline__ void score_eighths(float (&products)[EIGHTHS][4], const u8 *page, const Interleaved (&queries)[DIM_UNITS],
                                              int eighth, int first, const int (&seen)[2], int lane) {
    const uint4 *keys = (const uint4 *)page + eighth * DIM_UNITS * UNIT + lane;
#pragma unroll
    for (int unit = 0; unit < DIM_UNITS; ++unit)
#pragma unroll
        for (int tile = 0; tile < EIGHTHS; ++tile)
            mma32(products[tile], queries[unit], keys[(tile * DIM_UNITS + unit) * UNIT]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        if (!__any_sync(FULL, first > 0 || seen[i] < PAGE_ROWS)) continue;
        const u32 before = eighth * 8 + lane % 4 * 2 - first, rows = max(seen[i], first) - first; // rows before `first` wrap round
#pragma unroll
        for (int tile = 0; tile < EIGHTHS; ++tile)
#pragma unroll
            for (int e = 0; e < 2; ++e) products[tile][i * 2 + e] = score(products[tile][i * 2 + e], before + tile * 8 + e < rows);
    }
}
// The weights of half a page for one of a lane's queries, from the scores of its eighths, and their
// sums.
template <bool SQUARES>
__device__ __forceinline__ float2 weigh_half(const float (*eighths)[4], int i, float m, uint4 &weights) {
    float pairs[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) pairs[e] = eighths[e / 2][i * 2 + e % 2];
    return weigh<SQUARES>(pairs, finite(m), weights);
}

// One page: scores, weights, values. Squares are added up only if a share is asked for.
template <bool SQUARES>
__device__ __forceinline__ void take_page(Running &state, const u8 *page, const Interleaved (&queries)[DIM_UNITS], int first,
                                          const int (&seen)[2], int lane) {
    float products[8][4] = {};
    score_eighths(products, page, queries, 0, first, seen, lane);
    float shrink[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        float top = NEVER;
#pragma unroll
        for (int tile = 0; tile < 8; ++tile)
            top = fmaxf(top, fmaxf(products[tile][i * 2], products[tile][i * 2 + 1]));
        const float after = fmaxf(state.m[i], quad_max(top) * SCALE_LOG2);
        shrink[i] = exp2_of(state.m[i] - finite(after));
        state.m[i] = after;
    }
#pragma unroll
    for (int tile = 0; tile < DIM_TILES; ++tile)
#pragma unroll
        for (int e = 0; e < 4; ++e) state.acc[tile][e] = __fmul_rn(state.acc[tile][e], shrink[e / 2]);
    const uint4 *values = (const uint4 *)(page + SIDE_BYTES) + lane;
    float2 weights[2][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        uint4 p[2]; // upper and lower
#pragma unroll
        for (int i = 0; i < 2; ++i) weights[half][i] = weigh_half<SQUARES>(products + half * 4, i, state.m[i], p[i]);
#pragma unroll
        for (int tile = 0; tile < DIM_TILES; ++tile) {
            const uint4 unit = values[(tile * 2 + half) * UNIT];
            mma32(state.acc[tile], p[0], p[1], unit);
        }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        state.l[i] = __fmaf_rn(state.l[i], shrink[i], weights[0][i].x + weights[1][i].x);
        if (SQUARES) state.squares[i] = __fmaf_rn(state.squares[i], shrink[i] * shrink[i], weights[0][i].y + weights[1][i].y);
    }
}

// The squares of a page that marks cut, after it was taken: its weights are made once more, because
// the registers to keep them would slow down every page. Calls `leave()` at each mark, when
// those of the stretch before it are complete.
template <class Leave>
__device__ __forceinline__ void take_stretches(Running &state, CutPage &cut, const u8 *page, const Interleaved (&queries)[DIM_UNITS],
                                               int first, const int (&seen)[2], u64 marks, int lane, Leave leave) {
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
        float products[4][4] = {};
        score_eighths(products, page, queries, half * 4, first, seen, lane);
#pragma unroll
        for (int i = 0; i < 2; ++i) weigh_half<false>(products, i, state.m[i], cut.weights[half][i][lane]);
    }
    u32 begin = 0, end;
#pragma unroll 1
    for (;; begin = end, marks &= marks - 1) {
        end = marks == 0 ? PAGE_ROWS : __ffsll(marks) - 1;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float shrink = exp2_of(cut.before[i][0][lane] - finite(state.m[i]));
            const float squares = squares_between(cut.weights[0][i][lane], lane % 4 * 2, begin, end) +
                                  squares_between(cut.weights[1][i][lane], 32 + lane % 4 * 2, begin, end);
            state.squares[i] = begin == 0 ? __fmaf_rn(cut.before[i][1][lane], shrink * shrink, squares) : squares;
        }
        if (marks == 0) return;
        leave();
    }
}

// Leaves what section `s` gives a warp's queries, of those that see it, where `merge` finds it.
__device__ __forceinline__ void leave_part(const Running &state, const Step &step, const QueryTile &tile, u32 s, const int (&rows)[2],
                                           int kv_head, const Attended &to, int lane) {
    const int c = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float l = quad_sum(state.l[i]);
        const u32 token = tile.first_token + rows[i] / GROUP;
        if (rows[i] / GROUP >= tile.n_tokens || s >= step.partials[token * 4]) continue;
        const u64 at = (u64)(step.partials[token * 4 + 1] + s) * HEADS + kv_head * GROUP + rows[i] % GROUP;
#pragma unroll
        for (int t = 0; t < DIM_TILES; ++t)
            *(float2 *)(to.sums + at * DIM + t * 8 + c * 2) = make_float2(state.acc[t][i * 2], state.acc[t][i * 2 + 1]);
        if (c == 0) to.weights[at] = make_float2(state.m[i], l);
    }
}

// Leaves the cell that a warp's queries are at, of those of the lane's last token.
__device__ __forceinline__ void leave_cell(const Running &state, const QueryTile &tile, u32 cell, const int (&rows)[2], int kv_head,
                                           const Attended &to, int lane) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float squares = quad_sum(state.squares[i]);
        if (rows[i] / GROUP == tile.n_tokens - 1 && lane % 4 == 0)
            to.cells[(u64)cell * HEADS + kv_head * GROUP + rows[i] % GROUP] = make_float2(state.m[i], squares);
    }
}

// Computes   a = softmax(rotate(q) * k / sqrt(HEAD_DIM)) * v over every row that a token sees, for
//            blocks of tokens.
// Layout     q: bf16 [tokens][Q_WIDTH], after rope_store; kv: pages of one layer
//            (attention_head.cuh); rope: f32 [positions][HALF_DIM][cos, sin]; results as in
//            Attended.
// Work split a block owns one KV head and up to 64 queries (tokens x heads of the group) of one
//            lane, a warp 16 of them; it takes the lane's pages in order, one ahead. Where there
//            are few blocks, gridDim.y of them share the sections of a tile and leave parts behind
//            that attend_fold folds. The warps that have the lane's last token leave its cells,
//            each at the page where its stretch ends.
// Rounding   the rotated query once; probabilities once; a once.
// Moves      keys and values once for 64 queries, mostly from L2: bound by arithmetic.
extern "C" __global__ void __launch_bounds__(TILE_WARPS * 32, 2)
attend_block(Step step, const float2 *rope, const u16 *q, const u16 *kv, Attended to) {
    u8 *pages = dynamic_shared();
    __shared__ __align__(16) u16 turned[TILE_QUERIES][TURNED_STRIDE];
    __shared__ float finals[TILE_QUERIES][2];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, c = lane % 4;
    const int kv_head = blockIdx.x % KV_HEADS;
    // The last tiles of a prompt see most: they start first.
    const QueryTile tile = ((const QueryTile *)step.attention)[n_tiles(step) - 1 - blockIdx.x / KV_HEADS];
    const Section *sections = (const Section *)(step.attention + n_tiles(step) * (sizeof(QueryTile) / 4)) + tile.first_section;
    const int last_position = step.positions[tile.first_token + tile.n_tokens - 1];
    const int rows[2] = {warp * 16 + lane / 4, warp * 16 + lane / 4 + 8};
    int positions[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const u32 token = rows[i] / GROUP;
        positions[i] = token < tile.n_tokens ? (int)step.positions[tile.first_token + token] : -1;
    }
    // Whether this warp has any of the lane's last token.
    const bool has_cells = tile.cell != NOWHERE && (int)(tile.n_tokens - 1) * GROUP < warp * 16 + 16 && (int)tile.n_tokens * GROUP > warp * 16;

    Interleaved queries[DIM_UNITS];
    Running state, total;
    total.m[0] = total.m[1] = NEVER, total.l[0] = total.l[1] = 0.0f;
#pragma unroll
    for (int t = 0; t < DIM_TILES; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) total.acc[t][e] = 0.0f;
    int turned_by = 0x7fffffff, buffer = 0;
    const u32 first = tile.n_sections * blockIdx.y / gridDim.y, end = tile.n_sections * (blockIdx.y + 1) / gridDim.y;
    if (first == end) return;
    load_page(pages, kv, sections[first].pages[0], kv_head);
    commit_copies();
    for (u32 s = first; s < end; ++s) {
        const SectionHead section = sections[s];
        const int moved = (int)section.home - (int)section.position;
        if (moved != turned_by) {
            turned_by = moved;
            __syncwarp();
            for (int r = warp * 16; r < warp * 16 + 16; ++r) {
                const u32 token = r / GROUP;
                for (int d = lane; d < DIM; d += 32)
                    if (token >= tile.n_tokens || d >= HEAD_DIM) turned[r][d] = 0;
                if (token >= tile.n_tokens) continue;
                const u32 t = tile.first_token + token;
                Head head = load_head(q + (u64)t * Q_WIDTH + (kv_head * GROUP + r % GROUP) * HEAD_DIM, lane);
                rotate_head(head, load_turn(rope, max((int)step.positions[t] + moved, 0), lane));
                each_dimension(head, lane, [&](int d, u16 value) { turned[r][d] = value; });
            }
            __syncwarp();
#pragma unroll
            for (int unit = 0; unit < DIM_UNITS; ++unit)
                queries[unit] = Interleaved(*(const uint4 *)&turned[rows[0]][unit * 32 + c * 8],
                                            *(const uint4 *)&turned[rows[1]][unit * 32 + c * 8], unknown_zero());
        }
        state.m[0] = state.m[1] = NEVER, state.l[0] = state.l[1] = 0.0f, state.squares[0] = state.squares[1] = 0.0f;
#pragma unroll
        for (int t = 0; t < DIM_TILES; ++t)
#pragma unroll
            for (int e = 0; e < 4; ++e) state.acc[t][e] = 0.0f;
        const int begin = (int)section.position - section.first; // the position that row 0 would have
        const int most = min(last_position + 1 - begin, (int)section.n_rows);
        const int n_pages = (most + PAGE_ROWS - 1) / PAGE_ROWS;
        u32 cell = tile.cell + section.cell;
        const auto leave = [&] { leave_cell(state, tile, cell++, rows, kv_head, to, lane), state.squares[0] = state.squares[1] = 0.0f; };
        for (int page = 0; page < n_pages; ++page, buffer ^= 1) {
            const bool in_section = page + 1 < n_pages;
            if (in_section || s + 1 < end) {
                const u32 next = in_section ? section.pages[page + 1] : sections[s + 1].pages[0];
                load_page(pages + (buffer ^ 1) * 2 * SIDE_BYTES, kv, next, kv_head);
            }
            commit_copies();
            await_copies<1>();
            __syncthreads();
            const int n_rows = section.n_rows - page * PAGE_ROWS;
            if (n_rows < PAGE_ROWS) {
                blank_values(pages + buffer * 2 * SIDE_BYTES + SIDE_BYTES, n_rows);
                __syncthreads();
            }
            const int first_row = page == 0 ? section.first : 0;
            int seen[2];
#pragma unroll
            for (int i = 0; i < 2; ++i)
                seen[i] = min(positions[i] + 1 - begin, (int)section.n_rows) - page * PAGE_ROWS;
            const u8 *near = pages + buffer * 2 * SIDE_BYTES;
            if (tile.cell == NOWHERE) {
                take_page<false>(state, near, queries, first_row, seen, lane);
            } else {
                // All warps of a block run the same instructions: there is no room for two lists of
                // them near.
                u64 marks = 0;
                if (has_cells && section.n_marks > 0)
                    marks = sections[s].marks[page * 2] | (u64)sections[s].marks[page * 2 + 1] << 32;
                if (most < (page + 1) * PAGE_ROWS) marks &= (1ull << (most - page * PAGE_ROWS)) - 1;
                if (marks & 1) leave();
                marks &= ~1ull;
                CutPage &cut = *(CutPage *)turned[warp * 16];
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    if (marks != 0) cut.before[i][0][lane] = state.m[i], cut.before[i][1][lane] = state.squares[i];
                take_page<true>(state, near, queries, first_row, seen, lane);
                if (marks != 0) take_stretches(state, cut, near, queries, first_row, seen, marks, lane, leave);
            }
            __syncthreads();
        }
        if (has_cells) leave();
        if (gridDim.y > 1) {
            leave_part(state, step, tile, s, rows, kv_head, to, lane);
            continue;
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float l = quad_sum(state.l[i]), after = fmaxf(total.m[i], state.m[i]);
            const Factors factors = fold_factors(total.m[i], state.m[i], after);
#pragma unroll
            for (int t = 0; t < DIM_TILES; ++t)
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    total.acc[t][i * 2 + e] = fold(total.acc[t][i * 2 + e], factors.a, state.acc[t][i * 2 + e], factors.b);
            total.l[i] = fold(total.l[i], factors.a, l, factors.b);
            total.m[i] = after;
        }
    }
    if (gridDim.y > 1) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const u32 token = rows[i] / GROUP;
        if (token >= tile.n_tokens) continue;
        u16 *a = to.a + (u64)(tile.first_token + token) * Q_STRIDE + (kv_head * GROUP + rows[i] % GROUP) * HEAD_DIM;
#pragma unroll
        for (int t = 0; t < DIM_TILES; ++t)
            if (t * 8 + c * 2 < HEAD_DIM)
                *(u32 *)(a + t * 8 + c * 2) =
                    round_pair(total.acc[t][i * 2] / total.l[i], total.acc[t][i * 2 + 1] / total.l[i]);
        if (c == 0) finals[rows[i]][0] = total.m[i], finals[rows[i]][1] = total.l[i];
    }
    if (tile.cell == NOWHERE) return;
    __threadfence_block();
    __syncthreads();
    for (u32 i = threadIdx.x; i < tile.n_cells * GROUP; i += TILE_WARPS * 32) {
        const u64 at = (u64)(tile.cell + i / GROUP) * HEADS + kv_head * GROUP + i % GROUP;
        const float *whole = finals[(tile.n_tokens - 1) * GROUP + i % GROUP], *cell = (const float *)(to.cells + at);
        to.shares[at] += part_share(Folded{0.0f, whole[1], whole[0]}, load_fresh(cell), load_fresh(cell + 1));
    }
}

// The parts of a head as ordinary memory holds them.
struct StoredParts {
    static constexpr bool SUMS_FIRST = true;
    const Attended &to;
    u64 first;
    int head, d;
    __device__ __forceinline__ Part weight(u32 part, bool there) const {
        const float *at = (const float *)(to.weights + (first + part) * HEADS + head);
        return {there ? load_fresh(at) : NEVER, there ? load_fresh(at + 1) : 0.0f};
    }
    template <int N> __device__ __forceinline__ void sums(float (&sums)[N], u32 part, u32 last) const {
#pragma unroll
        for (int i = 0; i < N; ++i)
            sums[i] = load_fresh(to.sums + ((first + min(part + i, last)) * HEADS + head) * DIM + d);
    }
};

// Folds the parts of one token's heads of one KV head. A warp has 32 dimensions of one head, and
// adds what as many of its cells were given.
__device__ __forceinline__ void merge(u32 token, u32 n_parts, u64 first, u32 n_cells, u64 first_cell, int kv_head, const Attended &to) {
    constexpr int AT_ONCE = WARPS * 32 / DIM;
    const int lane = threadIdx.x % 32, d = threadIdx.x % DIM;
    for (int g = threadIdx.x / DIM; g < GROUP && threadIdx.x < AT_ONCE * DIM; g += AT_ONCE) {
        const int head = kv_head * GROUP + g;
        // The maximum and the squares of a lane's cell, asked for one fold ahead.
        const auto ask = [&](u32 cell, float &m, float &squares) {
            if (cell >= n_cells) return;
            const float *at = (const float *)(to.cells + (first_cell + cell) * HEADS + head);
            m = load_fresh(at), squares = load_fresh(at + 1);
        };
        float m, squares;
        ask(d, m, squares);
        const Folded whole = fold_parts<16>(StoredParts{to, first, head, d}, n_parts, lane);
        if (d < HEAD_DIM) to.a[(u64)token * Q_STRIDE + head * HEAD_DIM + d] = round_one(whole.sum / whole.weight);
        for (u32 cell = d; cell < n_cells; cell += DIM, ask(cell, m, squares))
            atomicAdd(to.shares + (first_cell + cell) * HEADS + head, part_share(whole, m, squares));
    }
}

// Computes   a from the parts that attend_block left.
// Layout     as in Attended.
// Work split a block owns one KV head of one token.
// Rounding   a once.
// Moves      the parts once, from L2.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
attend_fold(Step step, Attended to) {
    const u32 token = blockIdx.x / KV_HEADS, *own = step.partials + token * 4;
    merge(token, load_fresh(own), load_fresh(own + 1), load_fresh(own + 2), load_fresh(own + 3), blockIdx.x % KV_HEADS, to);
}
