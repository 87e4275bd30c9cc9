// The head of the persistent kernel, and the next token.

// Tells all blocks the best of this one's rows; the first block also whether the host wants to stop. `best` is that of
// the rows this thread had, all of the same output: eight threads have the rows of one, 1, 2, 4 or 8 outputs take turns.
__device__ __forceinline__ void publish_best(Block &block, u64 best, u32 stop) {
#pragma unroll
    for (int other = 1; other < 8; other *= 2) best = better(best, __shfl_xor_sync(FULL, best, other));
    if (block.lane % 8 == 0) block.shared.best[block.thread() / 8] = best;
    meet();
    if (block.thread() < block.shared.n_outputs) {
        u64 of_block = NO_CANDIDATE;
        const u32 turns = block.shared.n_outputs <= 2 ? block.shared.n_outputs : block.shared.n_outputs <= 4 ? 4 : 8;
        for (int i = block.thread(); i < WARPS * 4; i += turns) of_block = better(of_block, block.shared.best[i]);
        u64 *to = block.launch.candidates + (block.thread() * N_BLOCKS + blockIdx.x) * 2;
        store_word(to, (u32)(of_block >> 32), block.number);
        store_word(to + 1, (u32)of_block ^ stop << 31, block.number);
    }
}

// The three products of a norm; with logits goes what a block knows of the next token.
__device__ __forceinline__ void run_norm(Block &block, OpKind kind) {
    if (kind == NORM_HEAD && block.shared.n_outputs == 0) return;
    const bool chooses = kind == NORM_HEAD && block.launch.feeds;
    u32 stop = 0;
    if (blockIdx.x == 0 && chooses) stop = *(volatile u32 *)&block.launch.mailbox->stop;
    const u64 best = run_norm_product(block, kind);
    if (chooses) publish_best(block, best, stop);
}

// The next token of every lane; whether it is the last.
__device__ __forceinline__ bool take_tokens(Block &block) {
    const Launch &launch = block.launch;
    const u32 number = block.number_before(0);
    if (block.warp < block.shared.n_outputs) {
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
