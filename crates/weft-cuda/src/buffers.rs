//! The buffers on the GPU that ops pass to one another.

use std::sync::Arc;

use half::bf16;
use weft_core::config::Config;
use weft_core::device::{Buffer, Limits};

use crate::driver::{Address, Gpu, Memory};
use crate::error::CudaError;
use crate::shape::padded;
use crate::tables::{FEW, max_cells, max_partials};

/// Rows of activations, bf16 \[tokens\]\[stride\]; columns beyond the width stay zero.
pub(crate) struct Activations {
    memory: Memory,
    tokens: usize,
    width: usize,
    stride: usize,
}

/// Kernels may read units beyond the last row, but do not use them (`multiply_read`).
pub(crate) const READ_BEYOND: usize = 1 << 10;

impl Activations {
    fn new(gpu: &Arc<Gpu>, tokens: usize, width: usize, stride: usize) -> Result<Self, CudaError> {
        let bytes = tokens.max(FEW) * stride * size_of::<bf16>() + READ_BEYOND;
        let memory = Memory::new(gpu, "activations", bytes)?;
        Ok(Self { memory, tokens, width, stride })
    }

    pub(crate) fn address(&self) -> Address {
        self.memory.address()
    }

    /// Where a token's row lies.
    pub(crate) fn row(&self, token: usize) -> Address {
        self.address().offset(token * self.stride * size_of::<bf16>())
    }

    pub(crate) fn read(&self) -> Result<Vec<f32>, CudaError> {
        let mut rows = vec![bf16::ZERO; self.tokens * self.stride];
        self.memory.read(0, &mut rows)?;
        let rows = rows.chunks_exact(self.stride).flat_map(|row| &row[..self.width]);
        Ok(rows.map(|value| value.to_f32()).collect())
    }

    pub(crate) fn write(&self, values: &[f32]) -> Result<(), CudaError> {
        let mut rows = vec![bf16::ZERO; self.tokens * self.stride];
        for (to, from) in rows.chunks_exact_mut(self.stride).zip(values.chunks(self.width)) {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = bf16::from_f32(*from));
        }
        self.memory.write(0, &rows)
    }
}

/// Every byte of a word that has not been sent yet, see `sent.cuh`.
pub(crate) const NOTHING: u8 = u8::MAX;

/// Words of one part of one head: kernels call it `SENT_ROW`.
pub(crate) fn sent_row(dim: usize) -> usize {
    dim + dim / 16
}

/// All buffers of a step.
pub(crate) struct Buffers {
    /// The residual stream.
    pub(crate) x: Activations,
    /// Its norm, inside one op.
    pub(crate) norm: Activations,
    pub(crate) q: Activations,
    pub(crate) k: Activations,
    pub(crate) v: Activations,
    pub(crate) a: Activations,
    pub(crate) h: Activations,
    /// f32 \[outputs\]\[vocab\]
    pub(crate) logits: Memory,
    /// Parts of attention that blocks of one launch pass to one another: f32
    /// \[partials\]\[heads\]\[`sent_row`\]
    pub(crate) sent: Memory,
    /// Cells that these blocks pass to one another: f32 \[cells\]\[heads\]\[2\]
    pub(crate) sent_cells: Memory,
    /// Parts of attention that another launch combines: f32 \[partials\]\[heads\]\[dim\]
    pub(crate) sums: Memory,
    /// Their maxima and weights: f32 \[partials\]\[heads\]\[2\]
    pub(crate) weights: Memory,
    /// Maxima of cells and the sums of their squared weights: f32 \[cells\]\[heads\]\[2\]
    pub(crate) cells: Memory,
    /// Squared probabilities of cells' rows: f32 \[cells\]\[heads\]
    pub(crate) shares: Memory,
}

impl Buffers {
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        config: &Config,
        dim: usize,
        limits: &Limits,
    ) -> Result<Self, CudaError> {
        let padded_rows =
            |width: usize| Activations::new(gpu, limits.step_tokens, width, padded(width));
        let rows = |width: usize| Activations::new(gpu, limits.step_tokens, width, width);
        let scratch = |bytes: usize| Memory::new(gpu, "scratch", bytes);
        let (partials, cells, heads) = (max_partials(limits), max_cells(limits), config.heads);
        let sent = scratch(partials * heads * sent_row(dim) * 4)?;
        let sent_cells = scratch(cells * heads * 8)?;
        gpu.fill(&sent, 0..sent.bytes, NOTHING)?;
        gpu.fill(&sent_cells, 0..sent_cells.bytes, NOTHING)?;
        Ok(Self {
            x: padded_rows(config.hidden)?,
            norm: padded_rows(config.hidden)?,
            q: rows(config.q_width())?,
            k: rows(config.kv_width())?,
            v: rows(config.kv_width())?,
            a: padded_rows(config.q_width())?,
            h: padded_rows(config.intermediate)?,
            logits: Memory::new(gpu, "logits", limits.step_outputs.max(FEW) * config.vocab * 4)?,
            sent,
            sent_cells,
            sums: scratch(partials * heads * dim * 4)?,
            weights: scratch(partials * heads * 8)?,
            cells: scratch(cells * heads * 8)?,
            shares: scratch(cells * heads * 4)?,
        })
    }

    pub(crate) fn get(&self, buffer: Buffer) -> &Activations {
        match buffer {
            Buffer::X => &self.x,
            Buffer::Q => &self.q,
            Buffer::K => &self.k,
            Buffer::V => &self.v,
            Buffer::A => &self.a,
            Buffer::H => &self.h,
        }
    }
}
