// What the host hands to a launch of the persistent kernel, and what the parts of a block share.
#pragma once

#include "kernels/routes.cuh"
#include "kernels/sampling.cuh"
#include "kernels/section.cuh"
#include "ops/norm_qkv.cuh"
#include "persistent/hop.cuh"
#include "persistent/planned.cuh"
#include "persistent/product.cuh"
#include "persistent/ring.cuh"
#if HAS_EXPERTS
#include "kernels/routing.cuh"
#endif

// Where a layer's weights and pages lie.
struct LayerAddresses {
    const uint4 *attention_norm;
    const u8 *qkv;
    const u16 *bias, *q_norm, *k_norm;
    const u8 *o;
    const uint4 *mlp_norm;
    const u8 *gate_up, *down;
    u16 *kv;
    struct {
        u16 qkv, gate_up; // of the forms after all norms (generated/matrices.cuh)
        u16 proj, down;
    } variants;
};
// A case of a list of matrices.
#define CALL_WITH_MATRIX(SUFFIX, W) if (W::IS_LAST || variant == W::ID) return work(W{});

// Results of ops as ordinary memory holds them; only the last op of a launch writes there, for
// tests.
struct PlainBuffers {
    u16 *x;
    QkvStore qkv;
    u16 *a, *h;
};

// What only models with experts have. The matrices of a sparse layer's experts are its `gate_up` and
// `down`.
struct ExpertAddresses {
    const u8 *const *routers; // [LAYERS]
    u64 *logits;              // words: [8 tokens][EXPERTS]: a router's f32
    Route *routes;            // as `PlainBuffers`: [tokens][N_CHOSEN]
    u16 *h;                   // the same: [tokens][N_CHOSEN][EXPERT_STRIDE]
};

struct Launch {
    Step step;
    const LayerAddresses *layers; // [LAYERS]
    const u32 *ops;               // [n_ops]: kind | layer << 8
    const u8 *embedding, *head;
    const uint4 *final_norm;
    const float2 *rope;
    u64 *x, *qkv, *a, *h;         // words: [8 tokens][columns / 2]; of experts h is [8 tokens][N_CHOSEN][columns / 2]
    u64 *part_sums;               // words: [partials][HEADS][DIM]
    u64 *part_weights;            // words: [partials][HEADS][2]: pivot, weight
    u64 *cells;                   // words: [cells][HEADS][2]: pivot, squares
    u64 *candidates;              // words: [2 steps][8][N_BLOCKS][2]: the best score of a block's, its row
    u64 *done;                    // words: [N_BLOCKS]: what a block wrote up to a head is there
    u64 *chosen;                  // words: [8]: the next token
    PlainBuffers plain;
    float *logits;
    float *shares, *other_shares; // in turn: one step's are published while the next one's are added up
    Sampling sampling;
    u32 *given_up;
    Mailbox *mailbox;
    u32 n_ops, n_steps;           // ops of a token; tokens of every lane
    u32 number;                   // of the launch's first op, less one
    u32 withheld;                 // an op whose results the first block keeps to itself, for tests
    u32 n_stages;                 // of the ring
    Chooses chooses;
    ExpertAddresses experts;
    uint4 *bare;                  // rows of eight tokens (bare.cuh)

    // Where a step's shares of attention are added up.
    __device__ __forceinline__ float *shares_of(u32 step) const { return step % 2 == 0 ? shares : other_shares; }
};

constexpr int MOST_OPS = (HAS_EXPERTS ? 7 : 6) * LAYERS + 2;
static_assert(LAYERS <= 256, "an op has eight bits for its layer");
constexpr int KEPT_ITEMS = 4;
constexpr int QKV_WORDS = (QKV_ROWS + 1) / 2;

// Scratch of products, of attention and of a choice: a block never does two of them. What is
// fetched for a fold lies in those sums that the next product leaves alone (attend.cuh).
union Scratch {
    WarpSums sums;
    SectionScratch section;
    Choosing choosing;
};

struct BlockShared {
    LongRing ring;
    PlannedStages planned;
    LayerAddresses layers[LAYERS];
    u16 ops[MOST_OPS];
    u32 n_outputs;
    u32 n_work, n_attending;                  // KV heads of items of attention, and the blocks that take them
    u32 folds;                                // whether attention of any token has several parts
    u32 tokens[FEW];                          // of the step that runs
    u32 outputs[FEW];                         // the token of each row of logits
    __align__(16) Draw draws[FEW];            // of each row of logits, for the step that runs
    u32 key_positions[FEW];                   // of the first step
    u32 partials[FEW][4];                     // how many parts a token's attention has, the first; how many cells, the first
    u16 residual[HiddenRows::MOST_TILES * 8][FEW]; // x of the rows that this block adds to: bf16 [row][token]
    __align__(16) float squares[FEW][WARPS];  // [row][warp]
    OwnTiles own;
    Item items[KEPT_ITEMS + 2];               // the first that this block takes, and room for two that follow
    u16 new_rows[WARPS][2][HEAD_DIM];         // a key and a value that each warp made: bf16
    u64 best[WARPS * 4];
    volatile u32 n_steps;                     // whose tokens are found
    u32 asked_to_stop;                        // in the first block: the host wants no more tokens
    u32 stop, gone;                           // no token follows; a thread waits no more
    Scratch scratch;
#if HAS_EXPERTS
    Distinct used;                            // the experts of the layer that runs
    const u8 *routers[LAYERS];
    u32 handed_flip;                          // which sums the first round of `expert_gate_up` leaves
#endif
    volatile u32 n_added;                     // `down_add` that are done, where rows have no numbers

    __device__ __forceinline__ OpKind kind(u32 op) const { return (OpKind)(ops[op] & 0xff); }
};

// A computing thread's view of the op that runs.
struct Block {
    const Launch &launch;
    BlockShared &shared;
    Watch &watch;
    Stages stages;
    uint4 *x;      // this warp's stage for inputs
    int warp, lane;
    u32 n_tokens;  // that the kernel is made for: all are outputs, in order, or none is
    bool draws;    // whether tokens are found as draws say: known to each kernel, so that others need no instructions for it
    u32 flip;      // which of two sums is next
    u32 step;      // tokens that every lane has behind it in this launch
    u32 op;        // of the plan
    u32 number;    // of its results

    __device__ __forceinline__ void begin(u32 of_step, u32 index) {
        // Asked for anew, so that nothing that depends on them is kept from op to op: there are no
        // registers for that.
        const u32 thread = own_thread();
        warp = thread / 32, lane = thread % 32;
        step = of_step;
        op = watch.op = index;
        number = launch.number + step * launch.n_ops + op + 1;
        if (index == launch.withheld && blockIdx.x == 0) number = 0;
    }
    // Whether the launch ends with it.
    __device__ __forceinline__ bool is_last() const { return op + 1 == launch.n_ops; }
    // Whether there are registers for a product's weights: those of a narrow model. There are never
    // more than FEW tokens; but where the compiler knows the answer from the start, it spills more.
    __device__ __forceinline__ bool holds_weights() const { return __CUDA_ARCH__ >= 900 && n_tokens <= FEW && HIDDEN_UNITS <= TWO_BLOCKS_UNITS; }
    __device__ __forceinline__ u32 thread() const { return warp * 32 + lane; }
    // The number of results made `before` ops ago.
    __device__ __forceinline__ u32 number_before(u32 before) const {
        return launch.number + step * launch.n_ops + op + 1 - before;
    }
    __device__ __forceinline__ const LayerAddresses &layer() const { return shared.layers[shared.ops[op] >> 8]; }
    __device__ __forceinline__ bool is_first_layer() const { return shared.ops[op] >> 8 == 0; }
    // Meets the warps that compute; whether a thread of theirs waits no more.
    __device__ __forceinline__ bool meet_and_ask() const {
        if (watch.gone) shared.gone = 1;
        meet();
        return shared.gone;
    }
};
