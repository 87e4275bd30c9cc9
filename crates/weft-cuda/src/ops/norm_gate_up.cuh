// What kernels of `norm_gate_up` share.
#pragma once

#include "kernels/base.cuh"

// silu(gate) * up, in f32.
__device__ __forceinline__ float gated(float gate, float up) { return gate / (1.0f + expf(-gate)) * up; }
