// How activations lie that `wgmma` multiplies: in squares of 64 tokens x 64 columns, 8 KB each,
// [64 tokens][square][token], so that one copy brings a square. A token's 64 columns are a row of
// 128 bytes, two halves of 32 columns. In a half, chunk j of 16 bytes holds columns 2j and 2j + 1 of
// every eight: the product of the first two chunks is the first instruction of `mma32`, that of the
// others the second. Chunks are swizzled (wgmma.cuh).
#pragma once

#include "kernels/base.cuh"

constexpr int SQUARE_BYTES = SQUARE * SQUARE * 2;

// Where a token's half of 32 columns begins, in bytes; its chunk j is at `half_chunk(token, half, j)`.
__device__ __forceinline__ u64 token_row(u32 token, u32 column, int stride) {
    return ((u64)(token / SQUARE) * (stride / SQUARE) + column / SQUARE) * SQUARE_BYTES + token % SQUARE * 128;
}
__device__ __forceinline__ u32 half_chunk(u32 token, u32 half, u32 j) { return ((half * 4 + j) ^ token % 8) * 16; }

// Where a number lies.
__device__ __forceinline__ u64 tiled_place(u32 token, u32 column, int stride) {
    return token_row(token, column, stride) + half_chunk(token, column / 32 % 2, column % 8 / 2) + column % 32 / 8 * 4 + column % 2 * 2;
}

// Four words of each lane of a quad, transposed: lane c gets word c of every lane.
__device__ __forceinline__ uint4 quad_transpose(uint4 v, int lane) {
    const bool odd = lane & 1, late = lane & 2;
    // Pairs of lanes, then pairs of pairs: each keeps one word of two and sends the other.
    const u32 a = __shfl_xor_sync(FULL, odd ? v.x : v.y, 1), b = __shfl_xor_sync(FULL, odd ? v.z : v.w, 1);
    const u32 x = odd ? a : v.x, y = odd ? v.y : a, z = odd ? b : v.z, w = odd ? v.w : b;
    const u32 c = __shfl_xor_sync(FULL, late ? x : z, 2), d = __shfl_xor_sync(FULL, late ? y : w, 2);
    return late ? make_uint4(c, d, z, w) : make_uint4(x, y, c, d);
}
