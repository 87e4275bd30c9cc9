//! `norm_head`: logits = rms_norm(x) · W_head, for the tokens that need logits.

use super::{n_pairs, products, rms_norms};
use crate::CpuDevice;
use crate::memory::Disjoint;

pub(crate) fn run(device: &mut CpuDevice) {
    let CpuDevice { config, pool, isa, weights, buffers, logits, lists, .. } = device;
    let (isa, n_outputs) = (*isa, lists.outputs.len());
    let from = (&buffers.x, weights.final_norm.as_slice(), config.norm_eps);
    rms_norms(pool, isa, from, &mut buffers.norm, n_outputs, |output| lists.outputs[output]);

    let norm = buffers.norm.rows();
    let head = weights.head();
    let logits = Disjoint::new(logits);
    pool.for_each(n_pairs(head), |_, pair| {
        products(isa, head, pair, norm, n_outputs, |output, column, sums| {
            let start = output * config.vocab + column;
            // SAFETY: each item has its own columns in every row.
            unsafe { logits.part(start, sums.len()) }.copy_from_slice(sums);
        });
    });
}
