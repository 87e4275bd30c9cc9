//! Runs and times the tests: prompts and single tokens.
//!
//! A sample is the time of `Device::run` alone. If tokens follow one another, a sample is the time
//! of a step and of choosing its tokens.

use std::ops::Range;
use std::time::Instant;

use weft_core::config::Config;
use weft_core::device::{DeviceError, Inspect, Outputs, Step};
use weft_core::engine::GenerateError;
use weft_core::plan::{Op, Work, plan};
use weft_core::sampling::{Sampler, Sampling};
use weft_core::weights::Forms;

use super::lanes::Lanes;
use super::logits::Logits;
use super::report::{Kind, Row};
use super::stats::Spread;
use crate::error::CliError;

/// Steps before each decode test that are not timed.
const WARM_UP: usize = 2;

/// A device with its lanes.
pub(crate) struct Bench<'a> {
    pub(crate) config: &'a Config,
    pub(crate) forms: Forms,
    pub(crate) device: &'a mut dyn Inspect,
    lanes: Lanes,
    pub(crate) ops: Vec<Op>,
    /// Number of rows of each lane that hold the results of its tokens.
    filled: Vec<usize>,
}

/// The description of a test's samples.
pub(crate) struct Test {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) depth: usize,
    pub(crate) batch: usize,
    pub(crate) n_tokens: usize,
    /// Bytes of one sample.
    pub(crate) bytes: u64,
    pub(crate) flops: u64,
}

/// Reasons why the results are invalid.
pub(crate) type Problems = Vec<String>;

impl<'a> Bench<'a> {
    /// Empty lanes with room for these numbers of rows.
    pub(crate) fn new(
        config: &'a Config,
        forms: Forms,
        device: &'a mut dyn Inspect,
        rows: &[usize],
    ) -> Self {
        Self {
            config,
            forms,
            device,
            lanes: Lanes::new(rows, config.vocab),
            ops: plan(config),
            filled: vec![0; rows.len()],
        }
    }

    /// Prefills the first `batch` lanes up to `depth`. Rows that exist are not computed again.
    pub(crate) fn fill(&mut self, batch: usize, depth: usize) -> Result<(), CliError> {
        for lane in 0..batch {
            if self.filled[lane] < depth {
                self.prefill(lane, self.filled[lane]..depth, Outputs::None)?;
                self.filled[lane] = depth;
            }
        }
        Ok(())
    }

    /// A prompt at some depth, once for each round.
    pub(crate) fn prompt(
        &mut self,
        n_tokens: usize,
        depth: usize,
        rounds: impl Iterator<Item = usize>,
        problems: &mut Problems,
    ) -> Result<Row, CliError> {
        let end = depth + n_tokens;
        let block = self.device.limits().step_tokens;
        self.prefill(0, depth..end.min(depth + block), Outputs::None)?;
        let test = self.prompt_test(n_tokens, depth);
        let (mut samples, mut logits) = (Vec::new(), Vec::new());
        for _ in rounds {
            samples.push(self.prefill(0, depth..end, Outputs::Last)?);
            logits.push(self.logits(1));
        }
        let logits = one_of(&logits, &test, problems);
        Ok(row(test, samples, Some(logits)))
    }

    /// `n` tokens in each lane, one step each, once for each round.
    pub(crate) fn decode(
        &mut self,
        n: usize,
        (depth, batch): (usize, usize),
        rounds: impl Iterator<Item = usize>,
        problems: &mut Problems,
    ) -> Result<Row, CliError> {
        for i in 0..WARM_UP.min(n) {
            self.token(batch, depth + i)?;
        }
        let (mut samples, mut logits) = (Vec::new(), Vec::new());
        for _ in rounds {
            for i in 0..n {
                samples.push(self.token(batch, depth + i)?);
            }
            logits.push(self.logits(batch));
        }
        let test = self.decode_test(n, depth, batch);
        let logits = one_of(&logits, &test, problems);
        Ok(row(test, samples, Some(logits)))
    }

    /// `n` consecutive tokens in each lane, each the most likely one, chosen by the device if it
    /// can, once for each round.
    pub(crate) fn follow(
        &mut self,
        n: usize,
        (depth, batch): (usize, usize),
        rounds: impl Iterator<Item = usize>,
        problems: &mut Problems,
    ) -> Result<Row, CliError> {
        let (mut samples, mut said) = (Vec::new(), Vec::new());
        // Warms up the machine.
        said.push(self.follow_once(n, (depth, batch))?.1);
        for _ in rounds {
            let (times, tokens) = self.follow_once(n, (depth, batch))?;
            said.push(tokens);
            samples.extend(times);
        }
        let test =
            Test { name: at_depth(&format!("gen{n}"), depth), ..self.decode_test(n, depth, batch) };
        if said.iter().any(|tokens| *tokens != said[0]) {
            problems.push(format!("{} b{batch}: repetitions gave other tokens", test.name));
        }
        // The rows after the depth now belong to other tokens.
        self.filled.iter_mut().take(batch).for_each(|filled| *filled = depth.min(*filled));
        Ok(row(test, samples, None))
    }

    /// The time of each step in µs, and the tokens.
    fn follow_once(
        &mut self,
        n: usize,
        (depth, batch): (usize, usize),
    ) -> Result<(Vec<f64>, Vec<Vec<u32>>), CliError> {
        let Self { lanes, device, ops, config, .. } = self;
        let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
        let sampler = |_| Sampler::new(&greedy, &[], &[], config.vocab);
        let mut samplers =
            (0..batch).map(sampler).collect::<Result<Vec<_>, _>>().map_err(GenerateError::from)?;
        let (mut times, mut said) = (Vec::new(), vec![(0..batch as u32).collect::<Vec<u32>>()]);
        for position in depth..depth + n {
            let start = Instant::now();
            let ahead = Lanes::rows_left(position).min(depth + n - 1 - position);
            let drawn: Vec<_> = samplers.iter().map(Some).collect();
            let last = said.last().expect("a first token");
            lanes
                .step_of(last, position, |step| device.decode(ops, step, &drawn, ahead))
                .map_err(GenerateError::from)?;
            let tokens = samplers.iter_mut().enumerate().map(|(lane, sampler)| {
                let Some(token) = device.chosen(lane, 0) else {
                    return Ok(sampler.sample(device.logits(lane))?.token);
                };
                sampler.accept(token)?;
                Ok(token)
            });
            said.push(tokens.collect::<Result<_, GenerateError>>()?);
            times.push(start.elapsed().as_nanos() as f64 / 1e3);
        }
        Ok((times, said))
    }

    /// Runs one step with a token in each of the first `batch` lanes; returns its time in µs.
    pub(crate) fn token(&mut self, batch: usize, position: usize) -> Result<f64, CliError> {
        let Self { lanes, device, ops, .. } = self;
        let run = |step: &Step<'_>| timed(*device, ops, step);
        lanes.step(0..batch, position..position + 1, Outputs::Last, run)
    }

    /// The same, op by op: returns the time of each op of the plan in µs.
    pub(crate) fn token_by_ops(
        &mut self,
        batch: usize,
        position: usize,
    ) -> Result<Vec<f64>, CliError> {
        let Self { lanes, device, ops, .. } = self;
        lanes.step(0..batch, position..position + 1, Outputs::Last, |step| {
            ops.iter().map(|op| timed(*device, &[*op], step)).collect()
        })
    }

    /// The device's own times for the ops of such a step, in µs, if it has a clock.
    pub(crate) fn time_on_device(
        &mut self,
        ops: &[Op],
        (depth, batch): (usize, usize),
        repeats: usize,
    ) -> Result<Option<Vec<f64>>, CliError> {
        let Self { lanes, device, .. } = self;
        let timed = lanes.step(0..batch, depth..depth + 1, Outputs::Last, |step| {
            device.time_us(ops, step, repeats).transpose()
        });
        timed.map_err(|error| GenerateError::from(error).into())
    }

    /// The work of such a step.
    pub(crate) fn token_work(&self, batch: usize, position: usize) -> Work {
        self.lanes.step(0..batch, position..position + 1, Outputs::Last, work_of)
    }

    /// The logits of the last step.
    pub(crate) fn logits(&self, batch: usize) -> Logits {
        Logits::of((0..batch).map(|output| self.device.logits(output)))
    }

    /// Runs tokens of one lane in blocks; returns the time in µs.
    fn prefill(
        &mut self,
        lane: usize,
        positions: Range<usize>,
        outputs: Outputs,
    ) -> Result<f64, CliError> {
        let mut time_us = 0.0;
        for block in self.blocks(&positions) {
            let outputs = if block.end == positions.end { outputs } else { Outputs::None };
            let Self { lanes, device, ops, .. } = self;
            let run = |step: &Step<'_>| timed(*device, ops, step);
            time_us += lanes.step(lane..lane + 1, block, outputs, run)?;
        }
        Ok(time_us)
    }

    fn blocks(&self, positions: &Range<usize>) -> Vec<Range<usize>> {
        let size = self.device.limits().step_tokens;
        let starts = positions.clone().step_by(size);
        starts.map(|start| start..(start + size).min(positions.end)).collect()
    }

    fn prompt_test(&self, n_tokens: usize, depth: usize) -> Test {
        let end = depth + n_tokens;
        let works = self.blocks(&(depth..end)).into_iter().map(|block| {
            let outputs = if block.end == end { Outputs::Last } else { Outputs::None };
            self.lanes.step(0..1, block, outputs, work_of)
        });
        let (bytes, flops) = self.total(works);
        let name = at_depth(&format!("pp{n_tokens}"), depth);
        Test { name, kind: Kind::Prefill, depth, batch: 1, n_tokens, bytes, flops }
    }

    fn decode_test(&self, n: usize, depth: usize, batch: usize) -> Test {
        let (bytes, flops) = self.total((0..n).map(|i| self.token_work(batch, depth + i)));
        let (bytes, flops) = (bytes / n as u64, flops / n as u64);
        let name = at_depth(&format!("tg{n}"), depth);
        Test { name, kind: Kind::Decode, depth, batch, n_tokens: batch, bytes, flops }
    }

    /// Bytes and flops of some steps.
    fn total(&self, works: impl Iterator<Item = Work>) -> (u64, u64) {
        let dtype = self.device.dtype();
        works.fold((0, 0), |(bytes, flops), work| {
            let bytes_of = |op: &Op| op.bytes(self.config, &self.forms, dtype, &work);
            let of_step: u64 = self.ops.iter().map(bytes_of).sum();
            let flops_of_step: u64 = self.ops.iter().map(|op| op.flops(self.config, &work)).sum();
            (bytes + of_step, flops + flops_of_step)
        })
    }
}

/// A test's name in llama-bench's notation.
pub(crate) fn at_depth(test: &str, depth: usize) -> String {
    if depth == 0 { test.to_owned() } else { format!("{test} @ d{depth}") }
}

/// [`Step::work`] as a function that takes steps of any lifetime.
fn work_of(step: &Step<'_>) -> Work {
    step.work()
}

/// The time that ops take on a step, µs.
fn timed(device: &mut dyn Inspect, ops: &[Op], step: &Step<'_>) -> Result<f64, CliError> {
    let failed = |error: DeviceError| CliError::from(GenerateError::from(error));
    let start = Instant::now();
    device.run(ops, step).map_err(failed)?;
    Ok(start.elapsed().as_nanos() as f64 / 1e3)
}

/// The row of a test. The share of the bandwidth is added later, when the bandwidth is known.
pub(crate) fn row(test: Test, samples_us: Vec<f64>, logits: Option<Logits>) -> Row {
    let time_us = Spread::of(&samples_us);
    Row {
        tokens_per_s: time_us.rate(test.n_tokens as f64),
        gb_per_s: test.bytes as f64 / time_us.median / 1e3,
        gflop_per_s: test.flops as f64 / time_us.median / 1e3,
        test: test.name,
        kind: test.kind,
        batch: test.batch,
        depth: test.depth,
        n_tokens: test.n_tokens,
        time_us,
        bytes: test.bytes,
        bandwidth_share: None,
        logits,
        samples_us,
    }
}

/// The logits of all repetitions, which must be equal.
fn one_of(repetitions: &[Logits], test: &Test, problems: &mut Problems) -> Logits {
    let last = repetitions.last().expect("at least one repetition");
    if repetitions.iter().any(|logits| logits != last) {
        let (name, batch) = (&test.name, test.batch);
        problems.push(format!("{name} b{batch}: repetitions of the same tokens gave other logits"));
    }
    last.clone()
}
