//! `expert_down_add`: x += Σ weight · (h · W_down) over the routes of a token, in the order of
//! experts, rounded once. An item has some columns of x and goes through all chosen experts, so
//! each sum has one order, whichever other tokens chose an expert.

use super::{ExpertStep, tiles};
use crate::memory::Disjoint;
use crate::pack::BLOCK_ROWS;
use crate::scratch::Scratch;
use crate::vector;

pub(crate) fn run(step: ExpertStep<'_>) {
    let ExpertStep { pool, isa, n_tokens, experts, x, h, routing, scratch, .. } = step;
    let down = &experts.down;
    routing.sort(n_tokens);
    let routing = &*routing;
    if down.needs_sums() {
        h.sum_runs(pool, n_tokens * routing.chosen);
    }

    let (h, stride, hidden) = (&*h, x.stride, x.width);
    let n_blocks = hidden.div_ceil(BLOCK_ROWS);
    let (x, scratch) = (Disjoint::new(x.all_mut()), Disjoint::new(scratch));
    pool.for_each(n_blocks.div_ceil(2), |thread, pair| {
        // SAFETY: each thread has its own scratch.
        let Scratch { unpacked, weighted, .. } = unsafe { &mut scratch.part(thread, 1)[0] };
        let weighted = &mut weighted[..n_tokens];
        weighted.fill([0.0; 2 * BLOCK_ROWS]);
        let blocks = [2 * pair, (2 * pair + 1).min(n_blocks - 1)];
        for group in &routing.groups {
            let blocks = blocks.map(|block| down.block(group.expert * n_blocks + block));
            let routes = routing.routes_of(group);
            tiles(isa, blocks, h.rows_of(routes), routes.len(), unpacked, |first, tile, sums| {
                for (t, route) in routes[first..][..tile].iter().enumerate() {
                    let token = *route as usize / routing.chosen;
                    let weight = routing.routes[*route as usize].weight;
                    for (to, sums) in weighted[token].chunks_exact_mut(BLOCK_ROWS).zip(sums) {
                        vector::add_weighted(isa, weight, &sums[t], to);
                    }
                }
            });
        }
        let columns = (hidden - pair * 2 * BLOCK_ROWS).min(2 * BLOCK_ROWS);
        for (token, sums) in weighted.iter().enumerate() {
            // SAFETY: each item has its own columns in every row.
            let x = unsafe { x.part(token * stride + pair * 2 * BLOCK_ROWS, columns) };
            vector::add_sums(isa, &sums[..columns], x);
        }
    });
}
