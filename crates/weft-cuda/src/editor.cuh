// For clangd alone (compile_flags.txt): what NVRTC and nvcc know without a header, so that kernels
// open in an editor without a CUDA toolkit. No kernel includes it.
#pragma once

#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
// Older versions of clang do not know clusters.
#define __cluster_dims__(...)
#define __grid_constant__ __attribute__((grid_constant))
#define __align__(n) __attribute__((aligned(n)))

// NVRTC compiles with -default-device: whatever says nothing else is for the GPU.
#pragma clang force_cuda_host_device begin

struct dim3 {
    unsigned x, y, z;
};
extern __device__ const dim3 threadIdx, blockIdx, blockDim, gridDim;

struct __align__(8) uint2 {
    unsigned x, y;
};
struct __align__(16) uint4 {
    unsigned x, y, z, w;
};
struct __align__(8) float2 {
    float x, y;
};
struct __align__(16) float4 {
    float x, y, z, w;
};
__device__ uint2 make_uint2(unsigned x, unsigned y);
__device__ uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w);
__device__ float2 make_float2(float x, float y);
__device__ float4 make_float4(float x, float y, float z, float w);

// Numbers.
__device__ int min(int a, int b);
__device__ unsigned min(unsigned a, unsigned b);
__device__ unsigned min(int a, unsigned b);
__device__ unsigned min(unsigned a, int b);
__device__ unsigned long long min(unsigned long long a, unsigned long long b);
__device__ int max(int a, int b);
__device__ unsigned max(unsigned a, unsigned b);
__device__ unsigned max(int a, unsigned b);
__device__ unsigned max(unsigned a, int b);
__device__ unsigned long long max(unsigned long long a, unsigned long long b);
__device__ float fmaxf(float a, float b);
__device__ float fabsf(float x);
__device__ float sqrtf(float x);
__device__ float expf(float x);
__device__ float __uint_as_float(unsigned bits);
__device__ unsigned __float_as_uint(float value);
__device__ float __fmaf_rn(float a, float b, float c);
__device__ float __fmul_rn(float a, float b);
__device__ unsigned __byte_perm(unsigned a, unsigned b, unsigned choice);
__device__ double __dmul_rn(double a, double b);
__device__ double __dsub_rn(double a, double b);
__device__ unsigned long long __double2ull_rz(double value);
__device__ unsigned long long __umul64hi(unsigned long long a, unsigned long long b);
__device__ int __ffs(unsigned bits);
__device__ int __ffsll(unsigned long long bits);
__device__ int __clz(unsigned bits);
__device__ int __popc(unsigned bits);

// Threads.
__device__ int __syncthreads_count(int is);
__device__ void __syncwarp();
__device__ void __threadfence();
__device__ void __threadfence_block();
template <class T> __device__ T __shfl_sync(unsigned lanes, T value, int from);
template <class T> __device__ T __shfl_xor_sync(unsigned lanes, T value, int mask);
template <class T> __device__ T __shfl_up_sync(unsigned lanes, T value, int by);
template <class T> __device__ T __shfl_down_sync(unsigned lanes, T value, int by);
__device__ unsigned __ballot_sync(unsigned lanes, int is);
__device__ int __any_sync(unsigned lanes, int is);
__device__ int __all_sync(unsigned lanes, int is);
__device__ unsigned __reduce_max_sync(unsigned lanes, unsigned value);
__device__ unsigned __reduce_min_sync(unsigned lanes, unsigned value);

// Memory.
__device__ unsigned atomicAdd(unsigned *at, unsigned value);
__device__ unsigned long long atomicAdd(unsigned long long *at, unsigned long long value);
__device__ float atomicAdd(float *at, float value);
__device__ unsigned atomicMin(unsigned *at, unsigned value);
__device__ unsigned atomicOr(unsigned *at, unsigned value);
__device__ unsigned long __cvta_generic_to_shared(const void *at);

#pragma clang force_cuda_host_device end
