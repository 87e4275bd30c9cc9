// `down_add` in the persistent kernel: what it awaits. The product itself is that of both residual ops
// (residual.cuh).
#pragma once

#include "persistent/bare.cuh"
#include "persistent/hop.cuh"
#include "persistent/launch.cuh"

struct DownAdd {
    static constexpr int UNITS = INTER_UNITS, WIDTH = INTER, STRIDE = INTER_STRIDE;
    // Awaited: what `norm_gate_up` published.
    static __device__ __forceinline__ AwaitedRows input(const Launch &launch, u32 number) { return {launch.h, INTER_STRIDE / 2, INTER, number}; }
    // Without numbers; and where its results go.
    static __device__ __forceinline__ const uint4 *bare_input(const BarePlaces &places) { return places.gated(); }
    static __device__ __forceinline__ uint4 *bare_output(const BarePlaces &places) { return places.after(); }
};
