//! `embed`: x = row of the embedding, one per token.

use super::{Pass, THREADS};
use crate::CudaDevice;
use crate::driver::{Argument, Launch};
use crate::error::CudaError;

pub(crate) fn launch(pass: &Pass<'_>) -> Result<(), CudaError> {
    let CudaDevice { gpu, kernels, weights, buffers, .. } = pass.device;
    // It comes after copies, not after a kernel, so it cannot start early.
    let launch = Launch {
        grid: (pass.counts.n_tokens, 1),
        threads: THREADS,
        early: false,
        cooperative: false,
    };
    let arguments: &[&dyn Argument] = &[&pass.step, &weights.embed.address(), &buffers.x.address()];
    kernels.embed.launch(gpu, launch, arguments)
}
