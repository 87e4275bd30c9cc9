//! `norm_qkv`: n = rms_norm(x); q, k, v = n · W (+ bias), rounded once.

use super::{n_pairs, products, rms_norms};
use crate::CpuDevice;
use crate::matrix::Matrix;
use crate::memory::Disjoint;
use crate::vector;

pub(crate) fn run(device: &mut CpuDevice, layer: u16) {
    let CpuDevice { config, pool, isa, weights, buffers, lists, scratch, .. } = device;
    let (isa, n_tokens) = (*isa, lists.tokens.len());
    let layer = &weights.layers[usize::from(layer)];
    let from = (&buffers.x, layer.attention_norm.as_slice(), config.norm_eps);
    rms_norms(pool, isa, from, &mut buffers.norm, n_tokens, |i| i);

    if layer.qkv.iter().any(Matrix::needs_sums) {
        buffers.norm.sum_runs(pool, n_tokens);
    }
    let norm = buffers.norm.rows();
    let scratch = Disjoint::new(scratch);
    let strides = buffers.qkv.each_ref().map(|to| to.stride);
    let to = buffers.qkv.each_mut().map(|to| Disjoint::new(to.all_mut()));
    // The pairs of blocks of the three matrices, one after the other.
    let n_pairs = layer.qkv.each_ref().map(n_pairs);
    pool.for_each(n_pairs.iter().sum(), |thread, item| {
        let (mut which, mut pair) = (0, item);
        while pair >= n_pairs[which] {
            pair -= n_pairs[which];
            which += 1;
        }
        let bias = layer.bias.as_ref().map(|bias| &bias[which]);
        // SAFETY: each thread has its own scratch.
        let unpacked = unsafe { &mut scratch.part(thread, 1)[0].unpacked };
        let pair = (&layer.qkv[which], pair);
        products(isa, pair, norm, n_tokens, unpacked, |token, column, sums| {
            // SAFETY: each item has its own columns in every row of its buffer.
            let to = unsafe { to[which].part(token * strides[which] + column, sums.len()) };
            vector::store_sums(isa, sums, bias.map(|bias| &bias[column..]), to);
        });
    });
}
