//! Access to a device's buffers for tests, benches and the self-test. The engine does not use it.

use super::{Device, DeviceError, Lane, Outputs, Span, Step};
use crate::config::Config;
use crate::kv::{PageId, Slot};
use crate::plan::Op;

/// A device that gives access to the values between its ops.
pub trait Inspect: Device {
    /// The contents of a buffer after the last run, for parity tests.
    fn read(&self, buffer: Buffer) -> Vec<f32>;

    /// Overwrites a buffer, for testing one op alone.
    fn write(&mut self, buffer: Buffer, values: &[f32]);

    /// The key and the value stored in a slot of a layer, each f32 \[kv_width\].
    fn kv_row(&self, layer: u16, slot: Slot) -> (Vec<f32>, Vec<f32>);

    /// Overwrites the key and the value in a slot of a layer, for poisoning unused memory.
    fn write_kv_row(&mut self, layer: u16, slot: Slot, k: &[f32], v: &[f32]);

    /// Runs ops on a step `repeats` times, and returns the device's own times in µs, with cold
    /// caches and without the host's share. `None` if the device has no clock.
    fn time_us(
        &mut self,
        ops: &[Op],
        step: &Step<'_>,
        repeats: usize,
    ) -> Option<Result<Vec<f64>, DeviceError>> {
        let _ = (ops, step, repeats);
        None
    }
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
    /// Activations of a dense MLP, \[tokens, intermediate\].
    H,
    /// The experts of each token, ascending, then the weight of each; \[tokens, 2 · chosen\]. Never
    /// rounded.
    Routes,
    /// Activations of the chosen experts, in the order of the routes, \[tokens, chosen · expert
    /// intermediate\].
    ExpertH,
}

impl Buffer {
    /// Those that a model has.
    pub fn of(config: &Config) -> impl Iterator<Item = Self> {
        let all =
            [Self::X, Self::Q, Self::K, Self::V, Self::A, Self::H, Self::Routes, Self::ExpertH];
        all.into_iter().filter(|buffer| buffer.width(config) > 0)
    }

    /// Values of one token; 0 if no layer of the model uses the buffer.
    pub fn width(self, config: &Config) -> usize {
        match self {
            Self::X => config.hidden,
            Self::Q | Self::A => config.q_width(),
            Self::K | Self::V => config.kv_width(),
            Self::H => config.dense_width(),
            Self::Routes => config.experts.as_ref().map_or(0, |e| 2 * e.chosen),
            Self::ExpertH => config.experts.as_ref().map_or(0, |e| e.chosen * e.intermediate),
        }
    }
}

/// A lane of one token that needs logits, with everything that it borrows. Measurements decode it.
#[derive(Clone, Debug)]
pub struct OneToken {
    tokens: [u32; 1],
    positions: [u32; 1],
    slots: [Slot; 1],
    spans: [Span; 1],
}

impl OneToken {
    /// The `nth` of several lanes with `pages` pages each. The token's row is the last of `rows`.
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

    /// The lane for a step.
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
