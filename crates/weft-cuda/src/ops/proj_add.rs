//! `proj_add`: x += a · W_o. Rounding: the sum, once.

use super::{AddProduct, Pass};
use crate::CudaDevice;
use crate::error::CudaError;

pub(crate) fn launch(pass: &Pass<'_>, layer: u16) -> Result<(), CudaError> {
    let CudaDevice { kernels, weights, buffers, shape, .. } = pass.device;
    pass.add_product(&AddProduct {
        matrix: weights.layers[usize::from(layer)].o.address(),
        input: &buffers.a,
        kernel: &kernels.proj_add,
        block_kernel: &kernels.proj_add_block,
        cut: &shape.proj,
    })
}
