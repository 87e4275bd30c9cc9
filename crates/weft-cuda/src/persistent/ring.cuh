// The ring of the persistent kernel: what does not depend on the token comes through it in the
// order of its use, weights of all ops and pages of keys and values, token after token.
//
// A ninth warp fills it. It waits for room and hardly ever for a result (`attend.cuh`,
// `next_token.cuh`), so while the block waits for others the ring fills. In a layer it has two
// stages on their way at a time, three of a wide model: what blocks hand to one another is not
// queued behind more. The head has no hops, and takes what saturates the memory. Sections after a
// block's first have none either.
#pragma once

#include "kernels/attention_head.cuh"
#include "persistent/hop.cuh"
#if HAS_EXPERTS
#include "generated/experts.cuh"
#endif

constexpr int FEW_IN_FLIGHT = HIDDEN_UNITS > TWO_BLOCKS_UNITS ? 3 : 2, PAGES_IN_FLIGHT = 3, MANY_IN_FLIGHT = 5;
// Units, each of one token, that a warp's stage for inputs has room for (shared_memory.rs): a
// norm's rows, a strip of coded tiles, a portion of eight tokens, and all that a warp has of up to
// four where that is not long; of experts, all inputs of one token, or one of each.
constexpr u32 expert_units(u32 n_tokens) {
#if HAS_EXPERTS
    return (n_tokens == 1 ? N_CHOSEN : n_tokens) * EXPERT_UNITS;
#else
    return 0;
#endif
}
constexpr u32 x_units_of_rows(u32 n_tokens) {
    const u32 portion = 8 * PORTION_UNITS, each = HIDDEN_UNITS > CODED_STRIP ? HIDDEN_UNITS : CODED_STRIP;
    const u32 rows = n_tokens * each, whole = n_tokens <= WHOLE_TOKENS ? n_tokens * LONGEST_STRIP : 0;
    return rows > whole ? rows > portion ? rows : portion : whole > portion ? whole : portion;
}
constexpr u32 x_units(u32 n_tokens) {
    return x_units_of_rows(n_tokens) > expert_units(n_tokens) ? x_units_of_rows(n_tokens) : expert_units(n_tokens);
}
constexpr bool agrees_with_host() {
    for (u32 n = 1; n <= 8; ++n)
        if (X_UNITS[n - 1] != x_units(n)) return false;
    return true;
}
static_assert(agrees_with_host(), "the host gives a block as much memory as it takes");
constexpr int WEIGHT_STAGE_BYTES = WARPS * PORTION_UNITS * UNIT_BYTES;
static_assert(LONG_STAGE_BYTES >= WEIGHT_STAGE_BYTES && LONG_STAGE_BYTES >= SIDE_BYTES, "a stage holds either");

struct LongRing {
    u64 full[MOST_STAGES], empty[MOST_STAGES];
    u32 n_stages;
    volatile u32 left;     // the computing warps are done, whatever is still in the ring
    volatile u32 attended; // how many `attend` have stored their rows
#if HAS_EXPERTS
    volatile u32 routed;   // how many sparse layers' experts this block has chosen
#endif
};

// A place in the ring, and which time round.
struct Place {
    u32 stage = 0, parity = 0;
    __device__ __forceinline__ Place after(u32 n, u32 n_stages) const {
        Place place = *this;
        place.stage += n;
        if (place.stage >= n_stages) place.stage -= n_stages, place.parity ^= 1;
        return place;
    }
};

// The computing warps' end of it. All of them take every stage.
struct Stages {
    LongRing &ring;
    const u8 *memory;
    Watch &watch;
    u32 n_stages;
    Place place;
    __device__ __forceinline__ u8 *at(u32 n) const { return (u8 *)memory + place.after(n, n_stages).stage * LONG_STAGE_BYTES; }
    // Waits for the stage `n` from here.
    __device__ __forceinline__ u8 *wait(u32 n) {
        const Place awaited = place.after(n, n_stages);
        watch.until([&] { return barrier_passed(&ring.full[awaited.stage], awaited.parity); });
        return (u8 *)memory + awaited.stage * LONG_STAGE_BYTES;
    }
    // Waits for the next `n` stages, a lane for each.
    __device__ __forceinline__ void wait_for_all(u32 n, int lane) {
        if (lane < n) wait(lane);
        __syncwarp();
    }
    // Gives back the next `n` stages. Called by whole warps that have read them.
    __device__ __forceinline__ void release(u32 n, int lane) {
        // Loads may still be on their way, and a copy begun by then would overwrite what they are
        // to read.
        before_copies();
        __syncwarp();
        if (lane < n) barrier_arrive(&ring.empty[place.after(lane, n_stages).stage]);
        place = place.after(n, n_stages);
    }
    // The same of stages that this warp does not read. They are awaited all the same: a barrier knows its
    // turns only as odd or even.
    __device__ __forceinline__ void skip(u32 n, int lane) {
        if (lane < n) {
            wait(lane);
            barrier_arrive(&ring.empty[place.after(lane, n_stages).stage]);
        }
        __syncwarp();
        place = place.after(n, n_stages);
    }
};

// The copying warp's end of it.
struct Copier {
    LongRing &ring;
    u8 *memory;
    u32 n_stages;
    int lane;
    Place to, oldest;
    int on_their_way = 0, in_flight = FEW_IN_FLIGHT;
#if HAS_EXPERTS
    u32 n_routed = 0; // sparse layers that were loaded, but for the last one's weights
#endif

    __device__ __forceinline__ void await_oldest() {
        barrier_wait(&ring.full[oldest.stage], oldest.parity);
        oldest = oldest.after(1, n_stages);
        --on_their_way;
    }
    // Waits for room; false where nobody will make any. No more are on their way than there are
    // stages, however small: a copy that was overtaken by the next one to its stage cannot be awaited.
    __device__ __forceinline__ bool room() {
        while (on_their_way >= min(in_flight, (int)n_stages)) await_oldest();
        while (!barrier_passed(&ring.empty[to.stage], to.parity ^ 1))
            if (ring.left) return false;
        return true;
    }
    // Copies of `bytes` in all, begun by `copies(stage, barrier)`.
    template <class Copies> __device__ __forceinline__ bool push(u32 bytes, Copies copies) {
        if (!room()) return false;
        u64 *full = &ring.full[to.stage];
        expect_copies(full, bytes, lane);
        copies(memory + to.stage * LONG_STAGE_BYTES, full);
        copies_begun(full);
        to = to.after(1, n_stages);
        ++on_their_way;
        return true;
    }
    // Shared memory must not be written to any more when the block is gone.
    __device__ __forceinline__ void drain() {
        while (on_their_way > 0) await_oldest();
    }
};
