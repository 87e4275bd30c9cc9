//! `norm_head`: logits = rms_norm(x) · W_head, for the tokens that need logits; and the norm alone,
//! for the tokens whose state is asked for.

use weft_core::device::Step;

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

/// rms_norm(x) of each lane's last token.
pub(crate) fn states(device: &mut CpuDevice, step: &Step<'_>) -> Vec<Vec<f32>> {
    let CpuDevice { config, pool, isa, weights, buffers, .. } = device;
    let mut end = 0;
    let mut last = |n_tokens: usize| {
        end += n_tokens;
        end - 1
    };
    let tokens: Vec<usize> = step.lanes.iter().map(|lane| last(lane.tokens.len())).collect();
    let from = (&buffers.x, weights.final_norm.as_slice(), config.norm_eps);
    rms_norms(pool, *isa, from, &mut buffers.norm, tokens.len(), |i| tokens[i]);
    let row = |i| buffers.norm.row(i)[..config.hidden].iter().map(|value| value.to_f32()).collect();
    (0..tokens.len()).map(row).collect()
}
