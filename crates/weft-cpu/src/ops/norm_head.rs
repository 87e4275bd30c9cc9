//! `norm_head`: logits = rms_norm(x) · W_head, for the tokens that need logits.

use super::{n_pairs, products, rms_norms};
use crate::CpuDevice;
use crate::memory::Disjoint;

pub(crate) fn run(device: &mut CpuDevice) {
    let CpuDevice { config, pool, isa, weights, buffers, logits, lists, scratch, .. } = device;
    let (isa, n_outputs) = (*isa, lists.outputs.len());
    let from = (&buffers.x, weights.final_norm.as_slice(), config.norm_eps);
    rms_norms(pool, isa, from, &mut buffers.norm, n_outputs, |output| lists.outputs[output]);

    let head = weights.head();
    if head.needs_sums() {
        buffers.norm.sum_runs(pool, n_outputs);
    }
    let norm = buffers.norm.rows();
    let (logits, scratch) = (Disjoint::new(logits), Disjoint::new(scratch));
    pool.for_each(n_pairs(head), |thread, pair| {
        // SAFETY: each thread has its own scratch.
        let unpacked = unsafe { &mut scratch.part(thread, 1)[0].unpacked };
        products(isa, (head, pair), norm, n_outputs, unpacked, |output, column, sums| {
            let start = output * config.vocab + column;
            // SAFETY: each item has its own columns in every row.
            unsafe { logits.part(start, sums.len()) }.copy_from_slice(sums);
        });
    });
}
