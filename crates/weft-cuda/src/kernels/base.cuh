// What every kernel stands on: bf16 pairs, products of whole units, and the lists of a step. No
// CUDA header is needed. Sums are written with explicit rounding (the module is compiled without
// contraction), so that two kernels that add the same numbers in the same order give the same bits.
#pragma once

#include "generated/constants.cuh"
#include "kernels/ptx.cuh"
#include "kernels/types.cuh"

constexpr u32 FULL = 0xffffffffu;
#define NEVER __uint_as_float(0xff800000u)

// ---- bf16 --------------------------------------------------------------------------------------
__device__ __forceinline__ float low(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ float widen(u16 value) { return __uint_as_float((u32)value << 16); }

__device__ __forceinline__ u16 round_one(float value) { return (u16)round_pair(value, 0.0f); }
__device__ __forceinline__ float rounded(float value) { return low(round_pair(value, 0.0f)); }

// ---- the product -------------------------------------------------------------------------------
// `mma` over 32 columns of a. A *unit* is 8 rows x 32 columns of a row-major matrix: lane 4g + c
// holds columns 8c .. 8c + 7 of row g, 16 bytes as they lie in memory. Which of the 32 columns meet
// in one instruction is the same for every kernel, and so is the sum.
__device__ __forceinline__ void mma32(float (&d)[4], uint4 upper, uint4 lower, uint4 b) {
    mma(d, upper.x, lower.x, upper.y, lower.y, b.x, b.y);
    mma(d, upper.z, lower.z, upper.w, lower.w, b.z, b.w);
}
// Two units as the product takes them: rows in turn. Made once where they meet many units: left to
// itself the compiler moves registers before every product. `zero` must be nothing that it can
// know.
struct Interleaved {
    u32 of[8];
    __device__ __forceinline__ Interleaved() {}
    __device__ __forceinline__ Interleaved(uint4 upper, uint4 lower, u32 zero)
        : of{upper.x ^ zero, lower.x ^ zero, upper.y ^ zero, lower.y ^ zero,
             upper.z ^ zero, lower.z ^ zero, upper.w ^ zero, lower.w ^ zero} {}
};
__device__ __forceinline__ u32 unknown_zero() { return gridDim.z - 1; }
__device__ __forceinline__ void mma32(float (&d)[4], const Interleaved &a, uint4 b) {
    mma(d, a.of[0], a.of[1], a.of[2], a.of[3], b.x, b.y);
    mma(d, a.of[4], a.of[5], a.of[6], a.of[7], b.z, b.w);
}
constexpr int UNIT = UNIT_BYTES / 16;

// Of a tile's units each of eight warps owns an eighth that follow one another. They lie in that
// order where an eighth is short; where it is long, in strips: the first few of every warp, then
// the next few. A strip is copied in one piece.
// If there are coded units, which are smaller, a strip has as many as STRIP_BYTES hold of
// `coded_bytes`, but strips are of equal length.
constexpr int equal_parts(int n, int most) { return (n + (n + most - 1) / most - 1) / ((n + most - 1) / most); }
constexpr int coded_strip_units(int eighth, int most) {
    for (int units = most; units * 2 > most && units < eighth; --units)
        if (eighth % units == 0) return units;
    return equal_parts(eighth, most);
}
constexpr int strip_units(int eighth, int coded_bytes = 0) {
    return coded_bytes > 0 ? coded_strip_units(eighth, STRIP_BYTES / (8 * coded_bytes)) : eighth <= LONGEST_STRIP ? eighth : SHORT_STRIP;
}
constexpr int strips(int eighth, int coded_bytes = 0) { return (eighth + strip_units(eighth, coded_bytes) - 1) / strip_units(eighth, coded_bytes); }
// Units of each chain but the last.
constexpr int chain_units(int eighth, int chains) { return (eighth + chains - 1) / chains; }
// Where a unit of a tile lies, counted in units.
template <int EIGHTH, int CODED_BYTES = 0> __device__ __forceinline__ int unit_place(int unit) {
    constexpr int LONG = strip_units(EIGHTH, CODED_BYTES);
    if (LONG == EIGHTH) return unit;
    const int warp = unit / EIGHTH, own = unit % EIGHTH, strip = own / LONG;
    return strip * 8 * LONG + warp * min(LONG, EIGHTH - strip * LONG) + own % LONG;
}

// ---- the step ----------------------------------------------------------------------------------
// Where the lists of a step lie in device memory. The addresses never change, their contents do, so
// they are read past L1 too: a kernel that starts early may find there what an earlier step left.
struct Step {
    const u32 *counts;        // n_tokens, n_outputs, n_items, n_tiles
    const u32 *tokens;        // [tokens]
    const u32 *positions;     // [tokens]
    const u32 *key_positions; // [tokens]
    const u32 *slots;         // [tokens]: the KV row that a token writes
    const u32 *outputs;       // [outputs]: the token of each row of logits
    const u32 *partials;      // [tokens][4]: how many parts a token's attention has, the first, how many cells, the first
    const u32 *attention;     // items of `attend`, or tiles and groups of `attend_block`
};
__device__ __forceinline__ u32 n_tokens(const Step &step) { return load_fresh(step.counts + 0); }
__device__ __forceinline__ u32 n_outputs(const Step &step) { return load_fresh(step.counts + 1); }
__device__ __forceinline__ u32 n_items(const Step &step) { return load_fresh(step.counts + 2); }
__device__ __forceinline__ u32 n_tiles(const Step &step) { return load_fresh(step.counts + 3); }
