#include "kernels/attention_head.cuh"
#include "kernels/softmax.cuh"
#include "kernels/rows.cuh"

template <class Move> __device__ __forceinline__ void each_element(const RowsPlace &rows, u16 *kv, Move move) {
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    const u32 row = i / KV_WIDTH, element = i % KV_WIDTH;
    if (row >= rows.n_rows) return;
    const u32 at = rows.first_row + row;
    kv += blockIdx.y * (rows.layer_bytes / 2);
    u16 *page = kv + page_start(rows.pages[at / PAGE_ROWS], element / HEAD_DIM);
    const int r = at % PAGE_ROWS, d = element % HEAD_DIM;
    move(blockIdx.y * (u64)rows.n_rows * KV_WIDTH + i, page[key_offset(r, d)], page[PAGE_SIDE + value_offset(r, d)]);
}

// Computes   pages = the list.
// Layout     as above; kv: pages of the first layer (attention_head.cuh).
// Work split a thread owns an element of a row.
// Rounding   none.
// Moves      the list once in, and into pages: bound by scattered writes of values.
extern "C" __global__ void __launch_bounds__(256)
put_rows(const __grid_constant__ RowsPlace rows, const u16 *k, const u16 *v, u16 *kv) {
    each_element(rows, kv, [&](u64 i, u16 &key, u16 &value) { key = k[i], value = v[i]; });
}

// Computes   the list = pages.
// Layout     as above.
// Work split as above.
// Rounding   none.
// Moves      pages once, and the list out: bound by scattered reads of values.
extern "C" __global__ void __launch_bounds__(256)
get_rows(const __grid_constant__ RowsPlace rows, u16 *k, u16 *v, u16 *kv) {
    each_element(rows, kv, [&](u64 i, u16 &key, u16 &value) { k[i] = key, v[i] = value; });
}

// Computes   the first `rows` rows of page `to` = those of page `from`, in every layer.
// Layout     kv: all layers, `layer_bytes` each, in pages (attention_head.cuh).
// Work split a thread owns 16 bytes of a page of a layer, blockIdx.y. Those of keys are of one row,
//            those of values of eight.
// Rounding   none.
// Moves      the rows once in and out, with what lies beside them in their 16 bytes: bound by
//            memory.
extern "C" __global__ void __launch_bounds__(256)
copy_rows(u8 *kv, u64 layer_bytes, u32 from, u32 to, u32 rows) {
    constexpr u32 SIDE_CHUNKS = SIDE_BYTES / 16;
    const u32 chunk = blockIdx.x * 256 + threadIdx.x, i = chunk % SIDE_CHUNKS; // of a side
    if (chunk >= KV_HEADS * 2 * SIDE_CHUNKS) return;
    u16 *layer = (u16 *)(kv + blockIdx.y * layer_bytes);
    const uint4 *source = (const uint4 *)(layer + page_start(from, 0)) + chunk;
    uint4 *target = (uint4 *)(layer + page_start(to, 0)) + chunk;
    if (chunk / SIDE_CHUNKS % 2 == 0) {
        if (i / UNIT / DIM_UNITS * 8 + i % UNIT / 4 < rows) *target = *source;
        return;
    }
    const uint4 mask = value_mask(rows, i / UNIT % 2, i % UNIT);
    const uint4 others = make_uint4(~mask.x, ~mask.y, ~mask.z, ~mask.w);
    if ((mask.x | mask.y | mask.z | mask.w) == 0) return;
    const uint4 own = masked(*source, mask);
    const bool all = (others.x | others.y | others.z | others.w) == 0;
    const uint4 left = all ? make_uint4(0, 0, 0, 0) : masked(*target, others);
    *target = make_uint4(own.x | left.x, own.y | left.y, own.z | left.z, own.w | left.w);
}
