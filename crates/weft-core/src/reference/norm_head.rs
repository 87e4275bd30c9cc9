//! `norm_head`: logits = rms_norm(x) · W_head, for the tokens that need logits; and the norm alone,
//! for the tokens whose state is asked for.
//!
//! Rounding: the norm as RMSNorm rounds; logits never.

use super::Reference;
use super::math::rms_norm;
use super::matrix::project;
use crate::device::Step;
use crate::dtype::Element;

pub(super) fn run<E: Element>(device: &mut Reference<E>, step: &Step<'_>) {
    let Reference { config, buffers, weights, scratch, logits, .. } = device;
    let norm = &mut scratch.row[..config.hidden];
    let mut rows = logits.chunks_exact_mut(config.vocab);
    let mut end = 0;
    for lane in step.lanes {
        end += lane.tokens.len();
        for t in end - lane.n_outputs()..end {
            let x = &buffers.x[t * config.hidden..][..config.hidden];
            rms_norm(x, &weights.final_norm, config.norm_eps, norm);
            let logits = rows.next().expect("Step::check bounds the outputs");
            project(weights.head(), norm, |i, value| logits[i] = value);
        }
    }
}

/// rms_norm(x) of each lane's last token.
pub(super) fn states<E: Element>(device: &Reference<E>, step: &Step<'_>) -> Vec<Vec<f32>> {
    let Reference { config, buffers, weights, .. } = device;
    let mut end = 0;
    let state = |n_tokens: usize| {
        end += n_tokens;
        let x = &buffers.x[(end - 1) * config.hidden..][..config.hidden];
        let mut norm = vec![0.0; config.hidden];
        rms_norm(x, &weights.final_norm, config.norm_eps, &mut norm);
        norm
    };
    step.lanes.iter().map(|lane| lane.tokens.len()).map(state).collect()
}
