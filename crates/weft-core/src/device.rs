//! The border between what is computed and what computes it.
//!
//! A [`Device`] owns weights, KV pages and scratch memory, all taken when it is made, and runs ops
//! of the plan on a [`Step`]. Nothing below this border knows prompts, requests or chunks: there
//! are lanes, and each lane attends to a list of spans.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use thiserror::Error;

use crate::config::Config;
use crate::dtype::Dtype;
use crate::kv::{PAGE_ROWS, PageId, Slot, pages_for};
use crate::plan::Op;
use crate::sampling::Sampler;
use crate::store::Rows as HostRows;

/// Lanes that can share a step.
pub const MAX_LANES: usize = 8;

/// Spans that a lane can attend to.
pub const MAX_SPANS: usize = 256;

/// Marks that a lane can have.
pub const MAX_MARKS: usize = 256;

/// Rows of stored keys and values that follow one another, placed somewhere in a context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where the rows lie, from `first_row` of the first page on, page after page.
    pub pages: Vec<PageId>,
    /// The row of the first page that the span begins with. Rows of that page before it belong to
    /// something else, and have been written.
    pub first_row: usize,
    /// Number of rows.
    pub len: usize,
    /// The position that the first row's key was rotated for when it was stored.
    pub home_position: usize,
    /// The position of the first row in this context. Where it differs from the home position the
    /// *query* is rotated by the difference less: (R_m q)·(R_{n+Δ} k) = (R_{m−Δ} q)·(R_n k).
    pub position: usize,
}

impl Span {
    /// How many of its rows a token at `position` sees: those not after it.
    pub fn rows_seen_from(&self, position: usize) -> usize {
        (position + 1).saturating_sub(self.position).min(self.len)
    }

    /// The slot of row `row`.
    pub fn slot(&self, row: usize) -> Slot {
        slot(&self.pages, self.first_row + row)
    }
}

fn slot(pages: &[PageId], row: usize) -> Slot {
    pages[row / PAGE_ROWS] * PAGE_ROWS as Slot + (row % PAGE_ROWS) as Slot
}

/// Which tokens of a lane need logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outputs {
    /// None: the prompt goes on.
    None,
    /// The last one.
    Last,
    /// Every one.
    All,
}

/// One sequence's part of a step. The slices of tokens are equally long.
#[derive(Clone, Copy, Debug)]
pub struct Lane<'a> {
    /// The tokens to run.
    pub tokens: &'a [u32],
    /// Each token's position in the context, rising.
    pub positions: &'a [u32],
    /// The position that each token's key is rotated for: its own, or, where the row belongs to a
    /// span that was moved, the one it has at the span's home.
    pub key_positions: &'a [u32],
    /// Where each token's key and value go. Rows of this step are visible to it, so the spans
    /// cover them too.
    pub store_at: &'a [Slot],
    /// What the tokens attend to: every row whose position is not after the token's own. In the
    /// order of their positions, without overlap; there may be gaps. Where one span ends and the next
    /// begins, and with which row of a page, can show in the last bits; which pages they are cannot.
    pub spans: &'a [Span],
    /// Positions at which one stretch of the context ends and the next begins, rising:
    /// [`Device::attention`] reports a share for each stretch. Marks change nothing else.
    pub marks: &'a [u32],
    /// Which of the tokens need logits.
    pub outputs: Outputs,
}

impl Lane<'_> {
    /// Number of logit rows this lane asks for.
    pub fn n_outputs(&self) -> usize {
        match self.outputs {
            Outputs::None => 0,
            Outputs::Last => 1,
            Outputs::All => self.tokens.len(),
        }
    }

    /// How many rows of each stretch between marks a token at `position` sees. Rows of a stretch
    /// follow one another in the list of spans.
    pub fn rows_of_stretches(&self, position: usize) -> impl Iterator<Item = usize> {
        let last_seen = move |mark: &u32| (*mark as usize - 1).min(position);
        let ends = self.marks.iter().map(last_seen).chain([position]);
        let rows_up_to = |last| self.spans.iter().map(|span| span.rows_seen_from(last)).sum();
        let mut before = 0;
        ends.map(rows_up_to).map(move |rows: usize| rows - std::mem::replace(&mut before, rows))
    }
}

/// A lane of one token that needs logits, with all that it borrows: what measurements decode.
#[derive(Clone, Debug)]
pub struct OneToken {
    tokens: [u32; 1],
    positions: [u32; 1],
    slots: [Slot; 1],
    spans: [Span; 1],
}

impl OneToken {
    /// The `nth` of lanes that have so many pages each. The token's row is the last of `rows`.
    pub fn new(nth: usize, pages: usize, rows: usize, token: u32) -> Self {
        let pages = (nth * pages..(nth + 1) * pages).map(|page| page as PageId).collect();
        let span = Span { pages, first_row: 0, len: rows, home_position: 0, position: 0 };
        Self {
            tokens: [token],
            positions: [rows as u32 - 1],
            slots: [span.slot(rows - 1)],
            spans: [span],
        }
    }

    /// As a step takes it.
    pub fn lane(&self) -> Lane<'_> {
        Lane {
            tokens: &self.tokens,
            positions: &self.positions,
            key_positions: &self.positions,
            store_at: &self.slots,
            spans: &self.spans,
            marks: &[],
            outputs: Outputs::Last,
        }
    }
}

/// What one run computes. Logit rows come in lane order, then token order.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// One to [`MAX_LANES`] lanes. Each computes what it would compute alone, bit for bit.
    pub lanes: &'a [Lane<'a>],
}

/// Rows that follow one another in a list of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows<'a> {
    /// The pages.
    pub pages: &'a [PageId],
    /// The row of the first page that they begin with.
    pub first_row: usize,
    /// Number of rows.
    pub len: usize,
}

impl Rows<'_> {
    /// Where each row lies.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        (self.first_row..self.first_row + self.len).map(|row| slot(self.pages, row))
    }

    /// The pages that they lie in.
    pub fn n_pages(&self) -> usize {
        pages_for(self.first_row + self.len)
    }

    /// Panics unless the rows lie inside the pages, and the pages inside the device's memory.
    pub fn check(&self, limits: &Limits) {
        assert!(self.first_row < PAGE_ROWS, "first row {}", self.first_row);
        assert!(self.n_pages() <= self.pages.len(), "{} rows in too few pages", self.len);
        assert!(self.pages.iter().all(|page| (*page as usize) < limits.pages), "page range");
    }
}

/// Bytes that a device takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Weights.
    pub weights: u64,
    /// KV pages.
    pub kv: u64,
    /// Everything else.
    pub scratch: u64,
}

impl Need {
    /// What a device takes that keeps everything in this format, as the model has it.
    pub fn unpadded(config: &Config, limits: &Limits, dtype: Dtype) -> Self {
        let (q, kv) = (config.q_width(), config.kv_width());
        let row = config.hidden + 2 * q + 2 * kv + config.intermediate;
        let activations = limits.step_tokens * row * dtype.bytes();
        let rotations = 2 * limits.positions * config.head_dim * 4;
        let logits = limits.step_outputs * config.vocab * 4;
        Self {
            weights: config.parameters() * dtype.bytes() as u64,
            kv: (limits.pages * PAGE_ROWS) as u64 * config.kv_bytes_per_token(dtype),
            scratch: (activations + rotations + logits) as u64,
        }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights + self.kv + self.scratch
    }
}

/// How much memory a device takes when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tokens in one step, over all lanes.
    pub step_tokens: usize,
    /// Logit rows in one step, over all lanes.
    pub step_outputs: usize,
    /// Positions, and with them the longest context of a lane.
    pub positions: usize,
    /// KV pages.
    pub pages: usize,
}

/// A buffer between two ops, for comparing devices op by op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// Residual stream, \[tokens, hidden\].
    X,
    /// Queries, \[tokens, q_width\].
    Q,
    /// Keys before they are stored, \[tokens, kv_width\].
    K,
    /// Values, \[tokens, kv_width\].
    V,
    /// Attention output, \[tokens, q_width\].
    A,
    /// Activations of the MLP, \[tokens, intermediate\].
    H,
}

impl Buffer {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::X, Self::Q, Self::K, Self::V, Self::A, Self::H];

    /// Values of one token.
    pub fn width(self, config: &Config) -> usize {
        match self {
            Self::X => config.hidden,
            Self::Q | Self::A => config.q_width(),
            Self::K | Self::V => config.kv_width(),
            Self::H => config.intermediate,
        }
    }
}

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

    /// Runs ops on a step `repeats` times, and tells how long each time took the device itself in µs, with its
    /// caches cold and without the host. Nothing where only a clock outside can tell.
    fn time_us(
        &mut self,
        ops: &[Op],
        step: &Step<'_>,
        repeats: usize,
    ) -> Option<Result<Vec<f64>, DeviceError>> {
        let _ = (ops, step, repeats);
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

    /// The contents of a buffer after the last run, for parity tests.
    fn read(&self, buffer: Buffer) -> Vec<f32>;

    /// Overwrites a buffer, for testing one op alone.
    fn write(&mut self, buffer: Buffer, values: &[f32]);

    /// The key and the value stored in a slot of a layer, each f32 \[kv_width\].
    fn kv_row(&self, layer: u16, slot: Slot) -> (Vec<f32>, Vec<f32>);

    /// Overwrites the key and the value in a slot of a layer, for poisoning unused memory.
    fn write_kv_row(&mut self, layer: u16, slot: Slot, k: &[f32], v: &[f32]);
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

impl Step<'_> {
    /// Tokens in all lanes.
    pub fn n_tokens(&self) -> usize {
        self.lanes.iter().map(|lane| lane.tokens.len()).sum()
    }

    /// Logit rows in all lanes.
    pub fn n_outputs(&self) -> usize {
        self.lanes.iter().map(Lane::n_outputs).sum()
    }

    /// Panics unless every index that a device will follow lies inside its memory.
    pub fn check(&self, config: &Config, limits: &Limits) {
        assert!((1..=MAX_LANES).contains(&self.lanes.len()), "{} lanes", self.lanes.len());
        assert!(self.n_tokens() <= limits.step_tokens, "{} tokens in a step", self.n_tokens());
        assert!(self.n_outputs() <= limits.step_outputs, "{} outputs", self.n_outputs());
        for lane in self.lanes {
            lane.check(config, limits);
        }
    }
}

impl Lane<'_> {
    fn check(&self, config: &Config, limits: &Limits) {
        let n = self.tokens.len();
        assert!(n > 0, "a lane without tokens");
        assert!(self.positions.len() == n && self.store_at.len() == n, "uneven lane");
        assert!(self.key_positions.len() == n, "uneven lane");
        assert!(self.spans.len() <= MAX_SPANS, "{} spans", self.spans.len());
        assert!(self.marks.len() <= MAX_MARKS, "{} marks", self.marks.len());
        assert!(self.marks.is_sorted_by(|a, b| a < b), "marks do not rise");
        assert!(self.marks.iter().all(|mark| *mark > 0), "a mark before the context");
        assert!(self.positions.is_sorted_by(|a, b| a < b), "positions do not rise");
        assert!(self.tokens.iter().all(|token| (*token as usize) < config.vocab), "token range");
        let positions = self.positions.iter().chain(self.key_positions);
        assert!({ positions }.all(|p| (*p as usize) < limits.positions), "position range");
        let slots = limits.pages * PAGE_ROWS;
        assert!(self.store_at.iter().all(|slot| (*slot as usize) < slots), "slot range");
        for span in self.spans {
            assert!(span.len > 0, "an empty span");
            assert!(span.first_row < PAGE_ROWS, "first row {}", span.first_row);
            let n_pages = pages_for(span.first_row + span.len);
            assert!(n_pages <= span.pages.len(), "a span longer than its pages");
            assert!(span.pages.iter().all(|page| (*page as usize) < limits.pages), "page range");
            for first in [span.home_position, span.position] {
                let end = first.checked_add(span.len);
                assert!(end.is_some_and(|end| end <= limits.positions), "span position range");
            }
        }
        let in_order = |a: &Span, b: &Span| a.position + a.len <= b.position;
        assert!(self.spans.is_sorted_by(in_order), "spans overlap or are out of order");
        for position in self.positions {
            let visible = self.spans.iter().any(|span| span.position <= *position as usize);
            assert!(visible, "the token at position {position} sees nothing, not even itself");
        }
    }
}
