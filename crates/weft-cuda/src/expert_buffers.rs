//! The buffers of experts: routes, what the chosen experts compute, and what prompts sort by expert.

use std::sync::Arc;

use weft_core::config::{Config, Experts};
use weft_core::device::Limits;
use weft_core::routing::{self, Route};

use crate::buffers::Activations;
use crate::driver::{Address, Argument, Gpu, Memory};
use crate::error::CudaError;
use crate::experts::{most_positions, most_tiles};
use crate::layouts::{Layout, layout};
use crate::shape::{SQUARE, Shape, padded};
use crate::tables::FEW;

/// A route as kernels store it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct StoredRoute {
    expert: u32,
    weight: f32,
}

/// Bytes of a route.
pub(crate) const ROUTE_BYTES: usize = size_of::<StoredRoute>();

/// Where kernels find the routes of tokens: in the router's logits if there are any, otherwise
/// where another kernel stored them.
#[repr(C)]
pub(crate) struct RouteSource {
    pub(crate) logits: Address,
    pub(crate) routes: Address,
}

// SAFETY: `repr(C)`, with the fields of the kernels' `RouteSource`.
unsafe impl Argument for RouteSource {}

/// Some positions of one expert.
#[repr(C)]
struct ExpertTile {
    expert: u32,
    first: u32,
    end: u32,
    unused: u32,
}

/// The lists of routes sorted by expert.
#[repr(C)]
pub(crate) struct Sorted {
    counts: Address,
    slots: Address,
    starts: Address,
    sources: Address,
    totals: Address,
    tiles: Address,
}

// SAFETY: `repr(C)`, with the fields of the kernels' `Sorted`.
unsafe impl Argument for Sorted {}

/// Structs that kernels must lay out as here.
pub(crate) fn layouts() -> [Layout; 4] {
    [
        layout!(StoredRoute as "Route" { expert, weight }),
        layout!(RouteSource as "RouteSource" { logits, routes }),
        layout!(ExpertTile as "ExpertTile" { expert, first, end, unused }),
        layout!(Sorted as "Sorted" { counts, slots, starts, sources, totals, tiles }),
    ]
}

/// Bytes of each buffer.
struct Sizes {
    logits: usize,
    routes: usize,
    /// Rows of `h`, one for each route.
    n_routes: usize,
    norms: usize,
    placed: usize,
    products: usize,
    slots: usize,
    sources: usize,
    tiles: usize,
    of_experts: usize,
}

/// Words of `totals`, as many as a step has counts.
const TOTALS_BYTES: usize = 32;

impl Sizes {
    fn new(config: &Config, experts: &Experts, limits: &Limits) -> Self {
        let tokens = limits.step_tokens.max(FEW);
        let (n_routes, positions) = (tokens * experts.chosen, most_positions(experts, tokens));
        let (hidden, width) = (padded(config.hidden), padded(experts.intermediate));
        Self {
            logits: tokens * experts.count * size_of::<f32>(),
            routes: n_routes * size_of::<StoredRoute>(),
            n_routes,
            norms: positions * hidden * 2,
            placed: positions * width * 2,
            products: n_routes * hidden * size_of::<f32>(),
            slots: n_routes * 4,
            sources: positions * 4,
            tiles: most_tiles(experts, tokens, SQUARE) * size_of::<ExpertTile>(),
            of_experts: experts.count * 4,
        }
    }

    /// Without what products need: only the choice is made here.
    fn of_choice(self) -> Self {
        let Self { logits, routes, .. } = self;
        let (n_routes, norms, placed, products, slots) = (0, 0, 0, 0, 0);
        let (sources, tiles, of_experts) = (0, 0, 0);
        Self {
            logits,
            routes,
            n_routes,
            norms,
            placed,
            products,
            slots,
            sources,
            tiles,
            of_experts,
        }
    }
}

/// Bytes that the buffers of a model's experts take, but for the sums of runs. If the experts are
/// on the host, only their choice is here.
pub(crate) fn bytes(config: &Config, limits: &Limits, on_host: bool) -> usize {
    let Some(experts) = &config.experts else { return 0 };
    let sizes = Sizes::new(config, experts, limits);
    let sizes = if on_host { sizes.of_choice() } else { sizes };
    let Sizes { logits, routes, n_routes, norms, placed, products, slots, sources, tiles, .. } =
        sizes;
    let h = Activations::bytes(n_routes, padded(experts.intermediate));
    let lists = slots + sources + tiles + 2 * sizes.of_experts + TOTALS_BYTES;
    logits + routes + h + norms + placed + products + lists
}

/// Bytes of the sums of experts' input over runs, if warpgroups multiply forms with offsets.
pub(crate) fn run_sums_bytes(shape: &Shape, config: &Config, tokens: usize) -> usize {
    let Some(own) = shape.experts.as_ref().filter(|own| !own.on_host) else { return 0 };
    let after_norms = shape.matrices.row_sums_bytes(&own.gate_up, config.hidden);
    let others = shape.matrices.row_sums_bytes(&own.down, own.experts.intermediate);
    most_positions(&own.experts, tokens.max(FEW)) * after_norms.max(others)
}

/// The buffers.
pub(crate) struct ExpertBuffers {
    /// The router's, f32 \[tokens\]\[experts\]
    pub(crate) logits: Memory,
    /// \[tokens\]\[chosen\]
    routes: Memory,
    /// \[tokens\]\[chosen\] rows
    pub(crate) h: Activations,
    /// bf16 \[positions\]\[hidden, padded\]: normalised rows of x, sorted by expert.
    pub(crate) norms: Memory,
    /// bf16 \[positions\]\[expert intermediate, padded\]: rows of h, sorted by expert.
    pub(crate) placed: Memory,
    /// f32 \[tokens\]\[chosen\]\[hidden, padded\]
    pub(crate) products: Memory,
    counts: Memory,
    slots: Memory,
    starts: Memory,
    sources: Memory,
    totals: Memory,
    tiles: Memory,
    n_tokens: usize,
    n_chosen: usize,
}

impl ExpertBuffers {
    /// None if the model has no experts.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        config: &Config,
        shape: &Shape,
        limits: &Limits,
    ) -> Result<Option<Self>, CudaError> {
        let Some(experts) = &config.experts else { return Ok(None) };
        let sizes = Sizes::new(config, experts, limits);
        let on_host = shape.experts.as_ref().is_some_and(|own| own.on_host);
        let sizes = if on_host { sizes.of_choice() } else { sizes };
        let scratch = |bytes: usize| Memory::new(gpu, "the lists of experts", bytes);
        let width = experts.intermediate;
        Ok(Some(Self {
            logits: scratch(sizes.logits)?,
            routes: scratch(sizes.routes)?,
            h: Activations::new(gpu, sizes.n_routes, width, padded(width))?,
            norms: scratch(sizes.norms)?,
            placed: scratch(sizes.placed)?,
            products: scratch(sizes.products)?,
            counts: scratch(sizes.of_experts)?,
            slots: scratch(sizes.slots)?,
            starts: scratch(sizes.of_experts)?,
            sources: scratch(sizes.sources)?,
            totals: scratch(TOTALS_BYTES)?,
            tiles: scratch(sizes.tiles)?,
            n_tokens: limits.step_tokens,
            n_chosen: experts.chosen,
        }))
    }

    /// All routes, as kernels store them.
    pub(crate) fn stored_routes(&self) -> &Memory {
        &self.routes
    }

    /// Where the routes of tokens from one on are.
    pub(crate) fn routes_from(&self, token: usize) -> Address {
        self.routes.address().offset(token * self.n_chosen * size_of::<StoredRoute>())
    }

    pub(crate) fn sorted(&self) -> Sorted {
        Sorted {
            counts: self.counts.address(),
            slots: self.slots.address(),
            starts: self.starts.address(),
            sources: self.sources.address(),
            totals: self.totals.address(),
            tiles: self.tiles.address(),
        }
    }

    /// The number of positions, where kernels of rows look for that of tokens.
    pub(crate) fn totals(&self) -> Address {
        self.totals.address()
    }

    /// The routes of all tokens, as [`routing::to_numbers`] shows them.
    pub(crate) fn read_routes(&self) -> Result<Vec<f32>, CudaError> {
        let mut stored = vec![StoredRoute::default(); self.n_tokens * self.n_chosen];
        self.routes.read(0, &mut stored)?;
        let route = |of: &StoredRoute| Route { expert: of.expert, weight: of.weight };
        let routes: Vec<Route> = stored.iter().map(route).collect();
        Ok(routing::to_numbers(&routes, self.n_chosen))
    }

    /// Stores routes that were read.
    pub(crate) fn write_routes(&self, numbers: &[f32]) -> Result<(), CudaError> {
        let mut routes = vec![Route::default(); self.n_tokens * self.n_chosen];
        routing::from_numbers(numbers, self.n_chosen, &mut routes);
        let stored = |of: &Route| StoredRoute { expert: of.expert, weight: of.weight };
        self.routes.write(0, &routes.iter().map(stored).collect::<Vec<_>>())
    }
}
