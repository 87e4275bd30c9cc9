#include "generated/experts.cuh"
#include "kernels/experts.cuh"
#include "kernels/experts_block.cuh"

// Computes   x += sum of weight * (h * W_down) over the routes of up to eight tokens, in their order;
//            `_block` for tokens sorted by expert, whose products `sum_experts` adds up. There is a
//            kernel for each form that W_down has in some layer.
// Layout     weights: experts one after the other, each packed in units; h: bf16
//            [tokens][N_CHOSEN][EXPERT_STRIDE], or [positions][EXPERT_STRIDE]; x: bf16
//            [tokens][HIDDEN_STRIDE]; products: f32 [tokens][N_CHOSEN][HIDDEN_STRIDE].
// Work split a block owns tiles of eight rows of every expert that is used, a warp an eighth of the
//            columns or, in four bits, whole tiles of some of the routes (experts.cuh); or 128
//            positions x 128 rows (experts_block.cuh).
// Rounding   the sum, once; products never.
// Moves      the weights of the experts that are used, once: bound by memory. Prompts move them and h
//            once from memory, then from L2: bound by arithmetic.
#define EXPERT_DOWN_KERNELS(SUFFIX, W)                                                                           \
    extern "C" __global__ void __launch_bounds__(W::READERS * 32 + 32, W::BLOCKS)                                \
    expert_down_add##SUFFIX(Step step, const u8 *weights, const u16 *h, RouteSource routes, u16 *x) {                 \
        multiply_expert_down<W>(step, weights, h, routes, x);                                                    \
    }
EXPERT_DOWN_MATRICES(EXPERT_DOWN_KERNELS)

#define EXPERT_DOWN_BLOCK(SUFFIX, W)                                                                             \
    extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)                                               \
    expert_down_add_block##SUFFIX(const u8 *weights, const u16 *h, Sorted sorted, float *products) {             \
        multiply_expert_down_block<W>(weights, h, sorted, products);                                             \
    }
EXPERT_DOWN_BLOCK_MATRICES(EXPERT_DOWN_BLOCK)
