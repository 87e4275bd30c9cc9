//! Times each op of a plan on the GPU, all layers of it as one graph: what the host, launches and
//! other ops cost is not in the figures. The context is computed first: a GPU needs less power for
//! products of zeros, and may run faster on them. Prints one JSON object per line.
//!
//!     cargo run --release -p weft-cuda --example op_times -- qwen3-0.6b 200 1 | tee times.jsonl
//!
//! The arguments are a named shape, the context, the number of tokens of the step, of layers (0: all),
//! and of bits that weights are quantised to (0: none).

use weft_core::config::Config;
use weft_core::device::{Device, Lane, Limits, Outputs, Span, Step};
use weft_core::kv::{PAGE_ROWS, pages_for};
use weft_core::plan::{Op, plan};
use weft_core::shapes;
use weft_core::weights::{Coded, Forms, Quantised, RandomWeights, Weights};
use weft_cuda::{CudaDevice, Options};

const REPEATS: usize = 20;
/// The fewest tokens that steps have room for, so that the context takes few of them.
const STEP_TOKENS: usize = 512;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "qwen3-0.6b".to_owned());
    let mut number = |or: usize| arguments.next().map_or(Ok(or), |text| text.parse());
    let (context, n_tokens) = (number(200)?, number(1)?);
    let mut config = shapes::config(&name).ok_or("no such shape")?;
    let (layers, bits) = (number(0)?, number(0)?);
    if layers > 0 {
        config.layers = layers.min(config.layers);
    }
    let rows = context + n_tokens;
    let limits = Limits {
        step_tokens: n_tokens.max(STEP_TOKENS),
        step_outputs: 8,
        positions: rows,
        pages: pages_for(rows),
    };
    let weights = weights(&config, bits);
    let forms = Forms::of(&*weights, &config);
    let mut device = CudaDevice::new(&config, &*weights, Options::new(limits))?;
    assert!(rows <= limits.pages * PAGE_ROWS && rows <= config.vocab);
    let all = plan(&config);
    let numbers: Vec<u32> = (0..rows as u32).collect();
    for first in (0..context).step_by(limits.step_tokens) {
        let end = context.min(first + limits.step_tokens);
        let spans = [span(end)];
        let lane = Lane { outputs: Outputs::None, ..lane(&numbers[first..end], &spans) };
        device.run(&all, &Step { lanes: &[lane] })?;
    }
    let spans = [span(rows)];
    let lanes = [lane(&numbers[context..], &spans)];
    let step = Step { lanes: &lanes };
    let work = step.work();
    let names = names(&all);
    let with = |name: &str| all.iter().copied().filter(|op| op.name() == name).collect::<Vec<_>>();
    let without = |name: &str| all.iter().copied().filter(|op| op.name() != name).collect();
    let mut time = |label: &str, ops: Vec<Op>| -> Result<(), Box<dyn std::error::Error>> {
        let mut samples = device.replay_us(&ops, &step, REPEATS)?;
        samples.sort_by(f64::total_cmp);
        let median = samples[samples.len() / 2];
        let bytes: u64 =
            ops.iter().map(|op| op.bytes(&config, &forms, device.dtype(), &work)).sum();
        let flops: u64 = ops.iter().map(|op| op.flops(&config, &work)).sum();
        println!(
            r#"{{"shape": "{name}", "bits": {bits}, "layers": {}, "context": {context}, "tokens": {n_tokens}, "ops": "{label}", "n": {}, "median_us": {median:.2}, "gb_per_s": {:.1}, "tflop_per_s": {:.2}, "samples_us": {samples:.2?}}}"#,
            config.layers,
            ops.len(),
            bytes as f64 / median / 1e3,
            flops as f64 / median / 1e6,
        );
        Ok(())
    };
    time("all", all.clone())?;
    for name in &names {
        time(name, with(name))?;
    }
    for name in &names {
        time(&format!("all but {name}"), without(name))?;
    }
    Ok(())
}

/// Rows from position 0 on, in as many pages.
fn span(rows: usize) -> Span {
    let pages = (0..pages_for(rows) as u32).collect();
    Span { pages, first_row: 0, len: rows, home_position: 0, position: 0 }
}

/// Tokens that are also their positions and slots.
fn lane<'a>(numbers: &'a [u32], spans: &'a [Span]) -> Lane<'a> {
    Lane {
        tokens: numbers,
        positions: numbers,
        key_positions: numbers,
        store_at: numbers,
        spans,
        marks: &[],
        outputs: Outputs::Last,
    }
}

/// Random weights of so many bits, or in bf16.
fn weights(config: &Config, bits: usize) -> Box<dyn Weights> {
    let plain = RandomWeights::new(config, 1);
    match bits {
        0 => Box::new(plain),
        _ => Box::new(Quantised::new(plain, Coded::int(bits as u8))),
    }
}

/// The names of ops, each once.
fn names(ops: &[Op]) -> Vec<&'static str> {
    let mut names: Vec<&'static str> = Vec::new();
    for op in ops {
        if !names.contains(&op.name()) {
            names.push(op.name());
        }
    }
    names
}
