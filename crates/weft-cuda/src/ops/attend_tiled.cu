#include "kernels/wgmma.cuh"
#include "ops/attend_block.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A block has two warpgroups that attend, with 64 queries each, and one that brings pages: they
// arrive in units, and are put into rows that products of warpgroups read (`swizzled`). Each warp
// of it takes every fourth unit.
constexpr int RAW_STAGES = 3, PAGE_STAGES = 2; // of pages as they arrive, and in rows
constexpr int BRINGERS = 4, ATTENDERS = 8;      // warps
constexpr int KEY_BYTES = (DIM + 63) / 64 * PAGE_ROWS * 128, VALUE_BYTES = DIM * 128;
constexpr int KEY_UNITS = PAGE_ROWS / 8 * DIM_UNITS, VALUE_UNITS = DIM_TILES * 2;
static_assert(TILE_QUERIES == 128 || !ATTENDS_TILED, "two groups of 64 queries");

struct PageBarriers {
    u64 raw_full[RAW_STAGES], raw_empty[RAW_STAGES], keys_full[PAGE_STAGES], keys_empty[PAGE_STAGES], values_full[PAGE_STAGES],
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
        turned = (u16(*)[TURNED_STRIDE])(raw + RAW_STAGES * 2 * SIDE_BYTES);
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

// Puts UNITS units, those of a row of ACROSS after one another, into rows of 128 bytes. `to` is where
// this lane's rows of even and of odd units begin. Several units are read before the first is
// stored: a load takes long, and nothing else hides it.
template <int UNITS, int ACROSS, int ACROSS_BYTES, class Change>
__device__ __forceinline__ void put_units(const uint4 *units, u8 *const (&to)[2], Change change) {
    constexpr int AT_ONCE = UNITS % 4 == 0 ? 4 : 2;
    static_assert(UNITS % AT_ONCE == 0, "whole batches");
#pragma unroll
    for (int first = 0; first < UNITS; first += AT_ONCE) {
        uint4 own[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) own[i] = units[(first + i) * UNIT];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int down = (first + i) / ACROSS, across = (first + i) % ACROSS;
            store_fragments(to[across % 2] + down * 1024 + across / 2 * ACROSS_BYTES, change(own[i], across));
        }
    }
}

// One of the warps that bring pages.
__device__ __forceinline__ void bring_pages(PageBarriers &at, const PageMemory &memory, PageWalk walk, const u16 *kv, int kv_head, int warp, int lane) {
    PageWalk ahead = walk;
    u32 asked = 0;
    const auto ask = [&] {
        if (warp != 0 || !ahead.is_there()) return;
        u64 *barrier = &at.raw_full[asked % RAW_STAGES];
        expect_copies(barrier, 2 * SIDE_BYTES, lane);
        copy(memory.raw + asked % RAW_STAGES * 2 * SIDE_BYTES, kv + page_start(ahead.id(), kv_head), 2 * SIDE_BYTES, barrier, lane);
        ++asked, ahead.next();
    };
    for (int i = 0; i < RAW_STAGES; ++i) ask();
    // Each warp has consecutive units. A lane's row of a fragment, and its chunk of a row.
    constexpr int OWN_KEYS = KEY_UNITS / BRINGERS, OWN_VALUES = VALUE_UNITS / BRINGERS;
    static_assert(OWN_KEYS % DIM_UNITS == 0 && OWN_VALUES % 2 == 0, "whole rows of units");
    const u32 row = lane % 8 * 128, even = (lane / 8 ^ lane % 8) * 16, odd = even ^ 64;
    const auto same = [](uint4 unit, int) { return unit; };
    for (u32 i = 0; walk.is_there(); ++i, walk.next()) {
        const u32 stage = i % PAGE_STAGES, parity = i / PAGE_STAGES % 2, raw = i % RAW_STAGES;
        const uint4 *units = (const uint4 *)(memory.raw + raw * 2 * SIDE_BYTES) + lane;
        barrier_wait(&at.raw_full[raw], i / RAW_STAGES % 2);
        barrier_wait(&at.keys_empty[stage], parity ^ 1);
        u8 *keys = memory.keys + stage * KEY_BYTES + warp * (OWN_KEYS / DIM_UNITS) * 1024 + row;
        put_units<OWN_KEYS, DIM_UNITS, PAGE_ROWS * 128>(units + warp * OWN_KEYS * UNIT, {keys + even, keys + odd}, same);
        before_copies();
        __syncwarp();
        if (lane == 0) barrier_arrive(&at.keys_full[stage]);
        barrier_wait(&at.values_empty[stage], parity ^ 1);
        u8 *values = memory.values + stage * VALUE_BYTES + warp * (OWN_VALUES / 2) * 1024 + row;
        const int n_rows = walk.n_rows();
        units += (KEY_UNITS + warp * OWN_VALUES) * UNIT;
        if (n_rows >= PAGE_ROWS) put_units<OWN_VALUES, 2, 0>(units, {values + even, values + odd}, same);
        else put_units<OWN_VALUES, 2, 0>(units, {values + even, values + odd}, [&](uint4 unit, int half) { return masked(unit, value_mask(n_rows, half, lane)); });
        before_copies();
        __syncwarp();
        if (lane == 0) barrier_arrive(&at.values_full[stage]), barrier_arrive(&at.raw_empty[raw]);
        if (warp == 0 && ahead.is_there()) {
            barrier_wait(&at.raw_empty[raw], i / RAW_STAGES % 2);
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
// And the weighted sums of its values, by weights of half a page each, upper and lower. Those of a
// section's first page do not add to anything.
__device__ __forceinline__ void begin_values(Running &state, const uint4 (&weights)[2][2], u32 values, int adds) {
    float (&sums)[DIM / 2] = *(float (*)[DIM / 2])state.acc;
    products_begin();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const uint4 a = weights[half][0], b = weights[half][1];
        wgmma(sums, a.x, b.x, a.y, b.y, swizzled(values + half * 64), half > 0 || adds);
        wgmma(sums, a.z, b.z, a.w, b.w, swizzled(values + half * 64 + 32), 1);
    }
    products_commit();
}

// What a group must know of a section: all but its pages. It is read one section ahead.
struct SectionView {
    u32 position, home;
    u16 n_rows, first, n_marks, cell;
    __device__ __forceinline__ explicit SectionView(const SectionHead &head)
        : position(head.position), home(head.home), n_rows(head.n_rows), first(head.first), n_marks(head.n_marks), cell(head.cell) {}
};

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

    // One section, whose first scores have begun: of its pages the group sees the first `own`.
    template <bool SQUARES>
    __device__ __forceinline__ void take_section(Running &state, float (&products)[8][4], const Interleaved (&queries)[DIM_UNITS],
                                                 const SectionView &section, const u32 *all_marks, int begin, int most, int own) {
        uint4 weights[2][2];
        u32 cell = tile.cell + section.cell;
        const auto leave = [&] { leave_cell(state, tile, cell++, rows, kv_head, to, lane), state.squares[0] = state.squares[1] = 0.0f; };
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
            begin_values(state, weights, values(taken), page > 0);
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
        release(at.values_empty, taken - 1);
        if (SQUARES && has_cells) leave();
    }

    // All sections of the tile that the block takes. A group takes the first page of each, seen or
    // not: its scores are computed while the section before is folded.
    template <bool SQUARES>
    __device__ __forceinline__ void take_sections(Running &total, const Section *sections, u32 s, u32 end, int last_position, const float2 *rope, const u16 *q) {
        Interleaved queries[DIM_UNITS];
        Running state;
        float products[8][4];
        SectionView next(sections[s]);
        int turned_by = (int)next.home - (int)next.position;
        const auto turn = [&] { turn_queries(queries, memory.turned + warp * 16, warp * 16, step, tile, rope, q, kv_head, turned_by, lane); };
        const auto begin_next = [&] {
            await(at.keys_full, taken);
            begin_scores(products, queries, keys(taken));
        };
        turn();
        begin_next();
        for (const u32 first = s;; ++s) {
            if (s > first) fold_section(total, state);
            const SectionView section = next;
            const bool is_last = s + 1 == end;
            if (!is_last) next = SectionView(sections[s + 1]);
            const int begin = (int)section.position - section.first; // the position that row 0 would have
            const auto pages_to = [&](int position) { return max(min(position + 1 - begin, (int)section.n_rows) + PAGE_ROWS - 1, PAGE_ROWS) / PAGE_ROWS; };
            const int most = min(last_position + 1 - begin, (int)section.n_rows), seen_pages = pages_to(group_last), n_pages = pages_to(last_position);
            state.clear_weights();
            take_section<SQUARES>(state, products, queries, section, sections[s].marks, begin, most, seen_pages);
            // Pages that only the other group sees.
            for (int page = seen_pages; page < n_pages; ++page, ++taken) {
                await(at.keys_full, taken), release(at.keys_empty, taken);
                await(at.values_full, taken), release(at.values_empty, taken);
            }
            if (gridDim.y > 1) leave_part(state, step, tile, s, rows, kv_head, to, lane);
            if (is_last) break;
            const int moved = (int)next.home - (int)next.position;
            if (moved != turned_by) {
                turned_by = moved;
                turn();
            }
            begin_next();
        }
        fold_section(total, state);
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
        for (int i = 0; i < RAW_STAGES; ++i) barrier_init(&at.raw_full[i], COPY_ARRIVALS), barrier_init(&at.raw_empty[i], BRINGERS);
        for (int i = 0; i < PAGE_STAGES; ++i) {
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
    Running total;
    total.clear();
    if (tile.cell == NOWHERE) own.take_sections<false>(total, sections, first, end, last_position, rope, q);
    else own.take_sections<true>(total, sections, first, end, last_position, rope, q);
    if (gridDim.y > 1) return;
    leave_result(total, step, tile, own.rows, kv_head, to, finals, lane);
    if (tile.cell == NOWHERE) return;
    __threadfence_block();
    meet();
    add_shares(tile, kv_head, to, finals, ATTENDERS * 32);
}

#endif
