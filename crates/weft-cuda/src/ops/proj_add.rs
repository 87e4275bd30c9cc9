//! `proj_add`: x += a · W_o. Rounding: the sum, once.

use super::{AddProduct, Pass};
use crate::CudaDevice;
use crate::error::CudaError;

pub(crate) fn launch(pass: &Pass<'_>, layer: u16) -> Result<(), CudaError> {
    let CudaDevice { kernels, weights, buffers, shape, .. } = pass.device;
    let (layer, variants) = (usize::from(layer), &shape.matrices.proj);
    pass.add_product(&AddProduct {
        matrix: weights.layers[layer].o.address(),
        input: &buffers.a,
        kernels: &kernels.proj_add[variants.of(layer)],
        cut: variants.cut(layer),
    })
}
