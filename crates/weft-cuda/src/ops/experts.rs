//! What the ops of experts share: where routes come from, products with a few tokens, and products
//! with tokens that are sorted by expert. The choice of experts never leaves the GPU: grids have
//! room for the most tiles that there can be.

use super::{BLOCK_THREADS, Group, Pass, THREADS};
use crate::driver::{Address, Argument, Kernel, Launch};
use crate::error::CudaError;
use crate::expert_buffers::RouteSource;
use crate::expert_kernels::ExpertKernels;
use crate::experts::{ExpertCut, ExpertShape, MAX_EXPERTS, most_positions, most_tiles};
use crate::kernels::BlockProduct;
use crate::shape::{BLOCK_ROWS, BLOCK_TOKENS, SQUARE, TILED_THREADS, TILED_TOKENS, WARPS};
use crate::tables::{FEW, Family, SEVERAL};
use crate::units::COLUMNS as UNIT_COLUMNS;

/// What a tile costs beside its products, in tokens.
const TILE_COST: usize = 32;

/// A product of experts' matrices with sorted tokens.
pub(super) struct ExpertInput<'a> {
    pub(super) kernels: &'a BlockProduct,
    pub(super) layer: usize,
    pub(super) matrix: Address,
    /// Of one expert's matrix.
    pub(super) rows: usize,
    pub(super) from: Address,
    /// Columns of the input, padded.
    pub(super) columns: usize,
    /// Rows of routes.
    pub(super) to: Address,
    /// Where warpgroups store rows by position instead; only `expert_gate_up` does.
    pub(super) placed: Option<Address>,
}

impl Pass<'_> {
    /// The experts and their kernels, for ops that only models with experts have.
    pub(super) fn experts(&self) -> (&ExpertShape, &ExpertKernels) {
        let (shape, kernels) = (&self.device.shape.experts, &self.device.kernels.experts);
        shape.as_ref().zip(kernels.as_ref()).expect("the plan is that of a model with experts")
    }

    /// Experts of a token.
    pub(super) fn n_chosen(&self) -> usize {
        self.experts().0.experts.chosen
    }

    /// Whether kernels of experts choose by the router's logits: in a graph of few tokens, where
    /// another launch would take longer.
    pub(super) fn experts_choose(&self) -> bool {
        self.joined && self.family == Family::Few
    }

    /// The routes of tokens from one on.
    pub(super) fn routes(&self, first: usize) -> RouteSource {
        let experts = self.device.buffers.experts();
        let logits = experts.logits.address();
        let logits = if self.experts_choose() { logits } else { Address::NULL };
        RouteSource { logits, routes: experts.routes_from(first) }
    }

    /// The tokens in groups of up to eight; none if there are so many that they are sorted by
    /// expert.
    pub(super) fn groups_of_eight(&self) -> Option<Vec<Group>> {
        let n = self.counts.n_tokens;
        let group = |first: usize| {
            let len = FEW.min(n - first);
            let step = self.step.with_counts(self.device.group_counts.of(len));
            Group { first, len, step }
        };
        match self.family {
            Family::Few => Some(vec![Group { first: 0, len: n, step: self.step }]),
            Family::Many => (n <= SEVERAL).then(|| (0..n).step_by(FEW).map(group).collect()),
        }
    }

    /// Streams the experts that a group's tokens use past them.
    pub(super) fn stream_experts(
        &self,
        kernel: &Kernel,
        cut: &ExpertCut,
        arguments: &[&dyn Argument],
    ) -> Result<(), CudaError> {
        let grid = (cut.blocks, 1);
        let threads = (cut.warps + 1) * 32;
        let launch = Launch { grid, threads, early: self.joined, cooperative: false };
        kernel.launch(&self.device.gpu, launch, arguments)
    }

    /// Whether the products of `expert_gate_up` are stored where `expert_down_add` reads them: if it
    /// comes next, and if warpgroups multiply.
    pub(super) fn places_products(&self, layer: usize, is_followed: bool) -> bool {
        let (own, kernels) = self.experts();
        let block = &kernels.gate_up[own.gate_up.of(layer)].block;
        is_followed && matches!(block, BlockProduct::Warpgroups { .. })
    }

    /// Sorts the routes of all tokens by expert.
    pub(super) fn sort_experts(&self, layer: usize) -> Result<(), CudaError> {
        let (_, kernels) = self.experts();
        let experts = self.device.buffers.experts();
        let grid = ((self.counts.n_tokens * self.n_chosen()).div_ceil(THREADS), 1);
        let (routes, sorted) = (experts.routes_from(0), experts.sorted());
        self.launch(&kernels.count, grid, THREADS, &[&self.step, &routes, &sorted])?;
        let width = TILED_TOKENS[self.tile_width(layer)] as u32;
        self.launch(&kernels.lay, (1, 1), MAX_EXPERTS, &[&sorted, &width])
    }

    /// Which of [`TILED_TOKENS`] both products of a layer's experts have in a tile. How tokens
    /// spread over experts is not known here, only how many an expert has on average: its last tile
    /// is half full.
    fn tile_width(&self, layer: usize) -> usize {
        let (own, kernels) = self.experts();
        let blocks = [
            &kernels.gate_up[own.gate_up.of(layer)].block,
            &kernels.down[own.down.of(layer)].block,
        ];
        let n_widths = |block: &BlockProduct| match block {
            BlockProduct::Warps(_) => None,
            BlockProduct::Warpgroups { kernels, .. } => Some(kernels.len()),
        };
        let [Some(gate_up), Some(down)] = blocks.map(n_widths) else {
            let of_warps = TILED_TOKENS.iter().position(|width| *width == BLOCK_TOKENS);
            return of_warps.expect("blocks of tokens are one of the widths");
        };
        let routes = self.counts.n_tokens * own.experts.chosen;
        let each = routes.div_ceil(own.experts.count);
        let cost = |i: &usize| {
            let width = TILED_TOKENS[*i];
            (2 * each + width) * (width + TILE_COST) * 1000 / width
        };
        (0..gate_up.min(down)).min_by_key(cost).expect("there are kernels")
    }

    /// Multiplies tokens that are sorted by expert, each with the matrix of its expert.
    pub(super) fn multiply_experts(&self, product: &ExpertInput<'_>) -> Result<(), CudaError> {
        let ExpertInput { kernels, layer, matrix, rows, from, columns, to, .. } = *product;
        let (buffers, shape) = (&self.device.buffers, &self.device.shape);
        let (own, _) = self.experts();
        let n_tokens = self.counts.n_tokens;
        let sorted = buffers.experts().sorted();
        match kernels {
            BlockProduct::Warps(kernel) => {
                let n_tiles = most_tiles(&own.experts, n_tokens, BLOCK_TOKENS);
                let grid = (rows.div_ceil(BLOCK_ROWS), n_tiles);
                self.launch(kernel, grid, BLOCK_THREADS, &[&matrix, &from, &sorted, &to])
            }
            BlockProduct::Warpgroups { kernels, summed_runs } => {
                let sums = buffers.run_sums.address();
                if *summed_runs > 0 {
                    let step = self.step.with_counts(buffers.experts().totals());
                    let kernel = self.device.kernels.sum_runs.as_ref();
                    let kernel = kernel.expect("warpgroups multiply");
                    let squares = most_positions(&own.experts, n_tokens) / SQUARE;
                    let units = columns / UNIT_COLUMNS;
                    let (n_units, runs) = (units as u32, *summed_runs as u32);
                    let arguments: &[&dyn Argument] = &[&step, &from, &n_units, &runs, &sums];
                    self.launch(kernel, (squares, units / WARPS), THREADS, arguments)?;
                }
                let kernel = &kernels[self.tile_width(layer)];
                let mut arguments: Vec<&dyn Argument> = vec![&matrix, &from, &sums, &sorted, &to];
                arguments.extend(product.placed.as_ref().map(|placed| placed as &dyn Argument));
                self.launch(kernel, (2 * shape.tiled_clusters(), 1), TILED_THREADS, &arguments)
            }
        }
    }
}
