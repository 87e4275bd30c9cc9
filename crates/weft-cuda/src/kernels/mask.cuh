// Masks of grammars: which tokens may be chosen, a bit for each.
//
// A step's mask depends on the token before it, so the host computes it while the step runs. It is
// written into the host's own memory, in words that carry the number of the step, and needed when
// the head is computed. A mask that does not come leaves the choice to the host: whoever waits says
// so (`late`) and goes on.
#pragma once

#include "kernels/sampling.cuh"

// Brings words of an output's mask from the host, a thread every `stride`-th from `first` on; false
// if they do not come in time, or if nobody wants them any more.
template <class Stopped>
__device__ __forceinline__ bool take_mask(const Sampling &sampling, u32 output, u32 number, u32 first, u32 end, u32 stride, Stopped stopped) {
    const u64 *from = sampling.given_masks + (u64)output * MASK_WORDS;
    u32 *to = sampling.masks + (u64)output * MASK_WORDS;
    u64 since = 0;
    for (u32 i = first; i < end; i += stride) {
        u64 word;
        while ((u32)((word = load_relaxed_system(from + i)) >> 32) != number) {
            const u64 now = clock_ns();
            if (since == 0) since = now;
            if (now - since > MASK_PATIENCE_NS || stopped()) return false;
            rest();
        }
        to[i] = (u32)word;
    }
    return true;
}
__device__ __forceinline__ bool is_late(const Sampling &sampling, const Draw &draw, u32 output, u32 number) {
    return draw.flags & MASKED && load_fresh(sampling.late + output) == number;
}
