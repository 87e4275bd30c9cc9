//! Experts without the rest of a model: they lie in main memory and are computed here, by the ops
//! of the CPU device, for a device that has no room for them. This module knows nothing about that
//! device.

use half::bf16;
use weft_core::config::Config;
use weft_core::device::{HostExperts, Limits, Need};
use weft_core::dtype::Dtype;
use weft_core::routing::Route;
use weft_core::weights::{Forms, LayerTensor, Tensor, Weights, WeightsError, tensors};

use crate::Options;
use crate::buffers::Activations;
use crate::isa::Isa;
use crate::ops::{self, ExpertStep};
use crate::pool::Pool;
use crate::routing::Routing;
use crate::scratch::Scratch;
use crate::weights::ExpertLayer;

/// The main memory that the experts of a model need, for steps of so many tokens and so many
/// threads.
pub fn need_of_experts(config: &Config, forms: &Forms, step_tokens: usize, threads: usize) -> Need {
    use LayerTensor as T;
    let is_here = |tensor| {
        let experts = [T::ExpertGate, T::ExpertUp, T::ExpertDown];
        matches!(tensor, Tensor::Layer(_, kind) if experts.contains(&kind))
    };
    let weights = tensors(config).into_iter().filter(|of| is_here(of.tensor));
    let routed = config.experts.as_ref().map_or(0, |e| e.chosen * e.intermediate);
    let routes = config.experts.as_ref().map_or(0, |e| e.chosen * size_of::<Route>());
    let row = 2 * config.hidden + routed;
    let shared = (step_tokens * (row * size_of::<bf16>() + routes)) as u64;
    let scratch = Scratch::bytes(config, &limits_of(step_tokens), 0, !forms.all_plain());
    Need {
        weights: weights.map(|of| forms.bytes(&of, Dtype::Bf16)).sum(),
        kv: 0,
        scratch: shared + threads as u64 * scratch,
    }
}

/// The limits of steps that only compute experts.
fn limits_of(step_tokens: usize) -> Limits {
    Limits { step_tokens, step_outputs: 0, positions: 0, pages: 0 }
}

/// The experts of all sparse layers, and the memory of a step.
pub struct CpuExperts {
    layers: Vec<Option<ExpertLayer>>,
    hidden: usize,
    norm_eps: f32,
    isa: Isa,
    pool: Pool,
    x: Activations,
    norm: Activations,
    h: Activations,
    routing: Routing,
    /// One for each thread.
    scratch: Vec<Scratch>,
}

impl CpuExperts {
    /// Reads and packs the experts of a model, and allocates all memory that steps of
    /// `options.limits.step_tokens` tokens need. The other limits do not matter.
    ///
    /// # Panics
    /// If the model has no experts, if the machine does not support the instruction set, or if
    /// `threads` is 0.
    pub fn new(
        config: &Config,
        weights: &dyn Weights,
        options: Options,
    ) -> Result<Self, WeightsError> {
        options.check();
        let Options { limits, threads, isa } = options;
        let experts = config.experts.as_ref().expect("a model with experts");
        let tokens = limits.step_tokens;
        let limits = limits_of(tokens);
        let coded = !Forms::of(weights, config).all_plain();
        Ok(Self {
            layers: ExpertLayer::read_all(config, weights, threads)?,
            hidden: config.hidden,
            norm_eps: config.norm_eps,
            isa,
            pool: Pool::new(threads),
            x: Activations::new(tokens, config.hidden),
            norm: Activations::new(tokens, config.hidden),
            h: Activations::new(tokens * experts.chosen, experts.intermediate),
            routing: Routing::new(config, &limits),
            scratch: (0..threads).map(|_| Scratch::new(config, &limits, 0, coded)).collect(),
        })
    }

    fn step(&mut self, layer: u16, n_tokens: usize) -> ExpertStep<'_> {
        let Self { layers, norm_eps, isa, pool, x, norm, h, routing, scratch, .. } = self;
        let layer = layers[usize::from(layer)].as_ref().expect("a layer with experts");
        ExpertStep {
            pool,
            isa: *isa,
            n_tokens,
            mlp_norm: &layer.mlp_norm,
            norm_eps: *norm_eps,
            experts: &layer.experts,
            x,
            norm,
            h,
            routing,
            scratch,
        }
    }
}

impl HostExperts for CpuExperts {
    fn describe(&self) -> String {
        format!("CPU ({}, {} threads)", self.isa, self.pool.n_threads())
    }

    fn family(&self) -> String {
        format!("CPU ({}, bf16)", self.isa)
    }

    fn add(&mut self, layer: u16, x: &mut [bf16], stride: usize, routes: &[Route]) {
        let n_tokens = x.len() / stride;
        assert_eq!(routes.len(), n_tokens * self.routing.chosen, "routes of {n_tokens} tokens");
        self.routing.routes[..routes.len()].copy_from_slice(routes);
        let (hidden, own) = (self.hidden, self.x.stride);
        let rows = self.x.all_mut().chunks_exact_mut(own).zip(x.chunks_exact(stride));
        rows.for_each(|(to, from)| to[..hidden].copy_from_slice(&from[..hidden]));
        ops::expert_gate_up::run(self.step(layer, n_tokens));
        ops::expert_down_add::run(self.step(layer, n_tokens));
        for (token, to) in x.chunks_exact_mut(stride).enumerate() {
            to[..hidden].copy_from_slice(self.x.row(token));
        }
    }
}
