// Attention over pages of 64 rows, in one order for one token or a thousand.
//
// SECTION_PAGES pages of a span are a *section*; a span may begin in the middle of its first page.
// Inside a section pages are taken in order: (m, l, acc) is the pivot, the sum of weights and the
// weighted sum of values, rescaled where the pivot rises. Sections are then folded in the order of
// the spans. Both attend kernels use the functions below, so where a token is computed does not
// show. A *cell* is what a section and a stretch between two marks have in common: the squares of
// its rows' weights are summed in the order of the section's own sums, with all other weights taken
// as zero, up to the last page that the stretch has rows in. Its pivot is that after this page, so
// that pages of later stretches do not rescale it. A score tile is 16 queries x 64
// rows: lane 4g + c holds queries g and g + 8, and of each eighth of the page rows 2c, 2c + 1.
// Weights enter the value product in bf16; the definition does not round them (docs/kernels.md).
#pragma once

#include "kernels/base.cuh"

constexpr int DIM_UNITS = DIM / 32, DIM_TILES = DIM / 8;
constexpr int QUERY_STRIDE = DIM + 8; // elements of a query in shared memory; the gap spreads banks

// Scores are weighed against a *pivot*, in units of log2. It is the largest score of a section's first
// page, until a page has one that is more than SLACK above it: then it rises to that page's largest.
// In other online softmaxes it rises with every larger score, and sums are rescaled for most pages;
// but large floats are as precise as small ones. Weights are at most 2^48, so a section's sums of 256
// weights or squares are at most 2^104; so are sums of weights when sections are folded, by the same
// rule, into others whose pivot is up to SLACK below theirs.
constexpr float SLACK = 48.0f;
__device__ __forceinline__ bool is_raised(float pivot, float top) { return top > pivot + SLACK; }
__device__ __forceinline__ float raised(float pivot, float top) { return is_raised(pivot, top) ? top : pivot; }
// A pivot that can be subtracted: of no rows at all it is minus infinity.
__device__ __forceinline__ float finite(float pivot) { return pivot == NEVER ? 0.0f : pivot; }

// Rows that are not seen weigh nothing. Products are scaled, to units of log2, when they are
// weighed.
__device__ __forceinline__ float score(float product, bool seen) { return seen ? product : NEVER; }

__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(FULL, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(FULL, x, 1);
    return x + __shfl_xor_sync(FULL, x, 2);
}

__device__ __forceinline__ float add_squares(float squares, u32 pair) {
    return __fmaf_rn(low(pair), low(pair), __fmaf_rn(high(pair), high(pair), squares));
}

// What the weight of a score is a power of two of, against a pivot that is finite.
__device__ __forceinline__ float exponent_of(float product, float pivot) { return __fmaf_rn(product, SCALE_LOG2, -pivot); }
// The sum of a lane's eight weights of half a page, of which `of(i)` is one: before they are rounded.
template <class Of> __device__ __forceinline__ float sum_weights(Of of) {
    return ((of(0) + of(1)) + (of(2) + of(3))) + ((of(4) + of(5)) + (of(6) + of(7)));
}
// The sum of their squares, of rounded ones.
__device__ __forceinline__ float sum_squares(uint4 weights) {
    return add_squares(add_squares(add_squares(add_squares(0.0f, weights.x), weights.y), weights.z), weights.w);
}
// The weights of half a page for one query: four pairs of scores in; rounded weights and the sum of
// weights out.
__device__ __forceinline__ float weigh(const float (&pairs)[8], float pivot, uint4 &weights) {
    float w[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) w[i] = exp2_of(exponent_of(pairs[i], pivot));
    weights = make_uint4(round_pair(w[0], w[1]), round_pair(w[2], w[3]), round_pair(w[4], w[5]), round_pair(w[6], w[7]));
    return sum_weights([&](int i) { return w[i]; });
}

// Squares of rows before `cut` and from it on, summed as `weigh` does. It is counted from the
// lane's first row.
__device__ __forceinline__ float2 cut_squares(uint4 weights, int cut) {
    const u32 w[4] = {weights.x, weights.y, weights.z, weights.w};
    float before = 0.0f, after = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float a = low(w[i]), b = high(w[i]);
        if (i * 8 + 1 < cut) before = __fmaf_rn(b, b, before);
        else after = __fmaf_rn(b, b, after);
        if (i * 8 < cut) before = __fmaf_rn(a, a, before);
        else after = __fmaf_rn(a, a, after);
    }
    return make_float2(before, after);
}

// The sum of squares that `weigh` would give with all weights as zero but those of rows `begin` to
// `end`. `row` is that of the lane's first weight.
__device__ __forceinline__ float squares_between(uint4 weights, u32 row, u32 begin, u32 end) {
    const u32 w[4] = {weights.x, weights.y, weights.z, weights.w};
    const u32 before = row - begin, n = end - begin; // one comparison for both ends: rows before `begin` wrap round
    float squares = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 4; ++i)
        squares = add_squares(squares, w[i] & ((before + i * 8 < n ? 0xffffu : 0u) | (before + i * 8 + 1 < n ? 0xffff0000u : 0u)));
    return squares;
}

// What blanks the rows from `rows` on in a unit of values, half `half` of a page: memory that was
// never written may hold anything, and nothing times NaN is NaN.
__device__ __forceinline__ uint4 value_mask(int rows, int half, int lane) {
    u32 mask[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = half * 32 + i * 8 + lane % 4 * 2;
        mask[i] = row + 1 < rows ? 0xffffffffu : row < rows ? 0x0000ffffu : 0u;
    }
    return make_uint4(mask[0], mask[1], mask[2], mask[3]);
}
__device__ __forceinline__ uint4 masked(uint4 v, uint4 mask) {
    return make_uint4(v.x & mask.x, v.y & mask.y, v.z & mask.z, v.w & mask.w);
}

// total = total * a + part * b, and the factors of a fold: of what is there, and of what comes. The
// former is one where the pivot stays.
__device__ __forceinline__ float fold(float total, float a, float part, float b) {
    return __fmaf_rn(part, b, __fmul_rn(total, a));
}
struct Factors {
    float a, b;
};
__device__ __forceinline__ Factors fold_factors(float before, float part, float after) {
    return {exp2_of(before - finite(after)), exp2_of(part - finite(after))};
}
