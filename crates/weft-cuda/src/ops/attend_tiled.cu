#include "kernels/wgmma.cuh"
#include "ops/attend_block.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A block has two warpgroups that attend, with 64 queries each, and one that brings pages: they
// arrive in units, and are put into rows that products of warpgroups read (`swizzled`). Each warp
// of it takes every fourth unit.
constexpr int PAGE_STAGES = 2, BRINGERS = 4, ATTENDERS = 8; // warps
constexpr int KEY_BYTES = (DIM + 63) / 64 * PAGE_ROWS * 128, VALUE_BYTES = DIM * 128;
constexpr int KEY_UNITS = PAGE_ROWS / 8 * DIM_UNITS, VALUE_UNITS = DIM_TILES * 2;
static_assert(TILE_QUERIES == 128 || !ATTENDS_TILED, "two groups of 64 queries");

struct PageBarriers {
    u64 raw_full[PAGE_STAGES], raw_empty[PAGE_STAGES], keys_full[PAGE_STAGES], keys_empty[PAGE_STAGES], values_full[PAGE_STAGES],
        values_empty[PAGE_STAGES];
};
struct PageMemory {
    u8 *keys, *values, *raw;
    u16 (*turned)[TURNED_STRIDE];
    __device__ __forceinline__ PageMemory() {
        u8 *memory = dynamic_shared();
        keys = memory + (1024 - shared_address(memory) % 1024) % 1024;
        values = keys + PAGE_STAGES * KEY_BYTES;
        raw = values + PAGE_STAGES * VALUE_BYTES;
        turned = (u16(*)[TURNED_STRIDE])(raw + PAGE_STAGES * 2 * SIDE_BYTES);
    }
};

// The sections of a tile that a block takes, page by page.
struct PageWalk {
    const Section *sections;
    u32 s, end;
    int last_position, page = 0, n_pages = 0;
    __device__ __forceinline__ PageWalk(const Section *sections, u32 first, u32 end, int last_position)
        : sections(sections), s(first), end(end), last_position(last_position) {
        count();
    }
    __device__ __forceinline__ void count() {
        if (s == end) return;
        const int begin = (int)sections[s].position - sections[s].first;
        n_pages = (min(last_position + 1 - begin, (int)sections[s].n_rows) + PAGE_ROWS - 1) / PAGE_ROWS;
    }
    __device__ __forceinline__ bool is_there() const { return s < end; }
    __device__ __forceinline__ u32 id() const { return sections[s].pages[page]; }
    __device__ __forceinline__ int n_rows() const { return sections[s].n_rows - page * PAGE_ROWS; }
    __device__ __forceinline__ void next() {
        if (++page < n_pages) return;
        page = 0, ++s;
        count();
    }
};

// One of the warps that bring pages.
__device__ __forceinline__ void bring_pages(PageBarriers &at, const PageMemory &memory, PageWalk walk, const u16 *kv, int kv_head, int warp, int lane) {
    PageWalk ahead = walk;
    u32 asked = 0;
    const auto ask = [&] {
        if (warp != 0 || !ahead.is_there()) return;
        u64 *barrier = &at.raw_full[asked % PAGE_STAGES];
        expect_copies(barrier, 2 * SIDE_BYTES, lane);
        copy(memory.raw + asked % PAGE_STAGES * 2 * SIDE_BYTES, kv + page_start(ahead.id(), kv_head), 2 * SIDE_BYTES, barrier, lane);
        ++asked, ahead.next();
    };
    for (int i = 0; i < PAGE_STAGES; ++i) ask();
    const u32 row = lane % 8 * 128, chunk = lane / 8;
    const auto place = [&](u32 half) { return row + ((half * 4 + chunk) ^ lane % 8) * 16; };
    for (u32 i = 0; walk.is_there(); ++i, walk.next()) {
        const u32 stage = i % PAGE_STAGES, parity = i / PAGE_STAGES % 2;
        const uint4 *units = (const uint4 *)(memory.raw + stage * 2 * SIDE_BYTES) + lane;
        barrier_wait(&at.raw_full[stage], parity);
        barrier_wait(&at.keys_empty[stage], parity ^ 1);
        u8 *keys = memory.keys + stage * KEY_BYTES;
#pragma unroll 4
        for (int u = warp; u < KEY_UNITS; u += BRINGERS) {
            const int eighth = u / DIM_UNITS, unit = u % DIM_UNITS;
            store_fragments(keys + unit / 2 * PAGE_ROWS * 128 + eighth * 1024 + place(unit % 2), units[u * UNIT]);
        }
        before_copies();
        __syncwarp();
        if (lane == 0) barrier_arrive(&at.keys_full[stage]);
        barrier_wait(&at.values_empty[stage], parity ^ 1);
        u8 *values = memory.values + stage * VALUE_BYTES;
        const int n_rows = walk.n_rows();
#pragma unroll 4
        for (int u = warp; u < VALUE_UNITS; u += BRINGERS) {
            uint4 unit = units[(KEY_UNITS + u) * UNIT];
            if (n_rows < PAGE_ROWS) unit = masked(unit, value_mask(n_rows, u % 2, lane));
            store_fragments(values + u / 2 * 1024 + place(u % 2), unit);
        }
        before_copies();
        __syncwarp();
        if (lane == 0) barrier_arrive(&at.values_full[stage]), barrier_arrive(&at.raw_empty[stage]);
        if (warp == 0 && ahead.is_there()) {
            barrier_wait(&at.raw_empty[stage], parity);
            ask();
        }
    }
}

// The scores of a page begin.
__device__ __forceinline__ void begin_scores(float (&products)[8][4], const Interleaved (&queries)[DIM_UNITS], u32 keys) {
    float (&sums)[32] = *(float (*)[32])products;
    products_begin();
#pragma unroll
    for (int unit = 0; unit < DIM_UNITS; ++unit) {
        const u32 (&a)[8] = queries[unit].of;
        const u32 at = keys + unit / 2 * PAGE_ROWS * 128 + unit % 2 * 64;
        wgmma(sums, a[0], a[1], a[2], a[3], swizzled(at), unit > 0);
        wgmma(sums, a[4], a[5], a[6], a[7], swizzled(at + 32), 1);
    }
    products_commit();
}
// And the weighted sums of its values, by weights of half a page each, upper and lower.
__device__ __forceinline__ void begin_values(Running &state, const uint4 (&weights)[2][2], u32 values) {
    float (&sums)[DIM / 2] = *(float (*)[DIM / 2])state.acc;
    products_begin();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const uint4 a = weights[half][0], b = weights[half][1];
        wgmma(sums, a.x, b.x, a.y, b.y, swizzled(values + half * 64), 1);
        wgmma(sums, a.z, b.z, a.w, b.w, swizzled(values + half * 64 + 32), 1);
    }
    products_commit();
}

// A warp's part of what its group attends to.
struct Attender {
    const Step &step;
    const QueryTile &tile;
    const Attended &to;
    PageBarriers &at;
    const PageMemory &memory;
    int kv_head, warp, lane;
    int rows[2], positions[2];
    int group_last; // the last position of the group's queries, or -1
    bool has_cells; // whether this warp has any of the lane's last token
    u32 taken;      // pages so far

    __device__ __forceinline__ u32 stage(u32 page) const { return page % PAGE_STAGES; }
    __device__ __forceinline__ void await(u64 (&full)[PAGE_STAGES], u32 page) const { barrier_wait(&full[stage(page)], page / PAGE_STAGES % 2); }
    __device__ __forceinline__ void release(u64 (&empty)[PAGE_STAGES], u32 page) const {
        if (lane == 0) barrier_arrive(&empty[stage(page)]);
    }
    __device__ __forceinline__ u32 keys(u32 page) const { return shared_address(memory.keys) + stage(page) * KEY_BYTES; }
    __device__ __forceinline__ u32 values(u32 page) const { return shared_address(memory.values) + stage(page) * VALUE_BYTES; }

    // One section: of its pages the group sees the first `own`.
    template <bool SQUARES>
    __device__ __forceinline__ void take_section(Running &state, const Interleaved (&queries)[DIM_UNITS], const SectionHead &section,
                                                 const u32 *all_marks, int begin, int most, int own) {
        float products[8][4];
        uint4 weights[2][2];
        u32 cell = tile.cell + section.cell;
        const auto leave = [&] { leave_cell(state, tile, cell++, rows, kv_head, to, lane), state.squares[0] = state.squares[1] = 0.0f; };
        hold(*(float (*)[DIM / 2])state.acc);
        if (own > 0) {
            await(at.keys_full, taken);
            begin_scores(products, queries, keys(taken));
        }
#pragma unroll 1
        for (int page = 0; page < own; ++page, ++taken) {
            products_await<0>();
            hold(*(float (*)[32])products);
            hold(*(float (*)[DIM / 2])state.acc);
            release(at.keys_empty, taken);
            if (page > 0) release(at.values_empty, taken - 1);
            int seen[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) seen[i] = min(positions[i] + 1 - begin, (int)section.n_rows) - page * PAGE_ROWS;
            u64 marks = 0;
            CutPage &cut = *(CutPage *)memory.turned[warp * 16];
            if (SQUARES) {
                if (has_cells && section.n_marks > 0) marks = all_marks[page * 2] | (u64)all_marks[page * 2 + 1] << 32;
                if (most < (page + 1) * PAGE_ROWS) marks &= (1ull << (most - page * PAGE_ROWS)) - 1;
                if (marks & 1) leave();
                marks &= ~1ull;
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    if (marks != 0) cut.before[i][0][lane] = state.m[i], cut.before[i][1][lane] = state.squares[i];
            }
            mask_eighths(products, 0, page == 0 ? section.first : 0, seen, lane);
            float shrink[2];
            raise_maxima(state, products, shrink);
            float2 sums[2][2];
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int i = 0; i < 2; ++i) sums[half][i] = weigh_half<SQUARES>(products + half * 4, i, state.m[i], weights[half][i]);
            shrink_sums(state, shrink);
            add_weights<SQUARES>(state, shrink, sums);
            await(at.values_full, taken);
            begin_values(state, weights, values(taken));
            if (page + 1 < own) {
                await(at.keys_full, taken + 1);
                begin_scores(products, queries, keys(taken + 1));
            }
            if (SQUARES && marks != 0) {
#pragma unroll
                for (int half = 0; half < 2; ++half)
#pragma unroll
                    for (int i = 0; i < 2; ++i) cut.weights[half][i][lane] = weights[half][i];
                cut_stretches(state, cut, marks, lane, leave);
            }
        }
        products_await<0>();
        hold(*(float (*)[DIM / 2])state.acc);
        if (own > 0) release(at.values_empty, taken - 1);
        if (SQUARES && has_cells) leave();
    }
};

// Computes   a = softmax(rotate(q) * k / sqrt(HEAD_DIM)) * v over every row that a token sees, for
//            blocks of tokens.
// Layout     as that of attend_block.
// Work split a block owns one KV head and up to 128 queries (tokens x heads of the group) of one
//            lane, a warpgroup 64 of them; a third warpgroup brings the lane's pages in order. While
//            one group weighs its scores, the other multiplies. Where there are few blocks,
//            gridDim.y of them share the sections of a tile, as in attend_block.
// Rounding   the rotated query once; probabilities once; a once.
// Moves      keys and values once for 128 queries, mostly from L2: bound by arithmetic.
extern "C" __global__ void __launch_bounds__(TILED_THREADS, 1)
attend_tiled(Step step, const float2 *rope, const u16 *q, const u16 *kv, Attended to) {
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
    if (threadIdx.x == 0) {
        for (int i = 0; i < PAGE_STAGES; ++i) {
            barrier_init(&at.raw_full[i], COPY_ARRIVALS), barrier_init(&at.raw_empty[i], BRINGERS);
            barrier_init(&at.keys_full[i], BRINGERS), barrier_init(&at.values_full[i], BRINGERS);
            barrier_init(&at.keys_empty[i], ATTENDERS), barrier_init(&at.values_empty[i], ATTENDERS);
        }
        barriers_made();
    }
    __syncthreads();
    if (group == 2) {
        leave_registers<56>();
        bring_pages(at, memory, PageWalk(sections, first, end, last_position), kv, kv_head, warp - ATTENDERS, lane);
        return;
    }
    take_registers<224>();
    const int last_row = min((int)tile.n_tokens * GROUP, group * 64 + 64) - 1; // of the group's queries
    Attender own{step, tile, to, at, memory, kv_head, warp, lane, {warp * 16 + lane / 4, warp * 16 + lane / 4 + 8}};
    find_positions(own.positions, step, tile, own.rows);
    own.group_last = last_row >= group * 64 ? (int)step.positions[tile.first_token + last_row / GROUP] : -1;
    own.has_cells = tile.cell != NOWHERE && (int)(tile.n_tokens - 1) * GROUP < warp * 16 + 16 && (int)tile.n_tokens * GROUP > warp * 16;
    own.taken = 0;
    Interleaved queries[DIM_UNITS];
    Running state, total;
    total.clear();
    int turned_by = 0x7fffffff;
    for (u32 s = first; s < end; ++s) {
        const SectionHead section = sections[s];
        const int moved = (int)section.home - (int)section.position;
        if (moved != turned_by) {
            turned_by = moved;
            turn_queries(queries, memory.turned + warp * 16, warp * 16, step, tile, rope, q, kv_head, moved, lane);
        }
        state.clear();
        const int begin = (int)section.position - section.first; // the position that row 0 would have
        const auto pages_to = [&](int position) { return max(min(position + 1 - begin, (int)section.n_rows) + PAGE_ROWS - 1, 0) / PAGE_ROWS; };
        const int most = min(last_position + 1 - begin, (int)section.n_rows), seen_pages = pages_to(own.group_last), n_pages = pages_to(last_position);
        if (tile.cell == NOWHERE) own.take_section<false>(state, queries, section, sections[s].marks, begin, most, seen_pages);
        else own.take_section<true>(state, queries, section, sections[s].marks, begin, most, seen_pages);
        // Pages that only the other group sees.
        for (int page = seen_pages; page < n_pages; ++page, ++own.taken) {
            own.await(at.keys_full, own.taken), own.release(at.keys_empty, own.taken);
            own.await(at.values_full, own.taken), own.release(at.values_empty, own.taken);
        }
        if (gridDim.y > 1) {
            leave_part(state, step, tile, s, own.rows, kv_head, to, lane);
            continue;
        }
        fold_section(total, state);
    }
    if (gridDim.y > 1) return;
    leave_result(total, step, tile, own.rows, kv_head, to, finals, lane);
    if (tile.cell == NOWHERE) return;
    __threadfence_block();
    meet();
    add_shares(tile, kv_head, to, finals, ATTENDERS * 32);
}

#endif
