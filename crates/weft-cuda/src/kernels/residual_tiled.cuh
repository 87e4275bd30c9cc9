// Products of blocks of tokens that are added to the residual stream (sm_90a): `proj_add` and
// `down_add`.
#pragma once

#include "kernels/coded_tiled.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// x: bf16 [tokens][HIDDEN_STRIDE]. Rows beyond the last are zero, like their weights.
template <class W, int UNITS, int TOKENS>
__device__ __forceinline__ void add_product_tiles(const Step &step, const u8 *weights, const u8 *input, const u8 *sums, u16 *x) {
    const u32 tokens = n_tokens(step);
    multiply_matrix_tiles<W, UNITS, TOKENS>(weights, (HIDDEN + BLOCK_ROWS - 1) / BLOCK_ROWS, input, sums, tokens,
                                            [&](u32 first_token, u32 first_row, const float (&sums)[TOKENS / 2], u8 *memory) {
        constexpr int PARTS = TOKENS / STAGED_TOKENS;
        const Staged staged(memory);
        const auto token = [&](int part, int i) { return first_token + part * STAGED_TOKENS + staged.token(i); };
        const auto place = [&](int part, int i) { return (uint4 *)(x + (u64)token(part, i) * HIDDEN_STRIDE + first_row + staged.row()); };
        // What sums are added to is read one part ahead.
        uint4 before[STAGED_CHUNKS];
        const auto read = [&](int part) {
#pragma unroll
            for (int i = 0; i < STAGED_CHUNKS; ++i)
                before[i] = token(part, i) < tokens ? load_fresh(place(part, i)) : make_uint4(0, 0, 0, 0);
        };
        read(0);
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
#pragma unroll
            for (int i = 0; i < STAGED_CHUNKS; ++i) *staged.chunk(i) = before[i];
            staged.meet();
            if (part + 1 < PARTS) read(part + 1);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float *s = sums + (part * 4 + i) * 8;
                const uint4 old = load_transposed(staged.fragments(i));
                store_transposed(staged.fragments(i), round_pair(low(old.x) + s[0], high(old.x) + s[1]),
                                 round_pair(low(old.y) + s[2], high(old.y) + s[3]), round_pair(low(old.z) + s[4], high(old.z) + s[5]),
                                 round_pair(low(old.w) + s[6], high(old.w) + s[7]));
            }
            staged.meet();
#pragma unroll
            for (int i = 0; i < STAGED_CHUNKS; ++i)
                if (token(part, i) < tokens) *place(part, i) = *staged.chunk(i);
        }
    });
}

#endif
