// The persistent kernel: what its two kinds of warps do, and the kernels. An op's parts are in the
// file of its name.
#include "persistent/attend.cuh"
#include "persistent/embed.cuh"
#include "persistent/expert_down_add.cuh"
#include "persistent/launch.cuh"
#include "persistent/next_token.cuh"
#include "persistent/norm_product.cuh"
#include "persistent/residual.cuh"

// ---- the two kinds of warps --------------------------------------------------------------------
template <bool BARE> __device__ __forceinline__ void compute_op(Block &block, OpKind kind) {
    switch (kind) {
    case EMBED: return compute_embed(block);
    case ROPE_STORE:
    case ATTEND: return compute_attend<BARE>(block, kind == ROPE_STORE);
    case PROJ_ADD:
    case DOWN_ADD: return compute_add<BARE>(block, kind);
#if HAS_EXPERTS
    case EXPERT_DOWN_ADD: return compute_expert_down(block);
#endif
    default: return compute_norm_product<BARE>(block, kind);
    }
}

template <bool BARE> __device__ __forceinline__ void compute(Block &block) {
    const Launch &launch = block.launch;
    for (u32 step = 0; step < launch.n_steps; ++step) {
        for (u32 op = 0; op < launch.n_ops; ++op) {
            block.begin(step, op);
            compute_op<BARE>(block, block.shared.kind(op));
            if (BARE && block.shared.kind(op) == DOWN_ADD && threadIdx.x == 0) block.shared.n_added = block.shared.n_added + 1;
            // `attend` does what `rope_store` does: that runs by itself only as the last op.
            if (op + 2 < launch.n_ops && block.shared.kind(op + 1) == ROPE_STORE) ++op;
        }
        if (launch.chooses == CHOOSES_NOTHING) return;
        if (take_tokens(block)) return;
    }
}

// Brings what attention needs of a layer near, long before it is read.
__device__ __forceinline__ void fetch_norms(const LayerAddresses &layer, int lane) {
    if (QK_NORM) bring_near(layer.q_norm, HEAD_DIM * 2, lane), bring_near(layer.k_norm, HEAD_DIM * 2, lane);
}

// The copying warp: the weights of a product, after those of its norm.
__device__ __forceinline__ bool load_product(Copier &copier, const BlockShared &shared, const Launch &launch, const LayerAddresses &layer, OpKind kind) {
    TileCopies copies = {};
    const int few = few_in_flight(shared);
    const bool here = kind == PROJ_ADD || kind == DOWN_ADD ? plan_add(copier, copies, layer, shared.own.hidden, kind, few)
                                                           : load_norm(copier, copies, launch, layer, shared.own, kind, kind == NORM_HEAD ? MANY_IN_FLIGHT : few);
    return here && load_tiles(copier, copies);
}
// Those of a layer of a narrow model, planned by one thread, and as they were planned.
__device__ __forceinline__ void plan_stages(BlockShared &shared) {
    const LayerAddresses &layer = shared.layers[0];
    const OwnTiles &own = shared.own;
    const int few = few_in_flight(shared);
    if constexpr (IS_PLANNED) {
        with_norm_forms(layer, NORM_QKV, [&](auto forms) INLINED { shared.planned.add<decltype(forms), HIDDEN_UNITS>(PLANNED_QKV, own.qkv, NORM_TILES, true, few); });
        with_proj(layer.variants.proj, [&](auto matrix) INLINED { shared.planned.add<decltype(matrix), ProjAdd::UNITS>(PLANNED_PROJ, own.hidden, ADD_TILES, false, few); });
        with_norm_forms(layer, NORM_GATE_UP, [&](auto forms) INLINED { shared.planned.add<decltype(forms), HIDDEN_UNITS>(PLANNED_GATE_UP, own.gate_up, NORM_TILES, true, few); });
        with_down(layer.variants.down, [&](auto matrix) INLINED { shared.planned.add<decltype(matrix), DownAdd::UNITS>(PLANNED_DOWN, own.hidden, ADD_TILES, false, few); });
    }
}
__device__ __forceinline__ bool load_planned(Copier &copier, const PlannedStages &planned, const LayerAddresses &layer, OpKind kind) {
    const u32 product = kind == NORM_QKV ? PLANNED_QKV : kind == PROJ_ADD ? PLANNED_PROJ : kind == NORM_GATE_UP ? PLANNED_GATE_UP : PLANNED_DOWN;
    const u8 *weights = kind == NORM_QKV ? layer.qkv : kind == PROJ_ADD ? layer.o : kind == NORM_GATE_UP ? layer.gate_up : layer.down;
    const u8 *norm = (const u8 *)(kind == NORM_QKV ? layer.attention_norm : layer.mlp_norm);
    copier.in_flight = planned.in_flight[product];
    const u32 end = planned.end[product];
#pragma unroll 1
    for (u32 i = planned.begin(product); i < end; ++i) {
        const PlannedStage next = planned.all[i];
        const u8 *from = (next.is_norm ? norm : weights) + next.offset;
        const bool pushed = copier.push(next.bytes * next.n_pieces, [&](u8 *stage, u64 *full) {
            copy_pieces(stage, from, next.stride, next.bytes, next.n_pieces, full, copier.lane);
        });
        if (!pushed) return false;
    }
    return true;
}
#if HAS_EXPERTS
// That of a router or of experts.
__device__ __forceinline__ bool load_sparse(Copier &copier, const BlockShared &shared, const LayerAddresses &layer, const u8 *router, OpKind kind) {
    const int few = few_in_flight(shared);
    if (kind == NORM_ROUTE) return load_router(copier, shared, layer, router, few);
    if (kind == EXPERT_GATE_UP) return load_experts(copier, shared, layer, few);
    bool here = true;
    with_expert_down(layer.variants.down, [&](auto matrix) INLINED {
        here = load_expert_down<decltype(matrix)>(copier, shared.used, layer.down, shared.own.hidden);
    });
    return here;
}
#endif
template <bool BARE> __device__ __forceinline__ bool load_op(Copier &copier, const BlockShared &shared, const Launch &launch, u32 op, u32 step,
                                          u32 &n_attended) {
    const LayerAddresses &layer = shared.layers[shared.ops[op] >> 8];
    const OpKind kind = shared.kind(op);
    switch (kind) {
    case EMBED: return true;
    case ROPE_STORE: if (op + 1 < launch.n_ops) return true; // fall through
    case ATTEND: return load_attend(copier, shared, launch, layer.kv, step, ++n_attended - LAYERS);
#if HAS_EXPERTS
    case NORM_ROUTE:
    case EXPERT_GATE_UP:
    case EXPERT_DOWN_ADD: return load_sparse(copier, shared, layer, shared.routers[shared.ops[op] >> 8], kind);
#endif
    default:
        if (kind == NORM_QKV) fetch_norms(layer, copier.lane);
        if (BARE && kind == NORM_QKV && !empty_rows(shared, launch, step, shared.ops[op] >> 8, copier.lane)) return false;
        if (IS_PLANNED && kind != NORM_HEAD) return load_planned(copier, shared.planned, layer, kind);
        return kind == NORM_HEAD && shared.n_outputs == 0 || load_product(copier, shared, launch, layer, kind);
    }
}

// The copying warp: all stages of all tokens, and the shares of attention that are published to the host.
template <bool BARE> __device__ __forceinline__ void load(BlockShared &shared, const Launch &launch, u8 *ring_memory, int lane) {
    Copier copier = {shared.ring, ring_memory, launch.n_stages, lane};
    u32 n_attended = 0, n_published = 0;
    if (IS_PLANNED && lane == 0) plan_stages(shared);
    __syncwarp();
    bool here = true;
    for (u32 step = 0; step < launch.n_steps && here; ++step)
        for (u32 op = 0; op < launch.n_ops && here; ++op) {
            if (publishes_shares(shared, op) && step > n_published) here = publish_shares(shared, launch, n_published++, lane);
            here = here && load_op<BARE>(copier, shared, launch, op, step, n_attended);
        }
    copier.drain();
    if (launch.chooses != CHOOSES_NOTHING) publish_last_shares(shared, launch, n_published, lane);
}

// The kernel for a number of tokens (`plan_for`). As it is known there is less to compute, and
// registers are left for weights.
template <u32 TOKENS, bool DRAWS> __device__ __forceinline__ void decode_tokens(const Launch &launch) {
    u8 *ring_memory = dynamic_shared();
    SHARED(BlockShared, shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    constexpr u32 tokens = TOKENS;
    constexpr bool BARE = BARE_BYTES > 0 && TOKENS == BARE_TOKENS;
    const u32 outputs = n_outputs(launch.step);
    for (int i = threadIdx.x; i < LAYERS * (int)(sizeof(LayerAddresses) / 8); i += blockDim.x)
        ((u64 *)shared.layers)[i] = ((const u64 *)launch.layers)[i];
    for (int i = threadIdx.x; i < launch.n_ops; i += blockDim.x) shared.ops[i] = launch.ops[i];
#if HAS_EXPERTS
    for (int i = threadIdx.x; i < LAYERS; i += blockDim.x) shared.routers[i] = launch.experts.routers[i];
#endif
    if (threadIdx.x < 8) {
        shared.tokens[threadIdx.x] = threadIdx.x < tokens ? load_fresh(launch.step.tokens + threadIdx.x) : 0;
        shared.outputs[threadIdx.x] = threadIdx.x < outputs ? load_fresh(launch.step.outputs + threadIdx.x) : 0;
        shared.key_positions[threadIdx.x] = load_fresh(launch.step.key_positions + threadIdx.x);
    }
    if (threadIdx.x < sizeof(shared.partials) / 4) ((u32 *)shared.partials)[threadIdx.x] = load_fresh(launch.step.partials + threadIdx.x);
    if (threadIdx.x < sizeof(shared.draws) / 4)
        ((u32 *)shared.draws)[threadIdx.x] = launch.chooses != CHOOSES_NOTHING ? load_fresh((const u32 *)launch.sampling.draws + threadIdx.x) : 0;
    if (threadIdx.x < 32) {
        const bool folds = __any_sync(FULL, threadIdx.x < tokens && load_fresh(launch.step.partials + threadIdx.x * 4) > 1);
        if (threadIdx.x == 0) shared.folds = folds;
    }
    keep_items(shared, launch.step, n_items(launch.step) * KV_HEADS);
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < launch.n_stages; ++i) {
            barrier_init(&shared.ring.full[i], COPY_ARRIVALS);
            barrier_init(&shared.ring.empty[i], WARPS);
        }
        barriers_made();
        shared.own.fill();
        shared.n_outputs = outputs;
        shared.ring.left = shared.ring.attended = 0;
        if (BARE) shared.n_added = 0;
#if HAS_EXPERTS
        shared.ring.routed = 0;
#endif
        shared.n_steps = shared.asked_to_stop = shared.stop = shared.gone = 0;
    }
    __syncthreads();
    if (warp == WARPS) return load<BARE>(shared, launch, ring_memory, lane);
    uint4 *x = (uint4 *)(ring_memory + launch.n_stages * LONG_STAGE_BYTES) + warp * x_units(tokens) * (X_UNIT_BYTES / 16);
    Watch watch = {launch.given_up, launch.mailbox, 0, false};
    Block block = {launch, shared, watch, {shared.ring, ring_memory, watch, launch.n_stages}, x, warp, lane, tokens, DRAWS};
#if HAS_EXPERTS
    if (warp > WARPS) return add_expert_sums(block);
#endif
    compute<BARE>(block);
    shared.ring.left = 1;
#if HAS_EXPERTS
    __syncwarp();
    leave_at<HANDING_THREADS>(LEFT_AT);
#endif
}

// Computes   the plan, or its first ops, for some tokens; where it chooses, the next ones,
//            and the plan for those.
// Layout     weights and pages as the kernels of the ops have them; results between ops are words
//            (hop.cuh).
// Work split one block per multiprocessor. A block owns tiles of every matrix, sections of
//            attention, and where those are folded 32 dimensions of some heads (attend.cuh); in it
//            a warp has what it has in the ops' own kernels. A ninth warp copies weights and pages
//            (ring.cuh); with experts, three more add up sums (expert_gate_up.cuh).
// Rounding   that of the ops.
// Moves      weights and pages once: bound by memory, and by the hops from op to op.
#define WHOLE_PLAN(name, tokens, draws)                                                                                                              \
    extern "C" __global__ void __launch_bounds__(PERSISTENT_THREADS, 1) name(const __grid_constant__ Launch launch) {                                  \
        decode_tokens<tokens, draws>(launch);                                                                                                       \
    }
// The kernels of a program (`modules` in kernels.rs), all of them unless it lists its own: without
// draws, and the same where tokens are drawn.
#ifndef WHOLE_PLANS
#define WHOLE_PLANS(PLAN)                                                                                                                            \
    PLAN(decode_one, 1, false)                                                                                                                       \
    PLAN(decode_two, 2, false)                                                                                                                       \
    PLAN(decode_four, 4, false)                                                                                                                      \
    PLAN(decode_eight, 8, false)                                                                                                                     \
    PLAN(decode_one_drawn, 1, true)                                                                                                                  \
    PLAN(decode_two_drawn, 2, true)                                                                                                                  \
    PLAN(decode_four_drawn, 4, true)                                                                                                                 \
    PLAN(decode_eight_drawn, 8, true)
#endif
WHOLE_PLANS(WHOLE_PLAN)
