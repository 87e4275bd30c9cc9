//! `expert_gate_up`: n = rms_norm(x); for each route of a token, in order,
//! h = silu(n · W_gate) · (n · W_up) of its expert.
//!
//! Rounding: n as RMSNorm rounds; gate, up and SiLU never; h once.

use super::Reference;
use super::math::{rms_norm, silu};
use crate::device::Step;
use crate::dtype::Element;

pub(super) fn run<E: Element>(device: &mut Reference<E>, step: &Step<'_>, layer: u16) {
    let Reference { config, buffers, scratch, .. } = device;
    let experts = config.experts_of(layer).expect("the plan has experts in sparse layers");
    let weights = &device.weights.layers[usize::from(layer)];
    let mlp = weights.mlp.sparse();
    let norm = &mut scratch.row[..config.hidden];
    for t in 0..step.n_tokens() {
        let x = &buffers.x[t * config.hidden..][..config.hidden];
        rms_norm(x, &weights.mlp_norm, config.norm_eps, norm);
        for r in t * experts.chosen..(t + 1) * experts.chosen {
            let first_row = buffers.routes[r].expert as usize * experts.intermediate;
            let h = &mut buffers.expert_h[r * experts.intermediate..][..experts.intermediate];
            for (i, h) in h.iter_mut().enumerate() {
                let row = first_row + i;
                *h = E::from_f32(silu(mlp.gate.dot(row, norm)) * mlp.up.dot(row, norm));
            }
        }
    }
}
