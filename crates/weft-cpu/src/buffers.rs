//! The buffers between ops, and the KV pages.

use std::ops::Range;

use half::bf16;
use half::vec::HalfBitsVecExt;
use weft_core::config::Config;
use weft_core::device::{Buffer, Limits};
use weft_core::dtype::Element;
use weft_core::kv::{PAGE_ROWS, PageId, Slot};

use crate::coded::RUN;
use crate::matmul::Rows;
use crate::memory::{Disjoint, LINE, Lines};
use crate::pool::Pool;

/// Rows of activations, bf16 \[tokens\]\[width\], each padded with zeros to a multiple of 32,
/// because matrices are read in pairs of columns, and codes in runs of 32.
pub(crate) struct Activations {
    values: Vec<bf16>,
    /// Sums of 16 activations each, f32 \[tokens\]\[stride/16\], if [`Self::sum_runs`] computed
    /// them.
    sums: Vec<f32>,
    pub(crate) width: usize,
    pub(crate) stride: usize,
}

impl Activations {
    pub(crate) fn new(tokens: usize, width: usize) -> Self {
        let stride = width.next_multiple_of(RUN);
        // Zero bits take memory when they are first written.
        let values = vec![0; tokens * stride].reinterpret_into();
        Self { values, sums: vec![0.0; tokens * stride / 16], width, stride }
    }

    pub(crate) fn all_mut(&mut self) -> &mut [bf16] {
        &mut self.values
    }

    pub(crate) fn row(&self, token: usize) -> &[bf16] {
        &self.values[token * self.stride..][..self.width]
    }

    /// The rows for a matrix product.
    pub(crate) fn rows(&self) -> Rows<'_> {
        Rows { values: &self.values, stride: self.stride, sums: &self.sums, order: None }
    }

    /// Some rows for a matrix product.
    pub(crate) fn rows_of<'a>(&'a self, order: &'a [u32]) -> Rows<'a> {
        Rows { order: Some(order), ..self.rows() }
    }

    /// Sums each 16 activations of the first `n` rows, for matrices whose codes have minimums.
    pub(crate) fn sum_runs(&mut self, pool: &Pool, n: usize) {
        let (values, stride) = (&self.values, self.stride);
        let sums = Disjoint::new(&mut self.sums);
        pool.for_each(n, |_, token| {
            // SAFETY: each item has its own row.
            let sums = unsafe { sums.part(token * stride / 16, stride / 16) };
            let (runs, _) = values[token * stride..][..stride].as_chunks::<16>();
            for (sum, run) in sums.iter_mut().zip(runs) {
                *sum = run.iter().map(|x| Element::to_f32(*x)).sum();
            }
        });
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
    /// \[tokens · chosen\]\[expert intermediate\]
    pub(crate) expert_h: Activations,
}

impl Buffers {
    pub(crate) fn new(config: &Config, limits: &Limits) -> Self {
        let new = |width| Activations::new(limits.step_tokens, width);
        let experts = config.experts.as_ref();
        let (chosen, width) = experts.map_or((0, 0), |e| (e.chosen, e.intermediate));
        Self {
            x: new(config.hidden),
            norm: new(config.hidden),
            qkv: [new(config.q_width()), new(config.kv_width()), new(config.kv_width())],
            a: new(config.q_width()),
            h: new(config.dense_width()),
            expert_h: Activations::new(limits.step_tokens * chosen, width),
        }
    }

    /// A buffer of activations: all but the routes.
    pub(crate) fn get(&self, buffer: Buffer) -> &Activations {
        match buffer {
            Buffer::X => &self.x,
            Buffer::Q => &self.qkv[0],
            Buffer::K => &self.qkv[1],
            Buffer::V => &self.qkv[2],
            Buffer::A => &self.a,
            Buffer::H => &self.h,
            Buffer::ExpertH => &self.expert_h,
            Buffer::Routes => unreachable!("routes are no activations"),
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
            Buffer::ExpertH => &mut self.expert_h,
            Buffer::Routes => unreachable!("routes are no activations"),
        }
    }
}

/// The rows of a list that lie in one of its pages.
pub(crate) struct RowsOfPage {
    /// Their indices in the list.
    pub(crate) rows: Range<usize>,
    /// The first of them, as a row of the page.
    pub(crate) first: usize,
}

impl RowsOfPage {
    /// The rows in page `index` of a list of `len` rows that starts at row `first_row` of its first
    /// page.
    pub(crate) fn new(index: usize, first_row: usize, len: usize) -> Self {
        let start = (index * PAGE_ROWS).saturating_sub(first_row);
        let end = len.min((index + 1) * PAGE_ROWS - first_row);
        Self { rows: start..end, first: if index == 0 { first_row } else { 0 } }
    }

    /// Their rows in the page.
    pub(crate) fn in_page(&self) -> Range<usize> {
        self.first..self.first + self.rows.len()
    }
}

/// Keys and values of all pages, bf16 \[pages\]\[layers\]\[kv_heads\]\[64 · stride\]. The layers of
/// a page lie together, so that a few pages take few huge pages of memory.
///
/// A page's keys are packed like a block of 64 weight rows, \[head_dim/2\]\[64\]\[2\], so that
/// scores are a matrix product. Its values are stored row by row, \[64\]\[stride\], padded with
/// zeros to whole cache lines.
pub(crate) struct Kv {
    k: Lines,
    v: Lines,
    layout: KvLayout,
}

/// The layout of rows.
#[derive(Clone, Copy)]
pub(crate) struct KvLayout {
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
    /// Elements of a value row.
    pub(crate) stride: usize,
}

impl KvLayout {
    pub(crate) fn of(config: &Config) -> Self {
        let stride = config.head_dim.next_multiple_of(LINE);
        let (layers, heads, head_dim) = (config.layers, config.kv_heads, config.head_dim);
        Self { layers, heads, head_dim, stride }
    }

    /// The offset of a head's page, in keys and in values.
    pub(crate) fn page(&self, layer: u16, page: PageId, head: usize) -> usize {
        let page = page as usize * self.layers + usize::from(layer);
        (page * self.heads + head) * self.page_len()
    }

    /// The page, and the row in it, of a slot.
    pub(crate) fn place(&self, layer: u16, slot: Slot, head: usize) -> (usize, usize) {
        let (page, row) = (slot / PAGE_ROWS as Slot, slot as usize % PAGE_ROWS);
        (self.page(layer, page, head), row)
    }

    /// The offset of a key's element within its page.
    pub(crate) fn key_offset(row: usize, element: usize) -> usize {
        element / 2 * (2 * PAGE_ROWS) + row * 2 + element % 2
    }

    /// Elements of a page's keys.
    pub(crate) fn key_len(&self) -> usize {
        self.head_dim * PAGE_ROWS
    }

    /// Elements of a head's page.
    pub(crate) fn page_len(&self) -> usize {
        PAGE_ROWS * self.stride
    }

    /// Bytes of a row outside the pages, \[heads\]\[head_dim\].
    pub(crate) fn row_bytes(&self) -> usize {
        self.heads * self.head_dim * size_of::<bf16>()
    }

    /// The range of a head's bytes in such a row.
    pub(crate) fn head_bytes(&self, head: usize) -> Range<usize> {
        let bytes = self.head_dim * size_of::<bf16>();
        head * bytes..(head + 1) * bytes
    }
}

impl Kv {
    pub(crate) fn new(config: &Config, pages: usize) -> Self {
        let layout = KvLayout::of(config);
        let zeros = || Lines::zeroed(pages * layout.layers * layout.heads * layout.page_len());
        Self { k: zeros(), v: zeros(), layout }
    }

    pub(crate) fn layout(&self) -> KvLayout {
        self.layout
    }

    /// A head's keys of one page, packed.
    pub(crate) fn keys(&self, layer: u16, page: PageId, head: usize) -> &[bf16] {
        &self.k.get()[self.layout.page(layer, page, head)..][..self.layout.key_len()]
    }

    /// A head's values of rows `rows` of one page.
    pub(crate) fn values(
        &self,
        layer: u16,
        page: PageId,
        head: usize,
        rows: Range<usize>,
    ) -> &[bf16] {
        let stride = self.layout.stride;
        let page = &self.v.get()[self.layout.page(layer, page, head)..];
        &page[rows.start * stride..rows.end * stride]
    }

    /// Layout, keys and values, for writing from several threads.
    pub(crate) fn parts(&mut self) -> (KvLayout, Disjoint<'_, bf16>, Disjoint<'_, bf16>) {
        (self.layout, Disjoint::new(self.k.get_mut()), Disjoint::new(self.v.get_mut()))
    }

    /// The key and the value of all heads.
    pub(crate) fn read(&self, layer: u16, slot: Slot) -> (Vec<f32>, Vec<f32>) {
        let KvLayout { heads, head_dim, stride, .. } = self.layout;
        let (mut k, mut v) = (Vec::new(), Vec::new());
        for head in 0..heads {
            let (page, row) = self.layout.place(layer, slot, head);
            let key = (0..head_dim).map(|i| self.k.get()[page + KvLayout::key_offset(row, i)]);
            k.extend(key.map(bf16::to_f32));
            let value = &self.v.get()[page + row * stride..][..head_dim];
            v.extend(value.iter().map(|value| value.to_f32()));
        }
        (k, v)
    }

    pub(crate) fn write(&mut self, layer: u16, slot: Slot, k: &[f32], v: &[f32]) {
        let KvLayout { heads, head_dim, stride, .. } = self.layout;
        for head in 0..heads {
            let (page, row) = self.layout.place(layer, slot, head);
            for i in 0..head_dim {
                let from = head * head_dim + i;
                self.k.get_mut()[page + KvLayout::key_offset(row, i)] = bf16::from_f32(k[from]);
                self.v.get_mut()[page + row * stride + i] = bf16::from_f32(v[from]);
            }
        }
    }
}
