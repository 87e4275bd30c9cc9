//! The memory through which blocks pass results to one another: words of 8 bytes, see `hop.cuh`.

use std::sync::Arc;

use weft_core::config::Config;
use weft_core::device::Limits;

use crate::buffers::NOTHING;
use crate::driver::{Address, Gpu, Memory};
use crate::error::CudaError;
use crate::shape::{COLUMN_STEP, Shape, TWO_BLOCKS_UNITS, padded};
use crate::tables::{FEW, max_cells, max_partials};

const WORD_BYTES: usize = 8;
/// Parts of attention that there is room for: eight lanes of 64k rows. Larger steps run as a graph.
const MOST_PARTIALS: usize = 2048;
/// Shares of attention that there is room for.
const MOST_CELLS: usize = 2 * MOST_PARTIALS;

/// Tokens of the kernel whose blocks hand on rows without numbers (`bare.cuh`).
pub(crate) const BARE_TOKENS: usize = FEW;
/// Layers whose rows have places of their own.
const BARE_SLOTS: usize = 4;
/// Units of a warp's row that registers have room for.
const MOST_BARE_UNITS: usize = 20;

/// Bytes of such rows; none if the model is too wide for registers, or has experts.
pub(crate) fn bare_bytes(config: &Config) -> usize {
    let units = |columns: usize| padded(columns) / COLUMN_STEP;
    let [x, a, h] = [config.hidden, config.q_width(), config.dense_width()].map(units);
    if config.experts.is_some() || x > TWO_BLOCKS_UNITS || a.max(h) > MOST_BARE_UNITS {
        return 0;
    }
    (BARE_SLOTS * (2 * x + a + h) + 2 * x) * COLUMN_STEP * BARE_TOKENS * 2
}

/// All words of a launch.
pub(crate) struct Words {
    /// x, qkv, a, h, sums and weights of parts, cells, candidates for the next token, who is done,
    /// the next token, logits of routers.
    memories: [Memory; 11],
    /// Rows without numbers, of models that have them.
    bare: Option<Memory>,
    /// Shares of attention of every second step; those of the others are where a graph leaves them.
    pub(crate) other_shares: Memory,
    pub(crate) most_partials: usize,
    pub(crate) most_cells: usize,
}

fn most_partials(limits: &Limits) -> usize {
    max_partials(limits).min(MOST_PARTIALS)
}

fn most_cells(limits: &Limits) -> usize {
    max_cells(limits).min(MOST_CELLS)
}

impl Words {
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        config: &Config,
        shape: &Shape,
        limits: &Limits,
        n_blocks: usize,
    ) -> Result<Self, CudaError> {
        let memory = |bytes| Memory::new(gpu, "the persistent kernel", bytes);
        let words =
            |i: usize| memory(Self::counts(config, shape.dim, limits, n_blocks)[i] * WORD_BYTES);
        let [x, qkv, a, h, sums, weights, cells, candidates, done, chosen, logits] =
            std::array::from_fn(words);
        let [x, qkv, a, h, sums, weights] = [x?, qkv?, a?, h?, sums?, weights?];
        let [cells, candidates, done, chosen, logits] =
            [cells?, candidates?, done?, chosen?, logits?];
        Ok(Self {
            memories: [x, qkv, a, h, sums, weights, cells, candidates, done, chosen, logits],
            bare: Some(bare_bytes(config)).filter(|bytes| *bytes > 0).map(memory).transpose()?,
            other_shares: memory(most_cells(limits) * config.heads * 4)?,
            most_partials: most_partials(limits),
            most_cells: most_cells(limits),
        })
    }

    /// The number of words of each kind.
    fn counts(config: &Config, dim: usize, limits: &Limits, n_blocks: usize) -> [usize; 11] {
        // Two columns to a word.
        let rows = |columns: usize| FEW * columns.div_ceil(2);
        let parts = most_partials(limits) * config.heads;
        let (n_experts, of_experts) = config.experts.as_ref().map_or((0, 0), |experts| {
            (experts.count, experts.chosen * padded(experts.intermediate))
        });
        [
            rows(padded(config.hidden)),
            rows((config.q_width() + 2 * config.kv_width()).next_multiple_of(2)),
            rows(padded(config.q_width())),
            rows(padded(config.dense_width()).max(of_experts)),
            parts * dim,
            parts * 2,
            most_cells(limits) * config.heads * 2,
            2 * FEW * n_blocks * 2,
            n_blocks,
            FEW,
            FEW * n_experts,
        ]
    }

    /// Bytes that the words take on the GPU.
    pub(crate) fn bytes(config: &Config, dim: usize, limits: &Limits, n_blocks: usize) -> usize {
        let words: usize = Self::counts(config, dim, limits, n_blocks).iter().sum();
        words * WORD_BYTES + most_cells(limits) * config.heads * 4 + bare_bytes(config)
    }

    pub(crate) fn addresses(&self) -> [Address; 11] {
        self.memories.each_ref().map(Memory::address)
    }

    /// Takes everything out of the rows without numbers, in the stream, if a launch of so many
    /// tokens has such rows.
    pub(crate) fn empty_bare(&self, gpu: &Gpu, n_tokens: usize) -> Result<(), CudaError> {
        let mut bare = self.bare.iter().filter(|_| n_tokens == BARE_TOKENS);
        bare.try_for_each(|bare| gpu.fill(bare, 0..bare.bytes, NOTHING))
    }

    /// Where they lie.
    pub(crate) fn bare(&self) -> Address {
        self.bare.as_ref().map_or(Address::NULL, Memory::address)
    }

    /// Clears all words, in the stream.
    pub(crate) fn clear(&self, gpu: &Gpu) -> Result<(), CudaError> {
        self.memories.iter().try_for_each(|memory| gpu.clear(memory, 0..memory.bytes))
    }
}
