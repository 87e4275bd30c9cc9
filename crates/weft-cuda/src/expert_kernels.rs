//! The loaded kernels of experts.

use crate::driver::Kernel;
use crate::error::CudaError;
use crate::experts::{ExpertCut, ROUTER_TOKENS};
use crate::kernels::BlockProduct;
use crate::matrices::{TileForms, Variants};
use crate::modules::Modules;
use crate::shape::{Shape, TILED_SHARED};

/// The product of experts' matrices, in one of their variants.
pub(crate) struct ExpertProduct {
    /// With up to eight tokens.
    pub(crate) eight: Kernel,
    /// With tokens that are sorted by expert.
    pub(crate) block: BlockProduct,
}

/// The kernels of a model that has experts.
pub(crate) struct ExpertKernels {
    pub(crate) norm_route: Kernel,
    pub(crate) norm_route_block: Kernel,
    pub(crate) choose: Kernel,
    pub(crate) count: Kernel,
    pub(crate) lay: Kernel,
    pub(crate) place_norms: Kernel,
    pub(crate) place_rows: Kernel,
    pub(crate) sum: Kernel,
    pub(crate) gate_up: Vec<ExpertProduct>,
    pub(crate) down: Vec<ExpertProduct>,
}

impl ExpertKernels {
    /// None if the model has no experts.
    pub(crate) fn of(modules: &Modules, shape: &Shape) -> Option<Self> {
        let own = shape.experts.as_ref()?;
        let products = |name: &str, variants: &Variants<ExpertCut>| {
            if own.on_host {
                return Vec::new();
            }
            let product = |(i, (forms, cut)): (usize, &(TileForms, ExpertCut))| {
                let suffix = Variants::<ExpertCut>::suffix(i);
                let module = modules.of(&format!("ops/{name}.cu"));
                ExpertProduct {
                    eight: module.kernel(&format!("{name}{suffix}"), cut.shared_bytes()),
                    block: block(modules, shape, name, &suffix, forms),
                }
            };
            variants.all.iter().enumerate().map(product).collect()
        };
        let routing = modules.of("ops/norm_route.cu");
        let sorting = |name: &str| modules.of("ops/sort_experts.cu").kernel(name, 0);
        let norm_route_block = match shape.is_tiled() {
            true => {
                let name = format!("norm_route_tiled_{ROUTER_TOKENS}");
                modules.of("ops/norm_route_tiled.cu").kernel(&name, TILED_SHARED)
            }
            false => routing.kernel("norm_route_block", shape.block_ring_bytes()),
        };
        Some(Self {
            norm_route_block,
            norm_route: routing.kernel("norm_route", own.router.ring_bytes()),
            choose: routing.kernel("choose_experts", 0),
            count: sorting("count_experts"),
            lay: sorting("lay_experts"),
            place_norms: sorting("place_norms"),
            place_rows: sorting("place_rows"),
            sum: sorting("sum_experts"),
            gate_up: products("expert_gate_up", &own.gate_up),
            down: products("expert_down_add", &own.down),
        })
    }

    /// Loads the kernels of a token.
    pub(crate) fn ready_for_tokens(&self) -> Result<(), CudaError> {
        let products = self.gate_up.iter().chain(&self.down).map(|product| &product.eight);
        products.chain([&self.norm_route]).try_for_each(Kernel::ready)
    }
}

/// The kernels that multiply a matrix with blocks of tokens.
pub(crate) fn block(
    modules: &Modules,
    shape: &Shape,
    name: &str,
    suffix: &str,
    forms: &TileForms,
) -> BlockProduct {
    if !shape.matrices.is_tiled(forms) {
        let module = modules.of(&format!("ops/{name}.cu"));
        let name = format!("{name}_block{suffix}");
        return BlockProduct::Warps(module.kernel(&name, shape.block_ring_bytes()));
    }
    let module = modules.of(&format!("ops/{name}_tiled.cu"));
    let tiled = |n: &usize| module.kernel(&format!("{name}_tiled_{n}{suffix}"), TILED_SHARED);
    let kernels = forms.tiled_tokens().iter().map(tiled).collect();
    BlockProduct::Warpgroups { kernels, summed_runs: forms.summed_runs() }
}
