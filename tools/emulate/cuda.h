// Enough of CUDA, the language, to run a kernel's source on a CPU: every thread of every block is a
// fiber, warps and blocks meet where the source says so, bulk copies complete later and in random
// order. It knows nothing of the memory model: what is tested is what the source computes, not what
// a GPU may reorder. Instructions that the language has no word for are in kernels/ptx.cuh.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/types.cuh"

#define __device__
#define __forceinline__ inline
#define __noinline__
#define __global__
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __CUDA_ARCH__ 900
#define __builtin_assume(what) (void)(what)

struct alignas(16) uint4 {
    u32 x, y, z, w;
};
struct alignas(8) uint2 {
    u32 x, y;
};
struct alignas(8) float2 {
    float x, y;
};
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
template <class A, class B> auto min(A a, B b) -> decltype(a + b) {
    using T = decltype(a + b);
    return (T)a < (T)b ? (T)a : (T)b;
}
template <class A, class B> auto max(A a, B b) -> decltype(a + b) {
    using T = decltype(a + b);
    return (T)a > (T)b ? (T)a : (T)b;
}
inline float __uint_as_float(u32 bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline u32 __float_as_uint(float value) {
    u32 bits;
    memcpy(&bits, &value, 4);
    return bits;
}
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline u32 __byte_perm(u32 a, u32 b, u32 choice) {
    const u64 bytes = (u64)b << 32 | a;
    u32 chosen = 0;
    for (int i = 0; i < 4; ++i) chosen |= (u32)(bytes >> (choice >> i * 4 & 7) * 8 & 0xff) << i * 8;
    return chosen;
}
inline u64 __double2ull_rz(double value) { return (u64)value; }
inline u64 __umul64hi(u64 a, u64 b) { return (u64)((unsigned __int128)a * b >> 64); }
template <class T, class V> T atomicAdd(T *at, V value) {
    const T before = *at;
    *at = before + (T)value;
    return before;
}
inline u32 atomicMin(u32 *at, u32 value) {
    const u32 before = *at;
    *at = std::min(before, value);
    return before;
}
inline u32 atomicOr(u32 *at, u32 bits) {
    const u32 before = *at;
    *at = before | bits;
    return before;
}

// ---- threads -----------------------------------------------------------------------------------
struct Index {
    u32 x, y, z;
};
struct EmulatedWarp {
    u32 arrived = 0, meetings = 0;
    u64 slots[32];
    struct {
        u32 a[4], b[2];
    } operands[32];
};
struct EmulatedBlock {
    u32 index, index_y;
    u8 *dynamic;
    size_t dynamic_bytes;
    EmulatedWarp warps[17];
    u32 arrived[6] = {}, meetings[6] = {}; // at barriers by their numbers
    std::vector<u64> statics[16]; // variables in shared memory, by where they are declared
};
struct Fiber {
    void *stack_pointer, *stack;
    EmulatedBlock *block;
    u32 thread;
    bool done;
};
inline Fiber *current;
inline void *scheduler;
inline u64 rounds; // of all blocks
extern "C" void switch_stacks(void **from, void *to);
asm(".text\n.globl switch_stacks\nswitch_stacks:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");
inline void let_others_run() { switch_stacks(&current->stack_pointer, scheduler); }
#define threadIdx (Index{current->thread, 0, 0})
#define blockIdx (Index{current->block->index, current->block->index_y, 0})
#define gridDim grid
#define blockDim (Index{n_threads, 1, 1})
inline u32 n_threads; // of a block of the kernel that runs
inline Index grid = {1, 1, 1};

inline void meet_at(u32 &arrived, u32 &meetings, u32 n) {
    const u32 meeting = meetings;
    if (++arrived == n) arrived = 0, ++meetings;
    else
        while (meetings == meeting) let_others_run();
}
template <class T, int NAME> T &of_block() {
    std::vector<u64> &own = current->block->statics[NAME % 16];
    if (own.empty()) own.resize((sizeof(T) + 15) / 8, 0xcdcdcdcdcdcdcdcdull);
    return *(T *)(((uintptr_t)own.data() + 15) / 16 * 16);
}
inline EmulatedWarp &own_warp() { return current->block->warps[current->thread / 32]; }
inline void __syncwarp() { meet_at(own_warp().arrived, own_warp().meetings, 32); }
inline void __syncthreads() { meet_at(current->block->arrived[0], current->block->meetings[0], n_threads); }
template <class T> T exchange(T value, int from, bool there) {
    EmulatedWarp &warp = own_warp();
    memcpy(&warp.slots[current->thread % 32], &value, sizeof value);
    __syncwarp();
    if (there) memcpy(&value, &warp.slots[from & 31], sizeof value);
    __syncwarp();
    return value;
}
template <class T> T __shfl_xor_sync(u32, T value, int mask) { return exchange(value, current->thread % 32 ^ mask, true); }
template <class T> T __shfl_sync(u32, T value, int from) { return exchange(value, from, true); }
template <class T> T __shfl_up_sync(u32, T value, int by) {
    const int lane = current->thread % 32;
    return exchange(value, lane - by, lane >= by);
}
template <class T> T __shfl_down_sync(u32, T value, int by) {
    const int lane = current->thread % 32;
    return exchange(value, lane + by, lane + by < 32);
}
// What all lanes of a warp bring, put together.
template <class Add> u32 over_warp(u32 value, Add add) {
    EmulatedWarp &warp = own_warp();
    warp.slots[current->thread % 32] = value;
    __syncwarp();
    u32 all = (u32)warp.slots[0];
    for (u32 lane = 1; lane < 32; ++lane) all = add(all, (u32)warp.slots[lane]);
    __syncwarp();
    return all;
}
inline u32 __reduce_max_sync(u32, u32 value) {
    return over_warp(value, [](u32 a, u32 b) { return std::max(a, b); });
}
inline u32 __reduce_min_sync(u32, u32 value) {
    return over_warp(value, [](u32 a, u32 b) { return std::min(a, b); });
}
inline u32 __reduce_add_sync(u32, u32 value) {
    return over_warp(value, [](u32 a, u32 b) { return a + b; });
}
inline u32 __ballot_sync(u32, bool is) {
    return over_warp((u32)is << current->thread % 32, [](u32 a, u32 b) { return a | b; });
}
inline bool __any_sync(u32 mask, bool is) { return __ballot_sync(mask, is) != 0; }
inline bool __all_sync(u32 mask, bool is) { return !__any_sync(mask, !is); }
inline int __ffs(u32 bits) { return __builtin_ffs(bits); }
inline int __clz(u32 bits) { return bits == 0 ? 32 : __builtin_clz(bits); }
inline int __popc(u32 bits) { return __builtin_popcount(bits); }
inline int __ffsll(u64 bits) { return __builtin_ffsll(bits); }
inline void __threadfence() {}
inline void __threadfence_block() {}
