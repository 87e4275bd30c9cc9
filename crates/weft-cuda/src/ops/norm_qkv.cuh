// What kernels of `norm_qkv` share.
#pragma once

#include "kernels/base.cuh"

// Puts a row of the three projections where it belongs, with its bias where the model has one.
struct QkvStore {
    const u16 *bias; // bf16 [QKV_ROWS]
    u16 *q, *k, *v;
    __device__ __forceinline__ float biased(u32 row, float sum) const {
        return QKV_BIAS ? sum + widen(bias[row]) : sum;
    }
    __device__ __forceinline__ u16 *place(u32 token, u32 row) const {
        if (row < Q_WIDTH) return q + (u64)token * Q_WIDTH + row;
        if (row < Q_WIDTH + KV_WIDTH) return k + (u64)token * KV_WIDTH + row - Q_WIDTH;
        return v + (u64)token * KV_WIDTH + row - Q_WIDTH - KV_WIDTH;
    }
};
