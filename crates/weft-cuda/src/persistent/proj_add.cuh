// `proj_add` in the persistent kernel: what it awaits. The product itself is that of both residual ops
// (residual.cuh).
#pragma once

#include "persistent/hop.cuh"
#include "persistent/launch.cuh"

struct ProjAdd {
    static constexpr int UNITS = Q_UNITS;
    // Awaited: what `attend` published.
    static __device__ __forceinline__ AwaitedRows input(const Launch &launch, u32 number) { return {launch.a, Q_STRIDE / 2, Q_WIDTH, number}; }
};
