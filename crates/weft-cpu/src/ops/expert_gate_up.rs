//! `expert_gate_up`: n = rms_norm(x); for each route, h = silu(n · W_gate) · (n · W_up) of its
//! expert, rounded once. Each chosen expert is read once, for all tokens that chose it.

use super::{ExpertStep, rms_norms, tiles};
use crate::memory::Disjoint;
use crate::pack::BLOCK_ROWS;
use crate::vector;

pub(crate) fn run(step: ExpertStep<'_>) {
    let ExpertStep { pool, isa, n_tokens, mlp_norm, experts, x, norm, h, .. } = step;
    let ExpertStep { norm_eps, routing, scratch, .. } = step;
    let gate_up = &experts.gate_up;
    rms_norms(pool, isa, (x, mlp_norm, norm_eps), norm, n_tokens, |i| i);
    if gate_up.needs_sums() {
        norm.sum_runs(pool, n_tokens);
    }

    routing.sort(n_tokens);
    let routing = &*routing;
    let (norm, h_stride, n_blocks) = (&*norm, h.stride, gate_up.n_blocks());
    let (h, scratch) = (Disjoint::new(h.all_mut()), Disjoint::new(scratch));
    pool.for_each(routing.groups.len() * n_blocks, |thread, item| {
        let (group, block) = (&routing.groups[item / n_blocks], item % n_blocks);
        // SAFETY: each thread has its own scratch.
        let unpacked = unsafe { &mut scratch.part(thread, 1)[0].unpacked };
        let rows = gate_up.rows_in(block);
        let blocks = gate_up.blocks(group.expert * n_blocks + block);
        let (tokens, routes) = (routing.tokens(group), routing.routes_of(group));
        tiles(
            isa,
            blocks,
            norm.rows_of(tokens),
            tokens.len(),
            unpacked,
            |first, tile, [gate, up]| {
                for (t, route) in routes[first..][..tile].iter().enumerate() {
                    let start = *route as usize * h_stride + block * BLOCK_ROWS;
                    // SAFETY: each item has its own columns in the rows of its routes.
                    let h = unsafe { h.part(start, rows) };
                    vector::silu_product(isa, &gate[t], &up[t], h);
                }
            },
        );
    });
}
