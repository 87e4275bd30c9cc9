//! `embed`: x = row of the embedding, one per token.

use super::Reference;
use crate::device::Step;
use crate::dtype::Element;

pub(super) fn run<E: Element>(device: &mut Reference<E>, step: &Step<'_>) {
    let hidden = device.config.hidden;
    let tokens = step.lanes.iter().flat_map(|lane| lane.tokens);
    for (x, token) in device.buffers.x.chunks_exact_mut(hidden).zip(tokens) {
        device.weights.embed.copy_row(*token as usize, x);
    }
}
