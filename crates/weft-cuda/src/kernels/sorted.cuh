// The routes of a prompt, sorted by expert on the GPU. Each expert's tokens have positions that
// follow one another, from a multiple of 64 on; a tile is some of them. Nothing is padded to the
// expert that has most tokens, and the host knows only how many positions and tiles there can be.
#pragma once

#include "kernels/routing.cuh"
#include "kernels/tiled.cuh"

// How many positions and tiles there are: the first words of `totals`, which kernels of rows take for
// the counts of a step.
__device__ __forceinline__ u32 n_positions(const Sorted &sorted) { return load_fresh(sorted.totals + 0); }
__device__ __forceinline__ u32 n_expert_tiles(const Sorted &sorted) { return load_fresh(sorted.totals + 1); }
__device__ __forceinline__ ExpertTile expert_tile(const ExpertTile *tiles, u32 i) {
    const uint4 words = load_fresh((const uint4 *)(tiles + i));
    return ExpertTile{words.x, words.y, words.z, words.w};
}
// Where the token of a route lies.
__device__ __forceinline__ u32 position_of(const Sorted &sorted, const Route *routes, u32 route) {
    return load_fresh(sorted.starts + load_fresh((const u32 *)&routes[route].expert)) + load_fresh(sorted.slots + route);
}

// Stores a chunk of eight columns of each lane of a quad, which have 32 columns of one position.
__device__ __forceinline__ void store_chunk(u16 *to, u32 position, u32 column, int stride, uint4 chunk, uint4 turned, int lane) {
    if (TILED) *(uint4 *)((u8 *)to + token_row(position, column, stride) + half_chunk(position, column / 32 % 2, lane % 4)) = turned;
    else *(uint4 *)(to + (u64)position * stride + column) = chunk;
}
