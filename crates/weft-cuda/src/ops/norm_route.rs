//! `norm_route`: n = rms_norm(x); routes = the experts with the largest logits n · W_router.

use super::{Pass, RING_THREADS, THREADS};
use crate::CudaDevice;
use crate::driver::{Argument, Launch};
use crate::error::CudaError;
use crate::shape::WARPS;
use crate::tables::FEW;

/// In a graph of few tokens, the kernels of experts choose for themselves.
pub(crate) fn launch(pass: &Pass<'_>, layer: u16) -> Result<(), CudaError> {
    let CudaDevice { gpu, weights, buffers, .. } = pass.device;
    let (own, kernels) = pass.experts();
    let (weights, experts) = (&weights.layers[usize::from(layer)], buffers.experts());
    let logits = experts.logits.address();
    // Eight tokens in each row of the grid.
    let grid = (own.router.blocks, pass.counts.n_tokens.div_ceil(FEW));
    let arguments: &[&dyn Argument] = &[
        &pass.step,
        &weights.router.address(),
        &weights.mlp_norm.address(),
        &buffers.x.address(),
        &logits,
    ];
    let launch = Launch { grid, threads: RING_THREADS, early: pass.joined, cooperative: false };
    kernels.norm_route.launch(gpu, launch, arguments)?;
    if pass.experts_choose() {
        return Ok(());
    }
    let grid = (pass.counts.n_tokens.div_ceil(WARPS), 1);
    pass.launch(&kernels.choose, grid, THREADS, &[&pass.step, &logits, &experts.routes_from(0)])
}
