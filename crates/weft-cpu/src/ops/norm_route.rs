//! `norm_route`: n = rms_norm(x); routes = the experts with the largest logits n · W_router, and
//! their weights. Nothing but n is rounded.

use weft_core::routing::choose;

use super::rms_norms;
use crate::CpuDevice;
use crate::matmul::{TILE, multiply};
use crate::memory::Disjoint;
use crate::pack::BLOCK_ROWS;

/// Tokens that an item multiplies with a block: the block stays in the cache meanwhile.
const ITEM_TOKENS: usize = 8 * TILE;

pub(crate) fn run(device: &mut CpuDevice, layer: u16) {
    let CpuDevice { config, pool, isa, weights, buffers, lists, routing, .. } = device;
    let (isa, n_tokens) = (*isa, lists.tokens.len());
    let experts = config.experts_of(layer).expect("the plan routes in sparse layers");
    let layer = &weights.layers[usize::from(layer)];
    let from = (&buffers.x, layer.mlp_norm.as_slice(), config.norm_eps);
    rms_norms(pool, isa, from, &mut buffers.norm, n_tokens, |i| i);

    let (norm, router) = (buffers.norm.rows(), layer.mlp.sparse().0);
    let (count, chosen) = (experts.count, experts.chosen);
    let columns = config.hidden.next_multiple_of(2);
    let n_chunks = n_tokens.div_ceil(ITEM_TOKENS);
    let logits = Disjoint::new(&mut routing.logits);
    pool.for_each(count.div_ceil(BLOCK_ROWS) * n_chunks, |_, item| {
        let (block, chunk) = (item / n_chunks, item % n_chunks);
        let rows = BLOCK_ROWS.min(count - block * BLOCK_ROWS);
        let end = n_tokens.min((chunk + 1) * ITEM_TOKENS);
        let mut sums = [[0.0; BLOCK_ROWS]; TILE];
        for first in (chunk * ITEM_TOKENS..end).step_by(TILE) {
            let tile = TILE.min(end - first);
            multiply(isa, router.block(block), columns, norm, first, tile, &mut sums);
            for (t, sums) in sums[..tile].iter().enumerate() {
                let start = (first + t) * count + block * BLOCK_ROWS;
                // SAFETY: each item has its own columns in the rows of its tokens.
                unsafe { logits.part(start, rows) }.copy_from_slice(&sums[..rows]);
            }
        }
    });
    let (logits, routes) = (&routing.logits, Disjoint::new(&mut routing.routes));
    pool.for_each(n_tokens, |_, token| {
        // SAFETY: each item has its own routes.
        let routes = unsafe { routes.part(token * chosen, chosen) };
        choose(&logits[token * count..][..count], experts, routes);
    });
}
