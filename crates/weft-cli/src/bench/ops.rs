//! `weft bench ops`: the time of each op of a token.
//!
//! Each op runs separately, in the plan's order: weights come from memory as in a whole step,
//! buffers hold the same values, and the sum is comparable with a whole step. The logits at the end
//! must equal those of the whole step. A device with its own clock times all layers of an op at
//! once, with cold caches and without the host.

use std::process::ExitCode;

use weft_core::plan::Op;

use super::args::{GridArgs, OpsArgs};
use super::measure::{Bench, Test, at_depth, row};
use super::report::{Kind, Report, Row};
use super::subject::Subject;
use super::table::{Column, footer, markdown, number, percent};
use super::{bandwidth, finish, measured};
use crate::error::CliError;
use crate::terminal;

/// Steps of each kind in one repetition.
const STEPS: usize = 8;

/// The name of the row for the whole step.
const WHOLE: &str = "whole step";
/// The name of the row for the sum of the ops.
const SUM: &str = "sum of ops";

pub(super) fn run(mut args: OpsArgs) -> Result<ExitCode, CliError> {
    args.grid.sort();
    let subject = Subject::find(&args.subject)?;
    let rows = args.grid.rows(1, 0);
    subject.check_positions(rows[0])?;
    let report = measured(&subject, &args.subject, &rows, table, |bench, findings| {
        let GridArgs { n_depth, batch, .. } = &args.grid;
        let repetitions = args.grid.repetitions();
        let mut rows = Vec::new();
        for depth in n_depth {
            for batch in batch {
                terminal::note(args.subject.quiet, &format!("ops at depth {depth}, batch {batch}"));
                bench.fill(*batch, *depth)?;
                findings.bandwidth.push(bandwidth(&args.subject));
                let problems = &mut findings.problems;
                rows.extend(measure(bench, (*depth, *batch), repetitions * STEPS, problems)?);
            }
        }
        Ok(rows)
    })?;
    finish(&report)
}

fn measure(
    bench: &mut Bench<'_>,
    at: (usize, usize),
    n_steps: usize,
    problems: &mut Vec<String>,
) -> Result<Vec<Row>, CliError> {
    match measure_on_device(bench, at, n_steps)? {
        Some(rows) => Ok(rows),
        None => measure_by_clock(bench, at, n_steps, problems),
    }
}

/// The device's own times, if it has a clock.
fn measure_on_device(
    bench: &mut Bench<'_>,
    at: (usize, usize),
    n_steps: usize,
) -> Result<Option<Vec<Row>>, CliError> {
    let all = bench.ops.clone();
    let Some(whole) = bench.time_on_device(&all, at, n_steps)? else { return Ok(None) };
    let mut rows = Vec::new();
    let mut sums = vec![0.0; n_steps];
    for name in names(&all) {
        let ops: Vec<Op> = all.iter().copied().filter(|op| op.name() == name).collect();
        let samples = bench.time_on_device(&ops, at, n_steps)?.unwrap_or_default();
        sums.iter_mut().zip(&samples).for_each(|(sum, time)| *sum += time);
        rows.push(row(of_ops(bench, name, at), samples, None));
    }
    rows.push(row(of_ops(bench, SUM, at), sums, None));
    rows.push(row(of_ops(bench, WHOLE, at), whole, None));
    Ok(Some(rows))
}

/// Whole steps and steps op by op, in turn, under the same conditions.
fn measure_by_clock(
    bench: &mut Bench<'_>,
    (depth, batch): (usize, usize),
    n_steps: usize,
    problems: &mut Vec<String>,
) -> Result<Vec<Row>, CliError> {
    let names = names(&bench.ops);
    let (mut whole, mut sums) = (Vec::new(), Vec::new());
    let mut by_name = vec![Vec::new(); names.len()];
    bench.token(batch, depth)?;
    for _ in 0..n_steps {
        whole.push(bench.token(batch, depth)?);
        let logits = bench.logits(batch);
        let times = bench.token_by_ops(batch, depth)?;
        if bench.logits(batch) != logits {
            problems.push(format!("depth {depth} b{batch}: op by op gives other logits"));
        }
        sums.push(times.iter().sum());
        for (name, samples) in names.iter().zip(&mut by_name) {
            let of_name = bench.ops.iter().zip(&times).filter(|(op, _)| op.name() == *name);
            samples.push(of_name.map(|(_, time_us)| time_us).sum());
        }
    }
    let test = |name: &str| of_ops(bench, name, (depth, batch));
    let mut rows: Vec<Row> =
        names.iter().zip(by_name).map(|(name, samples)| row(test(name), samples, None)).collect();
    rows.push(row(test(SUM), sums, None));
    rows.push(row(test(WHOLE), whole, Some(bench.logits(batch))));
    Ok(rows)
}

/// The names of the ops, in the plan's order.
fn names(ops: &[Op]) -> Vec<&'static str> {
    let mut names: Vec<&str> = Vec::new();
    for op in ops {
        if !names.contains(&op.name()) {
            names.push(op.name());
        }
    }
    names
}

/// The work of all ops with a name, or of all ops if no op has this name.
fn of_ops(bench: &Bench<'_>, name: &str, (depth, batch): (usize, usize)) -> Test {
    let work = bench.token_work(batch, depth);
    let all = name == SUM || name == WHOLE;
    let ops = || bench.ops.iter().filter(|op| all || op.name() == name);
    let dtype = bench.device.dtype();
    Test {
        name: at_depth(name, depth),
        kind: Kind::Op,
        depth,
        batch,
        n_tokens: batch,
        bytes: ops().map(|op| op.bytes(bench.config, &bench.forms, dtype, &work)).sum(),
        flops: ops().map(|op| op.flops(bench.config, &work)).sum(),
    }
}

const COLUMNS: [Column; 8] = [
    ("op", false),
    ("batch", true),
    ("µs per step", true),
    ("p10 – p90", true),
    ("% of step", true),
    ("MB", true),
    ("GB/s", true),
    ("% of read bandwidth", true),
];

fn table(report: &Report) -> String {
    let lines: Vec<Vec<String>> = report.rows.iter().map(|row| line(report, row)).collect();
    markdown(&COLUMNS, &lines) + "\n" + &footer(report)
}

fn line(report: &Report, row: &Row) -> Vec<String> {
    let mut same_step = report.rows.iter().filter(|r| (r.depth, r.batch) == (row.depth, row.batch));
    let whole = same_step.rfind(|r| r.test.starts_with(WHOLE));
    let share = whole.map(|whole| row.time_us.median / whole.time_us.median);
    vec![
        row.test.clone(),
        row.batch.to_string(),
        format!("{:.1}", row.time_us.median),
        format!("{:.1} – {:.1}", row.time_us.p10, row.time_us.p90),
        percent(share),
        number(row.bytes as f64 / 1e6),
        number(row.gb_per_s),
        percent(row.bandwidth_share),
    ]
}
