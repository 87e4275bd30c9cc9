// Pages as products of warpgroups read them: `lay_pages` makes them, `attend_tiled` copies them.
#pragma once

#include "ops/attend_block.cuh"

constexpr int KEY_BYTES = (DIM + 63) / 64 * PAGE_ROWS * 128, VALUE_BYTES = DIM * 128;
constexpr int KEY_UNITS = PAGE_ROWS / 8 * DIM_UNITS, VALUE_UNITS = DIM_TILES * 2;
constexpr int LAY_WARPS = LAY_THREADS / 32;
static_assert(LAID_BYTES == KEY_BYTES + VALUE_BYTES, "the host has room for as much");

__device__ __forceinline__ u64 laid_start(u32 page, int kv_head) { return ((u64)page * KV_HEADS + kv_head) * LAID_BYTES; }
