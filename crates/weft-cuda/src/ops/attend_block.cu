#include "ops/attend_block.cuh"

constexpr int TILE_WARPS = TILE_THREADS / 32;
static_assert(TILE_QUERIES == TILE_WARPS * 16 || ATTENDS_TILED, "a warp has 16 queries");

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
    mask_eighths(products, eighth, first, seen, lane);
}
// One page: scores, weights, values. Squares are added up only if a share is asked for.
template <bool SQUARES>
__device__ __forceinline__ void take_page(Running &state, const u8 *page, const Interleaved (&queries)[DIM_UNITS], int first,
                                          const int (&seen)[2], int lane) {
    float products[8][4] = {};
    score_eighths(products, page, queries, 0, first, seen, lane);
    float shrink[2];
    if (raise_pivots(state, products, shrink)) shrink_sums(state, shrink);
    const uint4 *values = (const uint4 *)(page + SIDE_BYTES) + lane;
    float sums[2][2], squares[2][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        uint4 p[2]; // upper and lower
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            sums[half][i] = weigh_half(products + half * 4, i, state.m[i], p[i]);
            if (SQUARES) squares[half][i] = sum_squares(p[i]);
        }
#pragma unroll
        for (int tile = 0; tile < DIM_TILES; ++tile) {
            const uint4 unit = values[(tile * 2 + half) * UNIT];
            mma32(state.acc[tile], p[0], p[1], unit);
        }
    }
    add_weights(state, shrink, sums);
    if (SQUARES) add_squares(state, shrink, squares);
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
        for (int i = 0; i < 2; ++i) weigh_half(products, i, state.m[i], cut.weights[half][i][lane]);
    }
    cut_stretches(state, cut, marks, lane, leave);
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
    let_next_start();
    wait_for_previous();
    u8 *pages = dynamic_shared();
    __shared__ __align__(16) u16 turned[TILE_QUERIES][TURNED_STRIDE];
    __shared__ float finals[TILE_QUERIES][2];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int kv_head = blockIdx.x % KV_HEADS;
    // The last tiles of a prompt see most: they start first.
    const QueryTile tile = ((const QueryTile *)step.attention)[n_tiles(step) - 1 - blockIdx.x / KV_HEADS];
    const Section *sections = (const Section *)(step.attention + n_tiles(step) * (sizeof(QueryTile) / 4)) + tile.first_section;
    const int last_position = step.positions[tile.first_token + tile.n_tokens - 1];
    const int rows[2] = {warp * 16 + lane / 4, warp * 16 + lane / 4 + 8};
    int positions[2];
    find_positions(positions, step, tile, rows);
    // Whether this warp has any of the lane's last token.
    const bool has_cells = tile.cell != NOWHERE && (int)(tile.n_tokens - 1) * GROUP < warp * 16 + 16 && (int)tile.n_tokens * GROUP > warp * 16;

    Interleaved queries[DIM_UNITS];
    Running state, total;
    total.clear();
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
            turn_queries(queries, turned + warp * 16, warp * 16, positions, tile, rope, q, kv_head, moved, lane);
        }
        state.clear();
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
            leave_part(state.acc, state.m, state.l, step, tile, s, rows, kv_head, to, lane);
            continue;
        }
        fold_section(total, state.acc, state.m, state.l);
    }
    if (gridDim.y > 1) return;
    leave_result(total, step, tile, rows, kv_head, to, finals, lane);
    if (tile.cell == NOWHERE) return;
    __threadfence_block();
    __syncthreads();
    add_shares(tile, kv_head, to, finals, TILE_WARPS * 32);
}
