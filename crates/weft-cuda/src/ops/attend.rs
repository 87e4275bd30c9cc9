//! `attend`: a = softmax(q · kᵀ / √head_dim) · v over every row that a token sees.

use super::{Pass, RING_THREADS, THREADS};
use crate::CudaDevice;
use crate::driver::{Address, Argument};
use crate::error::CudaError;
use crate::layouts::{Layout, layout};
use crate::shape::TILED_THREADS;
use crate::tables::{Family, SECTION_PAGES, SEVERAL};

/// Threads of a block that lays a page for warpgroups.
pub(crate) const LAY_THREADS: usize = 128;
/// Threads of a block that takes a tile of tokens.
pub(crate) const TILE_THREADS: usize = 128;

/// Kernels call it `Attended`.
#[repr(C)]
struct Attended {
    a: Address,
    sent: Address,
    sent_cells: Address,
    sums: Address,
    weights: Address,
    cells: Address,
    shares: Address,
}

// SAFETY: `repr(C)`, with the fields of the kernels' `Attended`.
unsafe impl Argument for Attended {}

/// Structs that kernels must lay out as here.
pub(crate) fn layout() -> Layout {
    layout!(Attended as "Attended" { a, sent, sent_cells, sums, weights, cells, shares })
}

/// With `stores`, the launch also runs rope_store.
pub(crate) fn launch(pass: &Pass<'_>, layer: u16, stores: bool) -> Result<(), CudaError> {
    let CudaDevice { config, gpu, kernels, weights, buffers, kv, rope, shape, .. } = pass.device;
    let weights = &weights.layers[usize::from(layer)];
    let in_squares = pass.family == Family::Many && pass.counts.n_tokens > SEVERAL;
    let to = Attended {
        a: if in_squares { buffers.a.for_block() } else { buffers.a.address() },
        sent: buffers.sent.address(),
        sent_cells: buffers.sent_cells.address(),
        sums: buffers.sums.address(),
        weights: buffers.weights.address(),
        cells: buffers.cells.address(),
        shares: buffers.shares.address(),
    };
    match pass.family {
        Family::Few => {
            // If there are more items than resident blocks, a block takes several.
            let most = gpu.facts.chip.n_sms;
            let grid = ((pass.counts.n_items * config.kv_heads).min(most), 1);
            let arguments: &[&dyn Argument] = &[
                &pass.step,
                &u32::from(stores),
                &weights.q_norm.address(),
                &weights.k_norm.address(),
                &rope.address(),
                &buffers.q.address(),
                &buffers.k.address(),
                &buffers.v.address(),
                &kv.layer(layer),
                &to,
            ];
            pass.launch(&kernels.attend, grid, RING_THREADS, arguments)
        }
        Family::Many => {
            let n_splits = pass.counts.n_splits;
            let grid = (pass.counts.n_tiles * config.kv_heads, n_splits);
            let (rope, q, mut pages) = (rope.address(), buffers.q.address(), kv.layer(layer));
            let mut kernel = &kernels.attend_block;
            match &kernels.pages {
                Some(of_pages) if pass.counts.lays_pages => {
                    let laid = buffers.laid.address();
                    let grid = (pass.counts.n_sections * SECTION_PAGES, config.kv_heads);
                    pass.launch(&of_pages.lay, grid, LAY_THREADS, &[&pass.step, &pages, &laid])?;
                    pages = laid;
                }
                Some(of_pages) => kernel = &of_pages.attend_units,
                None => (),
            }
            let arguments: &[&dyn Argument] = &[&pass.step, &rope, &q, &pages, &to];
            let threads = if shape.attends_tiled() { TILED_THREADS } else { TILE_THREADS };
            pass.launch(kernel, grid, threads, arguments)?;
            if n_splits == 1 {
                return Ok(());
            }
            let grid = (pass.counts.n_tokens * config.kv_heads, 1);
            pass.launch(&kernels.attend_fold, grid, THREADS, &[&pass.step, &to])
        }
    }
}
