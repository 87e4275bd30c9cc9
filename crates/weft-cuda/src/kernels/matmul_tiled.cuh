// The product of a matrix with a block of tokens by products of warpgroups (sm_90a): what
// `matmul.cuh` computes on other GPUs, at three times its speed and with the same bits.
//
// Two warpgroups compute 64 rows x TOKENS tokens each; a third one copies. Rows are the
// first operand, from registers: a lane's 16 bytes of a packed unit are what two instructions take.
// Tokens are the second, from shared memory, where their columns lie in the order that fits
// (tiled.cuh). Two blocks of a cluster have neighbouring rows and the same tokens: each copies half
// of them to both. Blocks stay for many tiles. Sums are cut and added as `matmul.cuh` does.
#pragma once

#include "kernels/tiled.cuh"
#include "kernels/wgmma.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int STAGE_ROWS_BYTES = 128 * 64 * 2;             // rows' part of a stage: 64 columns
constexpr int STAGED_TOKENS = 64, STAGED_STRIDE = 144;     // of results on their way out; the gap spreads banks

// A product has a kernel for each number of tokens of a tile; the host chooses (ops/mod.rs).
#define TILED_BOUNDS __cluster_dims__(2, 1, 1) __launch_bounds__(TILED_THREADS, 1)

template <int TOKENS> struct TiledShape {
    static constexpr int STAGE = STAGE_ROWS_BYTES + TOKENS * 128;
    static constexpr int STAGES = (TILED_SHARED - 1024 - 2 * STAGED_TOKENS * STAGED_STRIDE) / STAGE;
    static_assert(STAGES >= 3, "a ring");
};
// What the blocks of a cluster take of a product in turn: tiles `first`, `first + step` and so on, up
// to `end`. `pair` says which two blocks of rows a tile has, `matrix` where their matrix begins, and
// `tokens` the first of its tokens; `at` is handed to whoever stores the sums.
template <int TOKENS> struct TileWalk {
    int pairs, first, step, end; // pairs of blocks of rows; tiles of this cluster
    u32 n_tokens, n_blocks;      // n_blocks of TOKENS tokens
    __device__ __forceinline__ TileWalk(int n_row_blocks, u32 n_tokens)
        : pairs((n_row_blocks + 1) / 2), first(blockIdx.x / 2), step(gridDim.x / 2), n_tokens(n_tokens), n_blocks((n_tokens + TOKENS - 1) / TOKENS) {
        end = pairs * (int)n_blocks;
    }
    __device__ __forceinline__ u32 n_squares() const { return (n_tokens + SQUARE - 1) / SQUARE; }
    __device__ __forceinline__ u64 matrix(int) const { return 0; }
    __device__ __forceinline__ u32 at(int tile) const { return tokens(tile); }
    static constexpr u32 NEAR = 8; // blocks of tokens that are taken together for each pair of rows
    __device__ __forceinline__ u32 pair(int tile) const { return tile % (pairs * NEAR) / width(tile); }
    __device__ __forceinline__ u32 tokens(int tile) const { return (tile / (pairs * NEAR) * NEAR + tile % (pairs * NEAR) % width(tile)) * TOKENS; }
    __device__ __forceinline__ u32 width(int tile) const { return min(NEAR, n_blocks - tile / (pairs * NEAR) * NEAR); }
};

template <int STAGES> struct TiledRing {
    u64 full[STAGES], empty[STAGES];
};

// Copies this block's half of the tokens of a tile to both blocks of its cluster: it is of one square
// or two. By lanes 0 and 1 of a warp.
template <int TOKENS> struct TokenCopies {
    static constexpr u32 HALF = TOKENS * 64, FIRST = HALF < SQUARE_BYTES ? HALF : SQUARE_BYTES;
    u32 begin, end; // of a square column of the tile's tokens, in bytes
    const u8 *from;
    __device__ __forceinline__ TokenCopies(u32 rank, int lane) {
        const u32 cut = rank == 0 || FIRST == HALF ? FIRST : HALF - FIRST;
        begin = rank * HALF + (lane == 0 ? 0 : cut), end = rank * HALF + (lane == 0 ? cut : HALF);
    }
    __device__ __forceinline__ void go_to(const u8 *x, u32 first_square, u32 n_squares, int columns) {
        from = x + (u64)min(first_square + begin / SQUARE_BYTES, n_squares - 1) * columns * SQUARE_BYTES + begin % SQUARE_BYTES;
    }
    __device__ __forceinline__ void copy(u8 *to, int column, u64 *barrier, int lane) const {
        if (lane < 2 && begin < end) copy_to_blocks(to + begin, from + (u64)column * SQUARE_BYTES, end - begin, barrier, 3);
    }
};

// Copies the stages of all tiles. Rows are small pieces of many places, which bulk copies bring too
// slowly: each of four warps copies the units of four tiles.
template <int UNITS, int TOKENS, class Walk>
__device__ __forceinline__ void copy_tiles(TiledRing<TiledShape<TOKENS>::STAGES> &ring, u8 *stages, const u8 *weights, int n_blocks,
                                           const u8 *x, const Walk &walk, u32 rank, int warp, int lane) {
    using Shape = TiledShape<TOKENS>;
    constexpr int COLUMNS = UNITS * WARPS / 2;
    constexpr u64 TILE_BYTES = (u64)WARPS * UNITS * UNIT_BYTES;
    TokenCopies<TOKENS> tokens(rank, lane);
    int stage = 0;
    u32 parity = 1;
    // Rows do not depend on the kernel before; tokens do, and so does all that is stored later.
    if (warp == 0) wait_for_previous();
    for (int tile = walk.first; tile < walk.end; tile += walk.step) {
        const u32 block = min(walk.pair(tile) * 2 + rank, n_blocks - 1u);
        const u8 *rows = weights + walk.matrix(tile) + ((u64)block * 16 + warp * 4) * TILE_BYTES + lane * 16;
        tokens.go_to(x, walk.tokens(tile) / SQUARE, walk.n_squares(), COLUMNS);
        for (int k = 0; k < COLUMNS; ++k) {
            barrier_wait(&ring.empty[stage], parity);
            u8 *to = stages + stage * Shape::STAGE;
            if (warp == 0) {
                expect_copies(&ring.full[stage], TOKENS * 128, lane);
                __syncwarp();
                tokens.copy(to + STAGE_ROWS_BYTES, k, &ring.full[stage], lane);
            }
#pragma unroll
            for (int unit = 0; unit < 2; ++unit) {
                const u8 *from = rows + unit_place<UNITS>(2 * k + unit) * UNIT_BYTES;
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    copy_chunk(to + ((warp * 4 + i) * 2 + unit) * UNIT_BYTES + lane * 16, from + i * TILE_BYTES);
            }
            arrive_after_copies(&ring.full[stage]);
            if (++stage == Shape::STAGES) stage = 0, parity ^= 1;
        }
    }
}

// A lane's part of 16 rows x 32 columns.
struct RowUnit {
    uint4 upper, lower;
    __device__ __forceinline__ void load(const u8 *rows) {
        upper = *(const uint4 *)rows, lower = *(const uint4 *)(rows + 2 * UNIT_BYTES);
    }
};
template <int N> __device__ __forceinline__ void wgmma32(float (&d)[N], const RowUnit &a, u32 tokens, int adds) {
    products_begin();
    wgmma(d, a.upper.x, a.lower.x, a.upper.y, a.lower.y, swizzled(tokens), adds);
    wgmma(d, a.upper.z, a.lower.z, a.upper.w, a.lower.w, swizzled(tokens + 32), 1);
    products_commit();
}

// A group's place in the ring.
template <int STAGES> struct Reader {
    TiledRing<STAGES> &ring;
    int stage = 0;
    u32 parity = 0;
    __device__ __forceinline__ void await() const { barrier_wait(&ring.full[stage], parity); }
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    __device__ __forceinline__ void release(int done, int lane) const {
        if (lane < 2) barrier_arrive_at(&ring.empty[done], lane);
    }
};

// Whether chains end with stages, which hold two units.
constexpr bool takes_stages(int units, int chains) { return units % 2 == 0 && chain_units(units, chains) % 2 == 0; }

// A group's products of one stage after the other. The registers of rows are loaded while products
// of the half before run.
template <int TOKENS> struct StageProducts {
    using Shape = TiledShape<TOKENS>;
    static constexpr int N = TOKENS / 2;
    Reader<Shape::STAGES> &reader;
    const u8 *rows;
    u32 tokens;
    int lane, left;
    int before = -1; // the stage that is not released yet
    RowUnit even, odd;
    __device__ __forceinline__ StageProducts(Reader<Shape::STAGES> &reader, const u8 *stages, int warp, int lane, int n)
        : reader(reader), rows(stages + warp * 4 * UNIT_BYTES + lane * 16), tokens(shared_address(stages) + STAGE_ROWS_BYTES), lane(lane), left(n) {
        reader.await();
        even.load(rows + reader.stage * Shape::STAGE);
    }
    // When it returns, all products but those of this stage are complete.
    __device__ __forceinline__ void begin(float (&sum)[N], int adds) {
        const int at = reader.stage * Shape::STAGE;
        wgmma32(sum, even, tokens + at, adds);
        products_await<1>();
        if (before >= 0) reader.release(before, lane);
        odd.load(rows + at + UNIT_BYTES);
        wgmma32(sum, odd, tokens + at + 64, 1);
        before = reader.stage;
        reader.next();
    }
    __device__ __forceinline__ void end() {
        products_await<1>();
        if (--left > 0) {
            reader.await();
            even.load(rows + reader.stage * Shape::STAGE);
        }
    }
};

template <int N> __device__ __forceinline__ void add_chain(float (&total)[N], float (&sum)[N]) {
    hold(sum);
#pragma unroll
    for (int i = 0; i < N; ++i) total[i] += sum[i];
    hold(total); // here, and not when the next chain needs the registers
}

// Whether chains are so short that a pause after each counts, and two sets of their sums fit.
constexpr bool takes_turns(int units, int chains, int tokens) {
    return takes_stages(units, chains) && chain_units(units, chains) <= 4 && tokens == 128;
}
// The same sums as those of `sum_tile`, with two sets of registers for chains: while one chain runs,
// the one before is added to the total, so that products never pause. All of it is unrolled: the
// compiler would make every product wait if sums were read in another round of a loop than they were
// computed in.
template <int UNITS, int CHAINS, int TOKENS>
__device__ __forceinline__ void sum_tile_by_turns(float (&total)[TOKENS / 2], Reader<TiledShape<TOKENS>::STAGES> &reader, const u8 *stages,
                                                 int warp, int lane) {
    constexpr int N = TOKENS / 2, LONG = chain_units(UNITS, CHAINS) / 2, SHORT = CHAINS == 1 ? LONG : UNITS / 2 - LONG; // stages
    float one[N], other[N];
#pragma unroll
    for (int i = 0; i < N; ++i) total[i] = 0.0f, other[i] = 0.0f;
    StageProducts<TOKENS> products(reader, stages, warp, lane, UNITS * WARPS / 2);
#pragma unroll
    for (int i = 0; i < WARPS * CHAINS / 2; ++i) {
        products.begin(one, 0);
        add_chain(total, other);
        products.end();
#pragma unroll
        for (int s = 1; s < LONG; ++s) products.begin(one, 1), products.end();
        products.begin(other, 0);
        add_chain(total, one);
        products.end();
#pragma unroll
        for (int s = 1; s < SHORT; ++s) products.begin(other, 1), products.end();
    }
    products_await<0>();
    add_chain(total, other);
    reader.release(products.before, lane);
}

// The sums of a group's 64 rows x TOKENS tokens.
template <int UNITS, int CHAINS, int TOKENS>
__device__ __forceinline__ void sum_tile(float (&total)[TOKENS / 2], Reader<TiledShape<TOKENS>::STAGES> &reader, const u8 *stages,
                                         int warp, int lane) {
    using Shape = TiledShape<TOKENS>;
    constexpr int N = TOKENS / 2, LONG = chain_units(UNITS, CHAINS);
    constexpr bool EVEN = takes_stages(UNITS, CHAINS);
    const u8 *rows = stages + warp * 4 * UNIT_BYTES + lane * 16;
    const u32 tokens = shared_address(stages) + STAGE_ROWS_BYTES;
    float sum[N];
    RowUnit even, odd;
#pragma unroll
    for (int i = 0; i < N; ++i) total[i] = 0.0f;
    reader.await();
    even.load(rows + reader.stage * Shape::STAGE);
    int before = -1; // the stage that is not released yet
    int left = UNITS * WARPS / 2;
#pragma unroll 1
    for (int chain = 0; chain < WARPS * CHAINS; ++chain) {
        if constexpr (EVEN) {
            const int n = (chain % CHAINS == 0 ? LONG : UNITS - LONG) / 2;
#pragma unroll 1
            for (int s = 0; s < n; ++s) {
                const int at = reader.stage * Shape::STAGE;
                wgmma32(sum, even, tokens + at, s > 0);
                products_await<1>();
                if (before >= 0) reader.release(before, lane);
                odd.load(rows + at + UNIT_BYTES);
                wgmma32(sum, odd, tokens + at + 64, 1);
                before = reader.stage;
                reader.next();
                products_await<1>();
                if (--left > 0) {
                    reader.await();
                    even.load(rows + reader.stage * Shape::STAGE);
                }
            }
        } else {
            const int first = chain / CHAINS * UNITS + chain % CHAINS * LONG, n = chain % CHAINS == 0 ? LONG : UNITS - LONG;
#pragma unroll 1
            for (int u = 0; u < n; ++u) {
                const int half = (first + u) % 2, at = reader.stage * Shape::STAGE;
                if (u > 0 && half == 0) reader.await();
                if (u > 0) even.load(rows + at + half * UNIT_BYTES);
                wgmma32(sum, even, tokens + at + half * 64, u > 0);
                products_await<0>();
                if (half == 0) continue;
                if (--left == 0) before = reader.stage;
                else reader.release(reader.stage, lane);
                reader.next();
            }
            if (left > 0) {
                const int half = (first + n) % 2;
                if (half == 0) reader.await();
                even.load(rows + reader.stage * Shape::STAGE + half * UNIT_BYTES);
            }
        }
        products_await<0>();
        hold(sum);
#pragma unroll
        for (int i = 0; i < N; ++i) total[i] += sum[i];
    }
    reader.release(before, lane);
}

// ---- results -----------------------------------------------------------------------------------
// A group's results go out 64 tokens at a time, by way of shared memory: [token][STAGED_STRIDE].
// Lanes put them there transposed, 16 tokens x 16 rows at once; a thread then has whole chunks of
// eight rows of a token, the same ones whenever it reads or writes chunks.
struct Staged {
    u8 *memory;
    u32 thread, warp, lane; // of the group
    __device__ __forceinline__ explicit Staged(u8 *memory)
        : memory(memory), thread(threadIdx.x % 128), warp(threadIdx.x / 32 % 4), lane(threadIdx.x % 32) {}
    __device__ __forceinline__ u32 token(int i) const { return i * 16 + thread / 8; }
    __device__ __forceinline__ u32 row() const { return thread % 8 * 8; }
    __device__ __forceinline__ uint4 *chunk(int i) const { return (uint4 *)(memory + token(i) * STAGED_STRIDE) + thread % 8; }
    // A lane's row of the fragments of 16 tokens x 16 rows.
    __device__ __forceinline__ u8 *fragments(int i) const {
        return memory + (i * 16 + lane / 16 * 8 + lane % 8) * STAGED_STRIDE + warp * 32 + lane / 8 % 2 * 16;
    }
    __device__ __forceinline__ void meet() const { meet_group(threadIdx.x / 128); }
};
constexpr int STAGED_CHUNKS = STAGED_TOKENS * 8 / 128; // of a thread
static_assert(STAGED_TOKENS == SQUARE, "results of a square of tokens");

// Hands the sums of 64 rows x TOKENS tokens to `store(the walk's place, first row, sums, memory for
// Staged)`. `make_walk` is called when the next kernel may start.
template <int UNITS, int CHAINS, int TOKENS, class MakeWalk, class Store>
__device__ __forceinline__ void multiply_tiles(const u8 *weights, int n_blocks, const u8 *x, MakeWalk make_walk, Store store) {
    using Shape = TiledShape<TOKENS>;
    constexpr bool TURNS = takes_turns(UNITS, CHAINS, TOKENS);
    u8 *memory = dynamic_shared();
    u8 *stages = memory + (1024 - shared_address(memory) % 1024) % 1024;
    __shared__ TiledRing<Shape::STAGES> ring;
    const int group = threadIdx.x / 128, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 rank = cluster_rank();
    if (threadIdx.x == 0) {
        for (int i = 0; i < Shape::STAGES; ++i) barrier_init(&ring.full[i], 1 + 128), barrier_init(&ring.empty[i], 16);
        barriers_made();
    }
    cluster_meet();
    let_next_start();
    const auto walk = make_walk();
    if (group == 2) {
        leave_registers<TURNS || TOKENS == 192 ? 56 : 72>();
        copy_tiles<UNITS, TOKENS>(ring, stages, weights, n_blocks, x, walk, rank, warp - 8, lane);
    } else {
        take_registers<TURNS || TOKENS == 192 ? 224 : 216>();
        Reader<Shape::STAGES> reader{ring};
        u8 *staged = stages + Shape::STAGES * Shape::STAGE + group * STAGED_TOKENS * STAGED_STRIDE;
        float total[TOKENS / 2];
        for (int tile = walk.first; tile < walk.end; tile += walk.step) {
            if constexpr (TURNS) sum_tile_by_turns<UNITS, CHAINS, TOKENS>(total, reader, stages, warp, lane);
            else sum_tile<UNITS, CHAINS, TOKENS>(total, reader, stages, warp, lane);
            const u32 block = walk.pair(tile) * 2 + rank;
            if (block >= (u32)n_blocks) continue;
            store(walk.at(tile), block * 128 + group * 64, total, staged);
        }
    }
    cluster_meet();
}

#endif
