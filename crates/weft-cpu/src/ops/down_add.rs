//! `down_add`: x += h · W_down, rounded once.

use super::add_product;
use crate::CpuDevice;

pub(crate) fn run(device: &mut CpuDevice, layer: u16) {
    let CpuDevice { pool, isa, weights, buffers, lists, scratch, .. } = device;
    let matrix = &weights.layers[usize::from(layer)].mlp.dense().down;
    let n_tokens = lists.tokens.len();
    add_product(pool, *isa, matrix, &mut buffers.h, &mut buffers.x, n_tokens, scratch);
}
