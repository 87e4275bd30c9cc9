//! The CPU device: bf16 weights packed for vector instructions, ops on a persistent worker pool.
//!
//! It runs the plan from [`weft_core::plan`], and tests compare it with [`weft_core::reference`] op
//! by op. A step reads the weights once for all its tokens. Every output is one sum in one order,
//! for any number of tokens, lanes or threads, so results depend only on the machine's instruction
//! set.
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod bandwidth;
mod buffers;
mod coded;
mod experts;
mod isa;
mod kv_rows;
mod matmul;
mod matrix;
mod memory;
mod ops;
mod pack;
mod pool;
mod routing;
mod scratch;
mod shares;
mod tiles;
mod values;
mod vector;
mod weights;

use std::ops::Range;

use weft_core::config::Config;
use weft_core::device::{Buffer, Device, DeviceError, Inspect, Limits, Need, PageRows, Step};
use weft_core::dtype::Dtype;
use weft_core::kv::{PageId, Slot};
use weft_core::plan::Op;
use weft_core::rope::RopeTable;
use weft_core::routing::{from_numbers, to_numbers};
use weft_core::weights::{Forms, Weights, WeightsError};

use buffers::{Buffers, Kv, KvLayout};
use ops::ExpertStep;
use pool::Pool;
use routing::Routing;
use scratch::{Lists, Scratch};
use shares::Shares;
use weights::ModelWeights;

pub use bandwidth::{BandwidthSample, read_bandwidth};
pub use experts::{CpuExperts, need_of_experts};
pub use isa::{ISA_VARIABLE, Isa, IsaError};
pub use memory::{release_free_memory, share_pools};

/// The memory that a device with these limits and threads needs.
pub fn need(config: &Config, forms: &Forms, limits: &Limits, threads: usize) -> Need {
    let stride = KvLayout::of(config).stride;
    let scratch = threads as u64 * Scratch::bytes(config, limits, stride, !forms.all_plain());
    let shared = Need::unpadded(config, forms, limits, Dtype::Bf16);
    Need { scratch: shared.scratch + scratch, ..shared }
}

/// The CPU device. It computes in bf16, for any format of the model.
pub struct CpuDevice {
    config: Config,
    limits: Limits,
    isa: Isa,
    pool: Pool,
    weights: ModelWeights,
    rope: RopeTable,
    kv: Kv,
    buffers: Buffers,
    /// f32 \[step_outputs\]\[vocab\]
    logits: Vec<f32>,
    shares: Shares,
    /// One for each thread.
    scratch: Vec<Scratch>,
    /// The current step.
    lists: Lists,
    /// The experts of its tokens.
    routing: Routing,
}

/// Options of a device.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Sizes that determine its memory.
    pub limits: Limits,
    /// Number of threads, including the caller's.
    pub threads: usize,
    /// Instruction set.
    pub isa: Isa,
}

impl Options {
    /// All cores, and the instruction set that [`Isa::choose`] returns.
    ///
    /// # Errors
    /// `WEFT_CPU_ISA` names an instruction set that this machine lacks.
    pub fn new(limits: Limits) -> Result<Self, IsaError> {
        Ok(Self { limits, threads: n_cores(), isa: Isa::choose()? })
    }

    /// Kernels rely on this check: they are only reachable through what was made after it.
    ///
    /// # Panics
    /// If the machine does not support the instruction set, or there is no thread.
    fn check(&self) {
        assert!(self.isa.is_available(), "this machine has no {}", self.isa);
        assert!(self.threads > 0, "no thread to work");
    }
}

/// Number of threads that this machine runs at the same time; 1 if unknown.
pub fn n_cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

impl CpuDevice {
    /// Reads and packs the weights, and allocates all memory that runs need.
    ///
    /// # Panics
    /// If the machine does not support the instruction set, or `threads` is 0.
    pub fn new(
        config: &Config,
        weights: &dyn Weights,
        options: Options,
    ) -> Result<Self, WeightsError> {
        options.check();
        let Options { limits, threads, isa } = options;
        let kv = Kv::new(config, limits.pages);
        let coded = !Forms::of(weights, config).all_plain();
        Ok(Self {
            weights: ModelWeights::read(config, weights, threads)?,
            // A query may lie up to a whole context beyond a span's home.
            rope: RopeTable::new(&config.rope, config.head_dim, 2 * limits.positions),
            buffers: Buffers::new(config, &limits),
            logits: vec![0.0; limits.step_outputs * config.vocab],
            shares: Shares::new(config),
            scratch: (0..threads)
                .map(|_| Scratch::new(config, &limits, kv.layout().stride, coded))
                .collect(),
            lists: Lists::new(config, &limits, threads),
            routing: Routing::new(config, &limits),
            kv,
            pool: Pool::new(threads),
            config: config.clone(),
            limits,
            isa,
        })
    }
}

impl Device for CpuDevice {
    fn describe(&self) -> String {
        format!("CPU ({}, {} threads, bf16)", self.isa, self.pool.n_threads())
    }

    fn dtype(&self) -> Dtype {
        Dtype::Bf16
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn run(&mut self, ops: &[Op], step: &Step<'_>) -> Result<(), DeviceError> {
        step.check(&self.config, &self.limits);
        self.shares.start(step);
        self.lists.fill(step, self.shares.reporting());
        for op in ops {
            match *op {
                Op::Embed => ops::embed::run(self, step),
                Op::NormQkv { layer } => ops::norm_qkv::run(self, layer),
                Op::RopeStore { layer } => ops::rope_store::run(self, layer),
                Op::Attend { layer } => ops::attend::run(self, step, layer),
                Op::ProjAdd { layer } => ops::proj_add::run(self, layer),
                Op::NormGateUp { layer } => ops::norm_gate_up::run(self, layer),
                Op::DownAdd { layer } => ops::down_add::run(self, layer),
                Op::NormRoute { layer } => ops::norm_route::run(self, layer),
                Op::ExpertGateUp { layer } => {
                    ops::expert_gate_up::run(ExpertStep::of(self, layer));
                }
                Op::ExpertDownAdd { layer } => {
                    ops::expert_down_add::run(ExpertStep::of(self, layer));
                }
                Op::NormHead => ops::norm_head::run(self),
            }
        }
        Ok(())
    }

    fn states(&mut self, ops: &[Op], step: &Step<'_>) -> Result<Vec<Vec<f32>>, DeviceError> {
        self.run(ops, step)?;
        Ok(ops::norm_head::states(self, step))
    }

    fn logits(&self, output: usize) -> &[f32] {
        &self.logits[output * self.config.vocab..][..self.config.vocab]
    }

    fn attention(&self, lane: usize, output: usize) -> Vec<f32> {
        self.shares.of(lane, output)
    }

    fn kv_family(&self) -> String {
        format!("CPU ({}, bf16)", self.isa)
    }

    fn read_kv(&self, layers: Range<u16>, rows: &PageRows<'_>, k: &mut [u8], v: &mut [u8]) {
        rows.check(&self.limits);
        kv_rows::read(&self.pool, &self.kv, &layers, rows, k, v);
    }

    fn write_kv(&mut self, rows: &PageRows<'_>, k: &[u8], v: &[u8]) {
        rows.check(&self.limits);
        kv_rows::write(&self.pool, &mut self.kv, rows, k, v);
    }

    fn copy_rows(&mut self, from: PageId, to: PageId, rows: usize) {
        assert!((from.max(to) as usize) < self.limits.pages, "page range");
        kv_rows::copy_rows(&self.pool, &mut self.kv, from, to, rows);
    }
}

impl Inspect for CpuDevice {
    fn read(&self, buffer: Buffer) -> Vec<f32> {
        match buffer {
            Buffer::Routes => to_numbers(&self.routing.routes, self.routing.chosen),
            _ => self.buffers.get(buffer).read(),
        }
    }

    fn write(&mut self, buffer: Buffer, values: &[f32]) {
        let Routing { routes, chosen, .. } = &mut self.routing;
        match buffer {
            Buffer::Routes => from_numbers(values, *chosen, routes),
            _ => self.buffers.get_mut(buffer).write(values),
        }
    }

    fn kv_row(&self, layer: u16, slot: Slot) -> (Vec<f32>, Vec<f32>) {
        self.kv.read(layer, slot)
    }

    fn write_kv_row(&mut self, layer: u16, slot: Slot, k: &[f32], v: &[f32]) {
        self.kv.write(layer, slot, k, v);
    }
}
