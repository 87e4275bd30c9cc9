//! `rope_store`: per-head norm of q and k if the model has it, RoPE of k, k and v into KV.

use super::{Pass, THREADS};
use crate::CudaDevice;
use crate::driver::Argument;
use crate::error::CudaError;
use crate::tables::Family;

/// Tokens of a block that stores values, and its threads.
pub(crate) const VALUE_TOKENS: usize = 32;
pub(crate) const VALUE_THREADS: usize = 128;

pub(crate) fn launch(pass: &Pass<'_>, layer: u16) -> Result<(), CudaError> {
    let CudaDevice { config, kernels, weights, buffers, kv, rope, .. } = pass.device;
    let weights = &weights.layers[usize::from(layer)];
    let heads = pass.counts.n_tokens * (config.heads + config.kv_heads);
    // The values of blocks of tokens have their own kernel.
    let with_values = pass.family == Family::Few;
    let arguments: &[&dyn Argument] = &[
        &pass.step,
        &u32::from(with_values),
        &weights.q_norm.address(),
        &weights.k_norm.address(),
        &rope.address(),
        &buffers.q.address(),
        &buffers.k.address(),
        &buffers.v.address(),
        &kv.layer(layer),
    ];
    pass.launch(&kernels.rope_store, (heads.div_ceil(8), 1), THREADS, arguments)?;
    if with_values {
        return Ok(());
    }
    let grid = (pass.counts.n_tokens.div_ceil(VALUE_TOKENS), config.kv_heads);
    let arguments: &[&dyn Argument] = &[&pass.step, &buffers.v.address(), &kv.layer(layer)];
    pass.launch(&kernels.store_values, grid, VALUE_THREADS, arguments)
}
