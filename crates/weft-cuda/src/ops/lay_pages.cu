#include "ops/attend_pages.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Computes   the pages of a step's sections as products of warpgroups read them: units become rows.
// Layout     kv: pages of one layer (attention_head.cuh); laid: [page][KV head][keys, values], rows of
//            64 dimensions of a key, and of the 64 values of a dimension, swizzled (wgmma.cuh).
// Work split a block owns one KV head of one page, a warp a quarter of its units.
// Rounding   none.
// Moves      every page once in and out: bound by memory.
extern "C" __global__ void __launch_bounds__(LAY_WARPS * 32)
lay_pages(Step step, const u16 *kv, u8 *laid) {
    let_next_start();
    wait_for_previous();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, kv_head = blockIdx.y;
    const Section &section = ((const Section *)(step.attention + n_tiles(step) * (sizeof(QueryTile) / 4)))[blockIdx.x / SECTION_PAGES];
    const u32 page = blockIdx.x % SECTION_PAGES;
    if (page * PAGE_ROWS >= section.n_rows) return;
    const u32 id = section.pages[page];
    const uint4 *units = (const uint4 *)(kv + page_start(id, kv_head)) + lane;
    u8 *to = laid + laid_start(id, kv_head) + lane / 4 * 128;
    constexpr int KEYS = KEY_UNITS / LAY_WARPS, VALUES = VALUE_UNITS / LAY_WARPS;
    uint4 keys[KEYS], values[VALUES];
#pragma unroll
    for (int i = 0; i < KEYS; ++i) keys[i] = load_fresh(units + (warp * KEYS + i) * UNIT);
#pragma unroll
    for (int i = 0; i < VALUES; ++i) values[i] = load_fresh(units + (KEY_UNITS + warp * VALUES + i) * UNIT);
    const auto chunk = [&](u32 half) { return ((half * 4 + lane % 4) ^ lane / 4) * 16; };
#pragma unroll
    for (int i = 0; i < KEYS; ++i) {
        const int eighth = (warp * KEYS + i) / DIM_UNITS, unit = (warp * KEYS + i) % DIM_UNITS;
        *(uint4 *)(to + unit / 2 * PAGE_ROWS * 128 + eighth * 1024 + chunk(unit % 2)) = quad_transpose(keys[i], lane);
    }
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
        const int u = warp * VALUES + i;
        *(uint4 *)(to + KEY_BYTES + u / 2 * 1024 + chunk(u % 2)) = quad_transpose(values[i], lane);
    }
}

#endif
