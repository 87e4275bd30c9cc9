//! `down_add`: x += h · W_down. Rounding: the sum, once.

use super::{BLOCK_THREADS, Pass};
use crate::CudaDevice;
use crate::driver::Argument;
use crate::error::CudaError;

pub(crate) fn launch(pass: &Pass<'_>, layer: u16) -> Result<(), CudaError> {
    let CudaDevice { config, kernels, weights, buffers, shape, .. } = pass.device;
    let matrix = weights.layers[usize::from(layer)].down.address();
    if let Some(groups) = pass.groups_of_few() {
        return groups.iter().try_for_each(|group| {
            let (input, x) = (buffers.h.row(group.first), buffers.x.row(group.first));
            let arguments: &[&dyn Argument] = &[&group.step, &matrix, &input, &x];
            pass.stream(&kernels.down_add, group, &shape.down, arguments)
        });
    }
    let (input, x) = (buffers.h.address(), buffers.x.address());
    let arguments: &[&dyn Argument] = &[&pass.step, &matrix, &input, &x];
    pass.launch(&kernels.down_add_block, pass.block_grid(config.hidden), BLOCK_THREADS, arguments)
}
