//! `norm_qkv`: h = rms_norm(x); q, k, v = h · W (+ bias).
//!
//! Rounding: h as RMSNorm rounds; q, k, v once, after the bias.

use super::Reference;
use super::math::rms_norm;
use super::matrix::project;
use crate::device::Step;
use crate::dtype::Element;

pub(super) fn run<E: Element>(device: &mut Reference<E>, step: &Step<'_>, layer: u16) {
    let config = &device.config;
    let weights = &device.weights.layers[usize::from(layer)];
    let buffers = &mut device.buffers;
    let norm = &mut device.scratch.row[..config.hidden];
    let bias = |which: usize, i: usize| match &weights.bias {
        Some(bias) => bias[which][i].to_f32(),
        None => 0.0,
    };
    for t in 0..step.n_tokens() {
        let x = &buffers.x[t * config.hidden..][..config.hidden];
        rms_norm(x, &weights.attention_norm, config.norm_eps, norm);
        let q = &mut buffers.q[t * config.q_width()..];
        project(&weights.q, norm, |i, value| q[i] = E::from_f32(value + bias(0, i)));
        let k = &mut buffers.k[t * config.kv_width()..];
        project(&weights.k, norm, |i, value| k[i] = E::from_f32(value + bias(1, i)));
        let v = &mut buffers.v[t * config.kv_width()..];
        project(&weights.v, norm, |i, value| v[i] = E::from_f32(value + bias(2, i)));
    }
}
