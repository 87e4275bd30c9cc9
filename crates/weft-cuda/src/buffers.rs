//! The buffers on the GPU that ops pass to one another.

use std::sync::Arc;

use half::bf16;
use weft_core::config::Config;
use weft_core::device::{Buffer, Limits};
use weft_core::rope::RopeTable;

use crate::driver::{Address, Gpu, Memory};
use crate::error::CudaError;
use crate::expert_buffers::{self, ExpertBuffers};
use crate::shape::{SQUARE, Shape, laid_bytes, padded};
use crate::tables::{FEW, SEVERAL, max_cells, max_partials};

/// Rows of activations, bf16 \[tokens\]\[stride\]; columns beyond the width stay zero.
pub(crate) struct Activations {
    memory: Memory,
    /// The rows of steps of more than [`SEVERAL`] tokens if warpgroups multiply them: in squares
    /// (`tiled.cuh`). Smaller steps use `memory`, which then has no more rows than that.
    squares: Option<Memory>,
    tokens: usize,
    width: usize,
    stride: usize,
}

/// Kernels may read units beyond the last row, but do not use them (`multiply_read`).
pub(crate) const READ_BEYOND: usize = 1 << 10;

impl Activations {
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        tokens: usize,
        width: usize,
        stride: usize,
    ) -> Result<Self, CudaError> {
        let memory = Memory::new(gpu, "activations", Self::bytes(tokens, stride))?;
        Ok(Self { memory, squares: None, tokens, width, stride })
    }

    /// Bytes of so many rows that are not in squares.
    pub(crate) fn bytes(rows: usize, stride: usize) -> usize {
        rows.max(FEW) * stride * size_of::<bf16>() + READ_BEYOND
    }

    /// What warpgroups multiply.
    fn in_squares(gpu: &Arc<Gpu>, tokens: usize, width: usize) -> Result<Self, CudaError> {
        let stride = padded(width);
        let bytes = tokens.next_multiple_of(SQUARE) * stride * size_of::<bf16>();
        let squares = Some(Memory::new(gpu, "activations", bytes)?);
        Ok(Self { squares, tokens, ..Self::new(gpu, tokens.min(SEVERAL), width, stride)? })
    }

    pub(crate) fn address(&self) -> Address {
        self.memory.address()
    }

    /// The rows of a buffer that is never in squares.
    pub(crate) fn memory(&self) -> &Memory {
        assert!(self.squares.is_none(), "rows in squares");
        &self.memory
    }

    /// Columns, padded.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// Where a token's row lies.
    pub(crate) fn row(&self, token: usize) -> Address {
        self.address().offset(token * self.stride * size_of::<bf16>())
    }

    /// What the kernels for blocks of tokens read and write.
    pub(crate) fn for_block(&self) -> Address {
        self.squares.as_ref().map_or(self.address(), Memory::address)
    }

    /// All rows, as a step of `n_tokens` left them.
    pub(crate) fn read(&self, n_tokens: usize) -> Result<Vec<f32>, CudaError> {
        let mut rows = vec![bf16::ZERO; self.tokens * self.stride];
        match self.squares.as_ref().filter(|_| n_tokens > SEVERAL) {
            Some(squares) => {
                let mut values = vec![bf16::ZERO; squares.bytes / size_of::<bf16>()];
                squares.read(0, &mut values)?;
                let places = (0..rows.len()).map(|i| self.place_in_squares(i));
                rows.iter_mut().zip(places).for_each(|(to, place)| *to = values[place]);
            }
            None => {
                let own = self.own_rows() * self.stride;
                self.memory.read(0, &mut rows[..own])?;
            }
        }
        let rows = rows.chunks_exact(self.stride).flat_map(|row| &row[..self.width]);
        Ok(rows.map(|value| value.to_f32()).collect())
    }

    /// A token's row, of a buffer that is never in squares.
    pub(crate) fn read_row(&self, token: usize) -> Result<Vec<bf16>, CudaError> {
        assert!(self.squares.is_none() && token < self.tokens, "row {token}");
        let mut row = vec![bf16::ZERO; self.width];
        self.memory.read(token * self.stride * size_of::<bf16>(), &mut row)?;
        Ok(row)
    }

    pub(crate) fn write(&self, values: &[f32]) -> Result<(), CudaError> {
        let mut rows = vec![bf16::ZERO; self.tokens * self.stride];
        for (to, from) in rows.chunks_exact_mut(self.stride).zip(values.chunks(self.width)) {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = bf16::from_f32(*from));
        }
        if let Some(squares) = &self.squares {
            let mut values = vec![bf16::ZERO; squares.bytes / size_of::<bf16>()];
            rows.iter().enumerate().for_each(|(i, v)| values[self.place_in_squares(i)] = *v);
            squares.write(0, &values)?;
        }
        self.memory.write(0, &rows[..self.own_rows() * self.stride])
    }

    /// Rows of `memory` that belong to tokens.
    fn own_rows(&self) -> usize {
        if self.squares.is_some() { self.tokens.min(SEVERAL) } else { self.tokens }
    }

    /// Where number `i` of all rows lies in squares, as the kernels' `tiled_place`.
    fn place_in_squares(&self, i: usize) -> usize {
        let (token, column) = (i / self.stride, i % self.stride);
        let square = token / SQUARE * (self.stride / SQUARE) + column / SQUARE;
        let chunk = (column / 32 % 2 * 4 + column % 8 / 2) ^ (token % 8);
        let in_chunk = column % 32 / 8 * 2 + column % 2;
        (square * SQUARE + token % SQUARE) * SQUARE + chunk * 8 + in_chunk
    }
}

/// Every byte of a word that has not been sent yet, see `sent.cuh`.
pub(crate) const NOTHING: u8 = u8::MAX;

/// Words of one part of one head: kernels call it `SENT_ROW`.
pub(crate) fn sent_row(dim: usize) -> usize {
    dim + dim / 16
}

/// Bytes of all pages of one layer, as warpgroups read them.
pub(crate) fn laid_pages(config: &Config, limits: &Limits) -> usize {
    limits.pages * config.kv_heads * laid_bytes(config.head_dim.next_multiple_of(32))
}

/// cos and sin: f32 \[2 · positions\]\[head_dim/2\]\[2\]
pub(crate) fn rope_table(
    gpu: &Arc<Gpu>,
    config: &Config,
    limits: &Limits,
) -> Result<Memory, CudaError> {
    // A query's position may be up to a whole context beyond a span's home.
    let positions = 2 * limits.positions;
    let table = RopeTable::new(&config.rope, config.head_dim, positions);
    let mut pairs = Vec::with_capacity(positions * config.head_dim);
    for position in 0..positions {
        let (cos, sin) = table.at(position);
        pairs.extend(cos.iter().zip(sin).flat_map(|(cos, sin)| [*cos, *sin]));
    }
    let memory = Memory::new(gpu, "the table of rotations", pairs.len() * 4)?;
    memory.write(0, &pairs)?;
    Ok(memory)
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
    /// None if the model has no experts.
    experts: Option<ExpertBuffers>,
    /// Sums of a product's input over the runs of its columns, if some matrix needs them: f32
    /// \[tokens / 64\]\[unit\]\[run\]\[64\]
    pub(crate) run_sums: Memory,
    /// The pages of one layer as warpgroups read them: \[page\]\[KV head\]\[keys, values\]
    pub(crate) laid: Memory,
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
        shape: &Shape,
        limits: &Limits,
    ) -> Result<Self, CudaError> {
        let (tokens, dim) = (limits.step_tokens, shape.dim);
        let padded_rows = |width: usize| Activations::new(gpu, tokens, width, padded(width));
        let multiplied = |width: usize| match shape.is_tiled() {
            true => Activations::in_squares(gpu, tokens, width),
            false => padded_rows(width),
        };
        let rows = |width: usize| Activations::new(gpu, tokens, width, width);
        let scratch = |bytes: usize| Memory::new(gpu, "scratch", bytes);
        let (partials, cells, heads) = (max_partials(limits), max_cells(limits), config.heads);
        let run_sums = shape.matrices.run_sums_bytes(config, tokens);
        let run_sums = run_sums.max(expert_buffers::run_sums_bytes(shape, config, tokens));
        let sent = scratch(partials * heads * sent_row(dim) * 4)?;
        let sent_cells = scratch(cells * heads * 8)?;
        gpu.fill(&sent, 0..sent.bytes, NOTHING)?;
        gpu.fill(&sent_cells, 0..sent_cells.bytes, NOTHING)?;
        Ok(Self {
            x: padded_rows(config.hidden)?,
            norm: multiplied(config.hidden)?,
            q: rows(config.q_width())?,
            k: rows(config.kv_width())?,
            v: rows(config.kv_width())?,
            a: multiplied(config.q_width())?,
            h: multiplied(config.dense_width())?,
            experts: ExpertBuffers::new(gpu, config, shape, limits)?,
            run_sums: scratch(run_sums.max(16))?,
            laid: scratch(if shape.attends_tiled() { laid_pages(config, limits) } else { 16 })?,
            logits: Memory::new(gpu, "logits", limits.step_outputs.max(FEW) * config.vocab * 4)?,
            sent,
            sent_cells,
            sums: scratch(partials * heads * dim * 4)?,
            weights: scratch(partials * heads * 8)?,
            cells: scratch(cells * heads * 8)?,
            shares: scratch(cells * heads * 4)?,
        })
    }

    /// The buffers of experts, for ops that only models with experts have.
    pub(crate) fn experts(&self) -> &ExpertBuffers {
        self.experts.as_ref().expect("a plan with experts is that of a model with experts")
    }

    /// The rows of a buffer, or none if they are routes.
    fn get(&self, buffer: Buffer) -> Option<&Activations> {
        Some(match buffer {
            Buffer::X => &self.x,
            Buffer::Q => &self.q,
            Buffer::K => &self.k,
            Buffer::V => &self.v,
            Buffer::A => &self.a,
            Buffer::H => &self.h,
            Buffer::ExpertH => &self.experts().h,
            Buffer::Routes => return None,
        })
    }

    /// All values of a buffer, as a step of `n_tokens` left them.
    pub(crate) fn read(&self, buffer: Buffer, n_tokens: usize) -> Result<Vec<f32>, CudaError> {
        match self.get(buffer) {
            Some(rows) => rows.read(n_tokens),
            None => self.experts().read_routes(),
        }
    }

    pub(crate) fn write(&self, buffer: Buffer, values: &[f32]) -> Result<(), CudaError> {
        match self.get(buffer) {
            Some(rows) => rows.write(values),
            None => self.experts().write_routes(values),
        }
    }
}
