//! Chooses the tokens of a step's outputs on the GPU. Not an op of the plan: it follows
//! `norm_head`.

use super::{Pass, THREADS};
use crate::CudaDevice;
use crate::driver::Argument;
use crate::error::CudaError;
use crate::sampling::{WEIGHT_BLOCKS, WIDE_BLOCKS, WIDE_THREADS, n_mask_words};
use crate::tables::FEW;

/// One block chooses for an output; a second publishes the token's shares of attention.
const BLOCKS_PER_OUTPUT: usize = 2;

/// Brings masks from the host, before the head is computed.
pub(crate) fn take_masks(pass: &Pass<'_>) -> Result<(), CudaError> {
    if !pass.chosen.needs().masks {
        return Ok(());
    }
    let CudaDevice { kernels, sampling, config, .. } = pass.device;
    let grid = (n_mask_words(config.vocab).div_ceil(THREADS), FEW);
    pass.launch(&kernels.take_masks, grid, THREADS, &[&pass.step, &sampling.addresses()])
}

pub(crate) fn launch(pass: &Pass<'_>) -> Result<(), CudaError> {
    let CudaDevice { kernels, buffers, sampling, .. } = pass.device;
    let (logits, shares) = (buffers.logits.address(), buffers.shares.address());
    let needs = pass.chosen.needs();
    let of_logits: &[&dyn Argument] = &[&pass.step, &logits, &sampling.addresses()];
    if needs.reports {
        pass.launch(&kernels.sum_weights, (WEIGHT_BLOCKS, FEW), THREADS, of_logits)?;
    }
    let arguments: &[&dyn Argument] = &[&pass.step, &logits, &shares, &sampling.addresses()];
    pass.launch(&kernels.choose, (FEW, BLOCKS_PER_OUTPUT), THREADS, arguments)?;
    if !needs.wide {
        return Ok(());
    }
    pass.launch(&kernels.choose_wide, (WIDE_BLOCKS, FEW), WIDE_THREADS, of_logits)
}
