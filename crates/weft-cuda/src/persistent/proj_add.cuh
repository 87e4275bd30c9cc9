// `proj_add` in the persistent kernel: what it awaits. The product itself is that of both residual ops
// (residual.cuh).
#pragma once

#include "persistent/bare.cuh"
#include "persistent/hop.cuh"
#include "persistent/launch.cuh"

struct ProjAdd {
    static constexpr int UNITS = Q_UNITS, WIDTH = Q_WIDTH, STRIDE = Q_STRIDE;
    // Awaited: what `attend` published.
    static __device__ __forceinline__ AwaitedRows input(const Launch &launch, u32 number) { return {launch.a, Q_STRIDE / 2, Q_WIDTH, number}; }
    // Without numbers; and where its results go.
    static __device__ __forceinline__ const uint4 *bare_input(const BarePlaces &places) { return places.attended(); }
    static __device__ __forceinline__ uint4 *bare_output(const BarePlaces &places) { return places.between(); }
};
