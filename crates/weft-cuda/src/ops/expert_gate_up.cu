#include "generated/experts.cuh"
#include "kernels/experts.cuh"
#include "kernels/experts_block.cuh"

// Computes   n = rms_norm(x); h = silu(n * W_gate) * (n * W_up) of each route's expert, for up to
//            eight tokens; `_block` for tokens sorted by expert, of which n is already there. There
//            is a kernel for each pair of forms that gate and up have in some layer.
// Layout     weights: experts one after the other, each packed in units, tiles of eight gate rows and
//            of eight up rows in turn; norm: bf16 [HIDDEN_STRIDE]; x: bf16 [tokens][HIDDEN_STRIDE];
//            n: bf16 [positions][HIDDEN_STRIDE]; h: bf16 [tokens][N_CHOSEN][EXPERT_STRIDE].
// Work split the pairs of tiles of all experts that are used are shared out evenly over the blocks, a
//            warp has an eighth of the columns (experts.cuh); or 128 positions x 128 rows, half of
//            them gate and half of them up (experts_block.cuh).
// Rounding   n as RMSNorm rounds; gate, up and SiLU never; h once.
// Moves      the weights of the experts that are used, once: bound by memory. Prompts move them and n
//            once from memory, then from L2: bound by arithmetic.
#define EXPERT_GATE_UP_KERNELS(SUFFIX, W)                                                                        \
    extern "C" __global__ void __launch_bounds__(RING_THREADS, W::BLOCKS)                                        \
    expert_gate_up##SUFFIX(Step step, const u8 *weights, const uint4 *norm, const u16 *x, RouteSource routes, u16 *h) { \
        multiply_expert_gate_up<W>(step, weights, norm, x, routes, h);                                           \
    }
EXPERT_GATE_UP_MATRICES(EXPERT_GATE_UP_KERNELS)

#define EXPERT_GATE_UP_BLOCK(SUFFIX, W)                                                                          \
    extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)                                               \
    expert_gate_up_block##SUFFIX(const u8 *weights, const u16 *n, Sorted sorted, u16 *h) {                       \
        multiply_expert_gate_up_block<W>(weights, n, sorted, h);                                                 \
    }
EXPERT_GATE_UP_BLOCK_MATRICES(EXPERT_GATE_UP_BLOCK)
