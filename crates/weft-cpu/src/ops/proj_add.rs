//! `proj_add`: x += a · W_o, rounded once.

use super::add_product;
use crate::CpuDevice;

pub(crate) fn run(device: &mut CpuDevice, layer: u16) {
    let CpuDevice { pool, isa, weights, buffers, lists, scratch, .. } = device;
    let matrix = &weights.layers[usize::from(layer)].o;
    let n_tokens = lists.tokens.len();
    add_product(pool, *isa, matrix, &mut buffers.a, &mut buffers.x, n_tokens, scratch);
}
