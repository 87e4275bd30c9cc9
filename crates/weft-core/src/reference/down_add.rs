//! `down_add`: x += h · W_down. Rounding: the sum, once.

use super::Reference;
use super::math::widen;
use super::matrix::project;
use crate::device::Step;
use crate::dtype::Element;

pub(super) fn run<E: Element>(device: &mut Reference<E>, step: &Step<'_>, layer: u16) {
    let Reference { config, buffers, scratch, .. } = device;
    let down = &device.weights.layers[usize::from(layer)].mlp.dense().down;
    let h = &mut scratch.row[..config.intermediate];
    for t in 0..step.n_tokens() {
        widen(&buffers.h[t * config.intermediate..], h);
        let x = &mut buffers.x[t * config.hidden..];
        project(down, h, |i, value| x[i] = E::from_f32(x[i].to_f32() + value));
    }
}
