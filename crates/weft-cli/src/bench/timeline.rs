//! `weft bench --timeline`: one token's ops in sequence, as a trace for Perfetto and Chrome.
//!
//! Each op is timed separately. If a device overlaps ops, the trace is longer than the token; the
//! whole token is shown above the ops.

use std::path::Path;

use serde_json::{Value, json};
use weft_core::plan::Op;

use super::file::write_whole;
use super::measure::Bench;
use super::stats::Spread;
use crate::error::CliError;

/// Number of measurements of each op.
const REPEATS: usize = 5;

/// Times a token in each of `batch` lanes after `depth` others, and writes the trace.
pub(super) fn write(
    bench: &mut Bench<'_>,
    (depth, batch): (usize, usize),
    path: &Path,
) -> Result<(), CliError> {
    bench.fill(batch, depth)?;
    let ops = bench.ops.clone();
    let (times, whole) = times(bench, &ops, (depth, batch))?;
    let work = bench.token_work(batch, depth);
    let dtype = bench.device.dtype();
    let bytes = |op: &Op| op.bytes(bench.config, &bench.forms, dtype, &work);
    let name = format!("a token in {batch} lanes, {depth} before it");
    let mut events = vec![
        json!({"name": "thread_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "whole"}}),
        json!({"name": "thread_name", "ph": "M", "pid": 1, "tid": 2, "args": {"name": "op by op"}}),
        event(&name, 1, (0.0, whole), &json!({"device": bench.device.describe()})),
    ];
    let mut start = 0.0;
    for (op, time_us) in ops.iter().zip(times) {
        let about = json!({
            "layer": op.layer(),
            "bytes": bytes(op),
            "gb_per_s": bytes(op) as f64 / time_us / 1e3,
        });
        events.push(event(op.name(), 2, (start, time_us), &about));
        start += time_us;
    }
    let trace = json!({"displayTimeUnit": "ns", "traceEvents": events});
    write_whole(path, &format!("{trace:#}\n"))
}

/// An event of a trace; `at` is its start and its duration in µs.
fn event(name: &str, thread: u32, at: (f64, f64), about: &Value) -> Value {
    json!({"name": name, "ph": "X", "pid": 1, "tid": thread, "ts": at.0, "dur": at.1, "args": about})
}

/// The time of each op, and of the whole step, in µs.
fn times(
    bench: &mut Bench<'_>,
    ops: &[Op],
    at: (usize, usize),
) -> Result<(Vec<f64>, f64), CliError> {
    let (depth, batch) = at;
    let middle = |samples: &[f64]| Spread::of(samples).median;
    if let Some(whole) = bench.time_on_device(ops, at, REPEATS)? {
        let of_op = |op: &Op| {
            let samples = bench.time_on_device(&[*op], at, REPEATS)?;
            Ok(middle(&samples.unwrap_or_default()))
        };
        let times = ops.iter().map(of_op).collect::<Result<_, CliError>>()?;
        return Ok((times, middle(&whole)));
    }
    let (mut whole, mut by_op) = (Vec::new(), vec![Vec::new(); ops.len()]);
    for _ in 0..REPEATS {
        whole.push(bench.token(batch, depth)?);
        let times = bench.token_by_ops(batch, depth)?;
        by_op.iter_mut().zip(times).for_each(|(samples, time)| samples.push(time));
    }
    Ok((by_op.iter().map(|samples| middle(samples)).collect(), middle(&whole)))
}
