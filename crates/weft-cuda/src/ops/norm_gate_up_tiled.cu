#include "generated/matrices.cuh"
#include "kernels/coded_tiled.cuh"
#include "ops/norm_gate_up.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// a / b, rounded to nearest, if both and the quotient are far from the least and the greatest numbers:
// the instructions that the compiler makes of a division, without its branch for other numbers, which
// makes quotients wait for one another.
__device__ __forceinline__ float plain_quotient(float a, float b) {
    const float near = reciprocal_near(b), r = __fmaf_rn(near, __fmaf_rn(-b, near, 1.0f), near);
    const float q = __fmul_rn(a, r);
    return __fmaf_rn(r, __fmaf_rn(-b, q, a), q);
}

// `gated` for fragments of two gates and their two ups each: the same bits, many at once if all gates
// have plain quotients.
template <int N> __device__ __forceinline__ void gate_fragments(u32 (&pairs)[N], const float *sums) {
    float least = 1.0f, most = 1.0f;
#pragma unroll
    for (int i = 0; i < N; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const float gate = fabsf(sums[i * 4 + j]);
            least = fminf(least, gate), most = fmaxf(most, gate);
        }
    // Divisors lie between 1 and 2^116, quotients beyond 2^-110. What is NaN stays NaN either way.
    const bool plain = least > 0x1p-60f && most < 80.0f;
    if (plain) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const float *s = sums + i * 4;
            pairs[i] = round_pair(plain_quotient(s[0], 1.0f + expf(-s[0])) * s[2], plain_quotient(s[1], 1.0f + expf(-s[1])) * s[3]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const float *s = sums + i * 4;
            pairs[i] = round_pair(gated(s[0], s[2]), gated(s[1], s[3]));
        }
    }
}

template <class W, int TOKENS>
__device__ __forceinline__ void multiply_gate_up_tiles(const Step &step, const u8 *weights, const u8 *n, const u8 *sums_of_runs, u8 *h) {
    const u32 tokens = n_tokens(step);
    multiply_matrix_tiles<W, HIDDEN_UNITS, TOKENS>(weights, (W::ALL_TILES * 8 + BLOCK_ROWS - 1) / BLOCK_ROWS, n, sums_of_runs, tokens,
                                                   [&](u32 first_token, u32 first_row, const float (&sums)[TOKENS / 2], u8 *memory) {
        // A warp has a tile of gate and its tile of up: eight columns of h. A group has half a
        // square of them. What is beyond the last column is zero, like its weights.
        const Staged staged(memory);
        const u32 column = first_row / 2;
#pragma unroll
        for (int part = 0; part < TOKENS / STAGED_TOKENS; ++part) {
            u32 pairs[STAGED_TOKENS / 8];
            gate_fragments(pairs, sums + part * (STAGED_TOKENS / 2));
#pragma unroll
            for (int i = 0; i < 2; ++i)
                store_transposed(memory + (i * 32 + staged.lane) * STAGED_STRIDE + staged.warp * 16, pairs[i * 4], pairs[i * 4 + 1], pairs[i * 4 + 2],
                                 pairs[i * 4 + 3]);
            staged.meet();
            const u32 own = staged.thread / 2, side = staged.thread % 2, token = first_token + part * STAGED_TOKENS + own;
            uint2 words[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) words[i] = *(const uint2 *)(memory + own * STAGED_STRIDE + i * 16 + side * 8);
            if (token < tokens) {
                u8 *to = h + token_row(token, column, INTER_STRIDE);
                const u32 half = column / 32 % 2;
                *(uint4 *)(to + half_chunk(token, half, side * 2)) = make_uint4(words[0].x, words[1].x, words[2].x, words[3].x);
                *(uint4 *)(to + half_chunk(token, half, side * 2 + 1)) = make_uint4(words[0].y, words[1].y, words[2].y, words[3].y);
            }
            staged.meet();
        }
    });
}

// Computes   h = silu(n * W_gate) * (n * W_up), for blocks of tokens; n is what norm_rows made.
// Layout     weights: packed in units, tiles of eight gate rows and of eight up rows in turn; n, h:
//            bf16 in squares (tiled.cuh).
// Work split a cluster of two blocks owns some tokens x 256 rows at a time, half of them gate and
//            half of them up (matmul_tiled.cuh,
//            coded_tiled.cuh).
// Rounding   h once.
// Moves      weights and n once from memory, then from L2: bound by arithmetic.
#define KERNEL(SUFFIX, W, TOKENS) \
    extern "C" __global__ void TILED_BOUNDS \
    norm_gate_up_tiled_##TOKENS##SUFFIX(Step step, const u8 *weights, const u8 *n, const u8 *sums, u8 *h) { \
        multiply_gate_up_tiles<W, TOKENS>(step, weights, n, sums, h); \
    }
GATE_UP_TILED_KERNELS(KERNEL)
#undef KERNEL

#endif
