//! `norm_gate_up`: n = rms_norm(x); h = silu(n · W_gate) · (n · W_up).
//!
//! Rounding: n as RMSNorm rounds; gate, up and SiLU never; h once.

use super::Reference;
use super::math::{rms_norm, silu};
use crate::device::Step;
use crate::dtype::Element;

pub(super) fn run<E: Element>(device: &mut Reference<E>, step: &Step<'_>, layer: u16) {
    let Reference { config, buffers, scratch, .. } = device;
    let weights = &device.weights.layers[usize::from(layer)];
    let mlp = weights.mlp.dense();
    let norm = &mut scratch.row[..config.hidden];
    for t in 0..step.n_tokens() {
        let x = &buffers.x[t * config.hidden..][..config.hidden];
        rms_norm(x, &weights.mlp_norm, config.norm_eps, norm);
        let h = &mut buffers.h[t * config.intermediate..][..config.intermediate];
        for (i, h) in h.iter_mut().enumerate() {
            let (gate, up) = (mlp.gate.dot(i, norm), mlp.up.dot(i, norm));
            *h = E::from_f32(silu(gate) * up);
        }
    }
}
