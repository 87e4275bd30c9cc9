// What a grid-wide hop of the persistent kernel costs by itself: all blocks hand some words to all others, again and again, while a ninth
// warp streams memory (two copies of 16 KB on their way) or does not.
//   alone    every block polls all words, as persistent/hop.cuh does
//   cluster  a block of a cluster polls its part of them, and puts it into the shared memory of all blocks of the cluster
//
//     nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a bench/gpu/hop.cu -o hop && ./hop
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

typedef uint64_t u64;
typedef uint32_t u32;

constexpr int THREADS = 256, STAGE = 16384, IN_FLIGHT = 2, AT_ONCE = 4;
constexpr int MOST_BLOCKS = 132, MOST_WORDS = MOST_BLOCKS * 64, NEAR_WORDS = MOST_BLOCKS * 4;

__device__ __forceinline__ u32 shared_at(const void *p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ u64 load(const u64 *at) {
    u64 word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    return word;
}
__device__ __forceinline__ void store(u64 *at, u64 word) { asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(word) : "memory"); }
__device__ __forceinline__ void meet() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }
__device__ __forceinline__ void meet_cluster() { asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory"); }

// ---- the stream --------------------------------------------------------------------------------
__device__ void await(u64 *barrier, u32 parity) {
    u32 done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(shared_at(barrier)), "r"(parity) : "memory");
}
// One lane copies until the block's hops are over.
__device__ void stream(const uint8_t *memory, size_t bytes, uint8_t *ring, u64 *full, volatile u32 *over) {
    size_t at = (size_t)blockIdx.x * STAGE;
    u32 n = 0;
    for (; n < IN_FLIGHT || !*over; ++n) {
        const u32 stage = n % IN_FLIGHT;
        if (n >= IN_FLIGHT) await(full + stage, (n / IN_FLIGHT - 1) % 2);
        asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }" ::"r"(shared_at(full + stage)), "r"(STAGE) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     ::"r"(shared_at(ring + stage * STAGE)), "l"(memory + at), "r"(STAGE), "r"(shared_at(full + stage)) : "memory");
        at = (at + (size_t)gridDim.x * STAGE) % bytes;
    }
    for (u32 last = n - IN_FLIGHT; last < n; ++last) await(full + last % IN_FLIGHT, last / IN_FLIGHT % 2);
}

// ---- hops --------------------------------------------------------------------------------------
// Polls all words, AT_ONCE of a thread at a time.
__device__ __forceinline__ u32 take_alone(const u64 *words, int n, u32 hop) {
    u32 sum = 0;
    for (int first = threadIdx.x; first < n; first += THREADS * AT_ONCE) {
        u64 got[AT_ONCE];
        bool all;
        do {
            all = true;
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) got[i] = load(words + min(first + i * THREADS, n - 1));
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) all &= got[i] >> 32 == hop;
        } while (!all);
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) sum += (u32)got[i];
    }
    return sum;
}
// Polls this block's part, hands it to the cluster, and waits for all parts in shared memory.
__device__ __forceinline__ u32 take_with_cluster(const u64 *words, u64 *near, int n, u32 hop, int cluster) {
    const int own = n / cluster, first = blockIdx.x % cluster * own;
    for (int i = first + threadIdx.x; i < first + own; i += THREADS) {
        u64 word;
        do word = load(words + i);
        while (word >> 32 != hop);
        for (int rank = 0; rank < cluster; ++rank) {
            u32 to;
            asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(shared_at(near + i)), "r"(rank));
            asm volatile("st.relaxed.cluster.shared::cluster.u64 [%0], %1;" ::"r"(to), "l"(word) : "memory");
        }
    }
    u32 sum = 0;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        u64 word;
        do asm volatile("ld.relaxed.cluster.shared::cta.u64 %0, [%1];" : "=l"(word) : "r"(shared_at(near + i)) : "memory");
        while (word >> 32 != hop);
        sum += (u32)word;
    }
    return sum;
}

__global__ void __launch_bounds__(THREADS + 32, 1)
hops(u64 *words, const uint8_t *memory, size_t bytes, int n_hops, int each, int cluster, bool streams, u32 *out) {
    extern __shared__ __align__(128) uint8_t ring[];
    __shared__ u64 full[IN_FLIGHT], near[2][NEAR_WORDS];
    __shared__ u32 over;
    if (threadIdx.x == 0) {
        for (int i = 0; i < IN_FLIGHT; ++i) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_at(full + i)));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        over = 0;
    }
    for (int i = threadIdx.x; i < 2 * NEAR_WORDS; i += blockDim.x) near[0][i] = 0;
    __syncthreads();
    if (cluster > 1) meet_cluster();
    if (threadIdx.x < THREADS) {
        u32 sum = 0;
        for (u32 hop = 1; hop <= n_hops; ++hop) {
            u64 *there = words + (hop % 2) * MOST_WORDS;
            const int n = gridDim.x * each;
            if (threadIdx.x < each) store(there + blockIdx.x * each + threadIdx.x, (u64)hop << 32 | (sum & 0xff));
            sum += cluster == 1 ? take_alone(there, n, hop) : take_with_cluster(there, near[hop % 2], n, hop, cluster);
            meet();
        }
        if (threadIdx.x == 0) *(volatile u32 *)&over = 1, out[blockIdx.x] = sum;
    } else if (streams && threadIdx.x == THREADS) {
        stream(memory, bytes, ring, full, &over);
    }
    __syncthreads();
    if (cluster > 1) meet_cluster(); // its shared memory is written to by others
}

// ---- measuring ---------------------------------------------------------------------------------
static void check(cudaError_t error, int line) {
    if (error == cudaSuccess) return;
    printf("line %d: %s\n", line, cudaGetErrorString(error));
    exit(1);
}
#define CHECK(call) check(call, __LINE__)

int main() {
    const size_t bytes = (size_t)1 << 30;
    const int shared = 190 * 1024, n_hops = 4000;
    uint8_t *memory;
    u64 *words;
    u32 *out;
    CHECK(cudaMalloc(&memory, bytes));
    CHECK(cudaMalloc(&words, 2 * MOST_WORDS * 8));
    CHECK(cudaMalloc(&out, MOST_BLOCKS * 4));
    CHECK(cudaFuncSetAttribute(hops, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    const auto measure = [&](int blocks, int each, int cluster, bool streams) {
        cudaLaunchAttribute attributes[2];
        attributes[0].id = cudaLaunchAttributeCooperative;
        attributes[0].val.cooperative = 1;
        attributes[1].id = cudaLaunchAttributeClusterDimension;
        attributes[1].val.clusterDim = {(unsigned)cluster, 1, 1};
        cudaLaunchConfig_t config = {};
        config.gridDim = blocks, config.blockDim = THREADS + 32, config.dynamicSmemBytes = shared;
        config.attrs = attributes, config.numAttrs = 2;
        float best = 1e9;
        for (int i = 0; i < 4; ++i) {
            CHECK(cudaMemset(words, 0, 2 * MOST_WORDS * 8));
            CHECK(cudaEventRecord(begin));
            CHECK(cudaLaunchKernelEx(&config, hops, words, (const uint8_t *)memory, bytes, n_hops, each, cluster, streams, out));
            CHECK(cudaEventRecord(end));
            CHECK(cudaEventSynchronize(end));
            float ms;
            CHECK(cudaEventElapsedTime(&ms, begin, end));
            best = ms < best ? ms : best;
        }
        printf("{\"blocks\": %d, \"words_of_a_block\": %d, \"cluster\": %d, \"streams\": %s, \"ns_per_hop\": %.0f}\n", blocks, each, cluster,
               streams ? "true" : "false", best * 1e6 / n_hops);
    };
    for (bool streams : {false, true}) {
        for (int each : {4, 12, 32, 64}) measure(132, each, 1, streams);
        measure(132, 4, 2, streams);
        for (int cluster : {1, 2, 4}) measure(120, 4, cluster, streams); // no more than 30 clusters of four fit
    }
}
