// Matrix products of the persistent kernel: the sums of `matvec.cuh` in their order, so the same bits; but a block
// computes more tiles together, because here the time is that of a chain of instructions.

// A matrix of `ROWS_` rows, cut for N_BLOCKS blocks. TOGETHER tiles of eight rows belong together.
template <int ROWS_, int UNITS_, int TOGETHER_> struct Matrix {
    static constexpr int UNITS = UNITS_, TOGETHER = TOGETHER_;
    static constexpr int GROUPS = (ROWS_ + 8 * TOGETHER - 1) / (8 * TOGETHER);
    static constexpr int MOST_TILES = (GROUPS + N_BLOCKS - 1) / N_BLOCKS * TOGETHER; // that a block owns
    static constexpr int TILES = MOST_TILES <= 6 ? MOST_TILES : 4;                   // computed at once
    static constexpr int PARTS = (UNITS + PART_UNITS - 1) / PART_UNITS;
    static constexpr int PART = (UNITS + PARTS - 1) / PARTS;
    static constexpr u64 TILE_BYTES = WARPS * UNITS * UNIT_BYTES;
};
using Qkv = Matrix<QKV_ROWS, HIDDEN_UNITS, 1>;
using Proj = Matrix<HIDDEN, Q_UNITS, 1>;
using GateUp = Matrix<(INTER + 7) / 8 * 16, HIDDEN_UNITS, 2>;
using Down = Matrix<HIDDEN, INTER_UNITS, 1>;
using Vocabulary = Matrix<VOCAB, HIDDEN_UNITS, 1>;

constexpr int MOST_TILES_AT_ONCE = 6;

struct Tiles {
    int first, end;
};
template <class M> __device__ __forceinline__ Tiles own_tiles() {
    return {(int)((u64)M::GROUPS * blockIdx.x / N_BLOCKS) * M::TOGETHER,
            (int)((u64)M::GROUPS * (blockIdx.x + 1) / N_BLOCKS) * M::TOGETHER};
}

// Sums of each warp: of tiles computed together, eight tokens x eight rows.
struct WarpSums {
    float of[2][MOST_TILES_AT_ONCE][WARPS][64];
};

// The copying warp: stages in the order `multiply` takes them in. False where the block has left.
template <class M> __device__ __forceinline__ bool stream_matrix(Copier &copier, const u8 *weights) {
    const Tiles own = own_tiles<M>();
    for (int first = own.first; first < own.end; first += M::TILES) {
        const int n = min(M::TILES, own.end - first);
        for (int part = 0; part < M::PARTS; ++part) {
            const int units = min(M::PART, M::UNITS - part * M::PART);
            for (int tile = first; tile < first + n; ++tile) {
                const u8 *from = weights + tile * M::TILE_BYTES;
                const bool pushed = copier.push(WARPS * units * UNIT_BYTES, [&](u8 *stage, u64 *full) {
                    constexpr int PIECES = M::PARTS == 1 ? 1 : WARPS; // that lie together
                    for (int piece = 0; piece < PIECES; ++piece)
                        copy(stage + piece * M::PART * UNIT_BYTES, from + ((u64)piece * M::UNITS + part * M::PART) * UNIT_BYTES,
                             WARPS / PIECES * units * UNIT_BYTES, full, copier.lane);
                });
                if (!pushed) return false;
            }
        }
    }
    return true;
}

// The computing warps. `input(part)` gives this warp's units of a part of the columns; sums go to
// `store(first of TOGETHER tiles, token, row in the tile, sums)`, called by whole warps.
template <class M, class Input, class Store>
__device__ __forceinline__ void multiply_tiles(Stages &stages, WarpSums &sums, u32 &flip, int warp, int lane, Input input, Store store) {
    const uint4 nothing = make_uint4(0, 0, 0, 0);
    const Tiles own = own_tiles<M>();
    for (int first = own.first; first < own.end; first += M::TILES) {
        const int n = min(M::TILES, own.end - first);
        float sum[M::TILES][4] = {};
#pragma unroll(M::PARTS <= 8 ? M::PARTS : 1)
        for (int part = 0; part < M::PARTS; ++part) {
            const uint4 *x = input(part);
            const uint4 *units[M::TILES];
#pragma unroll
            for (int tile = 0; tile < M::TILES; ++tile)
                units[tile] = (const uint4 *)stages.wait(tile < n ? tile : 0) + warp * M::PART * UNIT + lane;
#pragma unroll
            for (int u = 0; u < M::PART; ++u)
                if (part * M::PART + u < M::UNITS)
#pragma unroll
                    for (int tile = 0; tile < M::TILES; ++tile) mma32(sum[tile], x[u], nothing, units[tile][u * UNIT]);
            stages.release(n, lane);
        }
        // The sums before last were read before the last meeting.
        flip ^= 1;
        auto &own_sums = sums.of[flip];
#pragma unroll
        for (int tile = 0; tile < M::TILES; ++tile)
            *(float2 *)&own_sums[tile][warp][lane * 2] = make_float2(sum[tile][0], sum[tile][1]);
        meet();
        for (int i = threadIdx.x; i < n / M::TOGETHER * 64; i += WARPS * 32) {
            float total[M::TOGETHER];
#pragma unroll
            for (int t = 0; t < M::TOGETHER; ++t) {
                const auto &of = own_sums[i / 64 * M::TOGETHER + t];
                total[t] = of[0][i % 64];
#pragma unroll
                for (int w = 1; w < WARPS; ++w) total[t] += of[w][i % 64];
            }
            store(first + i / 64 * M::TOGETHER, i % 64 / 8, i % 8, total);
        }
    }
}

// Units of an input that is held in registers.
template <class M> struct Held {
    const uint4 *units;
    __device__ __forceinline__ const uint4 *operator()(int part) const { return units + part * M::PART; }
};
