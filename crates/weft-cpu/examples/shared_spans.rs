//! Measures the gain of reading shared pages once: decode steps of lanes that share the pages of a
//! common prefix, against steps of the same lanes with a copy each. The program checks that both
//! compute the same results.
//!
//! Rounds of both alternate, because a machine's memory speed may change within seconds. Prints
//! JSON with all samples: `cargo run --release -p weft-cpu --example shared_spans [shape]
//! [rounds]`.

use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};
use weft_core::config::Config;
use weft_core::device::{Device, Lane, Limits, Outputs, PageRows, Span, Step};
use weft_core::kv::{PAGE_ROWS, PageId};
use weft_core::plan::{Op, plan};
use weft_core::weights::RandomWeights;
use weft_cpu::{CpuDevice, Options, n_cores, read_bandwidth};

const LANES: usize = 4;
const PREFIX_ROWS: usize = 2048;
const PREFIX_PAGES: usize = PREFIX_ROWS / PAGE_ROWS;
/// Steps of each kind in a round.
const STEPS: usize = 5;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let shape = arguments.next().unwrap_or_else(|| "qwen3-0.6b".to_owned());
    let rounds = arguments.next().map_or(20, |rounds| rounds.parse().expect("a number of rounds"));
    let config = weft_core::shapes::config(&shape).expect("a known shape");
    let mut device = device(&config);
    fill(&mut device, &config);

    let shared: Vec<Vec<Span>> = (0..LANES).map(|lane| spans(lane, 0)).collect();
    let own: Vec<Vec<Span>> = (0..LANES).map(|lane| spans(lane, lane)).collect();
    let ops = plan(&config);
    let attend: Vec<Op> =
        ops.iter().copied().filter(|op| matches!(op, Op::Attend { .. })).collect();
    assert!(logits(&mut device, &ops, &shared) == logits(&mut device, &ops, &own));

    let mut samples = Vec::new();
    for _ in 0..rounds {
        samples.push(json!({
            "read_gb_per_s": bandwidth(),
            "step_shared_us": times_us(&mut device, &ops, &shared),
            "step_own_us": times_us(&mut device, &ops, &own),
            "attend_shared_us": times_us(&mut device, &attend, &shared),
            "attend_own_us": times_us(&mut device, &attend, &own),
        }));
    }
    let report = json!({
        "command": std::env::args().collect::<Vec<_>>(),
        "commit": commit(),
        "debug_build": cfg!(debug_assertions),
        "device": device.describe(),
        "shape": shape,
        "lanes": LANES,
        "prefix_rows": PREFIX_ROWS,
        "prefix_bytes": PREFIX_ROWS as u64 * config.kv_bytes_per_token(device.dtype()),
        "same_logits": true,
        "step": compare(&samples, "step"),
        "attend": compare(&samples, "attend"),
        "rounds": samples,
    });
    println!("{}", serde_json::to_string_pretty(&report).expect("a report is plain JSON"));
}

fn device(config: &Config) -> CpuDevice {
    let limits = Limits {
        step_tokens: LANES,
        step_outputs: LANES,
        positions: PREFIX_ROWS + PAGE_ROWS,
        // A prefix for each lane, and a page for its own token.
        pages: LANES * PREFIX_PAGES + LANES,
    };
    let weights = RandomWeights::new(config, 1);
    let options = Options::new(limits).expect("this machine has the instructions");
    CpuDevice::new(config, &weights, options).expect("random weights are readable")
}

/// Writes the same prefix into the pages of every lane: bf16 values of ordinary size.
fn fill(device: &mut CpuDevice, config: &Config) {
    let bytes = PREFIX_ROWS * config.kv_bytes_per_token(device.dtype()) as usize / 2;
    let mut state = 1_u32;
    let mut numbers = || -> Vec<u8> {
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Any sign and fraction, with an exponent just below 1.
            (state >> 16) as u16 & 0x80ff | 0x3f00
        };
        (0..bytes / 2).map(next).flat_map(u16::to_le_bytes).collect()
    };
    let (k, v) = (numbers(), numbers());
    for lane in 0..LANES {
        let pages = &prefix_pages(lane);
        device.write_kv(&PageRows { pages, first_row: 0, len: PREFIX_ROWS }, &k, &v);
    }
}

fn prefix_pages(copy: usize) -> Vec<PageId> {
    (copy * PREFIX_PAGES..(copy + 1) * PREFIX_PAGES).map(|page| page as PageId).collect()
}

/// A lane's context in one span: a copy of the prefix, and its token on its own page.
fn spans(lane: usize, copy: usize) -> Vec<Span> {
    let mut pages = prefix_pages(copy);
    pages.push((LANES * PREFIX_PAGES + lane) as PageId);
    vec![Span { pages, first_row: 0, len: PREFIX_ROWS + 1, home_position: 0, position: 0 }]
}

/// Runs ops on one token of each lane.
fn step(device: &mut CpuDevice, ops: &[Op], spans: &[Vec<Span>]) {
    let tokens: Vec<u32> = (1..=LANES as u32).collect();
    let position = [PREFIX_ROWS as u32];
    let slots: Vec<_> = spans.iter().map(|spans| spans[0].slot(PREFIX_ROWS)).collect();
    let lanes: Vec<Lane<'_>> = (0..LANES)
        .map(|lane| Lane {
            tokens: &tokens[lane..=lane],
            positions: &position,
            key_positions: &position,
            store_at: &slots[lane..=lane],
            spans: &spans[lane],
            marks: &[],
            outputs: Outputs::Last,
        })
        .collect();
    device.run(ops, &Step { lanes: &lanes }).expect("the CPU does not fail");
}

fn logits(device: &mut CpuDevice, ops: &[Op], spans: &[Vec<Span>]) -> Vec<Vec<f32>> {
    step(device, ops, spans);
    (0..LANES).map(|output| device.logits(output).to_vec()).collect()
}

fn times_us(device: &mut CpuDevice, ops: &[Op], spans: &[Vec<Span>]) -> Vec<f64> {
    let time = |_| {
        let start = Instant::now();
        step(device, ops, spans);
        start.elapsed().as_secs_f64() * 1e6
    };
    (0..STEPS).map(time).collect()
}

/// The fastest of a few passes over a quarter of a gigabyte.
fn bandwidth() -> f64 {
    let samples = read_bandwidth(n_cores(), 1 << 28, 2);
    samples.iter().fold(0.0, |max, sample| sample.bytes_per_s.max(max)) / 1e9
}

/// Medians over all rounds of both kinds, and the median of the rounds' ratios: a round is short,
/// so both of its halves usually run at the same memory speed.
fn compare(rounds: &[Value], what: &str) -> Value {
    let all = |round: &Value, kind: &str| -> Vec<f64> {
        let times = round[format!("{what}_{kind}_us")].as_array().expect("a round has its times");
        times.iter().filter_map(Value::as_f64).collect()
    };
    let over_all = |kind| median(rounds.iter().flat_map(|round| all(round, kind)).collect());
    let ratio = |round| median(all(round, "own")) / median(all(round, "shared"));
    json!({
        "shared_us": over_all("shared"),
        "own_us": over_all("own"),
        "ratio": median(rounds.iter().map(ratio).collect()),
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The commit of the current checkout.
fn commit() -> Option<String> {
    let git = ["describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"];
    let output = Command::new("git").args(git).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
