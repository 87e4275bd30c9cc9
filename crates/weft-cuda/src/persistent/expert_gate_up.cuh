// `expert_gate_up` in the persistent kernel: which experts' tiles a block takes, what it loads of
// them, and what it makes of its sums. The product itself is that of all norms (norm_product.cuh).
// It is empty for models without experts.
//
// The tiles of the experts that tokens use, each expert once, follow one another as if they were one
// matrix, and are shared out evenly. Which experts these are is known when the router's logits are:
// the computing warps choose, and the copying warp waits for them.
#pragma once

#include "generated/constants.cuh"
#if HAS_EXPERTS

#include "generated/experts.cuh"
#include "kernels/routing.cuh"
#include "ops/norm_gate_up.cuh"
#include "persistent/launch.cuh"
#include "persistent/norm_route.cuh"
#include "persistent/product.cuh"

constexpr u32 GATE_UP_GROUPS = (EXPERT_INTER + 7) / 8, GATE_UP_TILES = 2 * GATE_UP_GROUPS; // of an expert
// Blocks that have some of any choice of experts: the last ones. Everybody waits for their results,
// so all of them have read a layer's logits and routes before those of the next one come.
constexpr u32 GATE_UP_BLOCKS = N_CHOSEN * GATE_UP_GROUPS < N_BLOCKS ? N_CHOSEN * GATE_UP_GROUPS : N_BLOCKS;
__device__ __forceinline__ bool has_gate_up() { return blockIdx.x >= N_BLOCKS - GATE_UP_BLOCKS; }
// Whether a block has to know which experts are used. Nobody would wait for others to read that.
__device__ __forceinline__ bool takes_routes(const OwnTiles &own) { return has_gate_up() || own.hidden.first < own.hidden.end; }
// Whether a block has a part of the router, and so the norm that is the input of its experts too.
__device__ __forceinline__ bool has_router(const OwnTiles &own) { return own.router.first < own.router.end; }

__device__ __forceinline__ TileRange gate_up_range(u32 n_experts) {
    if (!has_gate_up()) return {0, 0};
    const u32 own = blockIdx.x - (N_BLOCKS - GATE_UP_BLOCKS), all = n_experts * GATE_UP_GROUPS;
    return {(int)(all * own / GATE_UP_BLOCKS * 2), (int)(all * (own + 1) / GATE_UP_BLOCKS * 2)};
}
// Bytes from an expert's matrix to the next: rows are padded to whole blocks.
template <class W> __device__ __forceinline__ u64 expert_bytes(int n_tiles, int units) {
    constexpr int TILES = BLOCK_ROWS / 8;
    return tile_place<W>((n_tiles + TILES - 1) / TILES * TILES, units);
}

// ---- the experts that are used ------------------------------------------------------------------
// By all computing warps. The copying warp goes on when it knows them.
__device__ __forceinline__ void take_routes(Block &block) {
    Distinct &to = block.shared.used;
    const u32 number = block.number_before(1);
    const auto tell = [&] {
        __threadfence_block();
        block.shared.ring.routed = block.shared.ring.routed + 1;
    };
    if (block.n_tokens == 1) {
        if (block.warp == 0) {
            // What the copying warp has to know comes first.
            const Choice own = await_experts(block, 0, to.routes[0], number);
            for (int i = block.lane; i <= N_CHOSEN; i += 32) {
                to.first_row[i] = i;
                if (i == N_CHOSEN) break;
                to.experts[i] = to.routes[0][i].expert;
                to.tokens[i] = 1, to.sources[i] = i;
            }
            if (block.lane == 0) to.n = N_CHOSEN;
            __syncwarp();
            if (block.lane == 0) tell();
            weigh_experts(own, to.routes[0], block.lane);
        }
        meet();
    } else {
        // What the copying warp has to know comes first here too; weights are read many meetings later.
        Choice own = {};
        find_distinct<WARPS * 32>(
            to, block.n_tokens, block.thread(), [&](u32 token, Route *routes) INLINED { own = await_experts(block, token, routes, number); }, [] { meet(); },
            [&]() INLINED {
                if (block.thread() == 0) tell();
            });
        if (block.warp < block.n_tokens) weigh_experts(own, to.routes[block.warp], block.lane);
    }
}
// The copying warp's end of it. False where the block has left.
__device__ __forceinline__ bool await_used(Copier &copier) {
    ++copier.n_routed;
    for (; copier.ring.routed < copier.n_routed; look_again())
        if (copier.ring.left) return false;
    __threadfence_block();
    __syncwarp();
    return true;
}

// ---- loading ------------------------------------------------------------------------------------
// Stages of a block on their way at once while experts are loaded: nothing else can be, so as many
// as saturate the memory.
constexpr int EXPERTS_IN_FLIGHT = MANY_IN_FLIGHT;

// How tiles of UNITS units a warp lie in stages: that of `sum_plain_tiles` and `sum_coded_tiles`.
template <class W, int UNITS> struct TileStage {
    static constexpr int STRIP = !W::IS_PLAIN ? strip_units(UNITS, W::CODED_BYTES) : UNITS < PORTION_UNITS ? UNITS : PORTION_UNITS;
    static constexpr int STRIPS = (UNITS + STRIP - 1) / STRIP, ROOM = WARPS * STRIP * W::BYTES;
    static constexpr bool LIES_TOGETHER = !W::IS_PLAIN || UNITS <= PORTION_UNITS || UNITS > LONGEST_STRIP;
    // Pairs of tiles of a stage; none if it holds one tile.
    static constexpr int PAIRS = STRIPS > 1 || LONG_STAGE_BYTES < 2 * ROOM ? 0 : LONG_STAGE_BYTES / (2 * ROOM);
    static constexpr int in_flight(int n) {
        constexpr int BYTES = PAIRS == 0 ? ROOM : 2 * PAIRS * ROOM;
        return (n * WEIGHT_STAGE_BYTES + BYTES - 1) / BYTES;
    }
    static constexpr int width(int strip) { return UNITS - strip * STRIP < STRIP ? UNITS - strip * STRIP : STRIP; }
    // Copies a strip of a tile.
    static __device__ __forceinline__ void copy_strip(u8 *to, const u8 *tile, int strip, int unit_bytes, u64 *full, int lane) {
        const int bytes = WARPS * width(strip) * unit_bytes;
        if (LIES_TOGETHER) copy_passing(to, tile + strip * (WARPS * STRIP) * unit_bytes, bytes, full, lane);
        else copy_pieces(to, tile + strip * STRIP * unit_bytes, UNITS * unit_bytes, bytes / WARPS, WARPS, full, lane);
    }
};

// The copying warp: tiles of the experts that are used, in the order `multiply_tiles` takes them in.
// False where the block has left. The expert and its tile are counted, not divided out for every copy.
template <class W> __device__ __forceinline__ bool load_gate_up(Copier &copier, const Distinct &used, const u8 *weights, const TileRange &own) {
    using Stage = TileStage<W, HIDDEN_UNITS>;
    constexpr int TILES = W::IS_PLAIN || Stage::PAIRS == 0 ? 1 : 2 * Stage::PAIRS;
    // Two tiles, which are of one expert, lie together if they have no other strips.
    constexpr int AT_ONCE = TILES > 1 && W::IS_UNIFORM && Stage::STRIPS == 1 ? 2 : 1;
    if constexpr (!W::IS_PLAIN) static_assert(TILES == CodedStage<W, HIDDEN_UNITS>::TILES, "stages hold what is computed");
    static_assert(GATE_UP_TILES % 2 == 0 && NORM_TILES % 2 == 0, "tiles come in pairs");
    copier.in_flight = Stage::in_flight(EXPERTS_IN_FLIGHT);
    const u64 each = expert_bytes<W>(GATE_UP_TILES, HIDDEN_UNITS);
    struct {
        int expert, tile; // of the expert
        __device__ __forceinline__ void pass(int n) {
            tile += n;
            if (tile == (int)GATE_UP_TILES) tile = 0, ++expert;
        }
    } at = {own.first / (int)GATE_UP_TILES, own.first % (int)GATE_UP_TILES}, next = at;
    for (int first = own.first; first < own.end; first += NORM_TILES, at = next) {
        const int end = min(first + NORM_TILES, own.end);
        for (int strip = 0; strip < Stage::STRIPS; ++strip) {
            next = at;
            for (int tile = first; tile < end; tile += TILES) {
                const int n = min(TILES, end - tile);
                // Forms take turns.
                const u32 pair_bytes = W::unit_bytes(0) + W::unit_bytes(1), units = WARPS * Stage::width(strip);
                const u32 bytes = units * (n == 1 ? W::unit_bytes(tile) : n / 2 * pair_bytes);
                const auto place = [&] { return weights + used.experts[next.expert] * each + tile_place<W>(next.tile, HIDDEN_UNITS); };
                const u8 *from = place();
                const bool pushed = copier.push(bytes, [&](u8 *stage, u64 *full) {
                    for (int i = 0; i < n; i += AT_ONCE) {
                        if (i > 0) from = place();
                        const int unit_bytes = W::unit_bytes(next.tile);
                        if (AT_ONCE == 2) copy_passing(stage, from, units * pair_bytes, full, copier.lane);
                        else Stage::copy_strip(stage, from, strip, unit_bytes, full, copier.lane);
                        stage += AT_ONCE * units * unit_bytes;
                        next.pass(AT_ONCE);
                    }
                });
                if (!pushed) return false;
            }
        }
    }
    return true;
}

// ---- computing ----------------------------------------------------------------------------------
struct ExpertGateUp {
    // Computed: row `row` of a pair of tiles, for `expert_down_add`.
    static __device__ __forceinline__ void store(Block &block, u32 tile, u32 token, u32 row, float gate, float up, bool there) {
        const Distinct &used = block.shared.used;
        const u32 expert = tile / GATE_UP_TILES, r = tile % GATE_UP_TILES / 2 * 8 + row;
        const bool is_one = block.n_tokens == 1, is_used = there && (is_one || used.has(expert, token));
        const u32 source = is_one ? expert : is_used ? used.sources[used.row(expert, token)] : 0;
        const u16 value = r < EXPERT_INTER ? round_one(gated(gate, up)) : 0;
        publish_row(block.launch.h + source * (EXPERT_STRIDE / 2), r, EXPERT_INTER, is_used, value, block.number);
        if (block.is_last() && is_used && r < EXPERT_INTER) block.launch.experts.h[(u64)source * EXPERT_STRIDE + r] = value;
    }
};

// ---- sums that others add up --------------------------------------------------------------------
// A block has many rounds of tiles here, and nobody waits for the first of them. So the computing warps
// leave their sums to warps that only add up and publish, and go on with the next round. Both know the
// rounds of an op: one for NORM_TILES of the block's tiles.
constexpr u32 LEFT_AT = 2, TAKEN_AT = 4; // two barriers each, in turn
constexpr int ADDING_THREADS = PERSISTENT_THREADS - RING_THREADS, HANDING_THREADS = WARPS * 32 + ADDING_THREADS;

// The computing warps' end of it.
struct HandedSums {
    Block &block;
    bool is_on;
    u32 round = 0;
    // Sums of two rounds ago lie where this round's will. What lay there before the op was read before
    // routes were chosen, because the warps met for that.
    __device__ __forceinline__ void begin(u32 flip) {
        if (!is_on) return;
        if (round >= 2) take_at<HANDING_THREADS>(TAKEN_AT + round % 2);
        else if (round == 0 && block.thread() == 0) block.shared.handed_flip = flip;
    }
    __device__ __forceinline__ bool are_left() {
        if (!is_on) return false;
        __syncwarp();
        leave_at<HANDING_THREADS>(LEFT_AT + round++ % 2);
        return true;
    }
    __device__ __forceinline__ void end() const {
        if (!is_on) return;
        if (round >= 2) take_at<HANDING_THREADS>(TAKEN_AT + round % 2);
        if (round >= 1) take_at<HANDING_THREADS>(TAKEN_AT + (round - 1) % 2);
    }
};

// The adding warps: all rounds of all tokens. Every block that has tiles has some of any choice of
// experts, so there is a first round.
__device__ __forceinline__ void add_expert_sums(Block &block) {
    BlockShared &shared = block.shared;
    for (u32 step = 0; step < block.launch.n_steps; ++step)
        for (u32 op = 0; op < block.launch.n_ops; ++op) {
            if (shared.kind(op) != EXPERT_GATE_UP || !has_gate_up()) continue;
            block.begin(step, op);
            TileRange own = {0, 0};
            u32 flip = 0, round = 0;
            do {
                take_at<HANDING_THREADS>(LEFT_AT + round % 2);
                if (round == 0) {
                    if (shared.ring.left) return;
                    own = gate_up_range(shared.used.n), flip = shared.handed_flip;
                }
                add_sums<2, 1, ADDING_THREADS>(shared.scratch.sums, flip, own.first, min(NORM_TILES, own.end - own.first) / 2, sum_shift(block.n_tokens), block.n_tokens,
                                               block.thread() - RING_THREADS, block.lane,
                                               [&](int tile, u32 token, u32 row, const float (&sums)[2], bool there) INLINED {
                                                   ExpertGateUp::store(block, tile, token, row, sums[0], sums[1], there);
                                               });
                __syncwarp();
                leave_at<HANDING_THREADS>(TAKEN_AT + round++ % 2);
                flip ^= 1, own.first += NORM_TILES;
            } while (own.first < own.end);
        }
    take_at<HANDING_THREADS>(LEFT_AT); // the computing warps have left
}

#endif
