//! `norm_gate_up`: n = rms_norm(x); h = silu(n · W_gate) · (n · W_up), rounded once.

use super::rms_norms;
use crate::CpuDevice;
use crate::matmul::{self, TILE};
use crate::memory::Disjoint;
use crate::pack::BLOCK_ROWS;
use crate::vector;

pub(crate) fn run(device: &mut CpuDevice, layer: u16) {
    let CpuDevice { config, pool, isa, weights, buffers, lists, .. } = device;
    let (isa, n_tokens) = (*isa, lists.tokens.len());
    let layer = &weights.layers[usize::from(layer)];
    let from = (&buffers.x, layer.mlp_norm.as_slice(), config.norm_eps);
    rms_norms(pool, isa, from, &mut buffers.norm, n_tokens, |i| i);

    let norm = buffers.norm.rows();
    let stride = buffers.h.stride;
    let h = Disjoint::new(buffers.h.all_mut());
    pool.for_each(layer.gate.n_blocks(), |_, block| {
        let columns = layer.gate.padded_columns();
        let rows = layer.gate.rows_in(block);
        let weights = [layer.gate.block(block), layer.up.block(block)];
        let mut sums = [[[0.0; BLOCK_ROWS]; TILE]; 2];
        for first in (0..n_tokens).step_by(TILE) {
            let n = TILE.min(n_tokens - first);
            matmul::multiply_pair(isa, weights, columns, norm, first, n, &mut sums);
            let [gate, up] = &sums;
            for t in 0..n {
                let start = (first + t) * stride + block * BLOCK_ROWS;
                // SAFETY: each item has its own columns in every row.
                let h = unsafe { h.part(start, rows) };
                vector::silu_product(isa, &gate[t], &up[t], h);
            }
        }
    });
}
