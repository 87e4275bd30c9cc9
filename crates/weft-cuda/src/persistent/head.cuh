// The head of the persistent kernel, and the next token.

// A logit and its row as one number that is larger for the better: larger logits, then smaller rows. NaN is worse
// than all.
__device__ __forceinline__ u64 candidate(float logit, u32 row) {
    const u32 bits = __float_as_uint(logit), ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (u64)(logit == logit ? ordered : 0u) << 32 | (0xffffffffu - row);
}
__device__ __forceinline__ u32 candidate_row(u64 candidate) { return 0xffffffffu - (u32)candidate; }
// Of a block without rows; its highest bit of the row is set as that of any other.
constexpr u64 NO_CANDIDATE = 0x80000000ull;
__device__ __forceinline__ u64 better(u64 a, u64 b) { return a > b ? a : b; }

// Tells all blocks the best of this one's rows; the first block also whether the host wants to stop.
__device__ __forceinline__ void publish_best(Block &block, u64 best, u32 stop) {
    // A warp has the eight rows of four tokens; warps of one parity have the same four.
#pragma unroll
    for (int other = 1; other < 8; other *= 2) best = better(best, __shfl_xor_sync(FULL, best, other));
    if (block.lane % 8 == 0) block.shared.best[block.warp % 2 * 4 + block.lane / 8][block.warp / 2] = best;
    meet();
    if (threadIdx.x < block.n_outputs) {
        u64 of_block = NO_CANDIDATE;
        for (int i = 0; i < WARPS / 2; ++i) of_block = better(of_block, block.shared.best[threadIdx.x][i]);
        u64 *to = block.launch.candidates + (threadIdx.x * N_BLOCKS + blockIdx.x) * 2;
        store_word(to, (u32)(of_block >> 32), block.number);
        store_word(to + 1, (u32)of_block ^ stop << 31, block.number);
    }
}

__device__ __forceinline__ void run_norm_head(Block &block) {
    const Launch &launch = block.launch;
    if (block.n_outputs == 0) return;
    u32 stop = 0;
    if (blockIdx.x == 0 && launch.feeds) stop = *(volatile u32 *)&launch.mailbox->stop;
    uint4 held[HIDDEN_UNITS];
    const u32 output = block.lane / 4;
    const u32 token = output < block.n_outputs ? load_fresh(launch.step.outputs + output) : 8;
    await_norm(block, held, launch.final_norm, token);
    u64 best = NO_CANDIDATE;
    multiply_tiles<Vocabulary>(block.stages, block.shared.scratch.sums, block.flip, block.warp, block.lane, Held<Vocabulary>{held},
                               [&](int tile, u32 output, u32 row, const float (&sum)[1]) {
        const u32 r = tile * 8 + row;
        if (output >= block.n_outputs || r >= VOCAB) return;
        launch.logits[(u64)output * VOCAB + r] = sum[0];
        best = better(best, candidate(sum[0], r));
    });
    if (launch.feeds) publish_best(block, best, stop);
}

// The next token of every lane; whether it is the last.
__device__ __forceinline__ bool take_tokens(Block &block) {
    const Launch &launch = block.launch;
    const u32 number = block.number_before(0);
    if (block.warp < block.n_outputs) {
        u64 best = 0;
        u32 stop = 0;
        for (int first = 0; first < N_BLOCKS; first += 32) {
            const int from = first + block.lane;
            TwoWords words = {0, 0};
            block.watch.until([&] {
                if (from >= N_BLOCKS) return true;
                words = load_two_words(launch.candidates + ((u64)block.warp * N_BLOCKS + from) * 2);
                return number_of(words.first) == number && number_of(words.second) == number;
            });
            __syncwarp();
            // A row's complement has its highest bit set; where the first block wants to stop it is not.
            if (from < N_BLOCKS) {
                stop |= from == 0 && !(value_of(words.second) & 0x80000000u);
                best = better(best, (u64)value_of(words.first) << 32 | value_of(words.second) | 0x80000000u);
            }
        }
#pragma unroll
        for (int other = 1; other < 32; other *= 2) best = better(best, __shfl_xor_sync(FULL, best, other));
        if (block.lane == 0) {
            const u32 token = min(candidate_row(best), (u32)VOCAB - 1);
            block.shared.tokens[block.warp] = token;
            if (block.warp == 0) block.shared.stop = stop;
            if (blockIdx.x == 0 && !block.watch.gone)
                *(volatile u64 *)&launch.mailbox->tokens[block.step * 8 + block.warp] = (u64)number << 32 | token;
        }
    }
    if (block.watch.gone) block.shared.gone = 1;
    meet();
    const bool stop = block.shared.stop || block.shared.gone;
    meet();
    return stop;
}
