//! `norm_gate_up`: n = rms_norm(x); h = silu(n · W_gate) · (n · W_up), rounded once.

use super::{rms_norms, tiles};
use crate::CpuDevice;
use crate::memory::Disjoint;
use crate::pack::BLOCK_ROWS;
use crate::vector;

pub(crate) fn run(device: &mut CpuDevice, layer: u16) {
    let CpuDevice { config, pool, isa, weights, buffers, lists, scratch, .. } = device;
    let (isa, n_tokens) = (*isa, lists.tokens.len());
    let layer = &weights.layers[usize::from(layer)];
    let from = (&buffers.x, layer.mlp_norm.as_slice(), config.norm_eps);
    rms_norms(pool, isa, from, &mut buffers.norm, n_tokens, |i| i);

    let gate_up = &layer.mlp.dense().gate_up;
    if gate_up.needs_sums() {
        buffers.norm.sum_runs(pool, n_tokens);
    }
    let norm = buffers.norm.rows();
    let stride = buffers.h.stride;
    let (h, scratch) = (Disjoint::new(buffers.h.all_mut()), Disjoint::new(scratch));
    pool.for_each(gate_up.n_blocks(), |thread, block| {
        // SAFETY: each thread has its own scratch.
        let unpacked = unsafe { &mut scratch.part(thread, 1)[0].unpacked };
        let rows = gate_up.rows_in(block);
        let weights = gate_up.blocks(block);
        tiles(isa, weights, norm, n_tokens, unpacked, |first, tile, [gate, up]| {
            for t in 0..tile {
                let start = (first + t) * stride + block * BLOCK_ROWS;
                // SAFETY: each item has its own columns in every row.
                let h = unsafe { h.part(start, rows) };
                vector::silu_product(isa, &gate[t], &up[t], h);
            }
        });
    });
}
