// Everything that C++ has no word for: each function here is one PTX instruction, or a few. No
// other file has inline assembly (but wgmma.cuh, for one architecture), so a test that runs kernels
// on a CPU puts another file in the place of this one (tools/emulate).
#pragma once

#include "generated/constants.cuh"
#include "kernels/types.cuh"

// ---- numbers -----------------------------------------------------------------------------------
// Two numbers rounded to nearest even, the first in the low half.
__device__ __forceinline__ u32 round_pair(float first, float second) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}
// a * b + c of two bf16, rounded once.
__device__ __forceinline__ u32 fma_pair(u32 a, u32 b, u32 c) {
    u32 pair;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(a), "r"(b), "r"(c));
    return pair;
}
// value & mask | bits in one instruction, which the compiler does not make of constants.
__device__ __forceinline__ u32 and_or(u32 value, u32 mask, u32 bits) {
    u32 result;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(value), "r"(mask), "r"(bits));
    return result;
}
// value & mask ^ bits, too.
__device__ __forceinline__ u32 and_xor(u32 value, u32 mask, u32 bits) {
    u32 result;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(result) : "r"(value), "r"(mask), "r"(bits));
    return result;
}
// Of an f16.
__device__ __forceinline__ float half_to_float(u16 half) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
}
// 1 / x of a normal number whose reciprocal is normal, off by at most one place of its last bit.
__device__ __forceinline__ float reciprocal_near(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// d[16 x 8] += a[16 x 16] * b[16 x 8]. Lane 4g + c holds rows g and g + 8 of d, columns 2c, 2c + 1.
__device__ __forceinline__ void mma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}


// ---- loads -------------------------------------------------------------------------------------
// What another kernel of the same graph wrote is read past L1, which is not coherent.
__device__ __forceinline__ uint4 load_fresh(const uint4 *at) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
    return v;
}
__device__ __forceinline__ uint2 load_fresh(const uint2 *at) {
    uint2 v;
    asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(at) : "memory");
    return v;
}
__device__ __forceinline__ float load_fresh(const float *at) {
    float v;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(at) : "memory");
    return v;
}
__device__ __forceinline__ u32 load_fresh(const u32 *at) {
    u32 v;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
    return v;
}
__device__ __forceinline__ u64 load_fresh(const u64 *at) {
    u64 v;
    asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
    return v;
}
__device__ __forceinline__ u16 load_fresh(const u16 *at) {
    u16 v;
    asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(v) : "l"(at) : "memory");
    return v;
}

// Brings up to 4 KB near that a warp will read. It keeps nothing, so it may come long before.
__device__ __forceinline__ void bring_near(const void *from, int bytes, int lane) {
    if (lane * 128 < bytes) asm volatile("prefetch.global.L2 [%0];" :: "l"((const u8 *)from + lane * 128) : "memory");
}

// ---- words that blocks of one launch hand to one another, or to the host ------------------------
// One access each, so whoever reads sees all of what was written or nothing of it.
__device__ __forceinline__ void store_relaxed(u64 *at, u64 word) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" :: "l"(at), "l"(word) : "memory");
}
__device__ __forceinline__ void store_relaxed(float *at, float word) {
    asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" :: "l"(at), "f"(word) : "memory");
}
// For the host, and from it.
__device__ __forceinline__ void store_relaxed_system(u64 *at, u64 word) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" :: "l"(at), "l"(word) : "memory");
}
__device__ __forceinline__ u64 load_relaxed_system(const u64 *at) {
    u64 word;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    return word;
}
__device__ __forceinline__ u32 load_relaxed(const u32 *at) {
    u32 word;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(at) : "memory");
    return word;
}
__device__ __forceinline__ u64 load_relaxed(const u64 *at) {
    u64 word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    return word;
}
__device__ __forceinline__ float load_relaxed(const float *at) {
    float word;
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(word) : "l"(at) : "memory");
    return word;
}
__device__ __forceinline__ void store_relaxed(u32 *at, u32 word) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(at), "r"(word) : "memory");
}
// Four words of 32 bits, each an access of its own.
__device__ __forceinline__ uint4 load_four_relaxed(const uint4 *at) {
    uint4 words;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w) : "l"(at) : "memory");
    return words;
}
__device__ __forceinline__ void store_four_relaxed(uint4 *at, uint4 words) {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "l"(at), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w) : "memory");
}
struct TwoWords {
    u64 first, second;
};
__device__ __forceinline__ TwoWords load_two_relaxed(const u64 *at) {
    TwoWords words;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(words.first), "=l"(words.second) : "l"(at) : "memory");
    return words;
}
__device__ __forceinline__ void store_two_relaxed(u64 *at, TwoWords words) {
    asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" :: "l"(at), "l"(words.first), "l"(words.second) : "memory");
}
// Between two looks at memory that another warp of the block writes. It takes no instruction;
// whoever runs kernels on a CPU lets other threads run here.
__device__ __forceinline__ void look_again() {}

// ---- threads -----------------------------------------------------------------------------------
// Meets the warps that compute, of which there are eight nearly everywhere; another that only copies
// does not take part.
template <int N = WARPS> __device__ __forceinline__ void meet() { asm volatile("bar.sync 1, %0;" :: "n"(N * 32) : "memory"); }

// Barriers at which some warps leave what others take. Those that leave something go on at once; those
// that take it wait. THREADS are all of both.
template <int THREADS> __device__ __forceinline__ void leave_at(u32 barrier) { asm volatile("bar.arrive %0, %1;" :: "r"(barrier), "n"(THREADS) : "memory"); }
template <int THREADS> __device__ __forceinline__ void take_at(u32 barrier) { asm volatile("bar.sync %0, %1;" :: "r"(barrier), "n"(THREADS) : "memory"); }

// This thread's number and its block's, asked for anew: where registers are short, nothing that
// depends on them shall be kept.
__device__ __forceinline__ u32 own_thread() {
    u32 thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}
__device__ __forceinline__ u32 own_block() {
    u32 block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    return block;
}
__device__ __forceinline__ u64 clock_ns() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}
// Between two looks at the host's memory, which is far: others need the way there too.
__device__ __forceinline__ void rest() { asm volatile("nanosleep.u32 500;"); }
// Ends the launch with an error.
__device__ __forceinline__ void trap() { asm volatile("trap;"); }

// ---- shared memory -----------------------------------------------------------------------------
// A variable that the threads of a block share.
#define SHARED(type, name) __shared__ type name
// The shared memory whose size the host gives with the launch.
__device__ __forceinline__ u8 *dynamic_shared() {
    extern __shared__ __align__(128) u8 dynamic_memory[];
    return dynamic_memory;
}

// ---- order between kernels ---------------------------------------------------------------------
// The next kernel may start and ask for its weights; it waits below before it reads anything that
// a kernel wrote. Every kernel waits, so the wait reaches back over all kernels before.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- copies into shared memory -----------------------------------------------------------------
__device__ __forceinline__ u32 shared_address(const void *at) {
    return (u32)__cvta_generic_to_shared(at);
}
__device__ __forceinline__ void copy_chunk(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :: "r"(shared_address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void await_copies() {
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
}

// A barrier in shared memory that copies complete on. Before sm_90 there is no bulk copy: the 32
// lanes of a warp copy 16 bytes each and arrive when theirs are there.
#if __CUDA_ARCH__ >= 900
constexpr u32 COPY_ARRIVALS = 1;
#else
constexpr u32 COPY_ARRIVALS = 32;
#endif
__device__ __forceinline__ void barrier_init(u64 *barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;"
                 :: "r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// After the barriers of a block are made, before any of them is used.
__device__ __forceinline__ void barriers_made() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ void barrier_arrive(u64 *barrier) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }"
                 :: "r"(shared_address(barrier)) : "memory");
}
// Whether the phase with this parity is over.
__device__ __forceinline__ bool barrier_passed(u64 *barrier, u32 parity) {
    u32 done;
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
#else
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
#endif
                 : "=r"(done) : "r"(shared_address(barrier)), "r"(parity) : "memory");
    return done;
}
__device__ __forceinline__ void barrier_wait(u64 *barrier, u32 parity) {
    while (!barrier_passed(barrier, parity)) {}
}
// Begins copies of `bytes` in all that complete on the barrier. Called by one whole warp.
__device__ __forceinline__ void expect_copies(u64 *barrier, u32 bytes, int lane) {
#if __CUDA_ARCH__ >= 900
    if (lane == 0)
        asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }"
                     :: "r"(shared_address(barrier)), "r"(bytes) : "memory");
#endif
}
// One of them; a multiple of 16 bytes, aligned to 16. Called by the same warp.
__device__ __forceinline__ void copy(void *to, const void *from, u32 bytes, u64 *barrier, int lane) {
#if __CUDA_ARCH__ >= 900
    if (lane == 0)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     :: "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier))
                     : "memory");
#else
    for (u32 i = lane * 16; i < bytes; i += 512) copy_chunk((u8 *)to + i, (const u8 *)from + i);
#endif
}
// The same of what a token reads once, weights and pages: it is the first that the L2 gives up, before
// what blocks hand to one another, and before instructions, which do not fit into their own caches.
__device__ __forceinline__ void copy_passing(void *to, const void *from, u32 bytes, u64 *barrier, int lane) {
#if __CUDA_ARCH__ >= 900
    if (lane == 0)
        asm volatile("{ .reg .b64 policy; createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
                     "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], policy; }"
                     :: "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier))
                     : "memory");
#else
    copy(to, from, bytes, barrier, lane);
#endif
}
// Up to 32 such copies, of `bytes` each, with equal distances; they lie together afterwards.
__device__ __forceinline__ void copy_pieces(u8 *to, const u8 *from, u32 stride, u32 bytes, u32 n, u64 *barrier, int lane) {
#if __CUDA_ARCH__ >= 900
    __syncwarp();
    if (lane < n) copy_passing(to + lane * bytes, from + lane * stride, bytes, barrier, 0);
#else
    for (u32 i = 0; i < n; ++i) copy_passing(to + i * bytes, from + i * stride, bytes, barrier, lane);
#endif
}
// After the last of them.
__device__ __forceinline__ void copies_begun(u64 *barrier) {
#if __CUDA_ARCH__ < 900
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];"
                 :: "r"(shared_address(barrier)) : "memory");
#endif
}

// After ordinary reads and writes of shared memory that later copies overwrite: waits until they
// are done.
__device__ __forceinline__ void before_copies() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// After ordinary writes to memory that later copies of this block read.
__device__ __forceinline__ void before_copies_of_stored() {
    __threadfence();
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async;" ::: "memory");
#endif
}
