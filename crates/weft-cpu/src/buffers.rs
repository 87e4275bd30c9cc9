//! What ops hand to one another, and the KV pages.

use half::bf16;
use weft::config::Config;
use weft::device::{Buffer, Limits};
use weft::kv::{PAGE_ROWS, Slot};

use crate::matmul::Rows;
use crate::memory::{Disjoint, LINE, Lines};

/// Rows of activations, bf16 \[tokens\]\[width\], each padded with zeros to an even length: matrices
/// are read in pairs of columns.
pub(crate) struct Activations {
    values: Vec<bf16>,
    pub(crate) width: usize,
    pub(crate) stride: usize,
}

impl Activations {
    fn new(tokens: usize, width: usize) -> Self {
        let stride = width.next_multiple_of(2);
        Self { values: vec![bf16::ZERO; tokens * stride], width, stride }
    }

    pub(crate) fn all_mut(&mut self) -> &mut [bf16] {
        &mut self.values
    }

    pub(crate) fn row(&self, token: usize) -> &[bf16] {
        &self.values[token * self.stride..][..self.width]
    }

    /// For a matrix product.
    pub(crate) fn rows(&self) -> Rows<'_> {
        Rows { values: &self.values, stride: self.stride }
    }

    fn tokens(&self) -> usize {
        self.values.len() / self.stride
    }

    pub(crate) fn read(&self) -> Vec<f32> {
        let rows = (0..self.tokens()).flat_map(|token| self.row(token));
        rows.map(|value| value.to_f32()).collect()
    }

    pub(crate) fn write(&mut self, values: &[f32]) {
        let rows = self.values.chunks_exact_mut(self.stride).zip(values.chunks(self.width));
        for (to, from) in rows {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = bf16::from_f32(*from));
        }
    }
}

/// All activations of a step.
pub(crate) struct Buffers {
    /// \[tokens\]\[hidden\]: the residual stream
    pub(crate) x: Activations,
    /// \[tokens\]\[hidden\]: its norm, inside one op
    pub(crate) norm: Activations,
    /// \[tokens\]\[q_width\], \[tokens\]\[kv_width\] twice
    pub(crate) qkv: [Activations; 3],
    /// \[tokens\]\[q_width\]
    pub(crate) a: Activations,
    /// \[tokens\]\[intermediate\]
    pub(crate) h: Activations,
}

impl Buffers {
    pub(crate) fn new(config: &Config, limits: &Limits) -> Self {
        let new = |width| Activations::new(limits.step_tokens, width);
        Self {
            x: new(config.hidden),
            norm: new(config.hidden),
            qkv: [new(config.q_width()), new(config.kv_width()), new(config.kv_width())],
            a: new(config.q_width()),
            h: new(config.intermediate),
        }
    }

    pub(crate) fn get(&self, buffer: Buffer) -> &Activations {
        match buffer {
            Buffer::X => &self.x,
            Buffer::Q => &self.qkv[0],
            Buffer::K => &self.qkv[1],
            Buffer::V => &self.qkv[2],
            Buffer::A => &self.a,
            Buffer::H => &self.h,
        }
    }

    pub(crate) fn get_mut(&mut self, buffer: Buffer) -> &mut Activations {
        match buffer {
            Buffer::X => &mut self.x,
            Buffer::Q => &mut self.qkv[0],
            Buffer::K => &mut self.qkv[1],
            Buffer::V => &mut self.qkv[2],
            Buffer::A => &mut self.a,
            Buffer::H => &mut self.h,
        }
    }
}

/// Keys and values of all pages. A row is padded with zeros to whole cache lines.
pub(crate) struct Kv {
    k: Lines,
    v: Lines,
    layout: KvLayout,
}

/// Where rows lie: bf16 \[layers\]\[pages\]\[kv_heads\]\[64 rows\]\[stride\], so that the rows that one
/// head reads lie together.
#[derive(Clone, Copy)]
pub(crate) struct KvLayout {
    pages: usize,
    heads: usize,
    head_dim: usize,
    /// Elements from one row of a head to the next.
    stride: usize,
}

impl KvLayout {
    /// Where a head's row begins, in keys and in values.
    pub(crate) fn start(&self, layer: u16, slot: Slot, head: usize) -> usize {
        let (page, row) = (slot as usize / PAGE_ROWS, slot as usize % PAGE_ROWS);
        let page = usize::from(layer) * self.pages + page;
        ((page * self.heads + head) * PAGE_ROWS + row) * self.stride
    }
}

impl Kv {
    pub(crate) fn new(config: &Config, pages: usize) -> Self {
        let stride = config.head_dim.next_multiple_of(LINE);
        let len = config.layers * pages * config.kv_heads * PAGE_ROWS * stride;
        let (heads, head_dim) = (config.kv_heads, config.head_dim);
        let layout = KvLayout { pages, heads, head_dim, stride };
        Self { k: Lines::zeroed(len), v: Lines::zeroed(len), layout }
    }

    pub(crate) fn k(&self) -> &[bf16] {
        self.k.get()
    }

    pub(crate) fn v(&self) -> &[bf16] {
        self.v.get()
    }

    pub(crate) fn stride(&self) -> usize {
        self.layout.stride
    }

    /// See [`KvLayout::start`].
    pub(crate) fn start(&self, layer: u16, slot: Slot, head: usize) -> usize {
        self.layout.start(layer, slot, head)
    }

    /// Layout, keys and values, for writing from several threads.
    pub(crate) fn parts(&mut self) -> (KvLayout, Disjoint<'_, bf16>, Disjoint<'_, bf16>) {
        (self.layout, Disjoint::new(self.k.get_mut()), Disjoint::new(self.v.get_mut()))
    }

    /// The key and the value of all heads.
    pub(crate) fn read(&self, layer: u16, slot: Slot) -> (Vec<f32>, Vec<f32>) {
        let row = |from: &[bf16]| -> Vec<f32> {
            let starts = (0..self.layout.heads).map(|head| self.start(layer, slot, head));
            let values = starts.flat_map(|start| &from[start..start + self.layout.head_dim]);
            values.map(|value| value.to_f32()).collect()
        };
        (row(self.k()), row(self.v()))
    }

    pub(crate) fn write(&mut self, layer: u16, slot: Slot, k: &[f32], v: &[f32]) {
        let dim = self.layout.head_dim;
        for head in 0..self.layout.heads {
            let start = self.start(layer, slot, head);
            for (to, from) in [(self.k.get_mut(), k), (self.v.get_mut(), v)] {
                let from = &from[head * dim..][..dim];
                to[start..].iter_mut().zip(from).for_each(|(to, f)| *to = bf16::from_f32(*f));
            }
        }
    }
}
