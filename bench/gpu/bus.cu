// How fast the bus copies pieces of some sizes from memory that is pinned in three ways, and how
// long pinning takes: nvcc -O2 -arch=sm_90 -o bus bus.cu && ./bus
#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/mman.h>
#include <chrono>
#include <cstdio>
#include <vector>
using Clock = std::chrono::steady_clock;
static double ms(Clock::time_point a) { return std::chrono::duration<double, std::milli>(Clock::now() - a).count(); }
#define OK(x) do { cudaError_t e = (x); if (e != cudaSuccess) { printf("%s: %s\n", #x, cudaGetErrorString(e)); return 1; } } while (0)
int main() {
    const size_t SLAB = 75ull << 20, N = 25;
    char *dev; OK(cudaMalloc(&dev, 64 << 20));
    cudaStream_t s[4]; for (auto &x : s) OK(cudaStreamCreateWithFlags(&x, cudaStreamNonBlocking));
    for (int kind = 0; kind < 3; kind++) {
        std::vector<char *> slabs;
        double t_map = 0, t_pop = 0, t_reg = 0;
        for (size_t i = 0; i < N; i++) {
            char *p;
            auto t = Clock::now();
            if (kind == 0) { OK(cudaHostAlloc((void **)&p, SLAB, cudaHostAllocMapped)); t_reg += ms(t); }
            else {
                char *raw = (char *)mmap(0, SLAB + (2 << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                p = (char *)(((size_t)raw + (2 << 20) - 1) & ~(size_t)((2 << 20) - 1));
                if (kind == 2) madvise(p, SLAB, MADV_HUGEPAGE);
                t_map += ms(t); t = Clock::now();
                int r = madvise(p, SLAB, 23); if (r && !i) perror("populate");
                t_pop += ms(t); t = Clock::now();
                OK(cudaHostRegister(p, SLAB, cudaHostRegisterMapped | cudaHostRegisterPortable));
                t_reg += ms(t);
            }
            slabs.push_back(p);
        }
        printf("kind %d (0 alloc, 1 register small pages, 2 register huge): %.1f MB map %.1f ms populate %.1f ms pin %.1f ms\n", kind, N * SLAB / 1e6, t_map, t_pop, t_reg);
        for (size_t piece : {1ull << 20, 2ull << 20, 4ull << 20, 8ull << 20}) for (int n_streams : {1, 4}) {
            for (int rep = 0; rep < 3; rep++) {
                auto t = Clock::now(); size_t bytes = 0; int turn = 0;
                for (char *p : slabs) for (size_t o = 0; o + piece <= SLAB; o += piece) {
                    OK(cudaMemcpyAsync(dev + (turn % 4) * piece, p + o, piece, cudaMemcpyHostToDevice, s[turn % n_streams])); turn++; bytes += piece;
                }
                double submitted = ms(t);
                OK(cudaDeviceSynchronize());
                if (rep) printf("kind %d piece %zu KB streams %d: %.2f GB/s (submit %.2f ms of %.2f)\n", kind, piece >> 10, n_streams, bytes / ms(t) / 1e6, submitted, ms(t));
            }
        }
        auto t = Clock::now();
        for (char *p : slabs) { if (kind == 0) OK(cudaFreeHost(p)); else { OK(cudaHostUnregister(p)); munmap(p, SLAB); } }
        printf("kind %d freed in %.1f ms\n", kind, ms(t));
    }
}
