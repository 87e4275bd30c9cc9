//! `down_add`: x += h · W_down, rounded once.

use super::add_product;
use crate::CpuDevice;

pub(crate) fn run(device: &mut CpuDevice, layer: u16) {
    let CpuDevice { pool, isa, weights, buffers, lists, .. } = device;
    let matrix = &weights.layers[usize::from(layer)].down;
    add_product(pool, *isa, matrix, buffers.h.rows(), &mut buffers.x, lists.tokens.len());
}
