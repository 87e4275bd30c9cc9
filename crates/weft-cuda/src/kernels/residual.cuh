// Products that are added to the residual stream: `proj_add` and `down_add`.
#pragma once

#include "kernels/coded_block.cuh"
#include "kernels/matvec.cuh"

// Adds sums to the residual stream, rounding once.
struct AddStore {
    u16 *x; // bf16 [tokens][HIDDEN_STRIDE]
    __device__ __forceinline__ u16 *place(u32 token, u32 row) const { return x + (u64)token * HIDDEN_STRIDE + row; }
};

// Adds the sums of a few tokens. What they are added to is read while the product is computed, as
// far as a block's first batch of groups goes.
template <class M> struct FewStore {
    AddStore to;
    u16 before[(M::SETS + 3) / 4][M::STORED];
    __device__ __forceinline__ void begin(int first_set, u32 n_tokens) {
        const u32 token = threadIdx.x % 64 / 8;
#pragma unroll
        for (int i = 0; i < (M::SETS + 3) / 4; ++i)
#pragma unroll
            for (int tile = 0; tile < M::STORED; ++tile) {
                const u32 r = ((first_set + threadIdx.x / 64 + i * 4) * M::STORED + tile) * 8 + threadIdx.x % 8;
                before[i][tile] = token < n_tokens && r < HIDDEN ? load_fresh(to.place(token, r)) : 0;
            }
    }
    __device__ __forceinline__ void operator()(int set, int i, bool early, u32 token, u32 row, const float (&sums)[M::STORED]) {
#pragma unroll
        for (int tile = 0; tile < M::STORED; ++tile) {
            const u32 r = (set * M::STORED + tile) * 8 + row;
            if (r < HIDDEN) {
                u16 *at = to.place(token, r);
                *at = round_one(widen(early ? before[i][tile] : load_fresh(at)) + sums[tile]);
            }
        }
    }
};

// The product of either residual op with up to eight tokens.
template <class M>
__device__ __forceinline__ void add_product(const Step &step, const u8 *weights, int n_tiles, const u16 *input,
                                            int stride, AddStore to) {
    multiply_rows<M>(weights, n_tiles, input, stride, step, FewStore<M>{to});
}

// And with blocks of tokens.
template <class W, int UNITS>
__device__ __forceinline__ void add_product_block(const Step &step, const u8 *weights, const u16 *input, int stride,
                                                  AddStore to) {
    multiply_matrix_block<W, UNITS>(weights, input, stride, n_tokens(step),
                          [&](u32 token, u32 tile, u32 column, const float (&sums)[4][2]) {
        // Rows are padded to whole pairs. All four are read before any is written.
        u32 before[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const u32 r = (tile + j) * 8 + column;
            before[j] = r < HIDDEN ? *(const u32 *)to.place(token, r) : 0;
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const u32 r = (tile + j) * 8 + column;
            if (r < HIDDEN)
                *(u32 *)to.place(token, r) = round_pair(low(before[j]) + sums[j][0], high(before[j]) + sums[j][1]);
        }
    });
}
