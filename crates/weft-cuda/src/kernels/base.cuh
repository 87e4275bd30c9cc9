// What every kernel stands on: bf16 pairs, the tensor-core product, copies into shared memory, and
// the order between kernels. No CUDA header is needed. Sums are written with explicit rounding
// (the module is compiled without contraction), so that two kernels that add the same numbers in
// the same order give the same bits.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr u32 FULL = 0xffffffffu;
#define NEVER __uint_as_float(0xff800000u)

// ---- bf16 --------------------------------------------------------------------------------------
__device__ __forceinline__ float low(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ float widen(u16 value) { return __uint_as_float((u32)value << 16); }

// Two numbers rounded to nearest even, the first in the low half.
__device__ __forceinline__ u32 round_pair(float first, float second) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}
__device__ __forceinline__ u16 round_one(float value) { return (u16)round_pair(value, 0.0f); }
__device__ __forceinline__ float rounded(float value) { return low(round_pair(value, 0.0f)); }

__device__ __forceinline__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
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

// ---- the product -------------------------------------------------------------------------------
// d[16 x 8] += a[16 x 16] * b[16 x 8]. Lane 4g + c holds rows g and g + 8 of d, columns 2c, 2c + 1.
__device__ __forceinline__ void mma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same over 32 columns of a. A *unit* is 8 rows x 32 columns of a row-major matrix: lane 4g + c
// holds columns 8c .. 8c + 7 of row g, 16 bytes as they lie in memory. Which of the 32 columns meet
// in one instruction is the same for every kernel, and so is the sum.
__device__ __forceinline__ void mma32(float (&d)[4], uint4 upper, uint4 lower, uint4 b) {
    mma(d, upper.x, lower.x, upper.y, lower.y, b.x, b.y);
    mma(d, upper.z, lower.z, upper.w, lower.w, b.z, b.w);
}
// Two units as the product takes them: rows in turn. Made once where they meet many units: left to itself the
// compiler moves registers before every product. `zero` must be nothing that it can know.
struct Interleaved {
    u32 of[8];
    __device__ __forceinline__ Interleaved() {}
    __device__ __forceinline__ Interleaved(uint4 upper, uint4 lower, u32 zero)
        : of{upper.x ^ zero, lower.x ^ zero, upper.y ^ zero, lower.y ^ zero,
             upper.z ^ zero, lower.z ^ zero, upper.w ^ zero, lower.w ^ zero} {}
};
__device__ __forceinline__ u32 unknown_zero() { return gridDim.z - 1; }
__device__ __forceinline__ void mma32(float (&d)[4], const Interleaved &a, uint4 b) {
    mma(d, a.of[0], a.of[1], a.of[2], a.of[3], b.x, b.y);
    mma(d, a.of[4], a.of[5], a.of[6], a.of[7], b.z, b.w);
}
constexpr int UNIT_BYTES = 512;
constexpr int UNIT = UNIT_BYTES / 16;

// Of a tile's units each of eight warps owns an eighth that follow one another. They lie in that order where an eighth
// is short; where it is long, in stretches: the first few of every warp, then the next few. A stretch is copied
// in one piece.
constexpr int stretch_units(int eighth) { return eighth <= LONGEST_STRETCH ? eighth : SHORT_STRETCH; }
constexpr int stretches(int eighth) { return (eighth + stretch_units(eighth) - 1) / stretch_units(eighth); }
// Units of each chain but the last.
constexpr int chain_units(int eighth, int chains) { return (eighth + chains - 1) / chains; }
// Where a unit of a tile lies, counted in units.
template <int EIGHTH> __device__ __forceinline__ int unit_place(int unit) {
    constexpr int LONG = stretch_units(EIGHTH);
    if (LONG == EIGHTH) return unit;
    const int warp = unit / EIGHTH, own = unit % EIGHTH, stretch = own / LONG;
    return stretch * 8 * LONG + warp * min(LONG, EIGHTH - stretch * LONG) + own % LONG;
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
// Eight of them, of `bytes` each, with equal distances.
__device__ __forceinline__ void copy_eight(u8 *to, u32 to_stride, const u8 *from, u32 from_stride, u32 bytes, u64 *barrier, int lane) {
#if __CUDA_ARCH__ >= 900
    __syncwarp();
    if (lane < 8) copy(to + lane * to_stride, from + lane * from_stride, bytes, barrier, 0);
#else
    for (int i = 0; i < 8; ++i) copy(to + i * to_stride, from + i * from_stride, bytes, barrier, lane);
#endif
}
// After the last of them.
__device__ __forceinline__ void copies_begun(u64 *barrier) {
#if __CUDA_ARCH__ < 900
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];"
                 :: "r"(shared_address(barrier)) : "memory");
#endif
}

// After ordinary reads and writes of shared memory that later copies overwrite: waits until they are done.
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

// ---- the step ----------------------------------------------------------------------------------
// Where the lists of a step lie in device memory. The addresses never change, their contents do, so they are
// read past L1 too: a kernel that starts early may find there what an earlier step left.
struct Step {
    const u32 *counts;        // n_tokens, n_outputs, n_items, n_tiles
    const u32 *tokens;        // [tokens]
    const u32 *positions;     // [tokens]
    const u32 *key_positions; // [tokens]
    const u32 *slots;         // [tokens]
    const u32 *outputs;       // [outputs]: the token of each row of logits
    const u32 *partials;      // [tokens][4]: how many parts a token's attention has, the first, how many slots, the first
    const u32 *attention;     // items of `attend`, or tiles and groups of `attend_block`
};
__device__ __forceinline__ u32 n_tokens(const Step &step) { return load_fresh(step.counts + 0); }
__device__ __forceinline__ u32 n_outputs(const Step &step) { return load_fresh(step.counts + 1); }
__device__ __forceinline__ u32 n_items(const Step &step) { return load_fresh(step.counts + 2); }
__device__ __forceinline__ u32 n_tiles(const Step &step) { return load_fresh(step.counts + 3); }
