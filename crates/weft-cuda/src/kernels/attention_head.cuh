// One head of a token in one warp: its norm, its rotation, and where keys and values lie in a page.
// Lane l holds dimensions l, l + 32, ... below HALF_DIM, each with the dimension half a head later
// that it turns with.
#pragma once

#include "kernels/base.cuh"

constexpr int HALF_DIM = HEAD_DIM / 2;
constexpr int LANE_PAIRS = (HALF_DIM + 31) / 32;

struct Head {
    float first[LANE_PAIRS], second[LANE_PAIRS];
};

__device__ __forceinline__ Head load_head(const u16 *from, int lane) {
    Head head;
#pragma unroll
    for (int i = 0; i < LANE_PAIRS; ++i) {
        const int d = lane + i * 32;
        head.first[i] = d < HALF_DIM ? widen(load_fresh(from + d)) : 0.0f;
        head.second[i] = d < HALF_DIM ? widen(load_fresh(from + d + HALF_DIM)) : 0.0f;
    }
    return head;
}

// The same as it lies in memory: what nothing is computed with.
struct PackedHead {
    u32 pairs[LANE_PAIRS]; // bf16: a dimension, and the one that it turns with
};
__device__ __forceinline__ PackedHead load_packed(const u16 *from, int lane) {
    PackedHead head;
#pragma unroll
    for (int i = 0; i < LANE_PAIRS; ++i) {
        const int d = min(lane + i * 32, HALF_DIM - 1);
        head.pairs[i] = load_fresh(from + d) | (u32)load_fresh(from + d + HALF_DIM) << 16;
    }
    return head;
}

// What a lane needs of a head's norm and rotation. Neither depends on what a kernel computed, so
// both can be asked for before the kernel before has ended.
struct HeadNorm {
    u32 pairs[LANE_PAIRS]; // bf16: of a dimension, and of the one that it turns with
};
__device__ __forceinline__ HeadNorm load_norm(const u16 *weight, int lane) {
    HeadNorm norm;
#pragma unroll
    for (int i = 0; i < LANE_PAIRS; ++i) {
        const int d = lane + i * 32;
        norm.pairs[i] = QK_NORM && d < HALF_DIM ? weight[d] | (u32)weight[d + HALF_DIM] << 16 : 0;
    }
    return norm;
}
struct Turn {
    float2 by[LANE_PAIRS]; // cos and sin
};
// rope: [positions][HALF_DIM].
__device__ __forceinline__ Turn load_turn(const float2 *rope, u32 position, int lane) {
    Turn turn;
#pragma unroll
    for (int i = 0; i < LANE_PAIRS; ++i) {
        const int d = lane + i * 32;
        turn.by[i] = d < HALF_DIM ? rope[(u64)position * HALF_DIM + d] : make_float2(0.0f, 0.0f);
    }
    return turn;
}

// RMSNorm over the head, rounded twice as every norm is. Nothing where the model has none.
__device__ __forceinline__ void normalise_head(Head &head, const HeadNorm &norm) {
    if (!QK_NORM) return;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < LANE_PAIRS; ++i) {
        sum = __fmaf_rn(head.first[i], head.first[i], sum);
        sum = __fmaf_rn(head.second[i], head.second[i], sum);
    }
#pragma unroll
    for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(FULL, sum, other);
    const float scale = 1.0f / sqrtf(sum / (float)HEAD_DIM + NORM_EPS);
#pragma unroll
    for (int i = 0; i < LANE_PAIRS; ++i) {
        head.first[i] = rounded(rounded(head.first[i] * scale) * low(norm.pairs[i]));
        head.second[i] = rounded(rounded(head.second[i] * scale) * high(norm.pairs[i]));
    }
}

// Turns the head and rounds it.
__device__ __forceinline__ void rotate_head(Head &head, const Turn &turn) {
#pragma unroll
    for (int i = 0; i < LANE_PAIRS; ++i) {
        const float a = head.first[i], b = head.second[i];
        head.first[i] = rounded(a * turn.by[i].x - b * turn.by[i].y);
        head.second[i] = rounded(b * turn.by[i].x + a * turn.by[i].y);
    }
}

template <class Put> __device__ __forceinline__ void each_dimension(const Head &head, int lane, Put put) {
#pragma unroll
    for (int i = 0; i < LANE_PAIRS; ++i) {
        const int d = lane + i * 32;
        if (d < HALF_DIM) {
            put(d, round_one(head.first[i]));
            put(d + HALF_DIM, round_one(head.second[i]));
        }
    }
}

template <class Put> __device__ __forceinline__ void each_dimension(const PackedHead &head, int lane, Put put) {
#pragma unroll
    for (int i = 0; i < LANE_PAIRS; ++i) {
        const int d = lane + i * 32;
        if (d < HALF_DIM) put(d, (u16)head.pairs[i]), put(d + HALF_DIM, (u16)(head.pairs[i] >> 16));
    }
}

// ---- pages -------------------------------------------------------------------------------------
// KV memory of a layer: [page][KV head][keys, values], each 64 x DIM elements in units. Keys are
// units of 8 rows x 32 dimensions. Values are transposed, units of 8 dimensions x 32 rows, and the
// rows of a unit are in the order in which probabilities come out of the score product.
constexpr int PAGE_SIDE = PAGE_ROWS * DIM;         // elements of a page's keys, and of its values
constexpr int SIDE_BYTES = PAGE_SIDE * 2;

__device__ __forceinline__ u64 page_start(u32 page, int kv_head) {
    return ((u64)page * KV_HEADS + kv_head) * 2 * PAGE_SIDE;
}
__device__ __forceinline__ int key_offset(int row, int d) {
    return (row / 8 * (DIM / 32) + d / 32) * 256 + (row % 8 * 4 + d % 32 / 8) * 8 + d % 8;
}
__device__ __forceinline__ int value_offset(int row, int d) {
    return (d / 8 * 2 + row / 32) * 256 + (d % 8 * 4 + row % 8 / 2) * 8 + row % 32 / 8 * 2 + row % 2;
}
