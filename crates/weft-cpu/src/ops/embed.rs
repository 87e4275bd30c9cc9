//! `embed`: x = row of the embedding, one per token.

use weft_core::device::Step;

use crate::CpuDevice;

pub(crate) fn run(device: &mut CpuDevice, step: &Step<'_>) {
    let CpuDevice { weights, buffers, .. } = device;
    let (width, stride) = (buffers.x.width, buffers.x.stride);
    let tokens = step.lanes.iter().flat_map(|lane| lane.tokens);
    for (x, token) in buffers.x.all_mut().chunks_exact_mut(stride).zip(tokens) {
        weights.embed.copy_row(*token as usize, &mut x[..width]);
    }
}
