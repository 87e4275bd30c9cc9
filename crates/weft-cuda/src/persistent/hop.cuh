// Hops: values that blocks hand to one another inside one launch.
//
// A word is 32 bits of values, two bf16 or one f32, beside the number of the op that made them; both travel in one
// 8-byte access. So whoever waits needs no flag and no fence: it reads until the number is the one it waits for.
// A word is written again only by an op that depends on every block having read it, so one copy serves.
// Every wait is bounded: after two seconds a block gives up, all that wait say in which op, and from then on nobody
// waits.

constexpr u64 PATIENCE_NS = 2000000000ull;
constexpr u32 SPINS_PER_LOOK = 256;

__device__ __forceinline__ void store_word(u64 *at, u32 value, u32 number) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" :: "l"(at), "l"((u64)number << 32 | value) : "memory");
}
__device__ __forceinline__ u64 load_word(const u64 *at) {
    u64 word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    return word;
}
struct TwoWords {
    u64 first, second;
};
__device__ __forceinline__ TwoWords load_two_words(const u64 *at) {
    TwoWords words;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(words.first), "=l"(words.second) : "l"(at) : "memory");
    return words;
}
__device__ __forceinline__ u32 number_of(u64 word) { return (u32)(word >> 32); }
__device__ __forceinline__ u32 value_of(u64 word) { return (u32)word; }

// What the host and a launch tell one another while it runs; in the host's memory.
struct Mailbox {
    u32 stop;        // host: end after this token
    u32 fault;       // device: a block waited in vain
    u64 tokens[1];   // device: [token of the launch][8 lanes], each with the number of its op
};

// Since when a thread waits, in ns, as far as it has looked; GONE where it shall wait no more. By values, so that
// what the caller holds stays in registers.
constexpr u64 GONE = ~0ull;
constexpr u32 NOBODY = ~0u;
__device__ __forceinline__ u64 look_at_clock(u32 *given_up, Mailbox *mailbox, u32 op, u64 since) {
    u64 now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
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
// Rounds this thread's row of a column of results and puts it, with the next row's, into a word. Called by whole
// warps whose lanes have rows that follow one another; rows beyond the last are zero.
__device__ __forceinline__ void publish_row(u64 *words, u32 row, u32 n_rows, bool there, u16 value, u32 number) {
    const u32 next = __shfl_down_sync(FULL, (u32)value, 1);
    if (there && row % 2 == 0 && row < n_rows) store_word(words + row / 2, value | next << 16, number);
}

// N units of a row of WIDTH columns, for the token that the lane's quad holds: asked for together, and again
// until all of them are there. Columns beyond the last are zero and nobody sends them.
template <int N, int WIDTH>
__device__ __forceinline__ void await_units(uint4 *units, const u64 *row, int first_unit, u32 number, int lane, Watch &watch) {
    const int column = first_unit * 32 + lane % 4 * 8;
    const u64 *own = row + column / 2;
    watch.until([&] {
        TwoWords words[N][2];
#pragma unroll
        for (int i = 0; i < N; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) words[i][half] = load_two_words(own + i * 16 + half * 2);
        bool all = true;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            u32 pairs[4];
#pragma unroll
            for (int pair = 0; pair < 4; ++pair) {
                const u64 word = pair % 2 == 0 ? words[i][pair / 2].first : words[i][pair / 2].second;
                const bool sent = WIDTH % 256 == 0 || column + i * 32 + pair * 2 < WIDTH;
                all &= !sent || number_of(word) == number;
                pairs[pair] = sent ? value_of(word) : 0;
            }
            units[i] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        }
        return all;
    });
}

// Any number of units, as many at once as registers allow.
template <int N, int WIDTH>
__device__ __forceinline__ void await_row(uint4 (&units)[N], const u64 *row, int first_unit, u32 number, int lane, Watch &watch) {
    constexpr int AT_ONCE = N <= 8 ? N : 6, REST = N % AT_ONCE;
#pragma unroll
    for (int i = 0; i + AT_ONCE <= N; i += AT_ONCE)
        await_units<AT_ONCE, WIDTH>(units + i, row, first_unit + i, number, lane, watch);
    if constexpr (REST > 0) await_units<REST, WIDTH>(units + N - REST, row, first_unit + N - REST, number, lane, watch);
}
