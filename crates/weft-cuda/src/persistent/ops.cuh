// Ops of the persistent kernel that are products, and `embed`. What they read and write are words (hop.cuh);
// the residual stream of a block's own rows stays in its shared memory.

// Where eight columns of a row of the embedding lie.
__device__ __forceinline__ const uint4 *embedded(const Launch &launch, u32 row, int chunk) {
    const u64 unit = (u64)(row / 8) * (HIDDEN_STRIDE / 32) + unit_place<HIDDEN_UNITS>(chunk / 4);
    return (const uint4 *)launch.embedding + unit * UNIT + row % 8 * 4 + chunk % 4;
}

__device__ __forceinline__ void run_embed(Block &block) {
    const Tiles own = own_tiles<HiddenRows>(nullptr, 0);
    for (int i = threadIdx.x; i < (own.end - own.first) * 64; i += WARPS * 32) {
        const u32 local = i / 8, token = i % 8, row = own.first * 8 + local;
        if (token >= block.n_tokens) continue;
        const u16 value = ((const u16 *)embedded(block.launch, block.shared.tokens[token], row / 8))[row % 8];
        block.shared.residual[local][token] = value;
        if (block.last && row < HIDDEN) block.launch.plain.x[(u64)token * HIDDEN_STRIDE + row] = value;
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

// All of them are there.
struct StagedInput {
    StagedUnits units;
    __device__ __forceinline__ void begin(u32) const {}
    __device__ __forceinline__ uint4 unit(u32 part, int u) const { return units[part * PART_UNITS + u]; }
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
};

// ---- rms_norm ----------------------------------------------------------------------------------
// This warp's sums of squares of rows in its stage, in the order of `norm_scale`: columns 2p and 2p + 1 of chunk c of
// every unit, then over p, then over c.
__device__ __forceinline__ void sum_squares(Block &block, u32 n_rows) {
    const int lane = block.lane;
    for (u32 first = 0; first < n_rows; first += 2) {
        const u32 row = min(first + lane / 16, n_rows - 1);
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < HIDDEN_UNITS; ++i) {
            const u32 pair = ((const u32 *)block.x)[(i * n_rows + row) * 16 + lane % 16];
            sum = __fmaf_rn(low(pair), low(pair), sum);
            sum = __fmaf_rn(high(pair), high(pair), sum);
        }
#pragma unroll
        for (int other = 1; other < 16; other *= 2) sum += __shfl_xor_sync(FULL, sum, other);
        if (lane % 16 == 0) block.shared.squares[block.warp][row] = sum;
    }
}

// rms_norm(x) of `n_rows` rows into this warp's stage; `token(row)` tells which token's. The embedding is no hop: every
// block reads it for itself.
template <class Token> __device__ __forceinline__ void await_norm(Block &block, const uint4 *norm, u32 n_rows, Token token) {
    constexpr u32 FOURS = HIDDEN_UNITS * 8, OWN = (FOURS + 31) / 32; // pieces of four columns
    const int lane = block.lane, first_unit = block.warp * HIDDEN_UNITS;
    uint2 weight[OWN];
#pragma unroll
    for (int i = 0; i < OWN; ++i) weight[i] = ((const uint2 *)norm)[first_unit * 8 + min(i * 32 + lane, FOURS - 1)];
    __syncwarp();
    if (block.shared.ops[block.op - 1] == EMBED) {
        for (u32 i = lane; i < n_rows * HIDDEN_UNITS * 4; i += 32) {
            const u32 unit = i / (n_rows * 4), row = i / 4 % n_rows;
            block.x[i] = *embedded(block.launch, block.shared.tokens[token(row)], (first_unit + unit) * 4 + i % 4);
        }
        __syncwarp();
    } else if (n_rows == block.n_tokens) {
        const AwaitedRows rows = {block.launch.x, HIDDEN_STRIDE / 2, HIDDEN, block.number_before(1)};
        rows.into(block.x, first_unit, HIDDEN_UNITS, n_rows, lane, block.watch);
    } else {
        // Fewer outputs than tokens: row by row, each where one row alone would be.
        for (u32 row = 0; row < n_rows; ++row) {
            const AwaitedRows rows = {block.launch.x + token(row) * (HIDDEN_STRIDE / 2), 0, HIDDEN, block.number_before(1)};
            uint4 *alone = block.x + HIDDEN_UNITS * 4 * n_rows;
            rows.into(alone, first_unit, HIDDEN_UNITS, 1, lane, block.watch);
            for (u32 i = lane; i < HIDDEN_UNITS * 4; i += 32) block.x[(i / 4 * n_rows + row) * 4 + i % 4] = alone[i];
            __syncwarp();
        }
    }
    sum_squares(block, n_rows);
    meet();
    // Lane r has row r's scale.
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) total += block.shared.squares[w][lane % 8];
    const float scales = 1.0f / sqrtf(total / (float)HIDDEN + NORM_EPS);
    for (u32 row = 0; row < n_rows; ++row) {
        const float scale = __shfl_sync(FULL, scales, row);
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
            const u32 four = i * 32 + lane;
            uint2 &x = ((uint2 *)block.x)[(four / 8 * n_rows + row) * 8 + four % 8];
            if (four < FOURS) x = make_uint2(normalise_pair(x.x, weight[i].x, scale), normalise_pair(x.y, weight[i].y, scale));
        }
    }
    __syncwarp();
}

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
        if (block.last && there && r < QKV_ROWS) *plain.place(token, r) = value;
    }
    __device__ __forceinline__ void h(u32 r, u32 token, float gate, float up, bool there) const {
        const u16 value = r < INTER ? round_one(gated(gate, up)) : 0;
        publish_row(block.launch.h + token * (INTER_STRIDE / 2), r, INTER, there, value, block.number);
        if (block.last && there && r < INTER) block.launch.plain.h[(u64)token * INTER_STRIDE + r] = value;
    }
    __device__ __forceinline__ void logit(u32 r, u32 output, float logit, bool there) const {
        if (!there || r >= VOCAB) return;
        block.launch.logits[(u64)output * VOCAB + r] = logit;
        best = better(best, candidate(logit, r));
    }
    __device__ __forceinline__ void operator()(int tile, u32 token, u32 row, const float (&sums)[2], bool there) const {
        if (kind == NORM_GATE_UP) return h(tile / 2 * 8 + row, token, sums[0], sums[1], there);
#pragma unroll
        for (int t = 0; t < 2; ++t) {
            const u32 r = (tile + t) * 8 + row;
            if (kind == NORM_QKV) qkv(r, token, sums[t], there);
            else logit(r, token, sums[t], there);
        }
    }
};

__device__ __forceinline__ Tiles norm_tiles(const Launch &launch, const LayerAddresses &layer, OpKind kind) {
    if (kind == NORM_QKV) return own_tiles<QkvRows>(layer.qkv, HIDDEN_UNITS);
    if (kind == NORM_GATE_UP) return own_tiles<GateUpRows>(layer.gate_up, HIDDEN_UNITS);
    return own_tiles<VocabularyRows>(launch.head, HIDDEN_UNITS);
}

// The three products of a norm. The best of the logits that they computed, if any.
__device__ __forceinline__ u64 run_norm_product(Block &block, OpKind kind) {
    const Launch &launch = block.launch;
    const LayerAddresses &layer = block.layer();
    const Tiles own = norm_tiles(launch, layer, kind);
    const uint4 *norm = kind == NORM_QKV ? layer.attention_norm : kind == NORM_GATE_UP ? layer.mlp_norm : launch.final_norm;
    const u32 n_rows = kind == NORM_HEAD ? block.n_outputs : block.n_tokens;
    u64 best = NO_CANDIDATE;
    if (own.first == own.end) return best;
    await_norm(block, norm, n_rows, [&](u32 row) { return kind == NORM_HEAD ? block.shared.outputs[row] : row; });
    multiply_tiles<NORM_TILES, 2, HIDDEN_UNITS % PART_UNITS == 0>(block.stages, block.shared.scratch.sums, block.flip, own, n_rows,
                                                                 block.warp, block.lane, StagedInput{{block.x, n_rows, block.lane}},
                                                                 NormStore{block, kind, best});
    return best;
}

__device__ __forceinline__ Tiles add_tiles(const LayerAddresses &layer, OpKind kind) {
    return own_tiles<HiddenRows>(kind == PROJ_ADD ? layer.o : layer.down, kind == PROJ_ADD ? Q_UNITS : INTER_UNITS);
}

// x += input * W, for either residual op.
__device__ __forceinline__ void run_add(Block &block, OpKind kind) {
    const Launch &launch = block.launch;
    const Tiles own = add_tiles(block.layer(), kind);
    const int first_row = own.first * 8;
    if (own.first == own.end) return;
    const u32 number = block.number_before(1);
    const AwaitedRows rows = kind == PROJ_ADD ? AwaitedRows{launch.a, Q_STRIDE / 2, Q_WIDTH, number}
                                              : AwaitedRows{launch.h, INTER_STRIDE / 2, INTER, number};
    const AwaitedInput input = {block, rows, own.n_units, max(launch.x_units / block.n_tokens / PART_UNITS, 1u)};
    constexpr bool EXACT = Q_UNITS % PART_UNITS == 0 && INTER_UNITS % PART_UNITS == 0;
    multiply_tiles<ADD_TILES, 1, EXACT>(block.stages, block.shared.scratch.sums, block.flip, own, block.n_tokens, block.warp, block.lane,
                                        input, [&](int tile, u32 token, u32 row, const float (&sum)[1], bool there) {
        const u32 r = tile * 8 + row;
        u16 value = 0;
        if (there && r < HIDDEN) {
            u16 &before = block.shared.residual[r - first_row][token];
            before = value = round_one(widen(before) + sum[0]);
            if (block.last) launch.plain.x[(u64)token * HIDDEN_STRIDE + r] = value;
        }
        publish_row(launch.x + token * (HIDDEN_STRIDE / 2), r, HIDDEN, there, value, block.number);
    });
}
