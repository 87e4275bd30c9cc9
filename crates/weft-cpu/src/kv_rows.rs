//! Copies rows of keys and values out of pages, into pages, and from page to page.
//!
//! Outside the pages, a row is its heads one after another, little endian. In a page, the keys of
//! 64 rows are packed by pairs of elements, see [`Kv`]. They are transposed one page of one head at
//! a time, which fits the L1 cache. Copies preserve all bits.

use std::ops::Range;

use half::bf16;
use weft_core::device::PageRows;
use weft_core::dtype::Element;
use weft_core::kv::{PAGE_ROWS, PageId};

use crate::buffers::{Kv, RowsOfPage};
use crate::memory::Disjoint;
use crate::pool::Pool;

/// Copies rows out: keys to `k` and values to `v`, each \[layers\]\[rows\]\[kv_width\] as bytes.
pub(crate) fn read(
    pool: &Pool,
    kv: &Kv,
    layers: &Range<u16>,
    rows: &PageRows<'_>,
    k: &mut [u8],
    v: &mut [u8],
) {
    let layout = kv.layout();
    let n_pages = rows.n_pages();
    let row_bytes = layout.row_bytes();
    let len = layers.len() * rows.len * row_bytes;
    assert!(k.len() == len && v.len() == len, "{} and {} bytes for {len}", k.len(), v.len());
    let (k, v) = (Disjoint::new(k), Disjoint::new(v));
    pool.for_each(layers.len() * n_pages, |_, item| {
        let (layer, index) = (item / n_pages, item % n_pages);
        let own = RowsOfPage::new(index, rows.first_row, rows.len);
        let start = (layer * rows.len + own.rows.start) * row_bytes;
        let bytes = own.rows.len() * row_bytes;
        // SAFETY: each item has its own rows, in keys and in values.
        let (k, v) = unsafe { (k.part(start, bytes), v.part(start, bytes)) };
        let (layer, page) = (layers.start + layer as u16, rows.pages[index]);
        for head in 0..layout.heads {
            let part = layout.head_bytes(head);
            unpack_keys(kv.keys(layer, page, head), own.in_page(), k, row_bytes, &part);
            let values = kv.values(layer, page, head, own.in_page());
            let values = values.chunks_exact(layout.stride);
            for (to, from) in v.chunks_exact_mut(row_bytes).zip(values) {
                bf16::write_le(&from[..layout.head_dim], &mut to[part.clone()]);
            }
        }
    });
}

/// Copies rows in, in every layer. `k` and `v` have the layout of [`read`].
pub(crate) fn write(pool: &Pool, kv: &mut Kv, rows: &PageRows<'_>, k: &[u8], v: &[u8]) {
    let layout = kv.layout();
    let row_bytes = layout.row_bytes();
    let bytes = rows.len * row_bytes;
    let len = layout.layers * bytes;
    assert!(k.len() == len && v.len() == len, "{} and {} bytes for {len}", k.len(), v.len());
    for_each_layer(pool, kv, |layer, page_of| {
        let bytes_of_layers = usize::from(layer) * bytes;
        for (index, page) in rows.pages[..rows.n_pages()].iter().enumerate() {
            let own = RowsOfPage::new(index, rows.first_row, rows.len);
            let byte = |row| bytes_of_layers + row * row_bytes;
            let from = byte(own.rows.start)..byte(own.rows.end);
            for head in 0..layout.heads {
                let part = layout.head_bytes(head);
                let [keys, values] = page_of(*page, head);
                let keys = &mut keys[..layout.key_len()];
                pack_keys(&k[from.clone()], row_bytes, &part, own.in_page(), keys);
                let values = values.chunks_exact_mut(layout.stride).skip(own.first);
                for (from, to) in v[from.clone()].chunks_exact(row_bytes).zip(values) {
                    bf16::read_le(&from[part.clone()], &mut to[..layout.head_dim]);
                }
            }
        }
    });
}

/// Copies the first `rows` rows of a page in every layer.
pub(crate) fn copy_rows(pool: &Pool, kv: &mut Kv, from: PageId, to: PageId, rows: usize) {
    assert!(rows <= PAGE_ROWS, "{rows} rows of a page");
    if from == to {
        return;
    }
    let layout = kv.layout();
    for_each_layer(pool, kv, |_, page_of| {
        for head in 0..layout.heads {
            let ([k_from, v_from], [k_to, v_to]) = (page_of(from, head), page_of(to, head));
            // Keys are packed by pairs of elements, and each pair has all rows of the page.
            for pair in (0..layout.key_len()).step_by(2 * PAGE_ROWS) {
                k_to[pair..pair + 2 * rows].copy_from_slice(&k_from[pair..pair + 2 * rows]);
            }
            let len = rows * layout.stride;
            v_to[..len].copy_from_slice(&v_from[..len]);
        }
    });
}

/// A head's keys and values in one page.
type PageOf<'a> = &'a dyn Fn(PageId, usize) -> [&'a mut [bf16]; 2];

/// Calls `work(layer, page_of)` for each layer. A layer is one item, so that a page named twice
/// causes no race; `work` uses no page of a head twice at the same time.
fn for_each_layer(pool: &Pool, kv: &mut Kv, work: impl Fn(u16, PageOf<'_>) + Sync) {
    let (layout, k, v) = kv.parts();
    pool.for_each(layout.layers, |_, layer| {
        let layer = layer as u16;
        work(layer, &|page, head| {
            let start = layout.page(layer, page, head);
            // SAFETY: each item has its own layer, and `work` keeps its promise.
            [&k, &v].map(|pages| unsafe { pages.part(start, layout.page_len()) })
        });
    });
}

/// Two elements of a key, for each row of a page.
type Pairs = [[bf16; 2]; PAGE_ROWS];

/// Copies rows `from` of one head's keys, \[head_dim/2\]\[64\]\[2\], to the bytes `head` of each
/// row.
fn unpack_keys(
    keys: &[bf16],
    from: Range<usize>,
    rows: &mut [u8],
    row_bytes: usize,
    head: &Range<usize>,
) {
    let pairs: &[Pairs] = keys.as_chunks().0.as_chunks().0;
    for (row, r) in rows.chunks_exact_mut(row_bytes).zip(from) {
        for (to, pairs) in row[head.clone()].as_chunks_mut().0.iter_mut().zip(pairs) {
            let [even, odd] = pairs[r].map(|element| u32::from(element.to_bits()));
            *to = (even | odd << 16).to_le_bytes();
        }
    }
}

/// The inverse, to rows `to`. Other rows are unchanged.
fn pack_keys(
    rows: &[u8],
    row_bytes: usize,
    head: &Range<usize>,
    to: Range<usize>,
    keys: &mut [bf16],
) {
    let pairs: &mut [Pairs] = keys.as_chunks_mut().0.as_chunks_mut().0;
    for (row, r) in rows.chunks_exact(row_bytes).zip(to) {
        for (from, pairs) in row[head.clone()].as_chunks().0.iter().zip(pairs.iter_mut()) {
            let both = u32::from_le_bytes(*from);
            pairs[r] = [both as u16, (both >> 16) as u16].map(bf16::from_bits);
        }
    }
}
