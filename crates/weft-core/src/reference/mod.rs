//! The reference device: plain loops that *are* the definition of every op.
//!
//! Each op is one file. Buffers have the element type `E`, so storing a value is a rounding point;
//! everything between two stores is f32. Every sum has one fixed order that depends neither on the
//! number of tokens nor on the number of lanes. A prompt therefore gives the same bits however it
//! is cut.

mod attend;
mod down_add;
mod embed;
mod expert_down_add;
mod expert_gate_up;
mod math;
mod matrix;
mod norm_gate_up;
mod norm_head;
mod norm_qkv;
mod norm_route;
mod proj_add;
mod rope_store;
mod weights;

use std::ops::Range;

use half::bf16;

use crate::config::Config;
use crate::device::{
    Buffer, Device, DeviceError, Inspect, Limits, MAX_MARKS, PageRows, Reporting, Step, shares,
};
use crate::dtype::{Dtype, Element};
use crate::kv::{PAGE_ROWS, PageId, Slot};
use crate::plan::Op;
use crate::rope::RopeTable;
use crate::routing::{self, Route};
use crate::weights::{Weights, WeightsError};

use self::weights::ModelWeights;

pub use self::math::rms_norm;

/// Creates a reference device that computes in the model's own number format.
pub fn open(
    config: &Config,
    weights: &dyn Weights,
    limits: Limits,
) -> Result<Box<dyn Inspect>, WeightsError> {
    Ok(match config.dtype {
        Dtype::F32 => Box::new(Reference::<f32>::new(config, weights, limits)?),
        Dtype::Bf16 => Box::new(Reference::<bf16>::new(config, weights, limits)?),
    })
}

/// The reference device, computing in `E`.
pub struct Reference<E> {
    config: Config,
    limits: Limits,
    weights: ModelWeights<E>,
    rope: RopeTable,
    kv: Kv<E>,
    buffers: Buffers<E>,
    /// f32 \[step_outputs\]\[vocab\]
    logits: Vec<f32>,
    /// The tokens whose attention is reported.
    reporting: Reporting,
    /// Their attention to the stretches of their lanes, summed over heads and layers,
    /// f32 \[reported tokens\]\[stretches\].
    attention: Vec<Vec<f32>>,
    scratch: Scratch,
}

/// Keys (rotated for their home position) and values of all pages.
struct Kv<E> {
    /// \[layers\]\[pages · 64\]\[kv_width\]
    k: Vec<E>,
    /// \[layers\]\[pages · 64\]\[kv_width\]
    v: Vec<E>,
    slots: usize,
    width: usize,
}

impl<E: Element> Kv<E> {
    fn new(config: &Config, pages: usize) -> Self {
        let (slots, width) = (pages * PAGE_ROWS, config.kv_width());
        let zeros = || vec![E::default(); config.layers * slots * width];
        Self { k: zeros(), v: zeros(), slots, width }
    }

    /// The elements of one row, in `k` and in `v`.
    fn row(&self, layer: u16, slot: Slot) -> Range<usize> {
        let start = (usize::from(layer) * self.slots + slot as usize) * self.width;
        start..start + self.width
    }
}

/// The buffers between ops; one row per token of the step.
struct Buffers<E> {
    /// \[tokens\]\[hidden\]
    x: Vec<E>,
    /// \[tokens\]\[q_width\]
    q: Vec<E>,
    /// \[tokens\]\[kv_width\]
    k: Vec<E>,
    /// \[tokens\]\[kv_width\]
    v: Vec<E>,
    /// \[tokens\]\[q_width\]
    a: Vec<E>,
    /// \[tokens\]\[intermediate\]
    h: Vec<E>,
    /// \[tokens\]\[chosen\]
    routes: Vec<Route>,
    /// \[tokens\]\[chosen\]\[expert intermediate\]
    expert_h: Vec<E>,
}

impl<E: Element> Buffers<E> {
    fn new(config: &Config, tokens: usize) -> Self {
        let zeros = |width: usize| vec![E::default(); tokens * width];
        Self {
            x: zeros(config.hidden),
            q: zeros(config.q_width()),
            k: zeros(config.kv_width()),
            v: zeros(config.kv_width()),
            a: zeros(config.q_width()),
            h: zeros(config.dense_width()),
            routes: vec![Route::default(); tokens * Buffer::Routes.width(config) / 2],
            expert_h: zeros(Buffer::ExpertH.width(config)),
        }
    }

    /// A buffer of `E`: all but the routes.
    fn get(&self, buffer: Buffer) -> &[E] {
        match buffer {
            Buffer::X => &self.x,
            Buffer::Q => &self.q,
            Buffer::K => &self.k,
            Buffer::V => &self.v,
            Buffer::A => &self.a,
            Buffer::H => &self.h,
            Buffer::ExpertH => &self.expert_h,
            Buffer::Routes => unreachable!("routes are no buffer of E"),
        }
    }

    fn get_mut(&mut self, buffer: Buffer) -> &mut [E] {
        match buffer {
            Buffer::X => &mut self.x,
            Buffer::Q => &mut self.q,
            Buffer::K => &mut self.k,
            Buffer::V => &mut self.v,
            Buffer::A => &mut self.a,
            Buffer::H => &mut self.h,
            Buffer::ExpertH => &mut self.expert_h,
            Buffer::Routes => unreachable!("routes are no buffer of E"),
        }
    }
}

/// Memory inside one op, for one token.
struct Scratch {
    /// A row of x, a, h or expert_h, f32 \[the widest of them\].
    row: Vec<f32>,
    /// f32 \[experts\]
    router_logits: Vec<f32>,
    /// One head before and after rotation, f32 \[head_dim\].
    head: Vec<f32>,
    rotated: Vec<f32>,
    /// One head's scores, f32 \[positions\].
    scores: Vec<f32>,
    /// One head's weighted sum of values, f32 \[head_dim\].
    sum: Vec<f32>,
}

impl Scratch {
    fn new(config: &Config, limits: &Limits) -> Self {
        Self {
            row: vec![0.0; widest(config)],
            router_logits: vec![0.0; config.experts.as_ref().map_or(0, |e| e.count)],
            head: vec![0.0; config.head_dim],
            rotated: vec![0.0; config.head_dim],
            scores: vec![0.0; limits.positions],
            sum: vec![0.0; config.head_dim],
        }
    }
}

fn widest(config: &Config) -> usize {
    Buffer::of(config).map(|buffer| buffer.width(config)).max().unwrap_or(0)
}

impl<E: Element> Reference<E> {
    /// Reads the weights, rounds them to `E`, and allocates all memory that runs need.
    pub fn new(
        config: &Config,
        weights: &dyn Weights,
        limits: Limits,
    ) -> Result<Self, WeightsError> {
        Ok(Self {
            config: config.clone(),
            limits,
            weights: ModelWeights::read(config, weights)?,
            // A query may lie up to a whole context beyond a span's home, see `attend`.
            rope: RopeTable::new(&config.rope, config.head_dim, 2 * limits.positions),
            kv: Kv::new(config, limits.pages),
            buffers: Buffers::new(config, limits.step_tokens),
            logits: vec![0.0; limits.step_outputs * config.vocab],
            reporting: Reporting::default(),
            attention: (0..Reporting::MAX_ROWS)
                .map(|_| Vec::with_capacity(MAX_MARKS + 1))
                .collect(),
            scratch: Scratch::new(config, &limits),
        })
    }
}

impl<E: Element> Device for Reference<E> {
    fn describe(&self) -> String {
        format!("reference ({})", E::DTYPE)
    }

    fn dtype(&self) -> Dtype {
        E::DTYPE
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn run(&mut self, ops: &[Op], step: &Step<'_>) -> Result<(), DeviceError> {
        step.check(&self.config, &self.limits);
        self.reporting.fill(step);
        for (shares, (lane, _)) in self.attention.iter_mut().zip(self.reporting.tokens()) {
            shares.clear();
            shares.resize(step.lanes[lane].marks.len() + 1, 0.0);
        }
        for op in ops {
            match *op {
                Op::Embed => embed::run(self, step),
                Op::NormQkv { layer } => norm_qkv::run(self, step, layer),
                Op::RopeStore { layer } => rope_store::run(self, step, layer),
                Op::Attend { layer } => attend::run(self, step, layer),
                Op::ProjAdd { layer } => proj_add::run(self, step, layer),
                Op::NormGateUp { layer } => norm_gate_up::run(self, step, layer),
                Op::DownAdd { layer } => down_add::run(self, step, layer),
                Op::NormRoute { layer } => norm_route::run(self, step, layer),
                Op::ExpertGateUp { layer } => expert_gate_up::run(self, step, layer),
                Op::ExpertDownAdd { layer } => expert_down_add::run(self, step, layer),
                Op::NormHead => norm_head::run(self, step),
            }
        }
        Ok(())
    }

    fn states(&mut self, ops: &[Op], step: &Step<'_>) -> Result<Vec<Vec<f32>>, DeviceError> {
        self.run(ops, step)?;
        Ok(norm_head::states(self, step))
    }

    fn logits(&self, output: usize) -> &[f32] {
        &self.logits[output * self.config.vocab..][..self.config.vocab]
    }

    fn attention(&self, lane: usize, output: usize) -> Vec<f32> {
        shares(&self.attention[self.reporting.row_of_output(lane, output)])
    }

    fn kv_family(&self) -> String {
        self.describe()
    }

    fn read_kv(&self, layers: Range<u16>, rows: &PageRows<'_>, k: &mut [u8], v: &mut [u8]) {
        rows.check(&self.limits);
        let places = layers.flat_map(|layer| rows.slots().map(move |slot| (layer, slot)));
        let row_bytes = self.kv.width * size_of::<E>();
        let to = k.chunks_exact_mut(row_bytes).zip(v.chunks_exact_mut(row_bytes));
        for ((layer, slot), (k, v)) in places.zip(to) {
            let row = self.kv.row(layer, slot);
            E::write_le(&self.kv.k[row.clone()], k);
            E::write_le(&self.kv.v[row], v);
        }
    }

    fn write_kv(&mut self, rows: &PageRows<'_>, k: &[u8], v: &[u8]) {
        rows.check(&self.limits);
        let layers = 0..self.config.layers as u16;
        let places = layers.flat_map(|layer| rows.slots().map(move |slot| (layer, slot)));
        let row_bytes = self.kv.width * size_of::<E>();
        let from = k.chunks_exact(row_bytes).zip(v.chunks_exact(row_bytes));
        for ((layer, slot), (k, v)) in places.zip(from) {
            let row = self.kv.row(layer, slot);
            E::read_le(k, &mut self.kv.k[row.clone()]);
            E::read_le(v, &mut self.kv.v[row]);
        }
    }

    fn copy_rows(&mut self, from: PageId, to: PageId, rows: usize) {
        assert!(rows <= PAGE_ROWS, "{rows} rows of a page");
        assert!((from.max(to) as usize) < self.limits.pages, "page range");
        let first = |page| page * PAGE_ROWS as Slot;
        let len = rows * self.kv.width;
        for layer in 0..self.config.layers as u16 {
            let from = self.kv.row(layer, first(from)).start;
            let to = self.kv.row(layer, first(to)).start;
            self.kv.k.copy_within(from..from + len, to);
            self.kv.v.copy_within(from..from + len, to);
        }
    }
}

impl<E: Element> Inspect for Reference<E> {
    fn read(&self, buffer: Buffer) -> Vec<f32> {
        match buffer {
            Buffer::Routes => routing::to_numbers(&self.buffers.routes, self.n_chosen()),
            _ => to_f32(self.buffers.get(buffer)),
        }
    }

    fn write(&mut self, buffer: Buffer, values: &[f32]) {
        match buffer {
            Buffer::Routes => {
                let n_chosen = self.n_chosen();
                routing::from_numbers(values, n_chosen, &mut self.buffers.routes);
            }
            _ => math::round(values, self.buffers.get_mut(buffer)),
        }
    }

    fn kv_row(&self, layer: u16, slot: Slot) -> (Vec<f32>, Vec<f32>) {
        let row = self.kv.row(layer, slot);
        (to_f32(&self.kv.k[row.clone()]), to_f32(&self.kv.v[row]))
    }

    fn write_kv_row(&mut self, layer: u16, slot: Slot, k: &[f32], v: &[f32]) {
        let row = self.kv.row(layer, slot);
        math::round(k, &mut self.kv.k[row.clone()]);
        math::round(v, &mut self.kv.v[row]);
    }
}

impl<E> Reference<E> {
    fn n_chosen(&self) -> usize {
        self.config.experts.as_ref().map_or(0, |experts| experts.chosen)
    }
}

fn to_f32<E: Element>(values: &[E]) -> Vec<f32> {
    values.iter().map(|value| value.to_f32()).collect()
}
