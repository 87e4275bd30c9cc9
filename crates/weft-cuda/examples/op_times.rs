//! Times each op of a plan on the GPU, all layers of it as one graph: what the host, launches and
//! other ops cost is not in the figures. Prints one JSON object per line.
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
        step_tokens: n_tokens.max(8),
        step_outputs: 8,
        positions: rows,
        pages: pages_for(rows),
    };
    let weights = weights(&config, bits);
    let forms = Forms::of(&*weights, &config);
    let mut device = CudaDevice::new(&config, &*weights, Options::new(limits))?;
    let span = Span {
        pages: (0..limits.pages as u32).collect(),
        first_row: 0,
        len: rows,
        home_position: 0,
        position: 0,
    };
    let positions: Vec<u32> = (context..rows).map(|row| row as u32).collect();
    let lane = Lane {
        tokens: &positions,
        positions: &positions,
        key_positions: &positions,
        store_at: &positions,
        spans: &[span],
        marks: &[],
        outputs: Outputs::Last,
    };
    assert!(rows <= limits.pages * PAGE_ROWS && rows <= config.vocab);
    let step = Step { lanes: &[lane] };
    let work = step.work();
    let all = plan(&config);
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
