//! `weft bench start`: how long a start takes, part by part, from the process to the first token.
//!
//! It measures the process that it runs in, so one run is one sample. With an empty folder in
//! `WEFT_KERNEL_CACHE` it is the first start ever on a machine.

use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use serde_json::{Value, json};
use weft::device::{Chosen, Tested};
use weft_core::device::{DeviceError, Inspect, Lane, Limits, MAX_LANES, Outputs, Span, Step};
use weft_core::kv::pages_for;
use weft_core::plan::plan;
use weft_core::sampling::{Sampler, Sampling};

use super::args::SubjectArgs;
use super::engine_report;
use super::subject::Subject;
use super::table;
use crate::error::CliError;
use crate::load;
use crate::size;

#[derive(Args)]
pub(crate) struct StartArgs {
    #[command(flatten)]
    subject: SubjectArgs,
    /// Tokens of the prompt
    #[arg(short = 'p', long, value_name = "TOKENS", default_value = "32",
          value_parser = size::parse_count)]
    prompt_tokens: usize,
    /// Length of the context that memory is taken for
    #[arg(short, long, value_name = "TOKENS", default_value = "8192",
          value_parser = size::parse_count)]
    ctx_size: usize,
    /// Then also wait until all kernels are compiled and measured
    #[arg(long)]
    wait: bool,
}

/// Contexts that fit side by side.
const CONTEXTS: usize = 4;

/// The parts of a start, in ms.
struct Parts {
    all: Vec<(String, f64)>,
    since: Instant,
}

impl Parts {
    fn end(&mut self, part: &str) {
        let now = Instant::now();
        self.all.push((part.to_owned(), (now - self.since).as_secs_f64() * 1e3));
        self.since = now;
    }
}

pub(crate) fn run(args: &StartArgs) -> Result<ExitCode, CliError> {
    let mut parts = Parts { all: Vec::new(), since: Instant::now() };
    if let Some(ms) = process_ms() {
        parts.all.push(("process".to_owned(), ms));
    }
    let launches = load::wanted_launches(&args.subject.device)?;
    parts.end("driver, compiler, context");
    let subject = Subject::find(&args.subject)?;
    subject.check_positions(args.prompt_tokens + 2)?;
    let chosen = launches.map_or(Chosen::Cpu, Chosen::Cuda);
    let chosen = chosen.with_experts(args.subject.device.experts.place(), &subject.config)?;
    let limits = Limits {
        step_tokens: args.subject.step_tokens(),
        step_outputs: MAX_LANES,
        positions: args.ctx_size.max(args.prompt_tokens + 2),
        pages: CONTEXTS * pages_for(args.ctx_size.max(args.prompt_tokens + 2)),
    };
    parts.end("model");
    let make =
        || chosen.make(&subject.config, &*subject.weights, limits, args.subject.device.threads);
    let (device, tested) = chosen.test_beside(&subject.config, make)?;
    let mut device = device.ok_or_else(|| CliError::Unhealthy(reason(&tested)))?;
    let created: f64 = device.started().iter().map(|(_, ms)| ms).sum();
    for (part, ms) in device.started() {
        parts.all.push((format!("device: {part}"), ms));
    }
    let test = match &tested {
        Tested::Passed(passed) => {
            format!("device: the rest, self-test ({:.0} ms) included", passed.time_ms())
        }
        _ => "device: the rest; self-test passed earlier".to_owned(),
    };
    parts.end(&test);
    if let Some(last) = parts.all.last_mut() {
        last.1 = (last.1 - created).max(0.0);
    }
    let failed = |error: DeviceError| CliError::Gpu(error.to_string());
    let token =
        first_tokens(&mut *device, &subject, args.prompt_tokens, &mut parts).map_err(failed)?;
    let to_first: f64 =
        { parts.all.iter() }.take_while(|(part, _)| part != SECOND).map(|(_, ms)| ms).sum();
    if args.wait {
        device.warm_up().map_err(failed)?;
        parts.end("after it: all kernels compiled, tested, measured");
    }
    let listed: Vec<Value> =
        parts.all.iter().map(|(part, ms)| json!({ "part": part, "ms": ms })).collect();
    let figures = json!({ "parts": listed, "first_token_ms": to_first, "first_token": token });
    let report = engine_report::report_on(&subject, &*device, figures);
    engine_report::print_report(&report, &args.subject, as_table)?;
    Ok(ExitCode::SUCCESS)
}

fn reason(tested: &Tested) -> String {
    match tested {
        Tested::Failed(reason) => format!("the self-test failed: {reason}"),
        _ => "there is no device".to_owned(),
    }
}

/// The name of the part after the first token.
const SECOND: &str = "after it: second token";

/// Runs a prompt and two tokens; returns the first.
fn first_tokens(
    device: &mut dyn Inspect,
    subject: &Subject,
    n_prompt: usize,
    parts: &mut Parts,
) -> Result<Option<u32>, DeviceError> {
    let ops = plan(&subject.config);
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let sampler = Sampler::new(&greedy, &[], &[], subject.config.vocab).ok();
    let mut first = None;
    for (n, range) in [(0, 0..n_prompt), (1, n_prompt..n_prompt + 1)] {
        let rows: Vec<u32> = range.clone().map(|row| row as u32).collect();
        let tokens: Vec<u32> = rows.iter().map(|row| row * 19 % 251).collect();
        let pages = (0..pages_for(range.end) as u32).collect();
        let span = Span { pages, first_row: 0, len: range.end, home_position: 0, position: 0 };
        let lane = Lane {
            tokens: &tokens,
            positions: &rows,
            key_positions: &rows,
            store_at: &rows,
            spans: &[span],
            marks: &[],
            outputs: Outputs::Last,
        };
        device.decode(&ops, &Step { lanes: &[lane] }, &[sampler.as_ref()], 0)?;
        let chosen = device.chosen(0, 0).or_else(|| best(device.logits(0)));
        first = first.or(chosen);
        parts.end(if n == 0 { "prompt and first token" } else { SECOND });
    }
    Ok(first)
}

fn best(logits: &[f32]) -> Option<u32> {
    let best = logits.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
    best.map(|(token, _)| token as u32)
}

/// How long ago the process began, if the system says so: in steps of a hundredth of a second.
fn process_ms() -> Option<f64> {
    const TICKS_PER_S: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let began: f64 = stat.rsplit(") ").next()?.split(' ').nth(19)?.parse().ok()?;
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
    let now: f64 = uptime.split(' ').next()?.parse().ok()?;
    Some(((now - began / TICKS_PER_S) * 1e3).max(0.0))
}

fn as_table(report: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let time = |value: &Value| size::time_ms(value.as_f64().unwrap_or_default());
    let parts = report["parts"].as_array().cloned().unwrap_or_default();
    let mut lines: Vec<Vec<String>> =
        parts.iter().map(|part| vec![text(&part["part"]), time(&part["ms"])]).collect();
    lines.push(vec!["to the first token".to_owned(), time(&report["first_token_ms"])]);
    let columns = [("part", false), ("time", true)];
    let (model, device) = (text(&report["model"]), text(&report["device"]));
    let mut table = format!("{model} · {device}\n\n{}", table::markdown(&columns, &lines));
    if let Some(details) = report["device_details"].as_str() {
        table += &format!("\n{details}\n");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_when_it_began() {
        let (Some(before), wait) = (process_ms(), std::time::Duration::from_millis(50)) else {
            return;
        };
        std::thread::sleep(wait);
        let after = process_ms().unwrap();
        assert!(after >= before + 30.0 && after < before + 60_000.0, "{before} ms, {after} ms");
    }

    #[test]
    fn the_best_token_has_the_largest_logit() {
        assert_eq!(best(&[0.5, 2.0, -1.0]), Some(1));
        assert_eq!(best(&[]), None);
    }
}
