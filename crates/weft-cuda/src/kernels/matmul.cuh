// The product of a matrix with a block of tokens, by tensor cores.
//
// A block of 16 warps owns 128 tokens x 128 rows, a warp 32 tokens x 32 rows. Columns come in stages of 64
// through a ring. Sums are cut and added as `matvec.cuh` cuts and adds them: an eighth of the
// columns in order, then the eighths in order. So a row of a prompt has the bits that the same
// token has when it is decoded alone.

constexpr int BLOCK_TOKENS = 128, BLOCK_TILES = 16;
constexpr int BLOCK_STAGES = 4, BLOCK_THREADS = 512;
constexpr int HALF_STAGE = 128 * 64 * 2;               // bytes of the tokens' part, and of the rows'
constexpr int BLOCK_STAGE = 2 * HALF_STAGE;

// One stage: 64 columns from `column` on. Both parts lie in units: [8 rows][2 units][lane].
__device__ __forceinline__ void load_stage(u8 *stage, const u8 *weights, const u16 *x, int stride, int n_units,
                                           int first_tile, u32 first_token, u32 tokens, int column) {
#pragma unroll
    for (int i = 0; i < 1024 / BLOCK_THREADS; ++i) {
        const int chunk = threadIdx.x + i * BLOCK_THREADS, row = chunk / 8, k = chunk % 8;
        u8 *to = stage + ((row / 8 * 2 + k / 4) * UNIT + row % 8 * 4 + k % 4) * 16;
        const u32 token = min(first_token + row, tokens - 1);
        copy_chunk(to, x + (u64)token * stride + column + k * 8);
    }
#pragma unroll
    for (int i = 0; i < 1024 / BLOCK_THREADS; ++i) {
        const int chunk = threadIdx.x + i * BLOCK_THREADS, tile = chunk / 64;
        const u8 *from = weights + ((u64)(first_tile + tile) * n_units + column / 32) * UNIT_BYTES;
        copy_chunk(stage + HALF_STAGE + chunk * 16, from + chunk % 64 * 16);
    }
}

// Hands sums to `store(token, first of four tiles, column in each, pairs of sums)`.
template <int UNITS, class Store>
__device__ __forceinline__ void multiply_block(const u8 *weights, const u16 *x, int stride, u32 tokens, Store store) {
    constexpr int ALL_UNITS = UNITS * WARPS, STEPS = ALL_UNITS / 2;
    extern __shared__ __align__(128) u8 stages[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first_tile = blockIdx.x * BLOCK_TILES;
    const u32 first_token = blockIdx.y * BLOCK_TOKENS;
    const int warp_token = warp % 4 * 32, warp_tile = warp / 4 * 4;
    float sum[2][4][4] = {}, total[2][4][4] = {};
    int in_eighth = 0;

    for (int s = 0; s < BLOCK_STAGES - 1; ++s) {
        if (s < STEPS)
            load_stage(stages + s * BLOCK_STAGE, weights, x, stride, ALL_UNITS, first_tile, first_token, tokens, s * 64);
        commit_copies();
    }
    for (int s = 0; s < STEPS; ++s) {
        await_copies<BLOCK_STAGES - 2>();
        __syncthreads();
        const int next = s + BLOCK_STAGES - 1;
        if (next < STEPS)
            load_stage(stages + next % BLOCK_STAGES * BLOCK_STAGE, weights, x, stride, ALL_UNITS, first_tile,
                       first_token, tokens, next * 64);
        commit_copies();
        const uint4 *a = (const uint4 *)(stages + s % BLOCK_STAGES * BLOCK_STAGE) + lane;
        const uint4 *b = a + HALF_STAGE / 16;
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            uint4 rows[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) rows[j] = b[((warp_tile + j) * 2 + k) * UNIT];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint4 upper = a[((warp_token / 8 + i * 2) * 2 + k) * UNIT];
                const uint4 lower = a[((warp_token / 8 + i * 2 + 1) * 2 + k) * UNIT];
#pragma unroll
                for (int j = 0; j < 4; ++j) mma32(sum[i][j], upper, lower, rows[j]);
            }
            if (++in_eighth == UNITS) {
                in_eighth = 0;
#pragma unroll
                for (int i = 0; i < 2; ++i)
#pragma unroll
                    for (int j = 0; j < 4; ++j)
#pragma unroll
                        for (int e = 0; e < 4; ++e) total[i][j][e] += sum[i][j][e], sum[i][j][e] = 0.0f;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const u32 token = first_token + warp_token + i * 16 + half * 8 + lane / 4;
            if (token < tokens) {
                float pairs[4][2];
#pragma unroll
                for (int j = 0; j < 4; ++j) pairs[j][0] = total[i][j][half * 2], pairs[j][1] = total[i][j][half * 2 + 1];
                store(token, first_tile + warp_tile, lane % 4 * 2, pairs);
            }
        }
}
