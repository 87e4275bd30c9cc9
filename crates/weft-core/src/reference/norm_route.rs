//! `norm_route`: n = rms_norm(x); routes = the experts with the largest logits n · W_router, and
//! their softmax weights ([`crate::routing`]).
//!
//! Rounding: n as RMSNorm rounds; logits and weights never.

use super::Reference;
use super::math::rms_norm;
use super::matrix::project;
use crate::device::Step;
use crate::dtype::Element;
use crate::routing::choose;

pub(super) fn run<E: Element>(device: &mut Reference<E>, step: &Step<'_>, layer: u16) {
    let Reference { config, buffers, scratch, .. } = device;
    let experts = config.experts_of(layer).expect("the plan routes in sparse layers");
    let weights = &device.weights.layers[usize::from(layer)];
    let router = &weights.mlp.sparse().router;
    let norm = &mut scratch.row[..config.hidden];
    for t in 0..step.n_tokens() {
        let x = &buffers.x[t * config.hidden..][..config.hidden];
        rms_norm(x, &weights.mlp_norm, config.norm_eps, norm);
        project(router, norm, |i, value| scratch.router_logits[i] = value);
        let routes = &mut buffers.routes[t * experts.chosen..][..experts.chosen];
        choose(&scratch.router_logits, experts, routes);
    }
}
