// What a grid-wide hop costs on sm_90, and what clusters change: every block hands 4 words to all others, again and again, while a ninth warp
// streams memory as the persistent kernel's does (two copies of 16 KB on their way) or does not.
//   alone    every block polls all words, as persistent/hop.cuh does
//   cluster  a block of a cluster polls its part of the words and writes it into the shared memory of all blocks of the cluster
//   nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a cluster_hop.cu -o cluster_hop && ./cluster_hop
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#define CK(x) do { cudaError_t e = (x); if (e != cudaSuccess) { printf("%s line %d: %s\n", #x, __LINE__, cudaGetErrorString(e)); exit(1); } } while (0)
typedef uint64_t u64;
typedef uint32_t u32;

constexpr int THREADS = 256, STAGE = 16384, IN_FLIGHT = 2, MOST_WORDS = 132 * 4;

__device__ __forceinline__ u32 shared_at(const void *p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ u64 load(const u64 *at) {
    u64 word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    return word;
}
__device__ __forceinline__ void store(u64 *at, u64 word) { asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(word) : "memory"); }
__device__ __forceinline__ void meet() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }

__device__ __forceinline__ void await(u64 *barrier, u32 parity) {
    u32 done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(shared_at(barrier)), "r"(parity) : "memory");
}
__device__ void stream(const uint8_t *memory, size_t bytes, uint8_t *ring, u64 *full, volatile u32 *left) {
    if (threadIdx.x % 32 != 0) return;
    size_t at = (size_t)blockIdx.x * STAGE;
    u32 n = 0;
    for (; n < IN_FLIGHT || !*left; ++n) {
        const u32 stage = n % IN_FLIGHT;
        if (n >= IN_FLIGHT) await(full + stage, (n / IN_FLIGHT - 1) % 2);
        asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }" ::"r"(shared_at(full + stage)), "r"(STAGE) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     ::"r"(shared_at(ring + stage * STAGE)), "l"(memory + at), "r"(STAGE), "r"(shared_at(full + stage)) : "memory");
        at = (at + (size_t)gridDim.x * STAGE) % bytes;
    }
    for (u32 last = n - IN_FLIGHT; last < n; ++last) await(full + last % IN_FLIGHT, last / IN_FLIGHT % 2);
}

__global__ void __launch_bounds__(THREADS + 32, 1) hops(u64 *words, const uint8_t *memory, size_t bytes, int n_hops, int cluster, bool loaded, u32 *out) {
    extern __shared__ __align__(128) uint8_t ring[];
    __shared__ u64 full[IN_FLIGHT], near[2][MOST_WORDS];
    __shared__ u32 left;
    const int n_words = gridDim.x * 4;
    if (threadIdx.x == 0) {
        for (int i = 0; i < IN_FLIGHT; ++i) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_at(full + i)));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        left = 0;
    }
    for (int i = threadIdx.x; i < 2 * MOST_WORDS; i += blockDim.x) near[0][i] = 0;
    __syncthreads();
    if (cluster > 1) asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    u32 sum = 0;
    if (threadIdx.x >= THREADS) {
        if (loaded) stream(memory, bytes, ring, full, &left);
    } else {
        for (u32 hop = 1; hop <= n_hops; ++hop) {
            u64 *there = words + (hop % 2) * MOST_WORDS;
            if (threadIdx.x < 4) store(there + blockIdx.x * 4 + threadIdx.x, (u64)hop << 32 | (sum & 0xff));
            const int own = n_words / cluster, first = blockIdx.x % cluster * own;
            for (int i = first + threadIdx.x; i < first + own; i += THREADS) {
                u64 word;
                do word = load(there + i);
                while (word >> 32 != hop);
                if (cluster == 1) sum += (u32)word;
                else
                    for (int rank = 0; rank < cluster; ++rank) {
                        u32 to;
                        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(shared_at(&near[hop % 2][i])), "r"(rank));
                        asm volatile("st.relaxed.cluster.shared::cluster.u64 [%0], %1;" ::"r"(to), "l"(word) : "memory");
                    }
            }
            for (int i = threadIdx.x; cluster > 1 && i < n_words; i += THREADS) {
                u64 word;
                do asm volatile("ld.relaxed.cluster.shared::cta.u64 %0, [%1];" : "=l"(word) : "r"(shared_at(&near[hop % 2][i])) : "memory");
                while (word >> 32 != hop);
                sum += (u32)word;
            }
            meet();
        }
        if (threadIdx.x == 0) *(volatile u32 *)&left = 1, out[blockIdx.x] = sum;
    }
    __syncthreads();
    if (cluster > 1) asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

int main() {
    const size_t bytes = (size_t)1 << 30;
    uint8_t *memory;
    u64 *words;
    u32 *out;
    CK(cudaMalloc(&memory, bytes)), CK(cudaMalloc(&words, 2 * MOST_WORDS * 8)), CK(cudaMalloc(&out, 4096));
    const int shared = 190 * 1024, n_hops = 4000;
    CK(cudaFuncSetAttribute(hops, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    cudaEvent_t a, b;
    CK(cudaEventCreate(&a)), CK(cudaEventCreate(&b));
    for (int blocks : {120, 132})
        for (bool loaded : {false, true})
            for (int cluster : {1, 2, 4}) {
                if (blocks == 132 && cluster == 4) continue; // 30 clusters of four are the most with as much shared memory
                cudaLaunchAttribute attributes[2];
                attributes[0].id = cudaLaunchAttributeCooperative, attributes[0].val.cooperative = 1;
                attributes[1].id = cudaLaunchAttributeClusterDimension;
                attributes[1].val.clusterDim.x = cluster, attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
                cudaLaunchConfig_t config = {};
                config.gridDim = blocks, config.blockDim = THREADS + 32, config.dynamicSmemBytes = shared;
                config.attrs = attributes, config.numAttrs = 2;
                float best = 1e9;
                for (int i = 0; i < 4; ++i) {
                    CK(cudaMemset(words, 0, 2 * MOST_WORDS * 8));
                    CK(cudaEventRecord(a));
                    CK(cudaLaunchKernelEx(&config, hops, words, (const uint8_t *)memory, bytes, n_hops, cluster, loaded, out));
                    CK(cudaEventRecord(b));
                    CK(cudaEventSynchronize(b));
                    float ms;
                    CK(cudaEventElapsedTime(&ms, a, b));
                    best = ms < best ? ms : best;
                }
                printf("{\"blocks\": %d, \"cluster\": %d, \"streams\": %s, \"ns_per_hop\": %.0f}\n", blocks, cluster, loaded ? "true" : "false", best * 1e6 / n_hops);
            }
}
