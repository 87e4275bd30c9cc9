//! The interface between the engine and the devices.
//!
//! A [`Device`] owns weights, KV pages and scratch memory, all allocated when it is created. It
//! runs ops of the plan on a [`Step`]. Devices know nothing of prompts, requests or chunks: a step
//! has lanes, and each lane attends to a list of spans.

mod host_experts;
mod inspect;
mod memory;
mod reporting;
mod step;

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use thiserror::Error;

use crate::dtype::Dtype;
use crate::kv::PageId;
use crate::plan::Op;
use crate::sampling::{Logprobs, Sampler};
use crate::store::{HostRows, PackedRows, PlainMemory, RowMemory};

pub use self::host_experts::HostExperts;
pub use self::inspect::{Buffer, Inspect, OneToken};
pub use self::memory::{Limits, Need};
pub use self::reporting::Reporting;
pub use self::step::{Lane, Outputs, PageRows, Span, Step};

/// Maximum number of lanes in a step.
pub const MAX_LANES: usize = 8;

/// Maximum number of tokens of a step with drafts, over all lanes.
pub const MAX_DRAFT: usize = 8;

/// Maximum number of spans of a lane.
pub const MAX_SPANS: usize = 256;

/// Maximum number of marks of a lane.
pub const MAX_MARKS: usize = 256;

/// A processor that runs the plan.
pub trait Device: Send {
    /// Name and number format, for users: `reference (bf16)`.
    fn describe(&self) -> String;

    /// Measurements behind [`Device::describe`], and why it says what it says, if there is more to
    /// say.
    fn details(&self) -> Option<String> {
        None
    }

    /// The time that creating the device took, part by part, in ms. Empty if it was not measured.
    fn started(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }

    /// Waits until steps are as fast as they will be: a device may still compile or measure beside
    /// its first steps. Steps that were started early are forgotten.
    fn warm_up(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// The format of activations and KV rows.
    fn dtype(&self) -> Dtype;

    /// The sizes that the device was created for.
    fn limits(&self) -> Limits;

    /// Runs ops of the plan, in order, on a step. Panics if the step exceeds a limit: callers check
    /// requests first, see [`Step::check`].
    fn run(&mut self, ops: &[Op], step: &Step<'_>) -> Result<(), DeviceError>;

    /// Runs the plan on a step like [`Device::run`]. For each lane with a sampler, also chooses the
    /// next token as the sampler would; see [`Device::chosen`]. The mask of a sampler's constraint
    /// depends on the lane's token, and is needed only when the logits are there: a device starts
    /// the step before it asks for the mask.
    ///
    /// A lane with a sampler has one row of logits, or it verifies a draft: it has several tokens
    /// and [`Outputs::All`]. Its first token is the answer's last one, and `tokens[1..]` are the
    /// draft. Output `i` is then chosen as the sampler would choose after it had accepted
    /// `tokens[1..=i]`: by [`Sampler::draw_after`], [`Sampler::adjustments_after`] and
    /// [`Sampler::read_mask_after`] of these tokens. A step with a draft has at most [`MAX_DRAFT`]
    /// tokens in all. Rows of a draft that is not accepted are overwritten before they are read.
    ///
    /// `ahead` is the number of further steps that the device may start early, if every lane has
    /// one token and a sampler. In each of them, every lane runs its chosen token, stored one row
    /// further in the page of the last row. A later call for exactly that step finds it done. Steps
    /// that were started and never requested leave only rows after the lanes' last ones, which are
    /// overwritten before they are read.
    ///
    /// The default chooses no tokens and starts no steps early.
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

    /// The token that the last [`Device::decode`] chose for an output of a lane, counted in the
    /// lane. If it is `None`, the caller's sampler chooses from the logits. If it is `Some`, the
    /// logits may no longer be available. If an output's token differs from the next token of the
    /// draft, the lane's further outputs are not read, and may be anything.
    fn chosen(&self, lane: usize, output: usize) -> Option<u32> {
        let _ = (lane, output);
        None
    }

    /// The log-probabilities of the token that [`Device::chosen`] returns. A device that chooses
    /// for a sampler that reports them returns the sampler's.
    fn logprobs(&self, lane: usize, output: usize) -> Option<Logprobs> {
        let _ = (lane, output);
        None
    }

    /// Runs `ops`, which are the plan without its head, on a step, and returns the state of each
    /// lane's last token: RMSNorm of x after the last layer, as the head would read it, f32
    /// \[hidden\]. Like logits, a state has the same bits alone and beside other lanes, and however
    /// its prompt was cut.
    ///
    /// The default reports an error: a device that only measures or counts has no states.
    fn states(&mut self, ops: &[Op], step: &Step<'_>) -> Result<Vec<Vec<f32>>, DeviceError> {
        let _ = step;
        let op = ops.last().map_or_else(String::new, Op::to_string);
        let reason = "this device reports no states".to_owned();
        Err(DeviceError { device: self.describe(), op, reason })
    }

    /// Row `output` of the logits of the last run, f32 \[vocab\].
    fn logits(&self, output: usize) -> &[f32];

    /// The attention of the token of a lane's output in the last run, as one share for each stretch
    /// between the lane's marks (one more than there are marks). In a step of at most [`MAX_DRAFT`]
    /// tokens every output has it; in a larger step, the last output of each lane has it, and the
    /// others must not be asked for ([`Reporting`]). A lane without outputs reports its last token
    /// as output 0. A share is the sum of squared
    /// probabilities over the stretch's rows and over all heads and layers that ran; all shares sum
    /// to 1. Squares give weight to the few heads that attend to specific rows; most heads spread
    /// their attention over all rows.
    fn attention(&self, lane: usize, output: usize) -> Vec<f32>;

    /// Everything that determines the bits of a KV row besides model and tokens: device, kernels
    /// and number format. Two devices can exchange rows if their families are equal.
    fn kv_family(&self) -> String;

    /// Copies rows out of pages, for layers `layers`: keys to `k` and values to `v`, each
    /// \[layers\]\[rows\]\[kv_width\] in the device's number format, little endian.
    fn read_kv(&self, layers: Range<u16>, rows: &PageRows<'_>, k: &mut [u8], v: &mut [u8]);

    /// Copies rows into pages, in every layer. The layout is that of [`Device::read_kv`].
    fn write_kv(&mut self, rows: &PageRows<'_>, k: &[u8], v: &[u8]);

    /// Starts to copy rows out of pages like [`Device::read_kv`], and hands them over when the copy
    /// is complete. `bytes` are those of the keys, and of the values. The pages may be reused at
    /// once: writes to them wait for the copy.
    ///
    /// The default has finished when it returns.
    fn send_kv(
        &mut self,
        layers: Range<u16>,
        rows: &PageRows<'_>,
        bytes: usize,
    ) -> Receiver<HostRows> {
        let room = || vec![0; bytes].into();
        let mut to = HostRows { k: room(), v: room() };
        self.read_kv(layers, rows, &mut to.k, &mut to.v);
        let (sender, receiver) = channel();
        sender.send(to).expect("the receiver is here");
        receiver
    }

    /// Memory for rows that [`Device::bring_kv`] will get: the device copies from it fastest.
    fn row_memory(&self) -> Arc<dyn RowMemory> {
        Arc::new(PlainMemory)
    }

    /// Starts to copy rows into pages like [`Device::write_kv`]. Reads of the pages wait for the
    /// copy.
    ///
    /// The default has finished when it returns.
    fn bring_kv(&mut self, rows: &PageRows<'_>, from: Arc<HostRows>) {
        self.write_kv(rows, &from.k, &from.v);
    }

    /// Whether the device packs and unpacks rows by itself, so that they travel in 8 bits if they
    /// are stored so. If not, rows are packed on their way to files.
    fn packs_rows(&self) -> bool {
        false
    }

    /// Like [`Device::send_kv`] of all layers, in 8 bits ([`PackedRows::pack`]).
    fn send_packed_kv(
        &mut self,
        n_layers: u16,
        rows: &PageRows<'_>,
        form: PackedRows,
    ) -> Receiver<HostRows> {
        let bytes = usize::from(n_layers) * rows.len * form.kv_width * 2;
        let sent = self.send_kv(0..n_layers, rows, bytes);
        let (sender, receiver) = channel();
        if let Ok(HostRows { k, v }) = sent.recv() {
            let packed = HostRows { k: form.pack(&k), v: form.pack(&v) };
            sender.send(packed).expect("the receiver is here");
        }
        receiver
    }

    /// Like [`Device::bring_kv`], from 8 bits ([`PackedRows::unpack`]).
    fn bring_packed_kv(&mut self, rows: &PageRows<'_>, from: Arc<HostRows>, form: PackedRows) {
        let full = HostRows { k: form.unpack(&from.k), v: form.unpack(&from.v) };
        self.bring_kv(rows, Arc::new(full));
    }

    /// Whether all copies from and to these pages are complete, so that a step can use them without
    /// waiting.
    fn is_settled(&self, pages: &[PageId]) -> bool {
        let _ = pages;
        true
    }

    /// Whether a step runs its first layers while rows of later ones are still being copied. Then
    /// it need not wait for all of them.
    fn starts_early(&self) -> bool {
        false
    }

    /// Waits until [`Device::is_settled`] holds.
    fn settle(&mut self, pages: &[PageId]) {
        let _ = pages;
    }

    /// Copies the first `rows` rows of a page to another page, in every layer. The other rows of
    /// `to` stay as they are.
    fn copy_rows(&mut self, from: PageId, to: PageId, rows: usize);
}

/// A fault of the device. The step's results are lost.
#[derive(Debug, Error)]
#[error("{device} failed in {op}: {reason}")]
pub struct DeviceError {
    /// The device.
    pub device: String,
    /// The op that failed.
    pub op: String,
    /// The device's error message.
    pub reason: String,
}

/// Sums of attention as shares of their total. All shares are 0 if the total is 0.
pub fn shares(sums: &[f32]) -> Vec<f32> {
    let total: f32 = sums.iter().sum();
    let share = |sum: &f32| if total > 0.0 { sum / total } else { 0.0 };
    sums.iter().map(share).collect()
}
