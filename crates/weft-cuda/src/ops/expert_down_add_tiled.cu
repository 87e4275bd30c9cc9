#include "generated/experts.cuh"
#include "kernels/experts_tiled.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Computes   h * W_down of each route's expert, for tokens sorted by expert.
// Layout     weights: experts one after the other, each packed in units; h: bf16 in squares of
//            positions (tiled.cuh); products: f32 [tokens][N_CHOSEN][HIDDEN_STRIDE].
// Work split a cluster of two blocks owns a tile of positions x 256 rows of its expert at a time
//            (experts_tiled.cuh).
// Rounding   none.
// Moves      weights and h once from memory, then from L2, products once out: bound by arithmetic.
#define KERNEL(SUFFIX, W, TOKENS) \
    extern "C" __global__ void TILED_BOUNDS \
    expert_down_add_tiled_##TOKENS##SUFFIX(const u8 *weights, const u8 *h, const u8 *sums, Sorted sorted, float *products) { \
        multiply_expert_down_tiles<W, TOKENS>(weights, h, sums, sorted, products); \
    }
EXPERT_DOWN_TILED_KERNELS(KERNEL)
#undef KERNEL

#endif
