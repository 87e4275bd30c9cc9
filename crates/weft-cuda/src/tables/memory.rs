//! The lists of a step on the GPU, and the pinned memory that they are copied from.

use std::sync::Arc;

use weft_core::device::{Limits, MAX_LANES, Outputs, Step};

use super::words::Words;
use super::{
    COUNTS, Counts, FEW, Family, Item, Lists, QueryTile, Section, TOKEN_WORDS, max_partials,
};
use crate::driver::{Address, Gpu, Memory, Pinned, Stream};
use crate::error::CudaError;
use crate::layouts::{Layout, layout};

/// The addresses of the lists on the GPU. Kernels call it `Step`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct StepAddresses {
    counts: Address,
    tokens: Address,
    positions: Address,
    key_positions: Address,
    slots: Address,
    outputs: Address,
    partials: Address,
    attention: Address,
}

impl StepAddresses {
    /// Structs that kernels must lay out as here.
    pub(super) fn layout() -> Layout {
        layout!(StepAddresses as "Step" {
            counts, tokens, positions, key_positions, slots, outputs, partials, attention,
        })
    }

    /// The same with counts at another address.
    pub(crate) fn with_counts(self, counts: Address) -> Self {
        Self { counts, ..self }
    }
}

/// The lists of one family on the GPU, and the pinned memory that they are copied from.
pub(crate) struct Tables {
    pinned: Pinned,
    memory: Memory,
    tokens: usize,
    outputs: usize,
}

impl Tables {
    pub(crate) fn new(gpu: &Arc<Gpu>, limits: &Limits, family: Family) -> Result<Self, CudaError> {
        let (tokens, outputs) = Self::rows(limits, family);
        let bytes = Self::bytes(limits, family);
        Ok(Self {
            pinned: Pinned::new(gpu, bytes)?,
            memory: Memory::new(gpu, "lists of a step", bytes)?,
            tokens,
            outputs,
        })
    }

    /// Tokens and outputs that there is room for.
    fn rows(limits: &Limits, family: Family) -> (usize, usize) {
        match family {
            Family::Few => (FEW, FEW),
            Family::Many => (limits.step_tokens, limits.step_outputs),
        }
    }

    /// Bytes that the lists take.
    pub(crate) fn bytes(limits: &Limits, family: Family) -> usize {
        let sections = max_partials(limits);
        let attention = match family {
            Family::Few => (sections + FEW) * Item::LEN,
            Family::Many => {
                let tiles = limits.step_tokens + MAX_LANES;
                tiles * QueryTile::LEN + sections * Section::LEN
            }
        };
        let (tokens, outputs) = Self::rows(limits, family);
        (COUNTS + TOKEN_WORDS * tokens + outputs + attention) * 4
    }

    fn start_of_attention(&self) -> usize {
        COUNTS + TOKEN_WORDS * self.tokens + self.outputs
    }

    pub(crate) fn addresses(&self) -> StepAddresses {
        let at = |word: usize| self.memory.address().offset(word * 4);
        let list = |i: usize| at(COUNTS + i * self.tokens);
        StepAddresses {
            counts: at(0),
            tokens: list(0),
            positions: list(1),
            key_positions: list(2),
            slots: list(3),
            partials: list(4),
            outputs: list(TOKEN_WORDS),
            attention: at(self.start_of_attention()),
        }
    }

    /// Items that there is room for in the lists for few tokens.
    pub(crate) fn most_items(&self) -> usize {
        (self.memory.bytes / 4 - self.start_of_attention()) / Item::LEN
    }

    /// Writes the lists into pinned memory; returns how many bytes they take.
    pub(crate) fn write(&mut self, step: &Step<'_>, lists: &Lists) -> usize {
        let (tokens, start) = (self.tokens, self.start_of_attention());
        let words = self.pinned.words();
        let Counts { n_tokens, n_outputs, n_items, n_tiles, .. } = lists.counts;
        let counts = [n_tokens, n_outputs, n_items, n_tiles].map(|n| n as u32);
        words[..counts.len()].copy_from_slice(&counts);
        let mut t = 0;
        for lane in step.lanes {
            let n = lane.tokens.len();
            let rows = [lane.tokens, lane.positions, lane.key_positions, lane.store_at];
            for (i, row) in rows.into_iter().enumerate() {
                words[COUNTS + i * tokens + t..][..n].copy_from_slice(row);
            }
            t += n;
        }
        for (t, partials) in lists.partials.iter().enumerate() {
            words[COUNTS + 4 * (tokens + t)..][..4].copy_from_slice(partials);
        }
        for (output, token) in output_tokens(step).enumerate() {
            words[COUNTS + TOKEN_WORDS * tokens + output] = token as u32;
        }
        let mut end = start;
        put_all(words, &mut end, &lists.items);
        put_all(words, &mut end, &lists.tiles);
        if lists.counts.n_tiles > 0 {
            put_all(words, &mut end, &lists.sections);
        }
        end * 4
    }

    pub(crate) fn upload(&self, gpu: &Gpu, bytes: usize) -> Result<(), CudaError> {
        gpu.upload(Stream::Compute, &self.memory, &self.pinned, bytes)
    }
}

fn put_all<W: Words>(words: &mut [u32], end: &mut usize, values: &[W]) {
    for value in values {
        value.put(&mut words[*end..*end + W::LEN]);
        *end += W::LEN;
    }
}

/// The token of each row of logits.
fn output_tokens<'a>(step: &'a Step<'_>) -> impl Iterator<Item = usize> + 'a {
    let mut end = 0;
    step.lanes.iter().flat_map(move |lane| {
        end += lane.tokens.len();
        match lane.outputs {
            Outputs::None => end..end,
            Outputs::Last => end - 1..end,
            Outputs::All => end - lane.tokens.len()..end,
        }
    })
}
