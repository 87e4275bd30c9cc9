// Ops of the persistent kernel that are products, and `embed`. What they read and write are words (hop.cuh);
// the residual stream of a block's own rows stays in its shared memory.
#pragma once

#include "kernels/norm.cuh"
#include "ops/norm_gate_up.cuh"
#include "persistent/candidate.cuh"
#include "persistent/launch.cuh"
#include "persistent/product.cuh"

// Where eight columns of a row of the embedding lie.
__device__ __forceinline__ const uint4 *embedded(const Launch &launch, u32 row, int chunk) {
    const u64 unit = (u64)(row / 8) * (HIDDEN_STRIDE / 32) + unit_place<HIDDEN_UNITS>(chunk / 4);
    return (const uint4 *)launch.embedding + unit * UNIT + row % 8 * 4 + chunk % 4;
}

__device__ __forceinline__ void run_embed(Block &block) {
    const Share own = block.shared.shares.hidden;
    for (int i = block.thread(); i < (own.end - own.first) * 64; i += WARPS * 32) {
        const u32 local = i / 8, token = i % 8, row = own.first * 8 + local;
        if (token >= block.n_tokens) continue;
        const u16 value = ((const u16 *)embedded(block.launch, block.shared.tokens[token], row / 8))[row % 8];
        block.shared.residual[local][token] = value;
        if (block.is_last() && row < HIDDEN) block.launch.plain.x[(u64)token * HIDDEN_STRIDE + row] = value;
    }
}

// ---- inputs ------------------------------------------------------------------------------------
// A warp's units of an input in shared memory, as `AwaitedRows` puts them there.
struct StagedUnits {
    const uint4 *stage;
    u32 n_tokens;
    int lane;
    __device__ __forceinline__ uint4 operator[](u32 unit) const {
        return lane / 4 < n_tokens ? stage[unit * n_tokens * 4 + lane] : make_uint4(0, 0, 0, 0);
    }
};

// They are awaited as many at a time as there is room for.
struct AwaitedInput {
    Block &block;
    AwaitedRows rows;
    u32 n_units, parts_at_once;
    __device__ __forceinline__ void begin(u32 part) const {
        if (part % parts_at_once != 0) return;
        const u32 first = part * PART_UNITS, n = min(parts_at_once * PART_UNITS, n_units - first);
        __syncwarp();
        rows.into(block.x, block.warp * n_units + first, n, block.n_tokens, block.lane, block.watch);
    }
    __device__ __forceinline__ uint4 unit(u32 part, int u) const {
        return StagedUnits{block.x, block.n_tokens, block.lane}[part % parts_at_once * PART_UNITS + u];
    }
    __device__ __forceinline__ bool holds() const { return block.holds_weights(); }
    __device__ __forceinline__ void next() const {}
};

// ---- rms_norm ----------------------------------------------------------------------------------
// rms_norm(x) of `n_rows` rows into a warp's stage. Half a warp has a row: lane 16h + w the w-th pair of columns of every
// unit, of which there are HIDDEN_UNITS. The sums of squares are in the order of `norm_scale`: columns 2p and 2p + 1 of
// chunk c of every unit, then over p, then over c.
struct NormInput {
    Block &block;
    OpKind kind;
    u32 n_rows;
    u32 weight[HIDDEN_UNITS]; // pairs
    bool awaited;

    // The norm's weights come through the ring, before those of the product.
    __device__ __forceinline__ NormInput(Block &block, OpKind kind, u32 n_rows) : block(block), kind(kind), n_rows(n_rows), awaited(false) {
        const u32 *pairs = (const u32 *)block.stages.wait(0) + block.warp * HIDDEN_UNITS * 16 + block.lane % 16;
#pragma unroll
        for (int i = 0; i < HIDDEN_UNITS; ++i) weight[i] = pairs[i * 16];
        block.stages.release(1, block.lane);
    }

    // The i-th row, from a row on, that this half of a warp has.
    __device__ __forceinline__ u32 own_row(u32 first, int i) const { return min(first + block.lane / 16 + i * 2, n_rows - 1); }
    __device__ __forceinline__ u32 token_of(u32 row) const { return kind == NORM_HEAD && !block.fixed ? block.shared.outputs[row] : row; }
    __device__ __forceinline__ u32 own_word() const { return block.warp * HIDDEN_UNITS * 16 + block.lane % 16; }

    // This lane's pairs of a row of the embedding. That is no hop: every block reads it for itself.
    __device__ __forceinline__ void read_embedded(u32 (&pairs)[HIDDEN_UNITS], u32 row) const {
        const u32 word = own_word();
#pragma unroll
        for (int i = 0; i < HIDDEN_UNITS; ++i)
            pairs[i] = ((const u32 *)embedded(block.launch, block.shared.tokens[token_of(row)], word / 4 + i * 4))[word % 4];
    }
    // Those that other blocks make, from its first word on, and whether all are there.
    __device__ __forceinline__ bool ask_row(u32 (&pairs)[HIDDEN_UNITS], const u64 *words) const {
        const u32 number = block.number_before(1);
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
    template <int N> __device__ __forceinline__ void await_some(u32 (&pairs)[N][HIDDEN_UNITS], u32 first) const {
        if (block.shared.ops[block.op - 1] == EMBED) {
#pragma unroll
            for (int i = 0; i < N; ++i) read_embedded(pairs[i], own_row(first, i));
        } else {
            const u64 *words[N];
#pragma unroll
            for (int i = 0; i < N; ++i) words[i] = block.launch.x + token_of(own_row(first, i)) * (HIDDEN_STRIDE / 2) + own_word();
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

    __device__ __forceinline__ void begin(u32 part) const {
        if (part == 0 && !awaited) await_rows();
    }
    // Several leave registers for a part of the weights (`sum_tiles`).
    __device__ __forceinline__ bool holds() const { return block.holds_weights() && block.n_tokens == 1; }
    __device__ __forceinline__ void await_rows() const {
        if (n_rows <= 2) await_kept<1>();
        else if (n_rows <= 4 && block.holds_weights()) await_kept<2>();
        else await_staged();
        __syncwarp();
    }
    // N rows of every half of a warp, in registers until their squares are there.
    template <int N> __device__ __forceinline__ void await_kept() const {
        u32 pairs[N][HIDDEN_UNITS];
        await_some(pairs, 0);
#pragma unroll
        for (int i = 0; i < N; ++i) sum_squares(pairs[i], own_row(0, i));
        meet();
#pragma unroll
        for (int i = 0; i < N; ++i) normalise(pairs[i], own_row(0, i));
    }
    // Any number of them, in the stage until then.
    __device__ __forceinline__ void await_staged() const {
        u32 pairs[1][HIDDEN_UNITS];
#pragma unroll 1
        for (u32 first = 0; first < n_rows; first += 2) {
            const u32 row = own_row(first, 0);
            await_some(pairs, first);
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
    __device__ __forceinline__ uint4 unit(u32 part, int u) const { return StagedUnits{block.x, n_rows, block.lane}[part * PART_UNITS + u]; }
    __device__ __forceinline__ void next() { awaited = true; }
};

// ---- products ----------------------------------------------------------------------------------
// Results of one row of `norm_qkv`, `norm_gate_up` or `norm_head`, from a pair of tiles.
struct NormStore {
    Block &block;
    OpKind kind;
    u64 &best;
    __device__ __forceinline__ void qkv(u32 r, u32 token, float sum, bool there) const {
        const Launch &launch = block.launch;
        const QkvStore plain = {block.layer().bias, launch.plain.qkv.q, launch.plain.qkv.k, launch.plain.qkv.v};
        const u16 value = r < QKV_ROWS ? round_one(plain.biased(r, sum)) : 0;
        publish_row(launch.qkv + token * QKV_WORDS, r, QKV_ROWS, there, value, block.number);
        if (block.is_last() && there && r < QKV_ROWS) *plain.place(token, r) = value;
    }
    __device__ __forceinline__ void h(u32 r, u32 token, float gate, float up, bool there) const {
        const u16 value = r < INTER ? round_one(gated(gate, up)) : 0;
        publish_row(block.launch.h + token * (INTER_STRIDE / 2), r, INTER, there, value, block.number);
        if (block.is_last() && there && r < INTER) block.launch.plain.h[(u64)token * INTER_STRIDE + r] = value;
    }
    __device__ __forceinline__ void operator()(int tile, u32 token, u32 row, const float (&sums)[2], bool there) const {
        if (kind == NORM_GATE_UP) return h(tile / 2 * 8 + row, token, sums[0], sums[1], there);
        if (kind == NORM_HEAD) return leave_logits(block, best, tile * 8 + row, token, sums, there);
#pragma unroll
        for (int t = 0; t < 2; ++t) qkv((tile + t) * 8 + row, token, sums[t], there);
    }
};

__device__ __forceinline__ Tiles norm_tiles(const Launch &launch, const LayerAddresses &layer, const Shares &shares, OpKind kind) {
    if (kind == NORM_QKV) return tiles_of(shares.qkv, layer.qkv, HIDDEN_UNITS);
    if (kind == NORM_GATE_UP) return tiles_of(shares.gate_up, layer.gate_up, HIDDEN_UNITS);
    return tiles_of(shares.vocabulary, launch.head, HIDDEN_UNITS);
}

// The copying warp: a norm's weights, then those of its product.
__device__ __forceinline__ bool stream_norm(Copier &copier, const Launch &launch, const LayerAddresses &layer, const Shares &shares, OpKind kind) {
    static_assert(HIDDEN_STRIDE * 2 <= LONG_STAGE_BYTES, "a norm's weights are one stage");
    const Tiles own = norm_tiles(launch, layer, shares, kind);
    const uint4 *norm = kind == NORM_QKV ? layer.attention_norm : kind == NORM_GATE_UP ? layer.mlp_norm : launch.final_norm;
    if (own.first == own.end) return true;
    const bool pushed = copier.push(HIDDEN_STRIDE * 2, [&](u8 *stage, u64 *full) { copy(stage, norm, HIDDEN_STRIDE * 2, full, copier.lane); });
    return pushed && stream_tiles(copier, own, NORM_TILES);
}

// The three products of a norm. The best of the logits that they computed, if any.
__device__ __forceinline__ u64 run_norm_product(Block &block, OpKind kind) {
    const Tiles own = norm_tiles(block.launch, block.layer(), block.shared.shares, kind);
    const u32 n_rows = kind == NORM_HEAD && !block.fixed ? block.shared.n_outputs : block.n_tokens;
    u64 best = NO_CANDIDATE;
    if (own.first == own.end) return best;
    NormInput input(block, kind, n_rows);
    if (!block.holds_weights()) input.await_rows(), input.next();
    multiply_tiles<NORM_TILES, 2, HIDDEN_UNITS, 1>(block.stages, block.shared.scratch.sums, block.flip, own, n_rows, block.warp, block.lane,
                                                input, NormStore{block, kind, best});
    return best;
}

__device__ __forceinline__ Tiles add_tiles(const LayerAddresses &layer, const Shares &shares, OpKind kind) {
    return tiles_of(shares.hidden, kind == PROJ_ADD ? layer.o : layer.down, kind == PROJ_ADD ? Q_UNITS : INTER_UNITS);
}

// x += input * W, for either residual op.
template <OpKind KIND> __device__ __forceinline__ void run_add(Block &block) {
    constexpr int UNITS = KIND == PROJ_ADD ? Q_UNITS : INTER_UNITS, CHAINS = KIND == PROJ_ADD ? PROJ_CHAINS : DOWN_CHAINS;
    const Launch &launch = block.launch;
    const Tiles own = add_tiles(block.layer(), block.shared.shares, KIND);
    const int first_row = own.first * 8;
    if (own.first == own.end) return;
    const u32 number = block.number_before(1);
    const AwaitedRows rows = KIND == PROJ_ADD ? AwaitedRows{launch.a, Q_STRIDE / 2, Q_WIDTH, number}
                                              : AwaitedRows{launch.h, INTER_STRIDE / 2, INTER, number};
    const AwaitedInput input = {block, rows, UNITS, x_units(block.n_tokens) / block.n_tokens / PART_UNITS};
    multiply_tiles<ADD_TILES, 1, UNITS, CHAINS>(block.stages, block.shared.scratch.sums, block.flip, own, block.n_tokens, block.warp, block.lane,
                                        input, [&](int tile, u32 token, u32 row, const float (&sum)[1], bool there) {
        const u32 r = tile * 8 + row;
        u16 value = 0;
        if (there && r < HIDDEN) {
            u16 &before = block.shared.residual[r - first_row][token];
            before = value = round_one(widen(before) + sum[0]);
            if (block.is_last()) launch.plain.x[(u64)token * HIDDEN_STRIDE + r] = value;
        }
        publish_row(launch.x + token * (HIDDEN_STRIDE / 2), r, HIDDEN, there, value, block.number);
    });
}
