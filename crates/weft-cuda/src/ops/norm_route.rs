//! `norm_route`: n = rms_norm(x); routes = the experts with the largest logits n · W_router.

use super::{BLOCK_THREADS, Pass, RING_THREADS, THREADS};
use crate::CudaDevice;
use crate::driver::{Address, Argument, Launch};
use crate::error::CudaError;
use crate::shape::{BLOCK_ROWS, BLOCK_TOKENS, TILED_THREADS, WARPS};
use crate::tables::{FEW, SEVERAL};

/// In a graph of few tokens, the kernels of experts choose for themselves.
pub(crate) fn launch(pass: &Pass<'_>, layer: u16) -> Result<(), CudaError> {
    let CudaDevice { gpu, weights, buffers, .. } = pass.device;
    let (own, kernels) = pass.experts();
    let (weights, experts) = (&weights.layers[usize::from(layer)], buffers.experts());
    let (matrix, norm) = (weights.router.address(), weights.mlp_norm.address());
    let (logits, n_tokens) = (experts.logits.address(), pass.counts.n_tokens);
    if n_tokens > SEVERAL {
        pass.norm_rows(norm)?;
        multiply_blocks(pass, matrix, logits)?;
    } else {
        // Eight tokens in each row of the grid.
        let grid = (own.router.blocks, n_tokens.div_ceil(FEW));
        let x = buffers.x.address();
        let launch = Launch { grid, threads: RING_THREADS, early: pass.joined, cooperative: false };
        kernels.norm_route.launch(gpu, launch, &[&pass.step, &matrix, &norm, &x, &logits])?;
    }
    if pass.experts_choose() {
        return Ok(());
    }
    let grid = (n_tokens.div_ceil(WARPS), 1);
    pass.launch(&kernels.choose, grid, THREADS, &[&pass.step, &logits, &experts.routes_from(0)])
}

fn multiply_blocks(pass: &Pass<'_>, matrix: Address, logits: Address) -> Result<(), CudaError> {
    let CudaDevice { buffers, shape, .. } = pass.device;
    let (own, kernels) = pass.experts();
    let from = buffers.norm.for_block();
    let (grid, threads) = match shape.is_tiled() {
        true => ((2 * shape.tiled_clusters(), 1), TILED_THREADS),
        false => {
            let n_blocks = pass.counts.n_tokens.div_ceil(BLOCK_TOKENS);
            ((own.experts.count.div_ceil(BLOCK_ROWS), n_blocks), BLOCK_THREADS)
        }
    };
    let arguments: &[&dyn Argument] = &[&pass.step, &matrix, &from, &logits];
    pass.launch(&kernels.norm_route_block, grid, threads, arguments)
}
