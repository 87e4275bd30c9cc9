//! `expert_down_add`: x += Σ weight · (h · W_down) over a token's routes. Rounding: the sum, once.

use super::experts::ExpertInput;
use super::{Pass, THREADS};
use crate::CudaDevice;
use crate::driver::Argument;
use crate::error::CudaError;

/// `is_sorted` if `expert_gate_up` ran just before: it sorted the routes.
pub(crate) fn launch(pass: &Pass<'_>, layer: u16, is_sorted: bool) -> Result<(), CudaError> {
    let CudaDevice { weights, buffers, .. } = pass.device;
    let (own, kernels) = pass.experts();
    let at = usize::from(layer);
    let (matrix, product) = (weights.layers[at].down.address(), &kernels.down[own.down.of(at)]);
    let experts = buffers.experts();
    if let Some(groups) = pass.groups_of_eight() {
        return groups.iter().try_for_each(|group| {
            let (x, h) = (buffers.x.row(group.first), experts.h.row(group.first * pass.n_chosen()));
            let routes = pass.routes(group.first);
            let arguments: &[&dyn Argument] = &[&group.step, &matrix, &h, &routes, &x];
            pass.stream_experts(&product.eight, own.down.cut(at), arguments)
        });
    }
    if !is_sorted {
        pass.sort_experts(at)?;
    }
    let (routes, n_tokens) = (experts.routes_from(0), pass.counts.n_tokens);
    let placed = experts.placed.address();
    if !pass.places_products(at, is_sorted) {
        let (h, sorted) = (experts.h.address(), experts.sorted());
        let arguments: &[&dyn Argument] = &[&pass.step, &h, &routes, &sorted, &placed];
        let grid = ((n_tokens * pass.n_chosen()).div_ceil(8), 1);
        pass.launch(&kernels.place_rows, grid, THREADS, arguments)?;
    }
    let products = experts.products.address();
    pass.multiply_experts(&ExpertInput {
        kernels: &product.block,
        layer: at,
        matrix,
        rows: pass.device.config.hidden,
        from: placed,
        columns: experts.h.stride(),
        to: products,
        placed: None,
    })?;
    let arguments: &[&dyn Argument] = &[&pass.step, &routes, &products, &buffers.x.address()];
    pass.launch(&kernels.sum, (n_tokens, 1), THREADS, arguments)
}
