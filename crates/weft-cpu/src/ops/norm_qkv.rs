//! `norm_qkv`: n = rms_norm(x); q, k, v = n · W (+ bias), rounded once.

use super::{products, rms_norms};
use crate::CpuDevice;
use crate::memory::Disjoint;
use crate::pack::{BLOCK_ROWS, Packed};
use crate::vector;

pub(crate) fn run(device: &mut CpuDevice, layer: u16) {
    let CpuDevice { config, pool, isa, weights, buffers, lists, .. } = device;
    let (isa, n_tokens) = (*isa, lists.tokens.len());
    let layer = &weights.layers[usize::from(layer)];
    let from = (&buffers.x, layer.attention_norm.as_slice(), config.norm_eps);
    rms_norms(pool, isa, from, &mut buffers.norm, n_tokens, |i| i);

    let norm = buffers.norm.rows();
    let strides = buffers.qkv.each_ref().map(|to| to.stride);
    let to = buffers.qkv.each_mut().map(|to| Disjoint::new(to.all_mut()));
    // The blocks of the three matrices, one after the other.
    let n_blocks = layer.qkv.each_ref().map(Packed::n_blocks);
    pool.for_each(n_blocks.iter().sum(), |_, item| {
        let (mut which, mut block) = (0, item);
        while block >= n_blocks[which] {
            block -= n_blocks[which];
            which += 1;
        }
        let bias = layer.bias.as_ref().map(|bias| &bias[which][block * BLOCK_ROWS..]);
        products(isa, &layer.qkv[which], block, norm, n_tokens, |token, sums| {
            let start = token * strides[which] + block * BLOCK_ROWS;
            // SAFETY: each item has columns of its own in every row of its buffer.
            let to = unsafe { to[which].part(start, sums.len()) };
            vector::store_sums(isa, sums, bias, to);
        });
    });
}
