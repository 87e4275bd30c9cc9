//! `norm_head`: logits = rms_norm(x) · W_head, for the tokens whose logits were asked for.

use super::{Pass, RING_THREADS};
use crate::CudaDevice;
use crate::driver::Argument;
use crate::error::CudaError;
use crate::sampling::Chosen;
use crate::tables::FEW;

pub(crate) fn launch(pass: &Pass<'_>) -> Result<(), CudaError> {
    let CudaDevice { kernels, weights, buffers, shape, sampling, .. } = pass.device;
    for first in (0..pass.counts.n_outputs).step_by(FEW) {
        let arguments: &[&dyn Argument] = &[
            &pass.step,
            &(first as u32),
            &weights.head().address(),
            &weights.final_norm.address(),
            &buffers.x.address(),
            &buffers.logits.address(),
            &u32::from(pass.chosen != Chosen::ByHost),
            &sampling.addresses(),
        ];
        pass.launch(
            &kernels.norm_head,
            (shape.matrices.head.1.blocks, 1),
            RING_THREADS,
            arguments,
        )?;
    }
    Ok(())
}
