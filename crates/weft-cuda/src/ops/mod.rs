//! The ops, one file each beside its kernel, and what their launches share.

pub(crate) mod attend;
mod choose;
pub(crate) mod down_add;
pub(crate) mod embed;
mod expert_down_add;
mod expert_gate_up;
mod experts;
pub(crate) mod norm_gate_up;
pub(crate) mod norm_head;
pub(crate) mod norm_qkv;
mod norm_route;
pub(crate) mod proj_add;
pub(crate) mod rope_store;

use std::cell::Cell;
use std::sync::Arc;

use weft_core::plan::Op;

use crate::CudaDevice;
use crate::buffers::Activations;
use crate::driver::{Address, Argument, Gpu, Kernel, Launch};
use crate::error::CudaError;
use crate::kernels::{BlockProduct, Product};
use crate::rows::LayerEnds;
use crate::sampling::Chosen;
use crate::shape::{BLOCK_ROWS, BLOCK_TOKENS, Cut, SQUARE, TILED_THREADS, WARPS};
use crate::tables::{Counts, FEW, Family, SEVERAL, SIXTEEN, StepAddresses};
use crate::units::COLUMNS as UNIT_COLUMNS;

// SAFETY: `repr(C)`, with the fields of the kernels' `Step`.
unsafe impl Argument for StepAddresses {}

/// Threads of a block: eight warps that compute, and a ninth that copies if a ring is used.
const THREADS: usize = WARPS * 32;
pub(crate) const RING_THREADS: usize = THREADS + 32;
/// Threads of the kernels that multiply blocks of tokens by blocks of rows.
pub(crate) const BLOCK_THREADS: usize = 256;

/// One run of ops over the lists of a step.
pub(crate) struct Pass<'a> {
    pub(crate) device: &'a CudaDevice,
    pub(crate) step: StepAddresses,
    pub(crate) family: Family,
    /// The counts that grids are sized for: the step's own, or the most that a graph serves.
    pub(crate) counts: Counts,
    /// Whether kernels may start before the previous one has ended and, in steps of few tokens,
    /// rope_store runs inside attend.
    pub(crate) joined: bool,
    /// How tokens are chosen after the head.
    pub(crate) chosen: Chosen,
    /// Rows that are still being copied into the step's pages.
    pub(crate) coming: Option<ComingRows>,
}

/// Rows that are being copied while a step runs: a layer waits for its own.
pub(crate) struct ComingRows {
    ends: Arc<LayerEnds>,
    /// Points that launched kernels wait for.
    n_ordered: Cell<usize>,
    /// Whether the next kernel follows a wait, and not another kernel.
    has_waited: Cell<bool>,
}

impl ComingRows {
    pub(crate) fn new(ends: Arc<LayerEnds>) -> Self {
        Self { ends, n_ordered: Cell::new(0), has_waited: Cell::new(false) }
    }

    /// Makes later kernels wait for the rows of a layer, and of those before.
    fn wait_for(&self, gpu: &Gpu, layer: u16) -> Result<(), CudaError> {
        let Some(last) = self.ends.of(layer) else { return Ok(()) };
        for point in self.n_ordered.get()..=last {
            self.ends.order(gpu, point)?;
            self.n_ordered.set(point + 1);
            self.has_waited.set(true);
        }
        Ok(())
    }
}

/// Tokens of a step that matrices are streamed past together.
struct Group {
    first: usize,
    len: usize,
    /// The step as kernels for few tokens see it.
    step: StepAddresses,
}

/// What a matrix is multiplied with and where the product goes, for blocks of tokens.
struct BlockInput<'a> {
    matrix: Address,
    input: &'a Activations,
    to: &'a dyn Argument,
}

/// A matrix whose product with some activations is added to the residual stream.
struct AddProduct<'a> {
    matrix: Address,
    input: &'a Activations,
    kernels: &'a Product,
    cut: &'a Cut,
}

impl Pass<'_> {
    /// The tokens in groups of a few; none if there are so many that blocks of tokens are
    /// multiplied by blocks of rows.
    fn groups_of_few(&self) -> Option<Vec<Group>> {
        let n = self.counts.n_tokens;
        match self.family {
            Family::Few => Some(vec![Group { first: 0, len: n, step: self.step }]),
            Family::Many if n <= SEVERAL => {
                let group = |first: usize| {
                    let len = SIXTEEN.min(n - first);
                    let step = self.step.with_counts(self.device.group_counts.of(len));
                    Group { first, len, step }
                };
                Some((0..n).step_by(SIXTEEN).map(group).collect())
            }
            Family::Many => None,
        }
    }

    /// Streams a matrix past a group. Weights do not depend on the previous kernel, so this one may
    /// start early.
    fn stream(
        &self,
        kernels: &Product,
        group: &Group,
        cut: &Cut,
        arguments: &[&dyn Argument],
    ) -> Result<(), CudaError> {
        let kernel = if group.len <= FEW { &kernels.eight } else { &kernels.sixteen };
        let grid = (cut.blocks, 1);
        let launch = Launch { grid, threads: RING_THREADS, early: self.joined, cooperative: false };
        kernel.launch(&self.device.gpu, launch, arguments)
    }

    /// x += input · matrix, which is what both residual ops compute.
    fn add_product(&self, product: &AddProduct<'_>) -> Result<(), CudaError> {
        let CudaDevice { config, buffers, .. } = self.device;
        let AddProduct { matrix, input, kernels, cut } = product;
        if let Some(groups) = self.groups_of_few() {
            return groups.iter().try_for_each(|group| {
                let (input, x) = (input.row(group.first), buffers.x.row(group.first));
                self.stream(kernels, group, cut, &[&group.step, matrix, &input, &x])
            });
        }
        let x = buffers.x.address();
        let product = BlockInput { matrix: *matrix, input, to: &x };
        self.multiply_block(&kernels.block, config.hidden, &product)
    }

    /// Launches ops in order. If ops are joined, the second of a pair runs both.
    pub(crate) fn run(&self, ops: &[Op]) -> Result<(), (Op, CudaError)> {
        for (i, op) in ops.iter().enumerate() {
            let next = ops.get(i + 1);
            if let (Some(coming), Op::RopeStore { layer } | Op::Attend { layer }) =
                (&self.coming, *op)
            {
                coming.wait_for(&self.device.gpu, layer).map_err(|error| (*op, error))?;
            }
            let on_host = self.device.on_host.as_ref().filter(|_| op.is_of_experts());
            let launched = match *op {
                _ if on_host.is_some() => on_host.map_or(Ok(()), |own| own.run(self, ops, i)),
                Op::Embed => embed::launch(self),
                Op::NormQkv { layer } => norm_qkv::launch(self, layer),
                Op::RopeStore { layer } if self.runs_in_attend(layer, next) => Ok(()),
                Op::RopeStore { layer } => rope_store::launch(self, layer),
                Op::Attend { layer } => {
                    let before = i.checked_sub(1).map(|i| ops[i]);
                    let stores = before == Some(Op::RopeStore { layer })
                        && self.runs_in_attend(layer, Some(op));
                    attend::launch(self, layer, stores)
                }
                Op::ProjAdd { layer } => proj_add::launch(self, layer),
                Op::NormGateUp { layer } => norm_gate_up::launch(self, layer),
                Op::DownAdd { layer } => down_add::launch(self, layer),
                Op::NormRoute { layer } => norm_route::launch(self, layer),
                Op::ExpertGateUp { layer } => {
                    let is_followed = next == Some(&Op::ExpertDownAdd { layer });
                    expert_gate_up::launch(self, layer, is_followed)
                }
                Op::ExpertDownAdd { layer } => {
                    let before = i.checked_sub(1).map(|i| ops[i]);
                    let is_sorted = before == Some(Op::ExpertGateUp { layer });
                    expert_down_add::launch(self, layer, is_sorted)
                }
                Op::NormHead if self.chosen != Chosen::ByHost => {
                    let masked = choose::take_masks(self);
                    masked
                        .and_then(|()| norm_head::launch(self))
                        .and_then(|()| choose::launch(self))
                }
                Op::NormHead => norm_head::launch(self),
            };
            launched.map_err(|error| (*op, error))?;
        }
        Ok(())
    }

    fn runs_in_attend(&self, layer: u16, next: Option<&Op>) -> bool {
        self.joined && self.family == Family::Few && next == Some(&Op::Attend { layer })
    }

    /// Launches a kernel; if it may start early, it need not wait for the previous one to end.
    fn launch(
        &self,
        kernel: &Kernel,
        grid: (usize, usize),
        threads: usize,
        arguments: &[&dyn Argument],
    ) -> Result<(), CudaError> {
        let may = self.family == Family::Few || self.device.shape.is_tiled();
        let has_waited =
            self.coming.as_ref().is_some_and(|coming| coming.has_waited.replace(false));
        let early = self.joined && may && !has_waited;
        let launch = Launch { grid, threads, early, cooperative: false };
        kernel.launch(&self.device.gpu, launch, arguments)
    }

    /// Multiplies blocks of tokens by blocks of a matrix's rows.
    fn multiply_block(
        &self,
        kernel: &BlockProduct,
        rows: usize,
        product: &BlockInput<'_>,
    ) -> Result<(), CudaError> {
        let n_tokens = self.counts.n_tokens;
        let BlockInput { matrix, input, to } = *product;
        let from = input.for_block();
        match kernel {
            BlockProduct::Warps(kernel) => {
                let grid = (rows.div_ceil(BLOCK_ROWS), n_tokens.div_ceil(BLOCK_TOKENS));
                self.launch(kernel, grid, BLOCK_THREADS, &[&self.step, &matrix, &from, to])
            }
            BlockProduct::Warpgroups { kernels, summed_runs } => {
                if *summed_runs > 0 {
                    self.sum_runs(input, *summed_runs)?;
                }
                let shape = &self.device.shape;
                let kernel = &kernels[shape.tiled_width(kernels.len(), rows, n_tokens)];
                let sums = self.device.buffers.run_sums.address();
                let arguments: &[&dyn Argument] = &[&self.step, &matrix, &from, &sums, to];
                self.launch(kernel, (2 * shape.tiled_clusters(), 1), TILED_THREADS, arguments)
            }
        }
    }

    /// Sums the input of a product over the runs of its columns, for offsets.
    fn sum_runs(&self, input: &Activations, runs: usize) -> Result<(), CudaError> {
        let CudaDevice { kernels, buffers, .. } = self.device;
        let kernel = kernels.sum_runs.as_ref().expect("warpgroups multiply");
        let units = input.stride() / UNIT_COLUMNS;
        let grid = (self.counts.n_tokens.div_ceil(SQUARE), units / WARPS);
        let (n_units, runs) = (units as u32, runs as u32);
        let arguments: &[&dyn Argument] =
            &[&self.step, &input.for_block(), &n_units, &runs, &buffers.run_sums.address()];
        self.launch(kernel, grid, THREADS, arguments)
    }

    /// norm = rms_norm(x), for blocks of tokens.
    fn norm_rows(&self, weight: Address) -> Result<(), CudaError> {
        let CudaDevice { kernels, buffers, .. } = self.device;
        let grid = (self.counts.n_tokens.div_ceil(8), 1);
        let arguments: &[&dyn Argument] =
            &[&self.step, &weight, &buffers.x.address(), &buffers.norm.for_block()];
        self.launch(&kernels.norm_rows, grid, THREADS, arguments)
    }
}
