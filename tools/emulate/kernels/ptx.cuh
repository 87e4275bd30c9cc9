// Takes the place of crates/weft-cuda/src/kernels/ptx.cuh: what its instructions do, on the
// emulated threads of cuda.h. Every other file is compiled as it lies there.
#pragma once

#include "cuda.h"
#include "generated/constants.cuh"
#include "kernels/types.cuh"

// ---- numbers -----------------------------------------------------------------------------------
inline u32 to_bf16(float value) {
    const u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline u32 round_pair(float first, float second) { return to_bf16(first) | to_bf16(second) << 16; }
inline u32 fma_pair(u32 a, u32 b, u32 c) {
    const auto upper = [](u32 pair) { return __uint_as_float(pair & 0xffff0000u); };
    return round_pair(fmaf(upper(a << 16), upper(b << 16), upper(c << 16)), fmaf(upper(a), upper(b), upper(c)));
}
inline u32 and_or(u32 value, u32 mask, u32 bits) { return value & mask | bits; }
inline u32 and_xor(u32 value, u32 mask, u32 bits) { return value & mask ^ bits; }
inline float half_to_float(u16 half) {
    const float magnitude = __uint_as_float((half & 0x7fffu) << 13) * 0x1p112f;
    return half & 0x8000 ? -magnitude : magnitude;
}
inline float reciprocal_near(float x) { return 1.0f / x; }
inline float exp2_of(float x) { return exp2f(x); }
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
            const auto half = [&](u32 pair) { return __uint_as_float(k % 2 ? pair & 0xffff0000u : pair << 16); };
            d[e] = fmaf(half(a), half(b), d[e]);
        }
    }
    __syncwarp();
}

// ---- loads and words ---------------------------------------------------------------------------
template <class T> T load_fresh(const T *at) { return *at; }
inline void bring_near(const void *, int, int) {}
template <class T> void store_relaxed(T *at, T word) { *at = word; }
// The host sees what is published to it at once.
inline void (*host_sees)(u64 *at, u64 word) = nullptr;
inline void store_relaxed_system(u64 *at, u64 word) {
    *at = word;
    if (host_sees) host_sees(at, word);
}
inline u64 load_relaxed_system(const u64 *at) {
    const u64 word = *at;
    let_others_run();
    return word;
}
template <class T> T load_relaxed(const T *at) {
    const T word = *at;
    let_others_run();
    return word;
}
struct TwoWords {
    u64 first, second;
};
inline TwoWords load_two_relaxed(const u64 *at) {
    const TwoWords words = {at[0], at[1]};
    let_others_run();
    return words;
}
inline void store_two_relaxed(u64 *at, TwoWords words) { at[0] = words.first, at[1] = words.second; }
inline uint4 load_four_relaxed(const uint4 *at) {
    const uint4 words = *at;
    let_others_run();
    return words;
}
inline void store_four_relaxed(uint4 *at, uint4 words) { *at = words; }
inline void look_again() { let_others_run(); }

// ---- threads -----------------------------------------------------------------------------------
template <int N = WARPS> inline void meet() { meet_at(current->block->arrived[1], current->block->meetings[1], N * 32); }
template <int THREADS> void leave_at(u32 barrier) {
    EmulatedBlock &block = *current->block;
    if (++block.arrived[barrier] == THREADS) block.arrived[barrier] = 0, ++block.meetings[barrier];
}
template <int THREADS> void take_at(u32 barrier) { meet_at(current->block->arrived[barrier], current->block->meetings[barrier], THREADS); }
inline u32 own_thread() { return threadIdx.x; }
inline u32 own_block() { return blockIdx.x; }
inline u64 clock_ns() { return (rounds + 1) * 10'000; }
inline void rest() { let_others_run(); }
[[noreturn]] inline void trap() { abort(); }

// ---- shared memory -----------------------------------------------------------------------------
#define SHARED(type, name) type &name = of_block<type, __COUNTER__>()
inline u8 *dynamic_shared() { return current->block->dynamic; }

// ---- order between kernels ---------------------------------------------------------------------
inline void let_next_start() {}
inline void wait_for_previous() {}

// ---- copies into shared memory -----------------------------------------------------------------
// Without a barrier: at once.
inline void copy_chunk(void *to, const void *from) { memcpy(to, from, 16); }
inline void commit_copies() {}
template <int PENDING> void await_copies() {}

// A barrier's eight bytes: arrivals it is made for and lacks, and what is to be copied, in units of
// 16 bytes, above the phase.
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
inline std::vector<Copy> copies;
inline void copy(void *to, const void *from, u32 bytes, u64 *barrier, int lane) {
    if (bytes % 16 || (uintptr_t)to % 16 || (uintptr_t)from % 16) abort();
    if (lane == 0) copies.push_back({to, from, bytes, barrier});
}
inline void copy_passing(void *to, const void *from, u32 bytes, u64 *barrier, int lane) { copy(to, from, bytes, barrier, lane); }
inline void copy_pieces(u8 *to, const u8 *from, u32 stride, u32 bytes, u32 n, u64 *barrier, int lane) {
    __syncwarp();
    if (lane < n) copy(to + lane * bytes, from + lane * stride, bytes, barrier, 0);
}
inline void copies_begun(u64 *) {}
inline void before_copies() {}
inline void before_copies_of_stored() {}
