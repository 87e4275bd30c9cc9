//! Chooses the tokens of a step's outputs on the GPU. Not an op of the plan: it follows
//! `norm_head`.

use super::{Pass, THREADS};
use crate::CudaDevice;
use crate::driver::Argument;
use crate::error::CudaError;
use crate::sampling::{Chosen, WIDE_BLOCKS, WIDE_THREADS};
use crate::tables::FEW;

/// One block chooses for an output; a second publishes the token's shares of attention.
const BLOCKS_PER_OUTPUT: usize = 2;

pub(crate) fn launch(pass: &Pass<'_>) -> Result<(), CudaError> {
    let CudaDevice { kernels, buffers, sampling, .. } = pass.device;
    let (logits, shares) = (buffers.logits.address(), buffers.shares.address());
    let arguments: &[&dyn Argument] = &[&pass.step, &logits, &shares, &sampling.addresses()];
    pass.launch(&kernels.choose, (FEW, BLOCKS_PER_OUTPUT), THREADS, arguments)?;
    if pass.chosen != Chosen::AmongAll {
        return Ok(());
    }
    let arguments: &[&dyn Argument] = &[&pass.step, &logits, &sampling.addresses()];
    pass.launch(&kernels.choose_wide, (WIDE_BLOCKS, FEW), WIDE_THREADS, arguments)
}
