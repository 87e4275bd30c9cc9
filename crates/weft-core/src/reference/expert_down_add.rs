//! `expert_down_add`: x += Σ weight · (h · W_down) over the routes of a token, in their order, which
//! is that of experts. Rounding: the sum, once; products with weights and partial sums never.

use super::Reference;
use super::math::widen;
use crate::device::Step;
use crate::dtype::Element;

pub(super) fn run<E: Element>(device: &mut Reference<E>, step: &Step<'_>, layer: u16) {
    let Reference { config, buffers, scratch, .. } = device;
    let experts = config.experts_of(layer).expect("the plan has experts in sparse layers");
    let down = &device.weights.layers[usize::from(layer)].mlp.sparse().down;
    let (hidden, width) = (config.hidden, experts.chosen * experts.intermediate);
    let h = &mut scratch.row[..width];
    for t in 0..step.n_tokens() {
        widen(&buffers.expert_h[t * width..], h);
        let routes = &buffers.routes[t * experts.chosen..][..experts.chosen];
        for (i, x) in buffers.x[t * hidden..][..hidden].iter_mut().enumerate() {
            let mut sum = 0.0;
            for (route, h) in routes.iter().zip(h.chunks_exact(experts.intermediate)) {
                sum += route.weight * down.dot(route.expert as usize * hidden + i, h);
            }
            *x = E::from_f32(x.to_f32() + sum);
        }
    }
}
