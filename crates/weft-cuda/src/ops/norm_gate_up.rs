//! `norm_gate_up`: n = rms_norm(x); h = silu(n · W_gate) · (n · W_up).

use super::{BLOCK_THREADS, Pass, RING_THREADS};
use crate::CudaDevice;
use crate::driver::Argument;
use crate::error::CudaError;
use crate::tables::Family;

pub(crate) fn launch(pass: &Pass<'_>, layer: u16) -> Result<(), CudaError> {
    let CudaDevice { config, kernels, weights, buffers, shape, .. } = pass.device;
    let weights = &weights.layers[usize::from(layer)];
    let (matrix, norm) = (weights.gate_up.address(), weights.mlp_norm.address());
    let h = buffers.h.address();
    match pass.family {
        Family::Few => {
            let arguments: &[&dyn Argument] =
                &[&pass.step, &matrix, &norm, &buffers.x.address(), &h];
            pass.launch(&kernels.norm_gate_up, (shape.gate_up.blocks, 1), RING_THREADS, arguments)
        }
        Family::Many => {
            pass.norm_rows(norm)?;
            let grid = pass.block_grid(2 * config.intermediate.next_multiple_of(8));
            let arguments: &[&dyn Argument] = &[&pass.step, &matrix, &buffers.norm.address(), &h];
            pass.launch(&kernels.norm_gate_up_block, grid, BLOCK_THREADS, arguments)
        }
    }
}
