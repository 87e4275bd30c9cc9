//! The border between what is computed and what computes it.
//!
//! A [`Device`] owns weights, KV pages and scratch memory, all taken when it is made, and runs ops
//! of the plan on a [`Step`]. Nothing below this border knows prompts, requests or chunks: there
//! are lanes, and each lane attends to a list of spans.

mod inspect;
mod memory;
mod step;

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use thiserror::Error;

use crate::dtype::Dtype;
use crate::kv::PageId;
use crate::plan::Op;
use crate::sampling::Sampler;
use crate::store::Rows as HostRows;

pub use self::inspect::{Buffer, Inspect, OneToken};
pub use self::memory::{Limits, Need};
pub use self::step::{Lane, Outputs, Rows, Span, Step};

/// Lanes that can share a step.
pub const MAX_LANES: usize = 8;

/// Spans that a lane can attend to.
pub const MAX_SPANS: usize = 256;

/// Marks that a lane can have.
pub const MAX_MARKS: usize = 256;

/// Something that runs the plan.
pub trait Device: Send {
    /// Name and compute format, for people: `reference (bf16)`.
    fn describe(&self) -> String;

    /// The format of activations and KV rows.
    fn dtype(&self) -> Dtype;

    /// What the device was made for.
    fn limits(&self) -> Limits;

    /// Runs ops of the plan, in order, on a step. Panics if the step breaks a limit: callers
    /// check requests, see [`Step::check`].
    fn run(&mut self, ops: &[Op], step: &Step<'_>) -> Result<(), DeviceError>;

    /// Runs the plan on a step as [`Device::run`] does, and chooses the next token of the lanes that have a
    /// sampler, as the sampler would: see [`Device::chosen`]. Each such lane has one row of logits.
    ///
    /// `ahead` is how many more steps may be begun before they are asked for, if every lane has one token
    /// and a sampler: in each the lanes' chosen tokens follow, one row further in the page of the last
    /// row. A later call that asks for just that finds it done. What was begun and is not asked for
    /// leaves nothing behind but rows after the lanes' last, which are written again before anybody sees
    /// them.
    ///
    /// The default chooses nothing, and begins nothing.
    fn decode(
        &mut self,
        ops: &[Op],
        step: &Step<'_>,
        samplers: &[Option<&Sampler>],
        ahead: usize,
    ) -> Result<(), DeviceError> {
        let _ = (samplers, ahead);
        self.run(ops, step)
    }

    /// The token that the last [`Device::decode`] chose for a lane; nothing where the caller's sampler is
    /// to choose from the logits. Where there is one, the logits may be gone.
    fn chosen(&self, lane: usize) -> Option<u32> {
        let _ = lane;
        None
    }

    /// Row `output` of the logits of the last run, f32 \[vocab\].
    fn logits(&self, output: usize) -> &[f32];

    /// How the last token of a lane spread its attention over the stretches between the lane's marks
    /// in the last run, one share more than there are marks: the squared probabilities of each
    /// stretch's rows, summed over the heads and layers that were run, as shares of 1. Squares,
    /// because most heads spread their attention over all rows and tell nothing, and the few that
    /// look somewhere should be heard.
    fn attention(&self, lane: usize) -> Vec<f32>;

    /// What decides the bits of a KV row beside model and tokens: device, kernels and format. Rows
    /// of two devices are interchangeable where this is equal.
    fn kv_family(&self) -> String;

    /// Copies rows out of pages, for layers `layers`: keys to `k` and values to `v`, each
    /// \[layers\]\[rows\]\[kv_width\] of the device's format, little endian.
    fn read_kv(&self, layers: Range<u16>, rows: &Rows<'_>, k: &mut [u8], v: &mut [u8]);

    /// Copies rows into pages, in every layer; the layout is that of [`Device::read_kv`].
    fn write_kv(&mut self, rows: &Rows<'_>, k: &[u8], v: &[u8]);

    /// Begins to copy rows out of pages as [`Device::read_kv`] does, and hands them over when they are
    /// there. The pages may serve others at once: what writes to them waits for the copy.
    ///
    /// The default is done when it returns.
    fn send_kv(
        &mut self,
        layers: Range<u16>,
        rows: &Rows<'_>,
        mut to: HostRows,
    ) -> Receiver<HostRows> {
        self.read_kv(layers, rows, &mut to.k, &mut to.v);
        let (sender, receiver) = channel();
        sender.send(to).expect("the receiver is here");
        receiver
    }

    /// Begins to copy rows into pages as [`Device::write_kv`] does; what reads the pages waits for it.
    ///
    /// The default is done when it returns.
    fn bring_kv(&mut self, rows: &Rows<'_>, from: Arc<HostRows>) {
        self.write_kv(rows, &from.k, &from.v);
    }

    /// Whether no copy that was begun is still at these pages: a step that uses them would not wait.
    fn is_settled(&self, pages: &[PageId]) -> bool {
        let _ = pages;
        true
    }

    /// Waits until [`Device::is_settled`] holds.
    fn settle(&mut self, pages: &[PageId]) {
        let _ = pages;
    }

    /// Copies the first `rows` rows of a page to another page, in every layer. The other rows of
    /// `to` stay as they are.
    fn copy_rows(&mut self, from: PageId, to: PageId, rows: usize);
}

/// A fault of the machine that runs the ops; the step's results are lost.
#[derive(Debug, Error)]
#[error("{device} failed in {op}: {reason}")]
pub struct DeviceError {
    /// The device.
    pub device: String,
    /// The op that failed.
    pub op: String,
    /// What the device said.
    pub reason: String,
}

/// Sums of attention to stretches as shares of their total; nothing where nothing attended.
pub fn shares(sums: &[f32]) -> Vec<f32> {
    let total: f32 = sums.iter().sum();
    let share = |sum: &f32| if total > 0.0 { sum / total } else { 0.0 };
    sums.iter().map(share).collect()
}
