// What the kernels of `attend` for blocks of tokens share: a warp's 16 queries, and where their
// results go.
#pragma once

#include "kernels/attention_head.cuh"
#include "kernels/section.cuh"
#include "kernels/tiled.cuh"
#include "ops/attend.cuh"

// What the squares of a page that marks cut are added up from: pivots and squares from before it,
// then its rounded weights. A warp keeps them where it turned its queries, which are in registers
// by then.
struct CutPage {
    float before[2][2][32]; // pivot and squares, upper and lower
    uint4 weights[2][2][32]; // half, upper and lower
};
constexpr int TURNED_STRIDE = QUERY_STRIDE < 80 ? 80 : QUERY_STRIDE;
static_assert(sizeof(CutPage) <= 16 * TURNED_STRIDE * 2, "a page's weights fit a warp's queries");

// The state of a warp's 16 queries: rows g and g + 8 of the lane's quad. Squares are those of the
// stretch that is not over.
struct Running {
    float acc[DIM_TILES][4];
    float m[2], l[2], squares[2];
    __device__ __forceinline__ void clear_weights() { m[0] = m[1] = NEVER, l[0] = l[1] = 0.0f, squares[0] = squares[1] = 0.0f; }
    __device__ __forceinline__ void clear() {
        clear_weights();
#pragma unroll
        for (int t = 0; t < DIM_TILES; ++t)
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[t][e] = 0.0f;
    }
};

// Where a lane's two queries stand; before everything if there is no such query.
__device__ __forceinline__ void find_positions(int (&positions)[2], const Step &step, const QueryTile &tile, const int (&rows)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const u32 token = rows[i] / GROUP;
        positions[i] = token < tile.n_tokens ? (int)step.positions[tile.first_token + token] : -1;
    }
}

// Turns a warp's 16 queries, from row `first` of the tile on, for a section that is `moved` from its
// home, and puts them: `put(query, dimension, value)`. A lane has the `positions` of queries lane / 4
// and lane / 4 + 8. Four are asked for at once: each batch takes as long as a load from L2.
template <class Put>
__device__ __forceinline__ void turn_rows(int first, const int (&positions)[2], const QueryTile &tile, const float2 *rope, const u16 *q, int kv_head,
                                          int moved, int lane, Put put) {
    constexpr int AT_ONCE = 4;
    const int n_rows = tile.n_tokens * GROUP;
#pragma unroll 1
    for (int from = 0; from < 16; from += AT_ONCE) {
        Head heads[AT_ONCE];
        Turn turns[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int r = from + i, row = min(first + r, n_rows - 1);
            heads[i] = load_head(q + (u64)(tile.first_token + row / GROUP) * Q_WIDTH + (kv_head * GROUP + row % GROUP) * HEAD_DIM, lane);
            const int position = __shfl_sync(FULL, r < 8 ? positions[0] : positions[1], r % 8 * 4);
            turns[i] = load_turn(rope, max(position + moved, 0), lane);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int r = from + i;
            const bool is_there = first + r < n_rows;
            for (int d = lane; d < DIM; d += 32)
                if (!is_there || d >= HEAD_DIM) put(r, d, 0);
            rotate_head(heads[i], turns[i]);
            if (is_there) each_dimension(heads[i], lane, [&](int d, u16 value) { put(r, d, value); });
        }
    }
}

// The same, as fragments of products.
__device__ __forceinline__ void turn_queries(Interleaved (&queries)[DIM_UNITS], u16 (*turned)[TURNED_STRIDE], int first, const int (&positions)[2],
                                             const QueryTile &tile, const float2 *rope, const u16 *q, int kv_head, int moved, int lane) {
    const int c = lane % 4;
    __syncwarp();
    turn_rows(first, positions, tile, rope, q, kv_head, moved, lane, [&](int r, int d, u16 value) { turned[r][d] = value; });
    __syncwarp();
#pragma unroll
    for (int unit = 0; unit < DIM_UNITS; ++unit)
        queries[unit] = Interleaved(*(const uint4 *)&turned[lane / 4][unit * 32 + c * 8],
                                    *(const uint4 *)&turned[lane / 4 + 8][unit * 32 + c * 8], unknown_zero());
}

// Of some eighths of a page from `eighth` on, rows count from `first` on, up to `seen`.
template <int EIGHTHS>
__device__ __forceinline__ void mask_eighths(float (&products)[EIGHTHS][4], int eighth, int first, const int (&seen)[2], int lane) {
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

// The pivots after a page, from the largest of its lanes' products, and what sums from before it shrink
// by. Whether any is raised: if not, nothing shrinks.
__device__ __forceinline__ bool raise_pivots(Running &state, const float (&tops)[2], float (&shrink)[2]) {
    shrink[0] = shrink[1] = 1.0f;
    const auto raises = [&](int i) { return is_raised(state.m[i], tops[i] * SCALE_LOG2); };
    if (!__any_sync(FULL, raises(0) || raises(1))) return false;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float after = raised(state.m[i], quad_max(tops[i]) * SCALE_LOG2);
        shrink[i] = exp2_of(state.m[i] - finite(after));
        state.m[i] = after;
    }
    return true;
}
// Those of a section's first page: there is nothing that could shrink.
__device__ __forceinline__ void begin_pivots(Running &state, const float (&tops)[2], float (&shrink)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) state.m[i] = quad_max(tops[i]) * SCALE_LOG2, shrink[i] = 0.0f;
}
__device__ __forceinline__ bool raise_pivots(Running &state, const float (&products)[8][4], float (&shrink)[2]) {
    float tops[2] = {NEVER, NEVER};
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int tile = 0; tile < 8; ++tile) tops[i] = fmaxf(tops[i], fmaxf(products[tile][i * 2], products[tile][i * 2 + 1]));
    return raise_pivots(state, tops, shrink);
}
__device__ __forceinline__ void shrink_sums(Running &state, const float (&shrink)[2]) {
#pragma unroll
    for (int tile = 0; tile < DIM_TILES; ++tile)
#pragma unroll
        for (int e = 0; e < 4; ++e) state.acc[tile][e] = __fmul_rn(state.acc[tile][e], shrink[e / 2]);
}
// The sums of a page's weights, and of their squares, by halves.
__device__ __forceinline__ void add_weights(Running &state, const float (&shrink)[2], const float (&halves)[2][2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) state.l[i] = __fmaf_rn(state.l[i], shrink[i], halves[0][i] + halves[1][i]);
}
__device__ __forceinline__ void add_squares(Running &state, const float (&shrink)[2], const float (&halves)[2][2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) state.squares[i] = __fmaf_rn(state.squares[i], shrink[i] * shrink[i], halves[0][i] + halves[1][i]);
}

// The weights of half a page for one of a lane's queries, from the scores of its eighths, and their
// sum.
__device__ __forceinline__ float weigh_half(const float (*eighths)[4], int i, float pivot, uint4 &weights) {
    float pairs[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) pairs[e] = eighths[e / 2][i * 2 + e % 2];
    return weigh(pairs, finite(pivot), weights);
}

// The squares of a page that marks cut, from its weights. Calls `leave()` at each mark, when those of
// the stretch before it are complete.
template <class Leave>
__device__ __forceinline__ void cut_stretches(Running &state, const CutPage &cut, u64 marks, int lane, Leave leave) {
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

// Adds a section to those before it: its weighted sums, its pivots and its lanes' sums of weights.
// What is there is seldom rescaled, as in `fold` with a factor of one.
__device__ __forceinline__ void fold_section(Running &total, const float (&acc)[DIM_TILES][4], const float (&m)[2], const float (&l)[2]) {
    if (__any_sync(FULL, is_raised(total.m[0], m[0]) || is_raised(total.m[1], m[1]))) {
        float shrink[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float after = raised(total.m[i], m[i]);
            shrink[i] = exp2_of(total.m[i] - finite(after));
            total.l[i] = __fmul_rn(total.l[i], shrink[i]);
            total.m[i] = after;
        }
        shrink_sums(total, shrink);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float whole = quad_sum(l[i]), by = exp2_of(m[i] - finite(total.m[i]));
#pragma unroll
        for (int t = 0; t < DIM_TILES; ++t)
#pragma unroll
            for (int e = 0; e < 2; ++e) total.acc[t][i * 2 + e] = __fmaf_rn(acc[t][i * 2 + e], by, total.acc[t][i * 2 + e]);
        total.l[i] = __fmaf_rn(whole, by, total.l[i]);
    }
}

// Whether results are in squares: where products of warpgroups read them.
__device__ __forceinline__ bool in_squares(const Step &step) { return TILED && n_tokens(step) > SEVERAL; }
__device__ __forceinline__ u16 *place_of(const Step &step, const Attended &to, u32 token, u32 column) {
    return in_squares(step) ? (u16 *)((u8 *)to.a + tiled_place(token, column, Q_STRIDE)) : to.a + (u64)token * Q_STRIDE + column;
}

// Leaves what section `s` gives a warp's queries, of those that see it, where `merge` finds it.
__device__ __forceinline__ void leave_part(const float (&acc)[DIM_TILES][4], const float (&m)[2], const float (&own_l)[2], const Step &step, const QueryTile &tile, u32 s, const int (&rows)[2],
                                           int kv_head, const Attended &to, int lane) {
    const int c = lane % 4;
    u32 n_parts[2], first[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const u32 *own = step.partials + (tile.first_token + min((u32)rows[i] / GROUP, tile.n_tokens - 1)) * 4;
        n_parts[i] = own[0], first[i] = own[1];
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float l = quad_sum(own_l[i]);
        if (rows[i] / GROUP >= tile.n_tokens || s >= n_parts[i]) continue;
        const u64 at = (u64)(first[i] + s) * HEADS + kv_head * GROUP + rows[i] % GROUP;
#pragma unroll
        for (int t = 0; t < DIM_TILES; ++t)
            *(float2 *)(to.sums + at * DIM + t * 8 + c * 2) = make_float2(acc[t][i * 2], acc[t][i * 2 + 1]);
        if (c == 0) to.weights[at] = make_float2(m[i], l);
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

// Leaves what a warp's queries attended to, and the pivots and sums of their weights in `finals`.
__device__ __forceinline__ void leave_result(const Running &total, const Step &step, const QueryTile &tile, const int (&rows)[2], int kv_head,
                                             const Attended &to, float (*finals)[2], int lane) {
    const int c = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const u32 token = rows[i] / GROUP;
        if (token >= tile.n_tokens) continue;
        const u32 at = tile.first_token + token, column = (kv_head * GROUP + rows[i] % GROUP) * HEAD_DIM;
        const auto pair = [&](int t) { return round_pair(total.acc[t][i * 2] / total.l[i], total.acc[t][i * 2 + 1] / total.l[i]); };
        if (HEAD_DIM % 32 == 0 && in_squares(step)) {
            // A lane's pairs of 32 dimensions are a chunk.
#pragma unroll
            for (int t = 0; t < DIM_TILES; t += 4) {
                u8 *row = (u8 *)to.a + token_row(at, column + t * 8, Q_STRIDE);
                *(uint4 *)(row + half_chunk(at, (column + t * 8) / 32 % 2, c)) = make_uint4(pair(t), pair(t + 1), pair(t + 2), pair(t + 3));
            }
        } else {
#pragma unroll
            for (int t = 0; t < DIM_TILES; ++t)
                if (t * 8 + c * 2 < HEAD_DIM) *(u32 *)place_of(step, to, at, column + t * 8 + c * 2) = pair(t);
        }
        if (c == 0) finals[rows[i]][0] = total.m[i], finals[rows[i]][1] = total.l[i];
    }
}

// Adds to the shares of the lane's last token, by all of `n` threads.
__device__ __forceinline__ void add_shares(const QueryTile &tile, int kv_head, const Attended &to, const float (*finals)[2], u32 n) {
    for (u32 i = threadIdx.x; i < tile.n_cells * GROUP; i += n) {
        const u64 at = (u64)(tile.cell + i / GROUP) * HEADS + kv_head * GROUP + i % GROUP;
        const float *whole = finals[(tile.n_tokens - 1) * GROUP + i % GROUP], *cell = (const float *)(to.cells + at);
        to.shares[at] += part_share(Folded{0.0f, whole[1], whole[0]}, load_fresh(cell), load_fresh(cell + 1));
    }
}
