#include "generated/matrices.cuh"
#include "kernels/base.cuh"

// Computes   x[t] = row tokens[t] of the embedding.
// Layout     embedding: packed in units, [tile of 8 rows][unit][lane]; x: bf16
//            [tokens][HIDDEN_STRIDE].
// Work split a block owns one token, a thread every 256th chunk of eight columns.
// Rounding   a coded row, once.
// Moves      one row of the embedding per token: bound by latency.
extern "C" __global__ void __launch_bounds__(256)
embed(Step step, const u8 *embedding, u16 *x) {
    let_next_start();
    wait_for_previous();
    const u32 token = blockIdx.x;
    if (token >= n_tokens(step)) return;
    const u32 row = load_fresh(step.tokens + token);
    for (int chunk = threadIdx.x; chunk < HIDDEN_STRIDE / 8; chunk += 256)
        ((uint4 *)(x + (u64)token * HIDDEN_STRIDE))[chunk] = read_chunk<EmbeddingMatrix>(embedding, row, chunk);
}
