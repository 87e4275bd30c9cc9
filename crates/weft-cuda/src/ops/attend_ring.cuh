// What brings pages to the warpgroups of a block that attend (sm_90a): the ring in shared memory and
// the warps that fill it. Pages come as `lay_pages` laid them if PAGES_LAID, or in units, which the
// block itself puts into rows. A kernel's file defines PAGES_LAID before it includes this one.
#pragma once

#ifndef PAGES_LAID
#define PAGES_LAID true
#endif

#include "kernels/wgmma.cuh"
#include "ops/attend_pages.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A block has two warpgroups that attend, with 64 queries each, and one that brings pages: a single
// warp of it if pages are laid.
constexpr int RAW_STAGES = 2, RAW_BYTES = PAGES_LAID ? 0 : RAW_STAGES * 2 * SIDE_BYTES; // of pages in units
constexpr int PAGE_STAGES = PAGES_LAID ? TILED_PAGES : TILED_PAGES - RAW_STAGES;        // and in rows
constexpr int BRINGERS = PAGES_LAID ? 1 : 4, ATTENDERS = 8;                             // warps
constexpr int QUERY_BYTES = (DIM + 63) / 64 * 64 * 128; // of a group
static_assert(TILE_QUERIES == 128 || !ATTENDS_TILED, "two groups of 64 queries");
constexpr int ATTEND_SHARED = 1024 + PAGE_STAGES * (KEY_BYTES + VALUE_BYTES) + RAW_BYTES + 2 * QUERY_BYTES + ATTENDERS * sizeof(CutPage);
static_assert(ATTEND_SHARED <= ATTEND_BLOCK_SHARED || !ATTENDS_TILED, "the host gives as much");
struct PageBarriers {
    u64 keys_full[PAGE_STAGES], keys_empty[PAGE_STAGES], values_full[PAGE_STAGES], values_empty[PAGE_STAGES];
    u64 others[PAGES_LAID ? 1 : 2 * RAW_STAGES];
    // A laid page that is not full, and pages in units.
    __device__ __forceinline__ u64 *partial() { return others; }
    __device__ __forceinline__ u64 *raw_full(u32 stage) { return others + stage; }
    __device__ __forceinline__ u64 *raw_empty(u32 stage) { return others + RAW_STAGES + stage; }
};
struct PageMemory {
    u8 *keys, *values, *raw;
    u8 *queries; // of both groups
    CutPage *cuts; // of each warp
    __device__ __forceinline__ PageMemory() {
        u8 *memory = dynamic_shared();
        keys = memory + (1024 - shared_address(memory) % 1024) % 1024;
        values = keys + PAGE_STAGES * KEY_BYTES;
        raw = values + PAGE_STAGES * VALUE_BYTES;
        queries = raw + RAW_BYTES;
        cuts = (CutPage *)(queries + 2 * QUERY_BYTES);
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

// Blanks the rows of a page's values from `n_rows` on: memory that was never written may hold
// anything, and nothing times NaN is NaN.
__device__ __forceinline__ void blank_rows(u8 *values, int n_rows, int lane) {
    for (int d = lane; d < DIM; d += 32)
        for (int chunk = n_rows / 8; chunk < PAGE_ROWS / 8; ++chunk) {
            u32 *at = (u32 *)(values + d * 128 + (chunk ^ d % 8) * 16);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = chunk * 8 + i * 2;
                at[i] &= row + 1 < n_rows ? 0xffffffffu : row < n_rows ? 0xffffu : 0u;
            }
        }
}

// The warp that brings pages, as `lay_pages` left them.
__device__ __forceinline__ void bring_laid(PageBarriers &at, const PageMemory &memory, PageWalk walk, const u8 *laid, int kv_head, int lane) {
    u32 partial = 0; // the parity of pages that are not full
    for (u32 i = 0; walk.is_there(); ++i, walk.next()) {
        const u32 stage = i % PAGE_STAGES, parity = i / PAGE_STAGES % 2;
        const u8 *from = laid + laid_start(walk.id(), kv_head);
        const int n_rows = walk.n_rows();
        barrier_wait(&at.keys_empty[stage], parity ^ 1);
        expect_copies(&at.keys_full[stage], KEY_BYTES, lane);
        copy(memory.keys + stage * KEY_BYTES, from, KEY_BYTES, &at.keys_full[stage], lane);
        barrier_wait(&at.values_empty[stage], parity ^ 1);
        u8 *values = memory.values + stage * VALUE_BYTES;
        u64 *barrier = n_rows < PAGE_ROWS ? at.partial() : &at.values_full[stage];
        expect_copies(barrier, VALUE_BYTES, lane);
        copy(values, from + KEY_BYTES, VALUE_BYTES, barrier, lane);
        if (n_rows >= PAGE_ROWS) continue;
        barrier_wait(barrier, partial);
        partial ^= 1;
        blank_rows(values, n_rows, lane);
        before_copies();
        __syncwarp();
        if (lane == 0) barrier_arrive(&at.values_full[stage]);
    }
}

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

// One of the warps that bring pages in units.
__device__ __forceinline__ void bring_units(PageBarriers &at, const PageMemory &memory, PageWalk walk, const u16 *kv, int kv_head, int warp, int lane) {
    PageWalk ahead = walk;
    u32 asked = 0;
    const auto ask = [&] {
        if (warp != 0 || !ahead.is_there()) return;
        u64 *barrier = at.raw_full(asked % RAW_STAGES);
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
        barrier_wait(at.raw_full(raw), i / RAW_STAGES % 2);
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
        if (lane == 0) barrier_arrive(&at.values_full[stage]), barrier_arrive(at.raw_empty(raw));
        if (warp == 0 && ahead.is_there()) {
            barrier_wait(at.raw_empty(raw), i / RAW_STAGES % 2);
            ask();
        }
    }
}

#endif
