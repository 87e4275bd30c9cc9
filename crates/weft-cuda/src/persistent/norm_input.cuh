// The input of `norm_qkv`, `norm_gate_up`, `norm_head`, and of routers and experts, in the persistent
// kernel: the norm of the residual stream, which every block awaits and normalises for itself.
#pragma once

#include "kernels/norm.cuh"
#include "persistent/bare.cuh"
#include "persistent/embed.cuh"
#include "persistent/launch.cuh"
#include "persistent/product.cuh"

// rms_norm(x) of `n_rows` rows into a warp's stage. Half a warp has a row: lane 16h + w the w-th
// pair of columns of every unit, of which there are HIDDEN_UNITS. The sums of squares are in the
// order of `norm_scale`: columns 2p and 2p + 1 of chunk c of every unit, then over p, then over c.
struct NormInput {
    static constexpr bool IS_BARE = false;
    // Whether rows are there before any product but a router's begins (`multiply_norm`), so that the
    // product has no instructions for awaiting them.
    static constexpr bool COMES_FIRST = HAS_EXPERTS && HIDDEN_UNITS > TWO_BLOCKS_UNITS;
    Block &block;
    OpKind kind;
    u32 n_rows;
    u32 weight[HIDDEN_UNITS]; // pairs
    bool awaited;

    // The norm's weights come through the ring, before those of the product; unless the norm stands in
    // the stage already, because the op before had the same.
    __device__ __forceinline__ NormInput(Block &block, OpKind kind, u32 n_rows, bool is_there = false) : block(block), kind(kind), n_rows(n_rows), awaited(is_there) {
        if (is_there) return;
        const u32 *pairs = (const u32 *)block.stages.wait(0) + block.warp * HIDDEN_UNITS * 16 + block.lane % 16;
#pragma unroll
        for (int i = 0; i < HIDDEN_UNITS; ++i) weight[i] = pairs[i * 16];
        block.stages.release(1, block.lane);
    }

    // The i-th row, from a row on, that this half of a warp has.
    __device__ __forceinline__ u32 own_row(u32 first, int i) const { return min(first + block.lane / 16 + i * 2, n_rows - 1); }
    // How many ops ago the rows were made: the router is between them and its experts.
    __device__ __forceinline__ u32 n_ops_ago() const {
#if HAS_EXPERTS
        if (kind == EXPERT_GATE_UP) return 2;
#endif
        return 1;
    }
    __device__ __forceinline__ u32 own_word() const { return block.warp * HIDDEN_UNITS * 16 + block.lane % 16; }

    // This lane's pairs of a row of the embedding. That is no hop: every block reads it for itself.
    __device__ __forceinline__ void read_embedded(u32 (&pairs)[HIDDEN_UNITS], u32 row) const {
        const u32 word = own_word();
#pragma unroll
        for (int i = 0; i < HIDDEN_UNITS; ++i) pairs[i] = embedded_pair(block.launch, block.shared.tokens[row], word + i * 16);
    }
    // Those that other blocks make, from its first word on, and whether all are there.
    __device__ __forceinline__ bool ask_row(u32 (&pairs)[HIDDEN_UNITS], const u64 *words) const {
        const u32 number = block.number_before(n_ops_ago());
        bool all = true;
#pragma unroll
        for (int i = 0; i < HIDDEN_UNITS; ++i) {
            u64 got = (u64)number << 32;
            if (HIDDEN_STRIDE == HIDDEN || (own_word() + i * 16) * 2 < HIDDEN) got = load_relaxed(words + i * 16);
            all &= number_of(got) == number;
            pairs[i] = value_of(got);
        }
        return all;
    }
    template <bool EMBEDS, int N> __device__ __forceinline__ void await_some(u32 (&pairs)[N][HIDDEN_UNITS], u32 first) const {
        if (EMBEDS && block.shared.ops[block.op - 1] == EMBED) {
#pragma unroll
            for (int i = 0; i < N; ++i) read_embedded(pairs[i], own_row(first, i));
        } else {
            const u64 *words[N];
#pragma unroll
            for (int i = 0; i < N; ++i) words[i] = block.launch.x + own_row(first, i) * (HIDDEN_STRIDE / 2) + own_word();
            block.watch.until([&] {
                bool all = true;
#pragma unroll
                for (int i = 0; i < N; ++i) all &= ask_row(pairs[i], words[i]);
                return all;
            });
        }
        __syncwarp();
    }
    __device__ __forceinline__ void sum_squares(const u32 (&pairs)[HIDDEN_UNITS], u32 row) const {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < HIDDEN_UNITS; ++i) {
            sum = __fmaf_rn(low(pairs[i]), low(pairs[i]), sum);
            sum = __fmaf_rn(high(pairs[i]), high(pairs[i]), sum);
        }
#pragma unroll
        for (int other = 1; other < 16; other *= 2) sum += __shfl_xor_sync(FULL, sum, other);
        if (block.lane % 16 == 0) block.shared.squares[row][block.warp] = sum;
    }
    // A row into the stage, after all warps' squares are there.
    __device__ __forceinline__ void normalise(const u32 (&pairs)[HIDDEN_UNITS], u32 row) const {
        float total = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) total += block.shared.squares[row][w];
        const float scale = 1.0f / sqrtf(total / (float)HIDDEN + NORM_EPS);
#pragma unroll
        for (int i = 0; i < HIDDEN_UNITS; ++i) at(i, row) = normalise_pair(pairs[i], weight[i], scale);
    }
    __device__ __forceinline__ u32 &at(int unit, u32 row) const { return ((u32 *)block.x)[(unit * n_rows + row) * 16 + block.lane % 16]; }

    __device__ __forceinline__ void begin(u32 portion) const {
        if (!COMES_FIRST && portion == 0 && !awaited) await_rows();
    }
    // Several leave registers for a portion of the weights (`sum_tiles`).
    __device__ __forceinline__ bool holds() const { return block.holds_weights() && block.n_tokens == 1; }
    // Only those that EMBED may be before are the embedding's.
    template <bool EMBEDS = true> __device__ __forceinline__ void await_rows() const {
        if (n_rows <= 2) await_kept<1, EMBEDS>();
        else if (n_rows <= 4) await_kept<2, EMBEDS>();
        else await_staged<EMBEDS>();
        __syncwarp();
    }
    // N rows of every half of a warp, in registers until their squares are there.
    template <int N, bool EMBEDS> __device__ __forceinline__ void await_kept() const {
        u32 pairs[N][HIDDEN_UNITS];
        await_some<EMBEDS>(pairs, 0);
#pragma unroll
        for (int i = 0; i < N; ++i) sum_squares(pairs[i], own_row(0, i));
        meet();
#pragma unroll
        for (int i = 0; i < N; ++i) normalise(pairs[i], own_row(0, i));
    }
    // Any number of them, in the stage until then.
    template <bool EMBEDS> __device__ __forceinline__ void await_staged() const {
        u32 pairs[1][HIDDEN_UNITS];
#pragma unroll 1
        for (u32 first = 0; first < n_rows; first += 2) {
            const u32 row = own_row(first, 0);
            await_some<EMBEDS>(pairs, first);
            sum_squares(pairs[0], row);
#pragma unroll
            for (int i = 0; i < HIDDEN_UNITS; ++i) at(i, row) = pairs[0][i];
        }
        meet();
#pragma unroll 1
        for (u32 first = 0; first < n_rows; first += 2) {
            const u32 row = own_row(first, 0);
#pragma unroll
            for (int i = 0; i < HIDDEN_UNITS; ++i) pairs[0][i] = at(i, row);
            __syncwarp();
            normalise(pairs[0], row);
        }
    }
    __device__ __forceinline__ uint4 unit(u32 portion, int u) const { return StagedUnits{block.x, n_rows, block.lane}[portion * PORTION_UNITS + u]; }
    __device__ __forceinline__ void next() { awaited = true; }
    __device__ __forceinline__ bool holds_coded() const { return block.holds_weights(); }
    __device__ __forceinline__ void ready(u32 u, u32) const {
        if (!COMES_FIRST && u == 0 && !awaited) await_rows();
    }
    __device__ __forceinline__ const uint4 *from(u32 u) const { return StagedUnits{block.x, n_rows, block.lane}.from(u); }
};

// The same where rows have no numbers: lane 4g + c has chunk c of every unit of token g, in registers
// from the hop to the product; for coded tiles in the warp's stage. Sums of squares have the same
// order.
struct BareNormInput {
    static constexpr bool IS_BARE = true;
    Block &block;
    OpKind kind;
    BareRow<HIDDEN_UNITS, HIDDEN, HIDDEN_STRIDE> row;
    bool awaited = false, staged = false;

    __device__ __forceinline__ BareNormInput(Block &block, OpKind kind) : block(block), kind(kind) {
        // A lane's weights wait in the warp's stage: registers are for those of the product.
        const uint4 *chunks = (const uint4 *)block.stages.wait(0) + block.warp * HIDDEN_UNITS * 4 + block.lane % 4;
#pragma unroll
        for (int i = 0; i < HIDDEN_UNITS; ++i) block.x[i * UNIT + block.lane] = chunks[i * 4];
        block.stages.release(1, block.lane);
    }
    __device__ __forceinline__ u32 token() const { return min((u32)block.lane / 4, block.n_tokens - 1); }

    __device__ __forceinline__ void await_chunks() {
        if (block.shared.ops[block.op - 1] == EMBED) {
#pragma unroll
            for (int i = 0; i < HIDDEN_UNITS; ++i)
                row.chunks[i] = read_chunk<EmbeddingMatrix>(block.launch.embedding, block.shared.tokens[token()], (block.warp * HIDDEN_UNITS + i) * 4 + block.lane % 4);
        } else {
            const BarePlaces places = bare_places(block);
            const uint4 *rows = kind == NORM_QKV ? places.before() : kind == NORM_GATE_UP ? places.between() : places.head(block.step);
            row.await(rows, block.n_tokens, block.warp * HIDDEN_UNITS, block.warp * HIDDEN_UNITS + HIDDEN_UNITS - 1, block.lane, block.watch);
        }
        __syncwarp();
    }
    // Of the four pairs of this lane's chunks, then of the chunks of a token.
    __device__ __forceinline__ void sum_squares() const {
        float sums[4] = {};
        const auto add = [](float &sum, u32 pair) { sum = __fmaf_rn(high(pair), high(pair), __fmaf_rn(low(pair), low(pair), sum)); };
#pragma unroll
        for (int i = 0; i < HIDDEN_UNITS; ++i) {
            const uint4 chunk = row.chunks[i];
            add(sums[0], chunk.x), add(sums[1], chunk.y), add(sums[2], chunk.z), add(sums[3], chunk.w);
        }
        float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
#pragma unroll
        for (int other = 1; other < 4; other *= 2) sum += __shfl_xor_sync(FULL, sum, other);
        if (block.lane % 4 == 0) block.shared.squares[token()][block.warp] = sum;
    }
    __device__ __forceinline__ void await_rows() {
        await_chunks();
        sum_squares();
        meet();
        float total = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) total += block.shared.squares[token()][w];
        const float scale = 1.0f / sqrtf(total / (float)HIDDEN + NORM_EPS);
#pragma unroll
        for (int i = 0; i < HIDDEN_UNITS; ++i) row.chunks[i] = normalise(row.chunks[i], block.x[i * UNIT + block.lane], scale);
        awaited = true;
    }
    __device__ __forceinline__ void begin() {
        if (!awaited) await_rows();
    }
    __device__ __forceinline__ uint4 unit(int i) const { return row.chunks[i]; }
    __device__ __forceinline__ void next() const {}
    __device__ __forceinline__ bool holds_coded() const { return true; }
    __device__ __forceinline__ void ready(u32, u32) {
        if (staged) return;
        await_rows();
#pragma unroll
        for (int i = 0; i < HIDDEN_UNITS; ++i)
            block.x[i * UNIT + block.lane] = row.chunks[i];
        __syncwarp();
        staged = true;
    }
    __device__ __forceinline__ const uint4 *from(u32 u) const { return block.x + u * UNIT + block.lane; }
};
static_assert(BARE_BYTES == 0 || x_units(8) >= HIDDEN_UNITS * 8, "every lane has room for its weights");
static_assert(BARE_BYTES == 0 || HIDDEN_UNITS <= PORTION_UNITS, "a row of a warp is a portion");
