//! `rope_store`: per-head norm of q and k if the model has it, RoPE of k, k and v into KV.

use super::{Pass, THREADS};
use crate::CudaDevice;
use crate::driver::Argument;
use crate::error::CudaError;
use crate::tables::Family;

/// Heads of a warp that stores those of a block of tokens.
pub(crate) const STORED_HEADS: usize = 4;
/// Tokens of a block that stores values, and its threads.
pub(crate) const VALUE_TOKENS: usize = 32;
pub(crate) const VALUE_THREADS: usize = 128;

pub(crate) fn launch(pass: &Pass<'_>, layer: u16) -> Result<(), CudaError> {
    let CudaDevice { config, kernels, weights, buffers, kv, rope, .. } = pass.device;
    let weights = &weights.layers[usize::from(layer)];
    let heads = pass.counts.n_tokens * (config.heads + config.kv_heads);
    let (q_norm, k_norm) = (weights.q_norm.address(), weights.k_norm.address());
    let (rope, kv) = (rope.address(), kv.layer(layer));
    let (q, k, v) = (buffers.q.address(), buffers.k.address(), buffers.v.address());
    if pass.family == Family::Few {
        let arguments: &[&dyn Argument] = &[&pass.step, &q_norm, &k_norm, &rope, &q, &k, &v, &kv];
        return pass.launch(&kernels.rope_store, (heads.div_ceil(8), 1), THREADS, arguments);
    }
    let arguments: &[&dyn Argument] = &[&pass.step, &q_norm, &k_norm, &rope, &q, &k, &kv];
    let grid = (heads.div_ceil(8 * STORED_HEADS), 1);
    pass.launch(&kernels.rope_store_block, grid, THREADS, arguments)?;
    // The values of blocks of tokens have their own kernel.
    let grid = (pass.counts.n_tokens.div_ceil(VALUE_TOKENS), config.kv_heads);
    let arguments: &[&dyn Argument] = &[&pass.step, &v, &kv];
    pass.launch(&kernels.store_values, grid, VALUE_THREADS, arguments)
}
