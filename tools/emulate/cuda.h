// Enough of CUDA to run a kernel's source on a CPU: every thread of every block is a fiber, warps and blocks meet where
// the source says so, bulk copies complete later and in random order. It knows nothing of the memory model: what is
// tested is what the source computes, not what a GPU may reorder.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

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

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

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
    std::vector<u8> shared;
    u8 *dynamic;
    size_t dynamic_bytes;
    EmulatedWarp warps[9];
    u32 arrived[2] = {}, meetings[2] = {};
    std::vector<u64> statics[16]; // shared memory of `attend`, by name
};
struct Fiber {
    void *stack_pointer, *stack;
    EmulatedBlock *block;
    u32 thread;
    bool done;
};
extern Fiber *current;
extern void *scheduler;
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
inline u32 n_threads = 288; // of a block of the kernel that runs
inline Index grid = {N_BLOCKS, 1, 1};

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
inline void meet_computing_warps() { meet_at(current->block->arrived[1], current->block->meetings[1], 256); }
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

// ---- what base.cuh has -------------------------------------------------------------------------
constexpr u32 FULL = 0xffffffffu;
#define NEVER __uint_as_float(0xff800000u)
inline float low(u32 pair) { return __uint_as_float(pair << 16); }
inline float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
inline float widen(u16 value) { return __uint_as_float((u32)value << 16); }
inline u32 to_bf16(float value) {
    const u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline u32 round_pair(float first, float second) { return to_bf16(first) | to_bf16(second) << 16; }
inline u16 round_one(float value) { return (u16)to_bf16(value); }
inline float rounded(float value) { return widen(round_one(value)); }
inline float exp2_of(float x) { return exp2f(x); }
template <class T> T load_fresh(const T *at) { return *at; }

inline void mma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    const u32 lane = current->thread % 32;
    auto &operands = own_warp().operands;
    operands[lane] = {{a0, a1, a2, a3}, {b0, b1}};
    __syncwarp();
    for (u32 e = 0; e < 4; ++e) {
        const u32 row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
        for (u32 k = 0; k < 16; ++k) {
            const u32 a = operands[row % 8 * 4 + k % 8 / 2].a[k / 8 * 2 + row / 8];
            const u32 b = operands[column * 4 + k % 8 / 2].b[k / 8];
            d[e] = k % 2 ? fmaf(high(a), high(b), d[e]) : fmaf(low(a), low(b), d[e]);
        }
    }
    __syncwarp();
}
inline void mma32(float (&d)[4], uint4 upper, uint4 lower, uint4 b) {
    mma(d, upper.x, lower.x, upper.y, lower.y, b.x, b.y);
    mma(d, upper.z, lower.z, upper.w, lower.w, b.z, b.w);
}
struct Interleaved {
    uint4 upper, lower;
    Interleaved() {}
    Interleaved(uint4 upper, uint4 lower, u32) : upper(upper), lower(lower) {}
};
inline u32 unknown_zero() { return 0; }
inline void mma32(float (&d)[4], const Interleaved &a, uint4 b) { mma32(d, a.upper, a.lower, b); }
constexpr int UNIT_BYTES = 512, UNIT = 32;
constexpr int stretch_units(int eighth) { return eighth <= LONGEST_STRETCH ? eighth : SHORT_STRETCH; }
constexpr int chain_units(int eighth, int chains) { return (eighth + chains - 1) / chains; }
inline int place_of_unit(int unit, int eighth) {
    const int most = stretch_units(eighth);
    if (most == eighth) return unit;
    const int warp = unit / eighth, own = unit % eighth, stretch = own / most;
    return stretch * 8 * most + warp * std::min(most, eighth - stretch * most) + own % most;
}
template <int EIGHTH> int unit_place(int unit) { return place_of_unit(unit, EIGHTH); }

// A barrier's eight bytes: arrivals it is made for and lacks, and what is to be copied, in units of 16 bytes, above the phase.
struct Barrier {
    int16_t arrivals, lacking;
    int32_t copies_and_phase;
    void turn() {
        if (lacking == 0 && copies_and_phase >> 1 == 0) lacking = arrivals, copies_and_phase ^= 1;
    }
};
constexpr u32 COPY_ARRIVALS = 1;
inline void barrier_init(u64 *at, u32 arrivals) { *(Barrier *)at = {(int16_t)arrivals, (int16_t)arrivals, 0}; }
inline void barriers_made() {}
inline void barrier_arrive(u64 *at) {
    Barrier &barrier = *(Barrier *)at;
    if (barrier.lacking-- <= 0) abort();
    barrier.turn();
}
inline bool barrier_passed(u64 *at, u32 parity) {
    if ((u32)(((Barrier *)at)->copies_and_phase & 1) != parity) return true;
    let_others_run();
    return false;
}
inline void barrier_wait(u64 *at, u32 parity) {
    while (!barrier_passed(at, parity)) {}
}
inline void expect_copies(u64 *at, u32 bytes, int lane) {
    if (lane != 0) return;
    ((Barrier *)at)->copies_and_phase += (bytes / 16) << 1;
    barrier_arrive(at);
}
struct Copy {
    void *to;
    const void *from;
    u32 bytes;
    u64 *barrier;
};
extern std::vector<Copy> copies;
inline void copy(void *to, const void *from, u32 bytes, u64 *barrier, int lane) {
    if (bytes % 16 || (uintptr_t)to % 16 || (uintptr_t)from % 16) abort();
    if (lane == 0) copies.push_back({to, from, bytes, barrier});
}
inline void copy_eight(u8 *to, u32 to_stride, const u8 *from, u32 from_stride, u32 bytes, u64 *barrier, int lane) {
    __syncwarp();
    if (lane < 8) copy(to + lane * to_stride, from + lane * from_stride, bytes, barrier, 0);
}
inline void copies_begun(u64 *) {}
// Without a barrier: at once.
inline void copy_chunk(void *to, const void *from) { memcpy(to, from, 16); }
inline void commit_copies() {}
inline void let_next_start() {}
inline void wait_for_previous() {}
template <int PENDING> void await_copies() {}
inline void bring_near(const void *, int, int) {}
inline void before_copies() {}
inline void before_copies_of_stored() {}

struct Step {
    const u32 *counts, *tokens, *positions, *key_positions, *slots, *outputs, *partials, *attention;
};
inline u32 n_tokens(const Step &step) { return step.counts[0]; }
inline u32 n_outputs(const Step &step) { return step.counts[1]; }
inline u32 n_items(const Step &step) { return step.counts[2]; }
inline u32 n_tiles(const Step &step) { return step.counts[3]; }
