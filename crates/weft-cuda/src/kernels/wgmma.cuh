// Instructions that only sm_90a has: products of a warpgroup (four warps), whose second operand lies
// in shared memory, and what makes copies to several blocks possible. Like ptx.cuh, this file has
// nothing but instructions.
#pragma once

#include "kernels/ptx.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// ---- products ----------------------------------------------------------------------------------
// d[64 x N] = a[64 x 16] * b[16 x N], plus d if it `adds`. Warp w of the group has rows 16w to
// 16w + 15; its lanes hold rows of a and d as those of `mma` do. b has the columns of tokens as its
// rows: see `swizzled`. The product runs on after the instruction: no register of d or a may be
// touched until it is awaited.
#define SUMS4(d, i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define SUMS(d, i) SUMS4(d, i), SUMS4(d, (i) + 4), SUMS4(d, (i) + 8), SUMS4(d, (i) + 12)
__device__ __forceinline__ void wgmma(float (&d)[16], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int adds) {
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %21, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "{%16, %17, %18, %19}, %20, adds, 1, 1, 0;\n}"
        : SUMS(d, 0)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(adds));
}
__device__ __forceinline__ void wgmma(float (&d)[32], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int adds) {
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, adds, 1, 1, 0;\n}"
        : SUMS(d, 0), SUMS(d, 16)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(adds));
}
// The same with both operands in shared memory, and the first product of a sum, which adds to nothing.
#define WGMMA_32 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, "
__device__ __forceinline__ void wgmma(float (&d)[32], u64 a, u64 b) {
    asm volatile(WGMMA_32 "1, 1, 1, 0, 0;" : SUMS(d, 0), SUMS(d, 16) : "l"(a), "l"(b));
}
#define FIRST4(d, i) "=f"(d[i]), "=f"(d[(i) + 1]), "=f"(d[(i) + 2]), "=f"(d[(i) + 3])
#define FIRST16(d, i) FIRST4(d, i), FIRST4(d, (i) + 4), FIRST4(d, (i) + 8), FIRST4(d, (i) + 12)
__device__ __forceinline__ void wgmma_first(float (&d)[32], u64 a, u64 b) {
    asm volatile(WGMMA_32 "0, 1, 1, 0, 0;" : FIRST16(d, 0), FIRST16(d, 16) : "l"(a), "l"(b));
}
#undef FIRST16
#undef FIRST4
#undef WGMMA_32
__device__ __forceinline__ void wgmma(float (&d)[48], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int adds) {
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %53, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
        "{%48, %49, %50, %51}, %52, adds, 1, 1, 0;\n}"
        : SUMS(d, 0), SUMS(d, 16), SUMS(d, 32)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(adds));
}
__device__ __forceinline__ void wgmma(float (&d)[64], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int adds) {
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, adds, 1, 1, 0;\n}"
        : SUMS(d, 0), SUMS(d, 16), SUMS(d, 32), SUMS(d, 48)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(adds));
}
__device__ __forceinline__ void wgmma(float (&d)[96], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int adds) {
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %101, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
        "{%96, %97, %98, %99}, %100, adds, 1, 1, 0;\n}"
        : SUMS(d, 0), SUMS(d, 16), SUMS(d, 32), SUMS(d, 48), SUMS(d, 64), SUMS(d, 80)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(adds));
}
#undef SUMS
#undef SUMS4

// Before the first product, and after registers of a or d were written.
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Ends a group of products.
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits for all groups but the last few.
template <int PENDING> __device__ __forceinline__ void products_await() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}
// Keeps the compiler from moving reads and writes of sums over this place.
template <int N> __device__ __forceinline__ void hold(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i]) :: "memory");
}
__device__ __forceinline__ void hold_word(u32 &word) { asm volatile("" : "+r"(word)); }
__device__ __forceinline__ void hold_words(uint4 &v) { hold_word(v.x), hold_word(v.y), hold_word(v.z), hold_word(v.w); }
// What describes an operand in shared memory: rows of 128 bytes (64 columns), eight of them 1024
// bytes, whose chunks of 16 bytes are swizzled: chunk c of row r lies at c ^ r % 8. `address` is
// aligned to 1024 bytes, plus 32 bytes for each 16 columns.
__device__ __forceinline__ u64 swizzled(u32 address) {
    return (u64)((address & 0x3ffff) >> 4) | 1ull << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}

// ---- registers ---------------------------------------------------------------------------------
// Called by all warps of a warpgroup.
template <int N> __device__ __forceinline__ void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N)); }
template <int N> __device__ __forceinline__ void leave_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N)); }

// ---- barriers by their address ------------------------------------------------------------------
// As in ptx.cuh, for a loop that has no time to find the address anew.
__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" :: "r"(barrier) : "memory");
}
__device__ __forceinline__ bool barrier_test(u32 barrier, u32 parity) {
    u32 done;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    return done;
}
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    u32 done;
    do
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    while (!done);
}

// ---- blocks of a cluster -----------------------------------------------------------------------
__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ __forceinline__ void cluster_meet() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// Arrives at the same barrier of another block. Its order is that of this block: a release to the
// whole cluster would be a fence of the whole GPU.
__device__ __forceinline__ void barrier_arrive_at(u64 *barrier, u32 rank) {
    asm volatile("{ .reg .b32 at; mapa.shared::cluster.u32 at, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [at]; }"
                 :: "r"(shared_address(barrier)), "r"(rank) : "memory");
}
// Arrives when all chunks are there that this thread has begun to copy (`copy_chunk`).
__device__ __forceinline__ void arrive_after_copies(u64 *barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(shared_address(barrier)) : "memory");
}
// A copy to the same place of all blocks in `blocks`, a bit for each. It completes on the barrier
// of each.
__device__ __forceinline__ void copy_to_blocks(void *to, const void *from, u32 bytes, u64 *barrier, u16 blocks) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
                 :: "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)), "h"(blocks) : "memory");
}

// ---- fragments of 8 x 8 numbers ----------------------------------------------------------------
// Four of them, between registers and rows of 16 bytes: lane l has the address of row l % 8 of
// fragment l / 8. Lane 4g + c holds numbers 2c and 2c + 1 of row g; transposed, of rows 2c and
// 2c + 1 number g.
__device__ __forceinline__ void store_fragments(void *to, uint4 v) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :: "r"(shared_address(to)), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ void store_transposed(void *to, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 :: "r"(shared_address(to)), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
__device__ __forceinline__ uint4 load_transposed(const void *from) {
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(shared_address(from)) : "memory");
    return v;
}
// Meets the warps of a warpgroup.
__device__ __forceinline__ void meet_group(int group) {
    asm volatile("bar.sync %0, 128;" :: "r"(group + 2) : "memory");
}

#endif
