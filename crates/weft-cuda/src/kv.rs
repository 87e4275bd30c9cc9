//! KV pages on the GPU: where rows are, and how the host reads and writes them.
//!
//! Memory is \[layer\]\[page\]\[KV head\]\[keys, values\]; `kernels/attention_head.cuh` explains
//! why. Kernels write rows one by one; the host moves whole pages and sorts their elements here.

use std::sync::Arc;

use half::bf16;
use weft_core::config::Config;
use weft_core::kv::{PAGE_ROWS, PageId, Slot};

use crate::driver::{Address, Gpu, Kernel, Launch, Memory};
use crate::error::CudaError;

/// Bytes of a page that a thread copies, and threads of a block that copies.
const CHUNK_BYTES: usize = 16;
const COPY_THREADS: usize = 256;

pub(crate) struct Kv {
    memory: Memory,
    layers: usize,
    pages: usize,
    heads: usize,
    head_dim: usize,
    /// The width of a head in memory.
    dim: usize,
}

/// One page of one layer, on the host.
struct Page {
    values: Vec<bf16>,
}

/// The index of a key's element in the keys of a page.
fn key_offset(dim: usize, row: usize, d: usize) -> usize {
    (row / 8 * (dim / 32) + d / 32) * 256 + (row % 8 * 4 + d % 32 / 8) * 8 + d % 8
}

/// The index of a value's element in the values of a page.
fn value_offset(row: usize, d: usize) -> usize {
    (d / 8 * 2 + row / 32) * 256 + (d % 8 * 4 + row % 8 / 2) * 8 + row % 32 / 8 * 2 + row % 2
}

impl Kv {
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        config: &Config,
        dim: usize,
        pages: usize,
    ) -> Result<Self, CudaError> {
        let (layers, heads, head_dim) = (config.layers, config.kv_heads, config.head_dim);
        let bytes = layers * pages * heads * 2 * PAGE_ROWS * dim * size_of::<bf16>();
        let memory = Memory::new(gpu, "KV pages", bytes)?;
        Ok(Self { memory, layers, pages, heads, head_dim, dim })
    }

    /// A layer's pages.
    pub(crate) fn layer(&self, layer: u16) -> Address {
        self.memory.address().offset(self.start(layer, 0))
    }

    /// Bytes from one layer's pages to the next's.
    pub(crate) fn layer_bytes(&self) -> usize {
        self.start(1, 0)
    }

    fn page_len(&self) -> usize {
        self.heads * 2 * PAGE_ROWS * self.dim
    }

    fn start(&self, layer: u16, page: PageId) -> usize {
        (usize::from(layer) * self.pages + page as usize) * self.page_len() * size_of::<bf16>()
    }

    /// Bytes of a page in all layers.
    fn all_layers_bytes(&self) -> usize {
        self.layers * self.page_len() * size_of::<bf16>()
    }

    /// A copy of pages, in the stream of steps.
    pub(crate) fn save(&self, gpu: &Arc<Gpu>, pages: &[PageId]) -> Result<Memory, CudaError> {
        let saved = Memory::new(gpu, "KV pages", pages.len() * self.all_layers_bytes())?;
        self.each_part(pages, |kept, own, bytes| gpu.copy(&saved, kept, &self.memory, own, bytes))?;
        Ok(saved)
    }

    /// Puts such a copy back.
    pub(crate) fn restore(
        &self,
        gpu: &Gpu,
        pages: &[PageId],
        saved: &Memory,
    ) -> Result<(), CudaError> {
        self.each_part(pages, |kept, own, bytes| gpu.copy(&self.memory, own, saved, kept, bytes))
    }

    /// Calls `copy` with the place of each page of each layer in a copy and here, and its bytes.
    fn each_part(
        &self,
        pages: &[PageId],
        mut copy: impl FnMut(usize, usize, usize) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let bytes = self.page_len() * size_of::<bf16>();
        let parts =
            (0..self.layers as u16).flat_map(|layer| pages.iter().map(move |p| (layer, *p)));
        parts
            .enumerate()
            .try_for_each(|(i, (layer, page))| copy(i * bytes, self.start(layer, page), bytes))
    }

    fn read_page(&self, layer: u16, page: PageId) -> Result<Page, CudaError> {
        let mut values = vec![bf16::ZERO; self.page_len()];
        self.memory.read(self.start(layer, page), &mut values)?;
        Ok(Page { values })
    }

    fn write_page(&self, layer: u16, page: PageId, from: &Page) -> Result<(), CudaError> {
        self.memory.write(self.start(layer, page), &from.values)
    }

    /// Copies the first rows of a page in every layer, in the stream of steps, without waiting.
    pub(crate) fn copy_rows(
        &self,
        gpu: &Gpu,
        kernel: &Kernel,
        from: PageId,
        to: PageId,
        rows: usize,
    ) -> Result<(), CudaError> {
        if rows == 0 || from == to {
            return Ok(());
        }
        let chunks = self.page_len() * size_of::<bf16>() / CHUNK_BYTES;
        let launch = Launch {
            grid: (chunks.div_ceil(COPY_THREADS), self.layers),
            threads: COPY_THREADS,
            early: false,
            cooperative: false,
        };
        let (kv, layer_bytes) = (self.memory.address(), self.start(1, 0) as u64);
        kernel.launch(gpu, launch, &[&kv, &layer_bytes, &from, &to, &(rows as u32)])
    }

    /// Calls `visit(element of the row, place of its key, place of its value)`.
    fn each_element(&self, row: usize, mut visit: impl FnMut(usize, usize, usize)) {
        for head in 0..self.heads {
            let side = PAGE_ROWS * self.dim;
            for d in 0..self.head_dim {
                let key = head * 2 * side + key_offset(self.dim, row, d);
                let value = (head * 2 + 1) * side + value_offset(row, d);
                visit(head * self.head_dim + d, key, value);
            }
        }
    }

    /// The key and the value in a slot.
    pub(crate) fn read_row(
        &self,
        layer: u16,
        slot: Slot,
    ) -> Result<(Vec<f32>, Vec<f32>), CudaError> {
        let (page, row) = place(slot);
        let page = self.read_page(layer, page)?;
        let width = self.heads * self.head_dim;
        let (mut k, mut v) = (vec![bf16::ZERO; width], vec![bf16::ZERO; width]);
        self.get(&page, row, &mut k, &mut v);
        let widen = |row: &[bf16]| row.iter().map(|value| value.to_f32()).collect();
        Ok((widen(&k), widen(&v)))
    }

    pub(crate) fn write_row(
        &self,
        layer: u16,
        slot: Slot,
        k: &[f32],
        v: &[f32],
    ) -> Result<(), CudaError> {
        let (page, row) = place(slot);
        let mut contents = self.read_page(layer, page)?;
        let round =
            |row: &[f32]| row.iter().map(|value| bf16::from_f32(*value)).collect::<Vec<_>>();
        self.set(&mut contents, row, &round(k), &round(v));
        self.write_page(layer, page, &contents)
    }

    /// A row of a page: key and value, each \[kv_width\].
    fn get(&self, page: &Page, row: usize, k: &mut [bf16], v: &mut [bf16]) {
        self.each_element(row, |i, key, value| {
            k[i] = page.values[key];
            v[i] = page.values[value];
        });
    }

    fn set(&self, page: &mut Page, row: usize, k: &[bf16], v: &[bf16]) {
        self.each_element(row, |i, key, value| {
            page.values[key] = k[i];
            page.values[value] = v[i];
        });
    }
}

/// The page of a slot, and the row in it.
pub(crate) fn place(slot: Slot) -> (PageId, usize) {
    (slot / PAGE_ROWS as Slot, slot as usize % PAGE_ROWS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_has_a_place_of_its_own() {
        for dim in [32, 64, 128] {
            let mut keys = vec![false; PAGE_ROWS * dim];
            let mut values = keys.clone();
            for row in 0..PAGE_ROWS {
                for d in 0..dim {
                    keys[key_offset(dim, row, d)] = true;
                    values[value_offset(row, d)] = true;
                }
            }
            assert!(keys.iter().chain(&values).all(|taken| *taken), "{dim}");
        }
    }

    /// Lane 4g + c of a unit of values holds, for dimension g, the rows that the scores of lane c
    /// are for: 2c and 2c + 1 of each eighth.
    #[test]
    fn values_lie_in_the_order_of_the_scores() {
        let rows = |lane: usize| -> Vec<usize> {
            let at = |e: usize| (0..32).find(|row| value_offset(*row, lane / 4) == lane * 8 + e);
            (0..8).map(|e| at(e).unwrap()).collect()
        };
        assert_eq!(rows(0), [0, 1, 8, 9, 16, 17, 24, 25]);
        assert_eq!(rows(4 * 5 + 3), [6, 7, 14, 15, 22, 23, 30, 31]);
    }
}
