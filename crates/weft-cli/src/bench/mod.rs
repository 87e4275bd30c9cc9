//! `weft bench`: measures the speed of a model, and compares it with the limits of the machine.
//!
//! It calls a `Device` directly, so that the results include neither sampling nor scheduling. Each
//! result comes with the read bandwidth of the same run, the spread of the samples, and a hash of
//! the logits.

mod args;
mod check;
mod compare;
mod engine_report;
mod export;
mod file;
mod first_token;
mod forced;
mod generate;
mod lanes;
mod logits;
pub(crate) mod machine;
mod measure;
mod ops;
mod plot;
mod plot_first_token;
mod plot_speculate;
mod report;
mod speculate;
mod start;
mod stats;
mod subject;
mod svg;
mod table;
mod timeline;

use std::process::ExitCode;

use weft_core::device::{Limits, MAX_LANES};
use weft_core::kv::PAGE_ROWS;

use self::args::{BenchCommand, GridArgs, SubjectArgs, TestArgs};
use self::lanes::Lanes;
use self::measure::Bench;
use self::report::{Bandwidth, BandwidthPass, FORMAT, Kind, ModelFacts, Report, Row};
use self::subject::{OnDevice, Subject};
use crate::answer::print;
use crate::error::CliError;
use crate::load;
use crate::terminal;

pub(crate) use self::args::{BenchArgs, Format};

/// Passes of each way to read memory, per measurement.
const BANDWIDTH_PASSES: usize = 5;

pub(crate) fn run(args: BenchArgs) -> Result<ExitCode, CliError> {
    match args.what {
        None => tests(args.tests),
        Some(BenchCommand::Ops(args)) => ops::run(args),
        Some(BenchCommand::FirstToken(args)) => first_token::run(&args),
        Some(BenchCommand::Generate(args)) => generate::run(&args),
        Some(BenchCommand::Speculate(args)) => speculate::run(&args),
        Some(BenchCommand::Start(args)) => start::run(&args),
        Some(BenchCommand::Compare(args)) => compare::run(&args),
        Some(BenchCommand::Plot(args)) => plot::run(&args),
        Some(BenchCommand::Export(args)) => export::run(&args),
        Some(BenchCommand::Forced(args)) => forced::run(&args),
    }
}

/// Prompts, then tokens, at each depth.
fn tests(mut args: TestArgs) -> Result<ExitCode, CliError> {
    args.n_prompt.retain(|n| *n > 0);
    in_order(&mut args.n_prompt);
    args.grid.sort();
    if args.n_prompt.is_empty() && args.n_gen == 0 {
        return Err(CliError::Usage(
            "nothing to measure: both -p and -n are 0; raise one".to_owned(),
        ));
    }
    let timeline = args.timeline.as_deref();
    timeline.map_or(Ok(()), |path| file::check_target("--timeline", path))?;
    let subject = Subject::find(&args.subject)?;
    let prompt = args.n_prompt.last().copied().unwrap_or(0);
    let rows = args.grid.rows(args.n_gen, prompt);
    subject.check_positions(*rows.iter().max().unwrap_or(&0))?;
    let report = measured(&subject, &args.subject, &rows, table::tests, |bench, findings| {
        let rows = measure_all(bench, &args, findings)?;
        if let Some(path) = &args.timeline {
            let at = args.grid.points().next().unwrap_or((0, 1));
            timeline::write(bench, at, path)?;
        }
        Ok(rows)
    })?;
    if args.grid.repetitions.is_none() {
        terminal::note(args.subject.quiet, MORE);
    }
    finish(&report)
}

/// What a user of a short run can do next.
const MORE: &str = "a short run; `weft bench -r 5 -b 1,2,4,8 -d 0,4096` measures more, \
                    `-m MODEL` a real model, `--save run.json` keeps all samples";

fn measure_all(
    bench: &mut Bench<'_>,
    args: &TestArgs,
    findings: &mut Findings,
) -> Result<Vec<Row>, CliError> {
    let GridArgs { n_depth, batch, .. } = &args.grid;
    let mut rows: Vec<Row> = Vec::new();
    for depth in n_depth {
        for n_tokens in &args.n_prompt {
            bench.fill(1, *depth)?;
            findings.bandwidth.push(bandwidth(&args.subject));
            let problems = &mut findings.problems;
            rows.push(bench.prompt(*n_tokens, *depth, args.grid.rounds(), problems)?);
            print_speed(rows.last(), &args.subject);
        }
        for batch in batch.iter().filter(|_| args.n_gen > 0) {
            bench.fill(*batch, *depth)?;
            findings.bandwidth.push(bandwidth(&args.subject));
            let problems = &mut findings.problems;
            rows.push(bench.decode(args.n_gen, (*depth, *batch), args.grid.rounds(), problems)?);
            print_speed(rows.last(), &args.subject);
            if args.follow {
                let problems = &mut findings.problems;
                rows.push(bench.follow(
                    args.n_gen,
                    (*depth, *batch),
                    args.grid.rounds(),
                    problems,
                )?);
                print_speed(rows.last(), &args.subject);
            }
        }
    }
    Ok(rows)
}

fn print_speed(row: Option<&Row>, args: &SubjectArgs) {
    if let Some(row) = row {
        let speed = row.tokens_per_s.median;
        terminal::note(args.quiet, &format!("{}: {speed:.2} tok/s", row.name()));
    }
}

/// Results of tests besides their rows.
#[derive(Default)]
struct Findings {
    /// Reasons why the results are invalid.
    problems: Vec<String>,
    /// The read bandwidth before each test.
    bandwidth: Vec<Vec<BandwidthPass>>,
}

/// Room for lanes with these numbers of rows, and for two pages of each at least: if contexts are
/// shorter, the CUDA device does not time its ways of running a token, and takes graphs.
fn limits(rows: &[usize], max_positions: usize, step_tokens: usize) -> Limits {
    let roomy: Vec<usize> =
        rows.iter().map(|rows| (*rows).max(max_positions.min(2 * PAGE_ROWS))).collect();
    Limits {
        step_tokens,
        step_outputs: MAX_LANES,
        positions: roomy.iter().copied().max().unwrap_or(1),
        pages: Lanes::pages_for(&roomy),
    }
}

/// Creates the device, measures, and reports the result. Each test measures the read bandwidth
/// first.
fn measured(
    subject: &Subject,
    args: &SubjectArgs,
    rows: &[usize],
    table: impl FnOnce(&Report) -> String,
    measure: impl FnOnce(&mut Bench<'_>, &mut Findings) -> Result<Vec<Row>, CliError>,
) -> Result<Report, CliError> {
    let limits = limits(rows, subject.config.max_positions, args.step_tokens());
    let OnDevice { mut device, threads } = subject.open(args, limits)?;
    let mut findings = Findings::default();
    let mut bench = Bench::new(&subject.config, subject.forms(), &mut *device, rows);
    let mut rows = measure(&mut bench, &mut findings)?;
    let Findings { mut problems, bandwidth: mut taken } = findings;
    taken.push(bandwidth(args));
    let size = ((args.bandwidth_mib as u64) << 20, subject::threads(args));
    let bandwidth = Bandwidth::new(size, taken);
    for row in rows.iter_mut().filter(|row| row.kind != Kind::Prefill) {
        row.bandwidth_share = Some(row.gb_per_s / bandwidth.best_gb_per_s);
    }
    problems.extend(check::problems(&rows));

    let parameters = weft_core::weights::parameters(&subject.config);
    let report = Report {
        format: FORMAT,
        weft_version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: machine::commit(),
        debug_build: cfg!(debug_assertions),
        date: machine::now(),
        command: machine::command(),
        machine: machine::Machine::this(),
        model: ModelFacts {
            name: subject.name.clone(),
            weights: subject.source.clone(),
            parameters,
            weight_bytes: subject.forms().total_bytes(&subject.config, device.dtype()),
            dtype: device.dtype().to_string(),
        },
        device: device.describe(),
        device_details: device.details(),
        threads,
        step_tokens: limits.step_tokens,
        bandwidth,
        rows,
        problems,
    };
    print_report(&report, args, table)?;
    Ok(report)
}

/// Measures the read bandwidth of the device's memory.
fn bandwidth(args: &SubjectArgs) -> Vec<BandwidthPass> {
    let bytes = args.bandwidth_mib << 20;
    let on_gpu = load::wanted_launches(&args.device).is_ok_and(|found| found.is_some());
    let passes: Vec<_> = if on_gpu {
        let samples = weft_cuda::read_bandwidth(bytes, BANDWIDTH_PASSES).unwrap_or_default();
        let pass = |bytes_per_s| BandwidthPass { streams: 1, gb_per_s: bytes_per_s / 1e9 };
        samples.into_iter().map(pass).collect()
    } else {
        let samples = weft_cpu::read_bandwidth(subject::threads(args), bytes, BANDWIDTH_PASSES);
        let pass = |sample: &weft_cpu::BandwidthSample| BandwidthPass {
            streams: sample.streams,
            gb_per_s: sample.bytes_per_s / 1e9,
        };
        samples.iter().map(pass).collect()
    };
    terminal::note(args.quiet, &format!("read bandwidth: {:.1} GB/s", report::best(&passes)));
    passes
}

/// Prints and saves.
fn print_report(
    report: &Report,
    args: &SubjectArgs,
    table: impl FnOnce(&Report) -> String,
) -> Result<(), CliError> {
    print(&match args.output {
        Format::Table => table(report),
        Format::Json => report.to_json(),
        Format::Csv => table::csv(report),
    })?;
    if let Some(path) = &args.save {
        file::save(path, &report.to_json(), args.output == Format::Json)?;
    }
    for note in check::notes(report) {
        terminal::note(args.quiet, &note);
    }
    Ok(())
}

/// Fails if the results are invalid.
fn finish(report: &Report) -> Result<ExitCode, CliError> {
    if report.problems.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    Err(CliError::Unhealthy(format!("the results are invalid: {}", report.problems.join("; "))))
}

/// Sorts and removes duplicates, because one depth reuses the KV rows of the previous one.
fn in_order(values: &mut Vec<usize>) {
    values.sort_unstable();
    values.dedup();
}

impl GridArgs {
    fn sort(&mut self) {
        in_order(&mut self.n_depth);
        in_order(&mut self.batch);
    }

    /// Every depth with every batch.
    fn points(&self) -> impl Iterator<Item = (usize, usize)> {
        let with_batches = |depth: &usize| {
            let depth = *depth;
            self.batch.iter().map(move |batch| (depth, *batch))
        };
        self.n_depth.iter().flat_map(with_batches)
    }

    /// KV rows that each lane needs for tests of `n_gen` tokens; the first lane also for prompts.
    fn rows(&self, n_gen: usize, n_prompt: usize) -> Vec<usize> {
        let depth = self.n_depth.last().copied().unwrap_or(0);
        let lanes = if n_gen == 0 { 1 } else { self.batch.last().copied().unwrap_or(1) };
        let mut rows = vec![depth + n_gen; lanes];
        rows[0] = depth + n_gen.max(n_prompt);
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_test_has_room_for_the_contexts_on_which_a_device_times_itself() {
        let of = |rows: &[usize], max_positions| {
            let limits = limits(rows, max_positions, 512);
            (limits.positions, limits.pages)
        };
        assert_eq!(of(&[84, 64, 64, 64], 40_960), (128, 8));
        assert_eq!(of(&[8256, 8256], 40_960), (8256, 2 * 129));
        // Not more than the model has.
        assert_eq!(of(&[20], 64), (64, 1));
    }
}
