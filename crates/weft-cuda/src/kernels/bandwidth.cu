#include "kernels/base.cuh"

// Computes   the exclusive or of all words of a buffer: reads it, and does nothing else with it.
// Layout     from: 16-byte words; folded: one word per thread of the grid.
// Work split a block owns every gridDim-th piece of 16 KiB, a thread four 16-byte words of each 16
//            KiB.
// Rounding   none.
// Moves      the buffer once: what a kernel that only streams could reach.
extern "C" __global__ void __launch_bounds__(256)
read_memory(const uint4 *from, u64 n_pieces, u32 *folded) {
    u32 all = 0;
    for (u64 piece = blockIdx.x; piece < n_pieces; piece += gridDim.x) {
        const uint4 *at = from + piece * (READ_PIECE / 16) + threadIdx.x;
        uint4 words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = load_fresh(at + i * 256);
#pragma unroll
        for (int i = 0; i < 4; ++i) all ^= words[i].x ^ words[i].y ^ words[i].z ^ words[i].w;
    }
    folded[blockIdx.x * 256 + threadIdx.x] = all;
}
