// Hops: values that blocks hand to one another inside one launch.
//
// A word is 32 bits of values, two bf16 or one f32, beside the number of the op that made them;
// both travel in one 8-byte access. So whoever waits needs no flag and no fence: it reads until the
// number is the one it waits for. A word is written again only by an op that depends on every block
// having read it, so one copy serves; `next_token.cuh` says which words are the exception, and
// which stand for ordinary memory and are fenced. Every wait is bounded: after two seconds a block
// gives up, all that wait say in which op, and from then on nobody waits.
#pragma once

#include "kernels/base.cuh"

constexpr u32 SPINS_PER_LOOK = 256;

__device__ __forceinline__ void store_word(u64 *at, u32 value, u32 number) {
    store_relaxed(at, (u64)number << 32 | value);
}
__device__ __forceinline__ void store_two_words(u64 *at, u32 first, u32 second, u32 number) {
    const u64 high = (u64)number << 32;
    store_two_relaxed(at, {high | first, high | second});
}
__device__ __forceinline__ u32 number_of(u64 word) { return (u32)(word >> 32); }
__device__ __forceinline__ u32 value_of(u64 word) { return (u32)word; }

// What the host and a launch publish to one another while it runs; in the host's memory.
struct Mailbox {
    u32 stop;        // host: end after this token
    u32 fault;       // device: a block waited in vain
};

// Since when a thread waits, in ns, as far as it has looked; GONE where it shall wait no more. By
// values, so that what the caller holds stays in registers.
constexpr u64 GONE = ~0ull;
__device__ __forceinline__ u64 look_at_clock(u32 *given_up, Mailbox *mailbox, u32 op, u64 since) {
    const u64 now = clock_ns();
    const bool all_left = load_fresh(given_up) != NOBODY;
    if (!all_left && since == 0) return now;
    if (!all_left && now - since <= PATIENCE_NS) return since;
    // Whoever waits says where: the first op of all is the one that lacks something.
    if (atomicMin(given_up, op) == NOBODY) *(volatile u32 *)&mailbox->fault = 1;
    return GONE;
}

// How a thread waits.
struct Watch {
    u32 *given_up;    // on the device: the first op in which a thread did
    Mailbox *mailbox;
    u32 op;           // of the plan, that waits
    bool gone;        // whether this thread waits no more

    template <class Ready> __device__ __forceinline__ void until(Ready ready) {
        u64 since = 0;
        for (u32 spins = 1; !ready() && !gone; ++spins) {
            if (spins % SPINS_PER_LOOK != 0) continue;
            since = look_at_clock(given_up, mailbox, op, since);
            gone = since == GONE;
        }
    }
};

// ---- rows of bf16 ------------------------------------------------------------------------------
// Rounds this thread's row of a column of results and puts it, with the next row's, into a word.
// Called by whole warps whose lanes have rows that follow one another; rows beyond the last are
// zero.
__device__ __forceinline__ void publish_row(u64 *words, u32 row, u32 n_rows, bool there, u16 value, u32 number) {
    const u32 next = __shfl_down_sync(FULL, (u32)value, 1);
    if (there && row % 2 == 0 && row < n_rows) store_word(words + row / 2, value | next << 16, number);
}

// Rows of words as a warp awaits them: `n_units` units of each token's row from `first_unit` on,
// into shared memory, [unit][token][4] chunks of eight columns. All lanes ask, whatever the number
// of tokens. Columns beyond `width` are zero and nobody sends them.
struct AwaitedRows {
    const u64 *words;
    u32 row_words, width, number;

    // A lane's four columns of one token: where they lie, and whether they are sent.
    struct Piece {
        u32 token, four; // of those of a row
        __device__ __forceinline__ Piece next(u32 of_row) const {
            return four + 32 < of_row ? Piece{token, four + 32} : Piece{token + 1, four % 32};
        }
    };
    // Up to AT_ONCE pieces from `piece` on; where the next ones begin.
    template <int AT_ONCE>
    __device__ __forceinline__ Piece some(uint4 *stage, Piece piece, int first_unit, u32 of_row, u32 n_tokens, Watch &watch) const {
        TwoWords got[AT_ONCE];
        Piece after;
        watch.until([&] {
            bool all = true;
            after = piece;
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i, after = after.next(of_row)) {
                const u32 column = first_unit * 32 + after.four * 4;
                got[i] = {0, 0};
                if (after.token >= n_tokens || after.four >= of_row || column >= width) continue;
                got[i] = load_two_relaxed(words + after.token * row_words + column / 2);
                all &= number_of(got[i].first) == number && (number_of(got[i].second) == number || column + 2 >= width);
            }
            return all;
        });
        after = piece;
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i, after = after.next(of_row)) {
            if (after.token >= n_tokens || after.four >= of_row) continue;
            const bool second = first_unit * 32 + after.four * 4 + 2 < width;
            ((uint2 *)stage)[(after.four / 8 * n_tokens + after.token) * 8 + after.four % 8] =
                make_uint2(value_of(got[i].first), second ? value_of(got[i].second) : 0);
        }
        return after;
    }
    // All pieces where every lane has OF_ROW of each of TOKENS rows. With both known a poll is
    // loads and comparisons; what `some` computes besides takes as long as the loads where there
    // are several tokens.
    template <int TOKENS, int OF_ROW> __device__ __forceinline__ void even(uint4 *stage, int first_unit, int lane, Watch &watch) const {
        const u64 *from = words + first_unit * 16 + lane * 2;
        TwoWords got[TOKENS][OF_ROW];
        watch.until([&] {
            bool all = true;
#pragma unroll
            for (int i = 0; i < TOKENS * OF_ROW; ++i) {
                const TwoWords two = got[i / OF_ROW][i % OF_ROW] = load_two_relaxed(from + i / OF_ROW * row_words + i % OF_ROW * 64);
                all &= number_of(two.first) == number && number_of(two.second) == number;
            }
            return all;
        });
        uint2 *to = (uint2 *)stage + lane / 8 * TOKENS * 8 + lane % 8;
#pragma unroll
        for (int i = 0; i < TOKENS * OF_ROW; ++i) {
            const TwoWords two = got[i / OF_ROW][i % OF_ROW];
            to[(i % OF_ROW * 4 * TOKENS + i / OF_ROW) * 8] = make_uint2(value_of(two.first), value_of(two.second));
        }
    }
    __device__ __forceinline__ void into(uint4 *stage, int first_unit, u32 n_units, u32 n_tokens, int lane, Watch &watch) const {
        const u32 of_row = n_units * 8;
        const u32 n_pieces = n_tokens * ((of_row + 31) / 32); // of this lane
        // Whether a row ends with its words is known when compiled, and then so is all of this
        // where the number of tokens is.
        const bool is_even = of_row % 32 == 0 && (row_words * 2 == width || first_unit * 32 + of_row * 4 <= width);
        const auto has = [&](u32 tokens, u32 own) { return is_even && n_tokens == tokens && of_row == own * 32; };
        Piece piece = {0, (u32)lane};
        if (n_pieces == 1) some<1>(stage, piece, first_unit, of_row, n_tokens, watch);
        else if (n_pieces == 2) some<2>(stage, piece, first_unit, of_row, n_tokens, watch);
        else if (n_pieces <= 3) some<3>(stage, piece, first_unit, of_row, n_tokens, watch);
        else if (has(1, 4)) even<1, 4>(stage, first_unit, lane, watch);
        else if (has(1, 8)) even<1, 8>(stage, first_unit, lane, watch);
        else if (has(2, 2)) even<2, 2>(stage, first_unit, lane, watch);
        else if (has(2, 3)) even<2, 3>(stage, first_unit, lane, watch);
        else if (has(2, 4)) even<2, 4>(stage, first_unit, lane, watch);
        else if (has(4, 1)) even<4, 1>(stage, first_unit, lane, watch);
        else if (has(4, 2)) even<4, 2>(stage, first_unit, lane, watch);
        else if (has(4, 3)) even<4, 3>(stage, first_unit, lane, watch);
        else if (has(4, 4)) even<4, 4>(stage, first_unit, lane, watch);
        else
#pragma unroll 1
            while (piece.token < n_tokens) piece = some<8>(stage, piece, first_unit, of_row, n_tokens, watch);
        __syncwarp();
    }
};
