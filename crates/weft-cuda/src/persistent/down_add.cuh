// `down_add` in the persistent kernel: what it awaits. The product itself is that of both residual ops
// (residual.cuh).
#pragma once

#include "persistent/hop.cuh"
#include "persistent/launch.cuh"

struct DownAdd {
    static constexpr int UNITS = INTER_UNITS;
    // Awaited: what `norm_gate_up` published.
    static __device__ __forceinline__ AwaitedRows input(const Launch &launch, u32 number) { return {launch.h, INTER_STRIDE / 2, INTER, number}; }
};
