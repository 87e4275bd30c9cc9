// Ops of the persistent kernel that are products, and `embed`. What they read and write are words (hop.cuh);
// the residual stream of a block's own rows stays in its shared memory.

// Where eight columns of a row of the embedding lie.
__device__ __forceinline__ const uint4 *embedded(const Launch &launch, u32 row, int chunk) {
    const u64 unit = (u64)(row / 8) * (HIDDEN_STRIDE / 32) + chunk / 4;
    return (const uint4 *)launch.embedding + unit * UNIT + row % 8 * 4 + chunk % 4;
}

// This warp's units of rms_norm(x), of the token that the lane's quad has; 8 means none. The embedding is no hop:
// every block reads it for itself.
__device__ __forceinline__ void await_norm(Block &block, uint4 (&held)[HIDDEN_UNITS], const uint4 *norm, u32 token) {
    constexpr int EARLY = HIDDEN_UNITS <= 8 ? HIDDEN_UNITS : 0;
    const int lane = block.lane, first = block.warp * HIDDEN_UNITS;
    const uint4 *own_norm = norm + first * 4 + lane % 4;
    uint4 weight[EARLY + 1];
#pragma unroll
    for (int i = 0; i < EARLY; ++i) weight[i] = load_fresh(own_norm + i * 4);
#pragma unroll
    for (int i = 0; i < HIDDEN_UNITS; ++i) held[i] = make_uint4(0, 0, 0, 0);
    if (token < 8) {
        if (block.shared.ops[block.op - 1] == EMBED) {
#pragma unroll
            for (int i = 0; i < HIDDEN_UNITS; ++i)
                held[i] = *embedded(block.launch, block.shared.tokens[token], (first + i) * 4 + lane % 4);
        } else {
            const u64 *row = block.launch.x + token * (HIDDEN_STRIDE / 2);
            await_row<HIDDEN_UNITS, HIDDEN>(held, row, first, block.number_before(1), lane, block.watch);
        }
    }
    __syncwarp();
    const float scale = norm_scale<HIDDEN_UNITS, HIDDEN>(held, block.shared.squares, block.warp, lane);
#pragma unroll
    for (int i = 0; i < HIDDEN_UNITS; ++i)
        held[i] = normalise(held[i], i < EARLY ? weight[i] : load_fresh(own_norm + i * 4), scale);
}
__device__ __forceinline__ u32 own_token(const Block &block) {
    return block.lane / 4 < block.n_tokens ? block.lane / 4 : 8;
}

__device__ __forceinline__ void run_embed(Block &block) {
    const Tiles own = own_tiles<Proj>();
    for (int i = threadIdx.x; i < (own.end - own.first) * 64; i += WARPS * 32) {
        const u32 local = i / 8, token = i % 8, row = own.first * 8 + local;
        if (token >= block.n_tokens) continue;
        const u16 value = ((const u16 *)embedded(block.launch, block.shared.tokens[token], row / 8))[row % 8];
        block.shared.residual[local][token] = value;
        if (block.last && row < HIDDEN) block.launch.plain.x[(u64)token * HIDDEN_STRIDE + row] = value;
    }
}

__device__ __forceinline__ void run_norm_qkv(Block &block) {
    if (own_tiles<Qkv>().first == own_tiles<Qkv>().end) return;
    const Launch &launch = block.launch;
    const QkvStore plain = {block.layer().bias, launch.plain.qkv.q, launch.plain.qkv.k, launch.plain.qkv.v};
    uint4 held[HIDDEN_UNITS];
    await_norm(block, held, block.layer().attention_norm, own_token(block));
    multiply_tiles<Qkv>(block.stages, block.shared.scratch.sums, block.flip, block.warp, block.lane, Held<Qkv>{held},
                        [&](int tile, u32 token, u32 row, const float (&sum)[1]) {
        const u32 r = tile * 8 + row;
        const bool there = token < block.n_tokens;
        const u16 value = r < QKV_ROWS ? round_one(plain.biased(r, sum[0])) : 0;
        publish_row(launch.qkv + token * QKV_WORDS, r, QKV_ROWS, there, value, block.number);
        if (block.last && there && r < QKV_ROWS) *plain.place(token, r) = value;
    });
}

__device__ __forceinline__ void run_norm_gate_up(Block &block) {
    if (own_tiles<GateUp>().first == own_tiles<GateUp>().end) return;
    const Launch &launch = block.launch;
    uint4 held[HIDDEN_UNITS];
    await_norm(block, held, block.layer().mlp_norm, own_token(block));
    multiply_tiles<GateUp>(block.stages, block.shared.scratch.sums, block.flip, block.warp, block.lane, Held<GateUp>{held},
                           [&](int tile, u32 token, u32 row, const float (&sums)[2]) {
        const u32 r = tile / 2 * 8 + row;
        const bool there = token < block.n_tokens;
        const u16 value = r < INTER ? round_one(gated(sums[0], sums[1])) : 0;
        publish_row(launch.h + token * (INTER_STRIDE / 2), r, INTER, there, value, block.number);
        if (block.last && there && r < INTER) launch.plain.h[(u64)token * INTER_STRIDE + r] = value;
    });
}

// Units of an input that are awaited part by part, where all of them are too many for registers.
template <class M, int WIDTH> struct AwaitedParts {
    Block &block;
    const u64 *row; // null for lanes without a token
    uint4 now[M::PART];
    __device__ __forceinline__ const uint4 *operator()(int part) {
#pragma unroll
        for (int i = 0; i < M::PART; ++i) now[i] = make_uint4(0, 0, 0, 0);
        if (row)
            await_units<M::PART, WIDTH>(now, row, block.warp * M::UNITS + part * M::PART, block.number_before(1), block.lane, block.watch);
        __syncwarp();
        return now;
    }
};

// x += input * W, for either residual op.
template <class M, int WIDTH>
__device__ __forceinline__ void run_add(Block &block, const u64 *input, int stride) {
    if (own_tiles<M>().first == own_tiles<M>().end) return;
    const Launch &launch = block.launch;
    const int first_row = own_tiles<M>().first * 8;
    const u32 token = own_token(block);
    const u64 *row = token < 8 ? input + token * (stride / 2) : nullptr;
    const auto store = [&](int tile, u32 token, u32 row, const float (&sum)[1]) {
        const u32 r = tile * 8 + row;
        const bool there = token < block.n_tokens;
        u16 value = 0;
        if (there && r < HIDDEN) {
            u16 &before = block.shared.residual[r - first_row][token];
            before = value = round_one(widen(before) + sum[0]);
            if (block.last) launch.plain.x[(u64)token * HIDDEN_STRIDE + r] = value;
        }
        publish_row(launch.x + token * (HIDDEN_STRIDE / 2), r, HIDDEN, there, value, block.number);
    };
    auto &sums = block.shared.scratch.sums;
    if constexpr (M::UNITS <= 24) {
        uint4 held[M::UNITS];
#pragma unroll
        for (int i = 0; i < M::UNITS; ++i) held[i] = make_uint4(0, 0, 0, 0);
        if (row) await_row<M::UNITS, WIDTH>(held, row, block.warp * M::UNITS, block.number_before(1), block.lane, block.watch);
        __syncwarp();
        multiply_tiles<M>(block.stages, sums, block.flip, block.warp, block.lane, Held<M>{held}, store);
    } else {
        AwaitedParts<M, WIDTH> parts = {block, row};
        multiply_tiles<M>(block.stages, sums, block.flip, block.warp, block.lane, parts, store);
    }
}
