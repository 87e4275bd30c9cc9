//! The memory through which blocks hand results to one another: words of 8 bytes, see `hop.cuh`.

use std::sync::Arc;

use weft::config::Config;
use weft::device::Limits;

use crate::driver::{Address, Gpu, Memory};
use crate::error::CudaError;
use crate::shape::{Shape, padded};
use crate::tables::{FEW, max_partials};

const WORD_BYTES: usize = 8;
/// Parts of attention that there is room for: eight lanes of 64k rows. Steps of more run as a graph.
const MOST_PARTIALS: usize = 2048;

/// All words of a launch.
pub(crate) struct Words {
    /// x, qkv, a, h, sums and weights of parts, candidates for the next token.
    memories: [Memory; 7],
    pub(crate) most_partials: usize,
}

impl Words {
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        config: &Config,
        shape: &Shape,
        limits: &Limits,
        n_blocks: usize,
    ) -> Result<Self, CudaError> {
        let words = |n: usize| Memory::new(gpu, "the persistent kernel", n * WORD_BYTES);
        // Two columns to a word.
        let rows = |columns: usize| words(FEW * columns.div_ceil(2));
        let most_partials = max_partials(limits).min(MOST_PARTIALS);
        let parts = most_partials * config.heads;
        let memories = [
            rows(padded(config.hidden))?,
            rows((config.q_width() + 2 * config.kv_width()).next_multiple_of(2))?,
            rows(padded(config.q_width()))?,
            rows(padded(config.intermediate))?,
            words(parts * shape.dim)?,
            words(parts * 4)?,
            words(FEW * n_blocks * 2)?,
        ];
        Ok(Self { memories, most_partials })
    }

    pub(crate) fn addresses(&self) -> [Address; 7] {
        self.memories.each_ref().map(Memory::address)
    }

    /// Sets all words to nothing, in the stream.
    pub(crate) fn clear(&self, gpu: &Gpu) -> Result<(), CudaError> {
        self.memories.iter().try_for_each(|memory| gpu.clear(memory.address(), memory.bytes))
    }
}
