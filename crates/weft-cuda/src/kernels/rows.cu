// Rows of one layer between pages and a list as the host keeps it: k, v: bf16 [rows][KV_WIDTH]. A thread owns an
// element of a row.
struct RowsPlace {
    const u32 *pages; // of the list's rows, from the first on
    u64 n_rows;
};
template <class Move> __device__ __forceinline__ void each_element(RowsPlace rows, u16 *kv, Move move) {
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    const u32 row = i / KV_WIDTH, element = i % KV_WIDTH;
    if (row >= rows.n_rows) return;
    u16 *page = kv + page_start(rows.pages[row / PAGE_ROWS], element / HEAD_DIM);
    const int r = row % PAGE_ROWS, d = element % HEAD_DIM;
    move(i, page[key_offset(r, d)], page[PAGE_SIDE + value_offset(r, d)]);
}

// Computes   pages = the list.
// Layout     as above; kv: pages of one layer (head.cuh).
// Work split a thread owns an element of a row.
// Rounding   none.
// Moves      the list once in, and into pages: bound by scattered writes of values.
extern "C" __global__ void __launch_bounds__(256)
put_rows(RowsPlace rows, const u16 *k, const u16 *v, u16 *kv) {
    each_element(rows, kv, [&](u64 i, u16 &key, u16 &value) { key = k[i], value = v[i]; });
}

// Computes   the list = pages.
// Layout     as above.
// Work split as above.
// Rounding   none.
// Moves      pages once, and the list out: bound by scattered reads of values.
extern "C" __global__ void __launch_bounds__(256)
get_rows(RowsPlace rows, u16 *k, u16 *v, u16 *kv) {
    each_element(rows, kv, [&](u64 i, u16 &key, u16 &value) { k[i] = key, v[i] = value; });
}
