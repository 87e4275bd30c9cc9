// RMSNorm of rows, in one order of summation for one token or a thousand: eight warps each hold an
// eighth of a row, lane 4g + c of each warp the columns 8c .. 8c + 7 of every 32, for token g of
// eight. Squares are added lane by lane, over the four lanes of a quad, then over the warps.
#pragma once

#include "kernels/base.cuh"

// 1 / sqrt(mean of squares + eps) of a token, from the sums of all warps.
template <int WIDTH> __device__ __forceinline__ float scale_of(const float (&squares)[WARPS][8], int token) {
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) total += squares[w][token];
    return 1.0f / sqrtf(total / (float)WIDTH + NORM_EPS);
}

// That of the row that this lane's quad holds.
template <int UNITS, int WIDTH>
__device__ __forceinline__ float norm_scale(const uint4 (&x)[UNITS], float (&squares)[WARPS][8],
                                            int warp, int lane) {
    float sums[4] = {};
#pragma unroll
    for (int i = 0; i < UNITS; ++i) {
        const u32 pairs[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
#pragma unroll
        for (int p = 0; p < 4; ++p) {
            sums[p] = __fmaf_rn(low(pairs[p]), low(pairs[p]), sums[p]);
            sums[p] = __fmaf_rn(high(pairs[p]), high(pairs[p]), sums[p]);
        }
    }
    float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    sum += __shfl_xor_sync(FULL, sum, 1);
    sum += __shfl_xor_sync(FULL, sum, 2);
    if (lane % 4 == 0) squares[warp][lane / 4] = sum;
    meet();
    return scale_of<WIDTH>(squares, lane / 4);
}

// Rounds twice, as the models were trained with: the normalised value, then its product.
__device__ __forceinline__ u32 normalise_pair(u32 x, u32 weight, float scale) {
    u32 n = round_pair(low(x) * scale, high(x) * scale);
    return round_pair(low(n) * low(weight), high(n) * high(weight));
}

__device__ __forceinline__ uint4 normalise(uint4 x, uint4 weight, float scale) {
    return make_uint4(normalise_pair(x.x, weight.x, scale), normalise_pair(x.y, weight.y, scale),
                      normalise_pair(x.z, weight.z, scale), normalise_pair(x.w, weight.w, scale));
}

// A norm's weights for a warp's columns, asked for before the row is there. If they are many, each of
// them is in one lane until it is wanted, so that they take few registers.
template <int UNITS> struct NormWeights {
    static constexpr bool ARE_FEW = UNITS <= TWO_BLOCKS_UNITS;
    static constexpr int OWN = ARE_FEW ? UNITS : (UNITS * 4 + 31) / 32;
    uint4 own[OWN];
    __device__ __forceinline__ NormWeights(const uint4 *norm, int warp, int lane) {
#pragma unroll
        for (int i = 0; i < OWN; ++i) own[i] = norm[warp * UNITS * 4 + (ARE_FEW ? i * 4 + lane % 4 : min(i * 32 + lane, UNITS * 4 - 1))];
    }
    // Those of this lane's columns of a unit. Called by a whole warp.
    __device__ __forceinline__ uint4 of(int unit, int lane) const {
        if (ARE_FEW) return own[unit];
        const uint4 &all = own[unit / 8];
        const int from = unit % 8 * 4 + lane % 4;
        return make_uint4(__shfl_sync(FULL, all.x, from), __shfl_sync(FULL, all.y, from), __shfl_sync(FULL, all.z, from), __shfl_sync(FULL, all.w, from));
    }
};

// The norm of one row by all lanes, where quads would leave 28 of 32 idle: lane l holds columns 4l
// .. 4l + 3 of this warp's UNITS * 32. Squares are added by 16 lanes in the order of `norm_scale`:
// those of two columns over the units, then over the pairs of a chunk, then over chunks.
// Neighbours' columns pass through `stage`.
template <int UNITS> struct OneRow {
    static constexpr int FOURS = UNITS * 8, OWN = (FOURS + 31) / 32;
    typedef uint2 Stage[FOURS];
    Stage &stage;
    int lane;
    uint2 weight[OWN], own[OWN];
    __device__ __forceinline__ OneRow(Stage &stage, const uint4 *norm, int warp, int lane) : stage(stage), lane(lane) {
#pragma unroll
        for (int i = 0; i < OWN; ++i) weight[i] = ((const uint2 *)norm)[warp * FOURS + min(i * 32 + lane, FOURS - 1)];
    }
    __device__ __forceinline__ void load(const u16 *x, int warp) {
#pragma unroll
        for (int i = 0; i < OWN; ++i) own[i] = load_fresh((const uint2 *)x + warp * FOURS + min(i * 32 + lane, FOURS - 1));
    }
    // Hands the units to lanes as `mma32` wants them.
    template <int WIDTH> __device__ __forceinline__ void normalised(uint4 (&units)[UNITS], float (&squares)[WARPS][8], int warp) {
        put();
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < UNITS; ++i) {
            const u32 pair = ((const u32 *)stage)[i * 16 + lane % 16];
            sum = __fmaf_rn(low(pair), low(pair), sum);
            sum = __fmaf_rn(high(pair), high(pair), sum);
        }
#pragma unroll
        for (int other = 1; other < 16; other *= 2) sum += __shfl_xor_sync(FULL, sum, other);
        if (lane == 0) squares[warp][0] = sum;
        meet();
        const float scale = scale_of<WIDTH>(squares, 0);
#pragma unroll
        for (int i = 0; i < OWN; ++i)
            own[i] = make_uint2(normalise_pair(own[i].x, weight[i].x, scale), normalise_pair(own[i].y, weight[i].y, scale));
        put();
#pragma unroll
        for (int i = 0; i < UNITS; ++i) units[i] = lane < 4 ? ((const uint4 *)stage)[i * 4 + lane] : make_uint4(0, 0, 0, 0);
        __syncwarp(); // the stage may be written to after that
    }
    __device__ __forceinline__ void put() {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < OWN; ++i)
            if (i * 32 + lane < FOURS) stage[i * 32 + lane] = own[i];
        __syncwarp();
    }
};
