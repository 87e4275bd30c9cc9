//! `down_add`: x += h · W_down. Rounding: the sum, once.

use super::{AddProduct, Pass};
use crate::CudaDevice;
use crate::error::CudaError;

pub(crate) fn launch(pass: &Pass<'_>, layer: u16) -> Result<(), CudaError> {
    let CudaDevice { kernels, weights, buffers, shape, .. } = pass.device;
    pass.add_product(&AddProduct {
        matrix: weights.layers[usize::from(layer)].down.address(),
        input: &buffers.h,
        kernel: &kernels.down_add,
        block_kernel: &kernels.down_add_block,
        cut: &shape.down,
    })
}
