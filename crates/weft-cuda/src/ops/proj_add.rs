//! `proj_add`: x += a · W_o. Rounding: the sum, once.

use super::{BLOCK_THREADS, Pass, RING_THREADS};
use crate::CudaDevice;
use crate::driver::Argument;
use crate::error::CudaError;
use crate::tables::Family;

pub(crate) fn launch(pass: &Pass<'_>, layer: u16) -> Result<(), CudaError> {
    let CudaDevice { config, kernels, weights, buffers, shape, .. } = pass.device;
    let matrix = weights.layers[usize::from(layer)].o.address();
    let (input, x) = (buffers.a.address(), buffers.x.address());
    match pass.family {
        Family::Few => {
            let arguments: &[&dyn Argument] = &[&pass.step, &matrix, &input, &x];
            pass.launch(&kernels.proj_add, (shape.proj.blocks, 1), RING_THREADS, arguments)
        }
        Family::Many => {
            let grid = pass.block_grid(config.hidden);
            let arguments: &[&dyn Argument] = &[&pass.step, &matrix, &input, &x];
            pass.launch(&kernels.proj_add_block, grid, BLOCK_THREADS, arguments)
        }
    }
}
