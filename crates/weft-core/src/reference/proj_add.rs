//! `proj_add`: x += a · W_o. Rounding: the sum, once.

use super::Reference;
use super::math::widen;
use super::matrix::project;
use crate::device::Step;
use crate::dtype::Element;

pub(super) fn run<E: Element>(device: &mut Reference<E>, step: &Step<'_>, layer: u16) {
    let Reference { config, buffers, scratch, .. } = device;
    let weights = &device.weights.layers[usize::from(layer)];
    let a = &mut scratch.row[..config.q_width()];
    for t in 0..step.n_tokens() {
        widen(&buffers.a[t * config.q_width()..], a);
        let x = &mut buffers.x[t * config.hidden..];
        project(&weights.o, a, |i, value| x[i] = E::from_f32(x[i].to_f32() + value));
    }
}
