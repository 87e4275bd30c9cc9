//! `down_add`: x += h · W_down. Rounding: the sum, once.

use super::{AddProduct, Pass};
use crate::CudaDevice;
use crate::error::CudaError;

pub(crate) fn launch(pass: &Pass<'_>, layer: u16) -> Result<(), CudaError> {
    let CudaDevice { kernels, weights, buffers, shape, .. } = pass.device;
    let (layer, variants) = (usize::from(layer), &shape.matrices.down);
    pass.add_product(&AddProduct {
        matrix: weights.layers[layer].down.address(),
        input: &buffers.h,
        kernels: &kernels.down_add[variants.of(layer)],
        cut: variants.cut(layer),
    })
}
