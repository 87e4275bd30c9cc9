//! Steps that are started before they are requested.
//!
//! If all lanes have one token and draw it on the GPU, a step leaves on the GPU all that the next
//! step needs: the same graph is launched again and again, or one launch of the persistent kernel
//! continues, and the host only reads the published tokens. A call for the step that was started
//! ahead gets its results; any other call starts over. Unused graphs run to their end before later
//! work, in stream order; the persistent kernel is stopped. A lane that verifies a draft has several
//! outputs, a draw for each; no step follows such a one. This file tracks the expected steps and
//! launches nothing (`step_launch.rs` does).

use std::ops::Range;
use std::time::{Duration, Instant};

use weft_core::device::{Lane, Outputs, Step};
use weft_core::kv::PAGE_ROWS;
use weft_core::sampling::{Draw, LogprobParts, Logprobs, Sampler};

use crate::driver::Gpu;
use crate::error::CudaError;
use crate::sampling::{Chosen, DECLINED, Sampling};
use crate::tables::{FEW, Family};

/// Graphs that are launched ahead of the awaited one: while the host reads one token, the GPU
/// computes the next, and the one after it is ready to run.
pub(crate) const BEYOND: usize = 2;
/// How long a step may take before the host checks whether the GPU still runs.
const PATIENCE: Duration = Duration::from_millis(20);

/// A lane as the next step has it if that step follows directly.
#[derive(Clone, Debug, PartialEq)]
struct Expected {
    position: u32,
    key_position: u32,
    slot: u32,
    spans: Vec<weft_core::device::Span>,
    marks: Vec<u32>,
    draw: Draw,
}

/// The steps in flight, and the tokens of the last requested one.
pub(crate) struct InFlight {
    /// The next step if it follows directly; empty if no step may follow.
    expected: Vec<Expected>,
    /// The number of the next step.
    next_number: u32,
    /// The number of the step that was requested last.
    number: u32,
    /// How the tokens of the last step are chosen.
    how: Chosen,
    /// Whether it also published shares of attention.
    publishes_shares: bool,
    /// The outputs of each lane that draws on the GPU.
    outputs: Vec<Option<LaneOutputs>>,
    /// The tokens of all outputs.
    chosen: Vec<Option<u32>>,
}

/// The outputs of a lane that draws on the GPU.
#[derive(Clone, Debug)]
pub(crate) struct LaneOutputs {
    /// Among the outputs of the step.
    pub(crate) of_step: Range<usize>,
    /// Likeliest tokens that the lane reports.
    n_logprobs: Option<usize>,
}

/// An output whose token is chosen on the GPU: as its sampler would after it had accepted the
/// drafted tokens.
#[derive(Clone, Copy)]
pub(crate) struct OutputDraw<'a> {
    pub(crate) output: usize,
    pub(crate) sampler: &'a Sampler,
    pub(crate) drafted: &'a [u32],
    pub(crate) draw: Draw,
}

/// Whether a call is for the step that was started ahead or for another one.
pub(crate) enum Asked<'a> {
    Begun,
    Anew(Vec<OutputDraw<'a>>),
}

impl Default for InFlight {
    fn default() -> Self {
        Self {
            expected: Vec::new(),
            // Memory that was never written is zero, so no step has the number 0.
            next_number: 1,
            number: 0,
            how: Chosen::ByHost,
            publishes_shares: false,
            outputs: Vec::new(),
            chosen: Vec::new(),
        }
    }
}

impl InFlight {
    /// Forgets the steps that were started ahead.
    pub(crate) fn forget(&mut self) {
        self.expected.clear();
        self.how = Chosen::ByHost;
        self.publishes_shares = false;
        self.chosen.clear();
    }

    /// Records a call of `decode`.
    pub(crate) fn ask<'a>(
        &mut self,
        step: &Step<'a>,
        samplers: &[Option<&'a Sampler>],
        is_served: impl Fn(&Draw) -> bool,
    ) -> Asked<'a> {
        if self.is_begun(step, samplers) {
            self.number += 1;
            self.expected.iter_mut().for_each(Expected::advance);
            return Asked::Begun;
        }
        self.forget();
        let draws = self.draw_outputs(step, samplers, is_served);
        self.number = self.next_number;
        self.how = Chosen::by(draws.iter().map(|of| &of.draw));
        self.publishes_shares = Family::of(step.n_tokens()) == Family::Few;
        if draws.len() == step.lanes.len() && step.lanes.iter().all(is_followed) {
            let lanes = step.lanes.iter().zip(&draws);
            self.expected = lanes.map(|(lane, of)| Expected::after(lane, of.draw)).collect();
        }
        Asked::Anew(draws)
    }

    /// Finds the outputs whose tokens are chosen on the GPU, and their draws. A lane has all of its
    /// outputs chosen there or none: they must be among the first, and its sampling settings
    /// supported by the kernels.
    fn draw_outputs<'a>(
        &mut self,
        step: &Step<'a>,
        samplers: &[Option<&'a Sampler>],
        is_served: impl Fn(&Draw) -> bool,
    ) -> Vec<OutputDraw<'a>> {
        let (mut first, mut draws) = (0, Vec::with_capacity(FEW));
        self.outputs.clear();
        for (lane, sampler) in step.lanes.iter().zip(samplers) {
            let of_step = first..first + lane.n_outputs();
            first = of_step.end;
            let draw_of = |output: usize| {
                let (sampler, drafted) = ((*sampler)?, drafted(lane, output - of_step.start));
                let draw = sampler.draw_after(drafted).filter(&is_served)?;
                Some(OutputDraw { output, sampler, drafted, draw })
            };
            let found = draws.len();
            draws.extend(of_step.clone().map_while(draw_of));
            let is_whole = draws.len() - found == of_step.len() && of_step.end <= FEW;
            if !is_whole {
                draws.truncate(found);
            }
            let n_logprobs = draws[found..].first().and_then(|of| of.draw.n_logprobs);
            let is_chosen = is_whole && !of_step.is_empty();
            self.outputs.push(is_chosen.then_some(LaneOutputs { of_step, n_logprobs }));
        }
        draws
    }

    /// Whether steps may follow the requested one.
    pub(crate) fn is_followed(&self) -> bool {
        !self.expected.is_empty()
    }

    /// How the tokens of the requested step are chosen.
    pub(crate) fn how(&self) -> Chosen {
        self.how
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// How many more steps to start so that `ahead` steps are started beyond the requested one.
    pub(crate) fn launches_for(&mut self, ahead: usize) -> usize {
        let rows_left = self.expected.iter().map(Expected::rows_left).min();
        let ahead = ahead.min(rows_left.unwrap_or(0));
        let wanted = self.number.wrapping_add(1 + ahead as u32);
        // Negative if more steps were started than are needed now.
        let missing = (wanted.wrapping_sub(self.next_number) as i32).max(0) as u32;
        self.next_number = self.next_number.wrapping_add(missing);
        missing as usize
    }

    fn is_begun(&self, step: &Step<'_>, samplers: &[Option<&Sampler>]) -> bool {
        let is_launched = self.next_number.wrapping_sub(self.number) > 1;
        let same_lanes = self.is_followed() && self.expected.len() == step.lanes.len();
        let fits = |i: usize| {
            let (lane, expected) = (&step.lanes[i], &self.expected[i]);
            let draw = samplers[i].and_then(Sampler::next_draw);
            lane.tokens.len() == 1
                && lane.n_outputs() == 1
                && self.chosen(i, 0) == Some(lane.tokens[0])
                && expected.fits(lane)
                && draw == Some(expected.draw)
        };
        is_launched && same_lanes && (0..step.lanes.len()).all(fits)
    }

    /// Waits for the tokens of the requested step.
    pub(crate) fn wait(&mut self, gpu: &Gpu, sampling: &Sampling) -> Result<(), CudaError> {
        self.chosen.clear();
        for output in self.outputs.iter().flatten().flat_map(|lane| lane.of_step.clone()) {
            let token = spin(gpu, || sampling.token(self.number, output))?;
            self.chosen.resize(output, None);
            self.chosen.push(token);
        }
        Ok(())
    }

    /// The tokens of all outputs of the step, up to the last that was chosen.
    pub(crate) fn all_chosen(&self) -> &[Option<u32>] {
        &self.chosen
    }

    /// The token of a lane's output, if it was chosen.
    pub(crate) fn chosen(&self, lane: usize, output: usize) -> Option<u32> {
        let (of_step, _) = self.output_of(lane, output)?;
        self.chosen.get(of_step).copied().flatten()
    }

    /// An output of a lane that draws on the GPU, among those of the step, and what it reports.
    fn output_of(&self, lane: usize, output: usize) -> Option<(usize, Option<usize>)> {
        let LaneOutputs { of_step, n_logprobs } = self.outputs.get(lane)?.as_ref()?;
        Some((of_step.clone().nth(output)?, *n_logprobs))
    }

    /// The outputs of each lane that draws on the GPU.
    pub(crate) fn outputs(&self) -> &[Option<LaneOutputs>] {
        &self.outputs
    }

    /// The log-probabilities of an output's token, if it was chosen and the lane reports them.
    pub(crate) fn logprobs(
        &self,
        gpu: &Gpu,
        sampling: &Sampling,
        (lane, output): (usize, usize),
    ) -> Option<Result<Logprobs, CudaError>> {
        self.chosen(lane, output)?;
        let (output, n_top) = self.output_of(lane, output)?;
        let n_top = n_top?;
        let published = |word| spin(gpu, || sampling.report_word(self.number, output, word));
        let read = || {
            let weights = u64::from(published(1)?) | u64::from(published(2)?) << 32;
            let (chosen, max) = (f32::from_bits(published(0)?), f32::from_bits(published(4)?));
            let mut top = Vec::with_capacity(n_top);
            for rank in 0..n_top {
                let token = published(3 + 2 * rank)?;
                if token == DECLINED {
                    break;
                }
                top.push((token, f32::from_bits(published(4 + 2 * rank)?)));
            }
            Ok(Logprobs::from_parts(&LogprobParts { weights, max, chosen, top }))
        };
        Some(read())
    }

    /// The shares that the token of a lane's output gave to cells, if the step published them.
    pub(crate) fn shares(
        &self,
        gpu: &Gpu,
        sampling: &Sampling,
        (lane, output): (usize, usize),
        cells: Range<usize>,
    ) -> Option<Result<Vec<f32>, CudaError>> {
        let is_published = self.publishes_shares && self.output_of(lane, output).is_some();
        let published = |cell| spin(gpu, || sampling.share(self.number, cell));
        is_published.then(|| cells.map(published).collect())
    }
}

impl Expected {
    fn after(lane: &Lane<'_>, draw: Draw) -> Self {
        let mut expected = Self {
            position: lane.positions[0],
            key_position: lane.key_positions[0],
            slot: lane.store_at[0],
            spans: lane.spans.to_vec(),
            marks: lane.marks.to_vec(),
            draw,
        };
        expected.advance();
        expected
    }

    fn advance(&mut self) {
        self.position += 1;
        self.key_position += 1;
        self.slot += 1;
        self.draw.index += 1;
        if let Some(span) = self.spans.last_mut() {
            span.len += 1;
        }
    }

    /// Rows from the next one to the end of its page; 0 if the next one begins a new page.
    fn rows_left(&self) -> usize {
        self.slot.wrapping_neg() as usize % PAGE_ROWS
    }

    fn fits(&self, lane: &Lane<'_>) -> bool {
        (self.position, self.key_position, self.slot)
            == (lane.positions[0], lane.key_positions[0], lane.store_at[0])
            && self.spans == lane.spans
            && self.marks == lane.marks
    }
}

/// Whether a lane's next token would only add a row, to its last stretch: it has one token, its row
/// is the last of its last span, and no mark comes after it.
fn is_followed(lane: &Lane<'_>) -> bool {
    let last = lane.spans.last();
    lane.tokens.len() == 1
        && lane.marks.last().is_none_or(|mark| *mark <= lane.positions[0])
        && last.is_some_and(|span| span.len > 0 && span.slot(span.len - 1) == lane.store_at[0])
}

/// The tokens of a lane's draft that its output comes after: none if it has one output.
pub(crate) fn drafted<'a>(lane: &Lane<'a>, output: usize) -> &'a [u32] {
    match lane.outputs {
        Outputs::All => &lane.tokens[1..=output],
        Outputs::None | Outputs::Last => &[],
    }
}

/// Reads until a value is there. A GPU that failed or is idle never publishes one.
fn spin<T>(gpu: &Gpu, read: impl Fn() -> Option<T>) -> Result<T, CudaError> {
    let mut asked = Instant::now();
    loop {
        for _ in 0..64 {
            if let Some(value) = read() {
                return Ok(value);
            }
            std::hint::spin_loop();
        }
        if asked.elapsed() > PATIENCE {
            let is_idle = gpu.is_idle()?;
            if is_idle && let Some(value) = read() {
                return Ok(value);
            }
            if is_idle {
                let reason = "the step ended without publishing a token".to_owned();
                return Err(CudaError::Driver { call: "waiting for a token", reason });
            }
            asked = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests;
