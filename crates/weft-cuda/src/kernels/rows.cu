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

template <class Move> __device__ __forceinline__ void each_head(const RowsPlace &rows, u16 *kv, Move move) {
    const u32 warp = blockIdx.x * 8 + threadIdx.x / 32;
    const u32 row = warp / KV_HEADS, head = warp % KV_HEADS;
    if (row >= rows.n_rows) return;
    const u32 at = rows.first_row + row;
    kv += blockIdx.y * (rows.layer_bytes / 2);
    u16 *page = kv + page_start(rows.pages[at / PAGE_ROWS], head);
    const u64 start = ((u64)blockIdx.y * rows.n_rows + row) * PACKED_ROW;
    move(start + head * HEAD_DIM, start + KV_WIDTH + head * 2, page, (int)(at % PAGE_ROWS), (int)(threadIdx.x % 32));
}

constexpr float MOST_INTEGER = 127.0f, LEAST_MAGNITUDE = 1e-30f, ROUNDS = 12582912.0f;

__device__ __forceinline__ u16 bf16_bits(float x) {
    const u32 bits = __float_as_uint(x);
    return x != x ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// Computes   pages = the list in 8 bits, unpacked: integers / 127, times their scale, as bf16.
// Layout     as above, the list in 8 bits.
// Work split a warp owns a head of a row.
// Rounding   the division, the product, and bf16, each to the nearest.
// Moves      the list once in, and into pages: bound by scattered writes of values.
extern "C" __global__ void __launch_bounds__(256)
put_packed_rows(const __grid_constant__ RowsPlace rows, const u8 *k, const u8 *v, u16 *kv) {
    each_head(rows, kv, [&](u64 integers, u64 scale, u16 *page, int r, int lane) {
        const float most_k = __uint_as_float((u32)*(const u16 *)(k + scale) << 16);
        const float most_v = __uint_as_float((u32)*(const u16 *)(v + scale) << 16);
        auto number = [](u8 integer, float most) {
            return bf16_bits(fmaxf((float)(signed char)integer / MOST_INTEGER, -1.0f) * most);
        };
        for (int d = lane; d < HEAD_DIM; d += 32) {
            page[key_offset(r, d)] = number(k[integers + d], most_k);
            page[PAGE_SIDE + value_offset(r, d)] = number(v[integers + d], most_v);
        }
    });
}

// One head of a row in 8 bits: the scale is the largest magnitude; it is no number if one of the
// numbers is not finite.
template <class Number> __device__ __forceinline__ void pack_head(u8 *integers, u16 *scale, int lane, Number number) {
    float most = 0.0f;
    bool is_finite = true;
    for (int d = lane; d < HEAD_DIM; d += 32) {
        const float magnitude = fabsf(number(d));
        is_finite = is_finite && magnitude < __uint_as_float(0x7f800000);
        most = fmaxf(most, magnitude);
    }
    is_finite = __all_sync(FULL, is_finite);
    for (int other = 16; other > 0; other /= 2) most = fmaxf(most, __shfl_xor_sync(FULL, most, other));
    if (most < LEAST_MAGNITUDE) most = 0.0f;
    const float unit = most > 0.0f ? most : __uint_as_float(0x7f800000);
    for (int d = lane; d < HEAD_DIM; d += 32)
        integers[d] = is_finite ? (u8)__float_as_uint(number(d) / unit * MOST_INTEGER + ROUNDS) : 0;
    if (lane == 0) *scale = is_finite ? bf16_bits(most) : 0x7fc0;
}

// Computes   the list in 8 bits = pages: numbers in 127ths of their head's largest magnitude.
// Layout     as above.
// Work split as above.
// Rounding   the quotient and its product with 127, and the result to an integer, to the nearest.
// Moves      pages twice, and the list out: bound by scattered reads of values.
extern "C" __global__ void __launch_bounds__(256)
get_packed_rows(const __grid_constant__ RowsPlace rows, u8 *k, u8 *v, u16 *kv) {
    each_head(rows, kv, [&](u64 integers, u64 scale, u16 *page, int r, int lane) {
        auto number = [](u16 bits) { return __uint_as_float((u32)bits << 16); };
        pack_head(k + integers, (u16 *)(k + scale), lane, [&](int d) { return number(page[key_offset(r, d)]); });
        pack_head(v + integers, (u16 *)(v + scale), lane,
                  [&](int d) { return number(page[PAGE_SIDE + value_offset(r, d)]); });
    });
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
