// The persistent kernel by itself, with random weights that are made on the GPU: a change of the kernel is measured without loading a model.
// Lanes have rows of one section. Prints the times of launches of 30 tokens as one JSON object, with a hash of the last logits: equal for
// equal weights, however they are packed.
//
//     cargo run -p weft-cuda --example emulation -- constants qwen3-8b int4 132 headers
//     nvcc -O3 -std=c++17 --fmad=false --expt-relaxed-constexpr -w -gencode=arch=compute_90a,code=sm_90a -DKERNEL=decode_one \
//         -Iheaders -Icrates/weft-cuda/src bench/gpu/decode.cu -o decode && ./decode LANES [ROWS [STAGES [CUBIN KERNEL]]]
//
// With a cubin it runs a kernel of that instead, which must have the same `Launch`: one build then times many variants of the sources,
// each of which NVRTC compiles in seconds. Without STAGES, or with 0, the ring is as deep as memory allows.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>
#include <cuda_runtime.h>
// Kernels know only the GPU's compiler.
#ifndef __CUDA_ARCH__
#define __CUDA_ARCH__ 900
#define IS_HOST
#endif
#include "kernels/base.cuh"
#undef NEVER
#define NEVER (-__builtin_huge_valf())
#include "persistent/decode.cu"
#ifdef IS_HOST
#undef __CUDA_ARCH__
#endif

static void checked(cudaError_t error) {
    if (error != cudaSuccess) printf("%s\n", cudaGetErrorString(error)), exit(1);
}
constexpr int STEPS_OF_A_LAUNCH = 30, LAUNCHES = 12, POSITIONS = 1024, MOST_PARTS = 64;

// ---- weights -----------------------------------------------------------------------------------
__device__ __host__ inline u32 hash_of(u64 x) {
    x ^= x >> 31, x *= 0x9e3779b97f4a7c15ull, x ^= x >> 29, x *= 0xbf58476d1ce4e5b9ull;
    return (u32)(x ^ x >> 32);
}
__device__ u16 half_of(float value) {
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
}
// A byte of a unit whose weights are about `size` large: codes at random, scales and minimums that fit them.
template <class F> __device__ u8 byte_of(int at, u32 random, float size) {
    const auto part = [&](u16 number) { return (u8)(at % 2 == 0 ? number : number >> 8); };
    if constexpr (F::IS_PLAIN) return part(hash_of(random / 2 * 2) & 0x807f | (__float_as_uint(size) >> 23 & 0xff) << 7);
    else {
        static_assert(F::OFFSET != ZERO, "no zeros");
        if (at < F::SCALES || at >= F::END) return at < F::SCALES ? random : 0;
        const int number = (at - F::SCALES) / (F::SCALE == F32 ? 4 : 2);
        const float middle = number % F::PER_ROW == 1 ? -7.5f : 1.0f; // of minimums, of scales
        const float larger = F::IS_STORED_LARGER && number % F::PER_ROW == 0 ? F::FACTOR : 1.0f;
        const float scale = size / (F::N_BITS == 8 ? 74.0f : F::N_BITS == 6 ? 18.0f : 4.6f) * middle * larger;
        if (F::SCALE == F32) return at % 4 == 0 ? random : __float_as_uint(scale) >> at % 4 * 8;
        return part((F::SCALE == BF16 ? __float_as_uint(scale) >> 16 : half_of(scale)) & 0xfff8 | random % 8);
    }
}
template <class W, int UNITS> __global__ void fill(u8 *to, int tiles, u32 seed, float size) {
    for (u64 i = blockIdx.x; i < (u64)tiles * WARPS * UNITS; i += gridDim.x) {
        const int tile = i / (WARPS * UNITS), unit = i % (WARPS * UNITS);
        W::with(tile, [&](auto form) {
            using F = decltype(form);
            u8 *own = to + tile_place<W>(tile, UNITS) + (u64)unit_place<UNITS, W::CODED_BYTES>(unit) * F::BYTES;
            for (int at = threadIdx.x; at < F::BYTES; at += blockDim.x) own[at] = byte_of<F>(at, hash_of(((u64)seed << 40) + i * 512 + at), size);
        });
    }
}
template <class T> static T *zeros(size_t n) {
    T *memory;
    checked(cudaMalloc(&memory, n * sizeof(T) + 256));
    checked(cudaMemset(memory, 0, n * sizeof(T) + 256));
    return memory;
}
template <class T> static T *uploaded(const std::vector<T> &values) {
    T *memory = zeros<T>(values.size());
    checked(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return memory;
}
template <class W, int UNITS> static u8 *matrix(int rows, float size, u32 seed) {
    const int tiles = (rows + 127) / 128 * 16;
    u8 *memory = zeros<u8>((size_t)tiles * W::BYTES * WARPS * UNITS);
    fill<W, UNITS><<<2048, 128>>>(memory, tiles, seed, size);
    checked(cudaGetLastError());
    return memory;
}
static u16 *vector_around(int n, float around) {
    std::vector<u16> values((n + 255) / 256 * 256);
    for (int i = 0; i < n; ++i) {
        const float value = around + 0.1f * (hash_of(i) % 200 / 100.0f - 1);
        u32 bits;
        memcpy(&bits, &value, 4), values[i] = bits >> 16;
    }
    return uploaded(values);
}
// Which of two variants a layer of Q4_K_M has; the first is that of layer 0, which has more bits.
static u32 variant(u32 layer) {
    const u32 eighth = LAYERS / 8;
    return layer < eighth || layer >= 7 * LAYERS / 8 || (layer - eighth) % 3 == 2 ? 0 : 1;
}
template <class F> static OneForm<F> forms_of(const OneForm<F> &forms) { return forms; }
template <class Q, class K, class V, int A, int B> static ThreeForms<Q, K, V, A, B> forms_of(const ThreeForms<Q, K, V, A, B> &forms) { return forms; }
// The place of a matrix's forms among those after norms.
template <class W> static u16 norm_id() {
    int id = -1;
#define FIND(SUFFIX, N) if (std::is_same<decltype(forms_of(W{})), decltype(forms_of(N{}))>::value) id = N::ID;
    NORM_FORMS(FIND)
    return id;
}
#define MAKE(SUFFIX, W) if (W::IS_LAST || variant(index) == W::ID) return make(W{});
template <class Make> static u8 *make_qkv(u32 index, Make make) { QKV_MATRICES(MAKE) }
template <class Make> static u8 *make_down(u32 index, Make make) { DOWN_MATRICES(MAKE) }
static LayerAddresses layer(u32 index, int n_pages) {
    LayerAddresses own = {};
    const u32 seed = index * 8;
    own.attention_norm = (const uint4 *)vector_around(HIDDEN, 1), own.mlp_norm = (const uint4 *)vector_around(HIDDEN, 1);
    own.q_norm = vector_around(HEAD_DIM, 1), own.k_norm = vector_around(HEAD_DIM, 1), own.bias = vector_around(QKV_ROWS, 0);
    own.qkv = make_qkv(index, [&](auto forms) {
        own.variants.qkv = norm_id<decltype(forms)>();
        return matrix<decltype(forms), HIDDEN_UNITS>(QKV_ROWS, 1 / sqrtf(HIDDEN), seed + 1);
    });
    own.o = matrix<ProjMatrix, Q_UNITS>(HIDDEN, 1 / sqrtf(Q_WIDTH), seed + 2);
    own.gate_up = matrix<GateUpMatrix, HIDDEN_UNITS>(2 * INTER, 1 / sqrtf(HIDDEN), seed + 3), own.variants.gate_up = norm_id<GateUpMatrix>();
    own.down = make_down(index, [&](auto forms) {
        own.variants.down = decltype(forms)::ID;
        return matrix<decltype(forms), INTER_UNITS>(HIDDEN, 1 / sqrtf(INTER), seed + 4);
    });
    own.kv = zeros<u16>((size_t)n_pages * KV_HEADS * 2 * PAGE_SIDE);
    return own;
}

// ---- the step ----------------------------------------------------------------------------------
struct Lists {
    std::vector<u32> counts = std::vector<u32>(8), tokens = counts, positions = counts, outputs = counts, partials = std::vector<u32>(32);
    std::vector<Item> items;
    // A lane of one token after `before` rows, with pages for all steps: one section of one stretch.
    void add_lane(int before) {
        const u32 token = counts[0];
        tokens[token] = token * 13 + 5, positions[token] = before, outputs[token] = token;
        Item item;
        memset(&item, 0, sizeof item);
        for (u32 page = 0; page < 4; ++page) item.pages[page] = token * 4 + page;
        item.stretches[0] = 0xff, item.first_pages = 4;
        for (int half = 0; half < 8; ++half) item.cuts[half] = 32;
        item.queries[item.n_queries++] = {(u16)token, 1, (u16)(before + 1), (u16)token, (u32)before, token};
        item.stores[item.n_stores++] = token << 8 | before, item.n_rows = before + 1;
        items.push_back(item);
        const u32 own[4] = {1, token, 1, token};
        std::copy(own, own + 4, &partials[token * 4]);
        counts[0] = counts[1] = counts[2] = token + 1;
    }
};
static Launch launch_for(const Lists &lists, const std::vector<LayerAddresses> &layers) {
    Launch launch = {};
    std::vector<u32> ops = {EMBED};
    for (u32 i = 0; i < LAYERS; ++i)
        for (u32 kind = NORM_QKV; kind <= DOWN_ADD; ++kind) ops.push_back(kind | i << 8);
    ops.push_back(NORM_HEAD);
    launch.step.counts = uploaded(lists.counts), launch.step.tokens = uploaded(lists.tokens), launch.step.outputs = uploaded(lists.outputs);
    launch.step.positions = launch.step.key_positions = uploaded(lists.positions);
    launch.step.partials = uploaded(lists.partials), launch.step.attention = (const u32 *)uploaded(lists.items);
    launch.layers = uploaded(layers), launch.ops = uploaded(ops), launch.n_ops = ops.size(), launch.n_steps = STEPS_OF_A_LAUNCH;
    launch.head = matrix<HeadMatrix, HIDDEN_UNITS>(VOCAB, 1 / sqrtf(HIDDEN), 1001), launch.embedding = matrix<EmbeddingMatrix, HIDDEN_UNITS>(VOCAB, 1, 1002);
    launch.final_norm = (const uint4 *)vector_around(HIDDEN, 1);
    std::vector<float2> turns((size_t)POSITIONS * HEAD_DIM / 2);
    for (size_t i = 0; i < turns.size(); ++i) {
        const float angle = i / (HEAD_DIM / 2) * powf(10000, -(float)(i % (HEAD_DIM / 2)) / (HEAD_DIM / 2));
        turns[i] = {cosf(angle), sinf(angle)};
    }
    launch.rope = uploaded(turns);
    launch.x = zeros<u64>(8 * HIDDEN_STRIDE / 2), launch.qkv = zeros<u64>(8 * QKV_WORDS);
    launch.a = zeros<u64>(8 * Q_STRIDE / 2), launch.h = zeros<u64>(8 * INTER_STRIDE / 2);
    launch.part_sums = zeros<u64>((size_t)MOST_PARTS * HEADS * DIM), launch.part_weights = zeros<u64>(MOST_PARTS * HEADS * 2);
    launch.cells = zeros<u64>(MOST_PARTS * HEADS * 2), launch.candidates = zeros<u64>(2 * 8 * N_BLOCKS * 2);
    launch.done = zeros<u64>(N_BLOCKS), launch.chosen = zeros<u64>(8), launch.bare = zeros<uint4>(BARE_BYTES / 16);
    launch.plain = {zeros<u16>(8 * HIDDEN_STRIDE), {nullptr, zeros<u16>(8 * Q_WIDTH), zeros<u16>(8 * KV_WIDTH), zeros<u16>(8 * KV_WIDTH)}, zeros<u16>(8 * Q_STRIDE), zeros<u16>(8 * INTER_STRIDE)};
    launch.logits = zeros<float>((size_t)8 * VOCAB), launch.shares = zeros<float>(MOST_PARTS * HEADS), launch.other_shares = zeros<float>(MOST_PARTS * HEADS);
    std::vector<Draw> draws(8);
    memset(draws.data(), 0, 8 * sizeof(Draw));
    for (Draw &draw : draws) draw.flags = CHOSEN, draw.vocab = VOCAB, draw.share = 1ull << 32, draw.least_weight = 1;
    launch.sampling.draws = uploaded(draws), launch.sampling.best = zeros<u32>(8 * N_BEST);
    launch.sampling.bias = zeros<float>((size_t)8 * VOCAB), launch.sampling.marks = zeros<u32>((size_t)8 * VOCAB);
    launch.sampling.published_tokens = zeros<u64>(PUBLISHED_STEPS * 8), launch.sampling.published_shares = zeros<u64>(PUBLISHED_STEPS * MOST_PARTS), launch.sampling.n_cells = MOST_PARTS;
    launch.given_up = uploaded(std::vector<u32>{NOBODY}), launch.mailbox = zeros<Mailbox>(1), launch.withheld = ~0u, launch.chooses = CHOOSES_BEST;
    return launch;
}

int main(int n_arguments, char **arguments) {
    const int n_lanes = n_arguments > 1 ? atoi(arguments[1]) : 1, before = n_arguments > 2 ? atoi(arguments[2]) : 30;
    if (before + STEPS_OF_A_LAUNCH >= 256) return printf("more than one section\n"), 1;
    Lists lists;
    for (int lane = 0; lane < n_lanes; ++lane) lists.add_lane(before);
    std::vector<LayerAddresses> layers;
    for (int i = 0; i < LAYERS; ++i) layers.push_back(layer(i, n_lanes * 4));
    Launch launch = launch_for(lists, layers);
    const void *function = (const void *)KERNEL;
    if (n_arguments > 5) {
        cudaLibrary_t library;
        cudaKernel_t found;
        checked(cudaLibraryLoadFromFile(&library, arguments[4], nullptr, nullptr, 0, nullptr, nullptr, 0));
        checked(cudaLibraryGetKernel(&found, library, arguments[5]));
        function = (const void *)found;
    }
    cudaFuncAttributes kernel;
    checked(cudaFuncGetAttributes(&kernel, function));
    const int dynamic_bytes = (227 << 10) - (int)kernel.sharedSizeBytes;
    const int room = (dynamic_bytes - WARPS * (int)x_units(n_lanes) * X_UNIT_BYTES) / LONG_STAGE_BYTES;
    const int stages = n_arguments > 3 ? atoi(arguments[3]) : 0;
    launch.n_stages = stages > 0 ? stages : std::min(MOST_STAGES, room);
    checked(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic_bytes));
    cudaEvent_t begin, end;
    checked(cudaEventCreate(&begin)), checked(cudaEventCreate(&end)), checked(cudaDeviceSynchronize());
    printf("{\"lanes\": %d, \"rows\": %d, \"stages\": %u, \"registers\": %d, \"us_per_token\": [", n_lanes, before, launch.n_stages, kernel.numRegs);
    for (int i = 0; i < LAUNCHES; ++i) {
        void *all[] = {&launch};
        checked(cudaEventRecord(begin));
        if (BARE_BYTES > 0 && n_lanes >= BARE_TOKENS) checked(cudaMemsetAsync(launch.bare, 0xff, BARE_BYTES));
        checked(cudaLaunchCooperativeKernel(function, dim3(N_BLOCKS), dim3(PERSISTENT_THREADS), all, dynamic_bytes, 0));
        checked(cudaEventRecord(end)), checked(cudaEventSynchronize(end));
        float ms;
        checked(cudaEventElapsedTime(&ms, begin, end));
        if (i >= 2) printf("%s%.1f", i == 2 ? "" : ", ", ms * 1000 / STEPS_OF_A_LAUNCH);
        launch.number += launch.n_ops * STEPS_OF_A_LAUNCH;
    }
    std::vector<float> logits((size_t)n_lanes * VOCAB);
    checked(cudaMemcpy(logits.data(), launch.logits, logits.size() * 4, cudaMemcpyDeviceToHost));
    u32 stuck;
    checked(cudaMemcpy(&stuck, launch.given_up, 4, cudaMemcpyDeviceToHost));
    u64 hash = 1469598103934665603ull;
    for (const float &logit : logits) {
        u32 bits;
        memcpy(&bits, &logit, 4), hash = (hash ^ bits) * 1099511628211ull;
        if (!std::isfinite(logit)) return printf("a logit is not a number\n"), 1;
    }
    printf("], \"logits\": \"%016llx\"}\n", hash);
    return stuck != NOBODY;
}
