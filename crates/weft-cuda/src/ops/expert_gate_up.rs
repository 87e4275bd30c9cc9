//! `expert_gate_up`: n = rms_norm(x); h = silu(n · W_gate) · (n · W_up) of each route's expert.

use super::experts::ExpertInput;
use super::{Pass, THREADS};
use crate::CudaDevice;
use crate::driver::{Address, Argument};
use crate::error::CudaError;
use crate::shape::TILE_ROWS;

/// If `expert_down_add` follows, h need not be in the order of routes.
pub(crate) fn launch(pass: &Pass<'_>, layer: u16, is_followed: bool) -> Result<(), CudaError> {
    let CudaDevice { weights, buffers, .. } = pass.device;
    let (own, kernels) = pass.experts();
    let at = usize::from(layer);
    let (weights, product) = (&weights.layers[at], &kernels.gate_up[own.gate_up.of(at)]);
    let (matrix, norm) = (weights.gate_up.address(), weights.mlp_norm.address());
    let experts = buffers.experts();
    if let Some(groups) = pass.groups_of_eight() {
        return groups.iter().try_for_each(|group| {
            let (x, h) = (buffers.x.row(group.first), experts.h.row(group.first * pass.n_chosen()));
            let routes = pass.routes(group.first);
            let arguments: &[&dyn Argument] = &[&group.step, &matrix, &norm, &x, &routes, &h];
            pass.stream_experts(&product.eight, own.gate_up.cut(at), arguments)
        });
    }
    pass.sort_experts(at)?;
    let arguments: &[&dyn Argument] = &[
        &pass.step,
        &norm,
        &buffers.x.address(),
        &experts.routes_from(0),
        &experts.sorted(),
        &experts.norms.address(),
    ];
    let grid = (pass.counts.n_tokens.div_ceil(8), 1);
    pass.launch(&kernels.place_norms, grid, THREADS, arguments)?;
    let is_placed = pass.places_products(at, is_followed);
    let placed = if is_placed { experts.placed.address() } else { Address::NULL };
    pass.multiply_experts(&ExpertInput {
        kernels: &product.block,
        layer: at,
        matrix,
        rows: 2 * own.experts.intermediate.next_multiple_of(TILE_ROWS),
        from: experts.norms.address(),
        columns: buffers.x.stride(),
        to: experts.h.address(),
        placed: Some(placed),
    })
}
