#include "generated/experts.cuh"
#include "kernels/experts_tiled.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Computes   h = silu(n * W_gate) * (n * W_up) of each route's expert, for tokens sorted by expert.
// Layout     weights: experts one after the other, each packed in units, tiles of eight gate rows and
//            of eight up rows in turn; n: bf16 in squares of positions (tiled.cuh); placed: the
//            same, or null, and then h: bf16 [tokens][N_CHOSEN][EXPERT_STRIDE].
// Work split a cluster of two blocks owns a tile of positions x 256 rows of its expert at a time
//            (experts_tiled.cuh).
// Rounding   h once.
// Moves      weights and n once from memory, then from L2: bound by arithmetic.
#define KERNEL(SUFFIX, W, TOKENS) \
    extern "C" __global__ void TILED_BOUNDS \
    expert_gate_up_tiled_##TOKENS##SUFFIX(const u8 *weights, const u8 *n, const u8 *sums, Sorted sorted, u16 *h, u8 *placed) { \
        multiply_expert_gate_up_tiles<W, TOKENS>(weights, n, sums, sorted, h, placed); \
    }
EXPERT_GATE_UP_TILED_KERNELS(KERNEL)
#undef KERNEL

#endif
