//! `rope_store`: per-head norm of q and k where the model has it, RoPE of k, k and v into KV.

use super::{Pass, THREADS};
use crate::CudaDevice;
use crate::driver::Argument;
use crate::error::CudaError;

pub(crate) fn launch(pass: &Pass<'_>, layer: u16) -> Result<(), CudaError> {
    let CudaDevice { config, kernels, weights, buffers, kv, rope, .. } = pass.device;
    let weights = &weights.layers[usize::from(layer)];
    let heads = pass.counts.n_tokens * (config.heads + config.kv_heads);
    let arguments: &[&dyn Argument] = &[
        &pass.step,
        &weights.q_norm.address(),
        &weights.k_norm.address(),
        &rope.address(),
        &buffers.q.address(),
        &buffers.k.address(),
        &buffers.v.address(),
        &kv.layer(layer),
    ];
    pass.launch(&kernels.rope_store, (heads.div_ceil(8), 1), THREADS, arguments)
}
