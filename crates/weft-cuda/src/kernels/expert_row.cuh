// The product of a few rows of an expert's `down` with one row of its input, by one warp.
//
// Eighths of so short a row take less time by one warp than what warps do to share them. They are
// the columns of a product: so a lane holds all of the row that it needs in a few registers, and of
// the products of an eighth one column counts. Each eighth is summed by itself, as every kernel does.
#pragma once

#include "generated/experts.cuh"
#include "kernels/coded.cuh"

// Forms whose units take few enough registers, and have one number of a row.
template <class F> constexpr bool has_small_units() {
    if constexpr (F::IS_PLAIN) return false;
    else return F::BYTES <= 144 && F::RUNS == 1 && !F::HAS_OFFSET;
}

// A row of the input: eighth g in lanes 4g to 4g + 3.
struct ExpertRow {
    uint4 units[EXPERT_UNITS];
};
// The products of two tiles with a row, of which the second lies `to_lower` bytes behind the first: of
// row g of each tile, in lane 4g + 3. Lane 4g + c keeps those of eighths 2c and 2c + 1.
template <class F> __device__ __forceinline__ void multiply_row(float (&total)[2], const u8 *upper, int to_lower, const ExpertRow &x, int lane) {
    static_assert(has_small_units<F>(), "one number of a row and unit");
    static_assert(WARPS == 8, "an eighth for each column");
    float kept[2][2];
#pragma unroll 1
    for (int two = 0; two < 4; ++two) {
        float sum[2][2] = {};
#pragma unroll
        for (int u = 0; u < 2 * EXPERT_UNITS; ++u) {
            const u8 *unit = upper + u * F::BYTES, *lower = unit + to_lower;
            const int odd = u / EXPERT_UNITS;
            const PairNumbers<F> numbers(unit, lower, lane);
            float products[4] = {};
            mma32(products, unpack_pair<F>(unit, lower, lane, 0), x.units[u % EXPERT_UNITS]);
#pragma unroll
            for (int tile = 0; tile < 2; ++tile) sum[odd][tile] = __fmaf_rn(numbers.of[tile].of[0].scale, products[tile * 2 + odd], sum[odd][tile]);
        }
        if (lane % 4 == two)
#pragma unroll
            for (int i = 0; i < 4; ++i) kept[i / 2][i % 2] = sum[i / 2][i % 2];
        upper += 2 * EXPERT_UNITS * F::BYTES;
    }
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) total[tile] = kept[0][tile] + kept[1][tile];
#pragma unroll
    for (int c = 1; c < 4; ++c)
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
            const float before = __shfl_up_sync(FULL, total[tile], 1);
            if (lane % 4 == c) total[tile] = (before + kept[0][tile]) + kept[1][tile];
        }
}
