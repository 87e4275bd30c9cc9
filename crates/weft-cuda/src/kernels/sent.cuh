// Parts of attention that blocks of one launch hand to one another, without a counter or a fence: a
// word that nobody sent yet is NOTHING, which no result is. Every word has one reader, who makes it
// NOTHING again for the next launch. Blocks wait for one another, so all of a launch must be there
// at once: `attend` has no more blocks than multiprocessors, and a kernel that may start early does
// so only when all of them have started. That holds for one stream: two devices in one process must
// not run long contexts at the same time. Kernels that copy rows run beside it in a stream of their
// own and wait for nobody.
#pragma once

#include "kernels/section.cuh"

constexpr u32 MOST_LOOKS = 1u << 24; // some seconds: then the launch fails instead of hanging

// What one part of one head is: its sums; then for every 32 of them, which one warp reads, the
// pivot and the weight. What one cell of one head is, for its share of attention: the pivot and
// the squares.
static_assert(SENT_ROW == DIM + 2 * DIM_UNITS, "sums, then a pivot and a weight for every 32");

__device__ __forceinline__ bool is_sent(float word) { return __float_as_uint(word) != NOTHING; }
__device__ __forceinline__ void send(float *at, float value) {
    store_relaxed(at, is_sent(value) ? value : __uint_as_float(0x7fffffffu)); // a NaN is as good as another
}
__device__ __forceinline__ void take_back(float *at) { store_relaxed(at, __uint_as_float(NOTHING)); }

template <class Ready> __device__ __forceinline__ void look_until(Ready ready) {
    for (u32 looks = 0; !ready(); ++looks)
        if (looks == MOST_LOOKS) trap();
    __syncwarp();
}

// Sends what one part of one head is besides its sums, from the four lanes of a quad.
__device__ __forceinline__ void send_weight(float *row, const float (&finals)[6], int lane) {
    for (int slice = lane % 4; slice < DIM_UNITS; slice += 4) {
        float *at = row + DIM + slice * 2;
        send(at, finals[0]), send(at + 1, finals[1]);
    }
}

// Two words of a part or a cell, once they are there.
__device__ __forceinline__ float2 take_two(float *at, bool there, float2 otherwise) {
    float2 sent = otherwise;
    look_until([&] {
        if (there) sent = make_float2(load_relaxed(at), load_relaxed(at + 1));
        return is_sent(sent.x) && is_sent(sent.y);
    });
    if (there) take_back(at), take_back(at + 1);
    return sent;
}

// 32 dimensions of one head in all parts of a token.
struct SentSlice {
    static constexpr bool SUMS_FIRST = true;
    float *first; // row of the first part
    int slice, lane;
    __device__ __forceinline__ float *row(u32 part) const { return first + (u64)part * HEADS * SENT_ROW; }
    __device__ __forceinline__ Part weight(u32 part, bool there) const {
        const float2 sent = take_two(row(part) + DIM + slice * 2, there, make_float2(NEVER, 0.0f));
        return {sent.x, sent.y};
    }
    template <int N> __device__ __forceinline__ void sums(float (&sums)[N], u32 part, u32 last) const {
        const int d = slice * 32 + lane;
        look_until([&] {
            bool all = true;
#pragma unroll
            for (int i = 0; i < N; ++i) all &= is_sent(sums[i] = load_relaxed(row(min(part + i, last)) + d));
            return all;
        });
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (part + i <= last) take_back(row(part + i) + d);
    }
};

// Folds one of the slices, and adds what share of attention some cells have: 32 with each slice in
// turn. `cells` are those of the head, sent as its parts are, `shares` where they are added up.
__device__ __forceinline__ void fold_slice(const SentSlice &slice, u32 n_parts, u16 *a, float *cells, float *shares, u32 n_cells) {
    const Folded whole = fold_parts<16>(slice, n_parts, slice.lane);
    const int d = slice.slice * 32 + slice.lane;
    if (d < HEAD_DIM) a[d] = round_one(whole.sum / whole.weight);
    for (u32 block = slice.slice * 32; block < n_cells; block += DIM) {
        const u64 at = (u64)(block + slice.lane) * HEADS;
        const bool there = block + slice.lane < n_cells;
        const float2 sent = take_two(cells + at * 2, there, make_float2(0.0f, 0.0f));
        if (there) atomicAdd(shares + at, part_share(whole, sent.x, sent.y));
    }
}
