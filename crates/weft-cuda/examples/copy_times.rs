//! Times tokens of one lane alone, and while rows of others are copied to the host and back.
//! Prints one JSON object per line; leaves with an error where bits differ.
//!
//!     cargo run --release -p weft-cuda --example copy_times -- qwen3-0.6b 16384 256 | tee times.jsonl
//!
//! The arguments are a named shape, the rows that are copied, and the rows of one copy.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_core::config::Config;
use weft_core::device::{Device, Lane, Limits, Outputs, PageRows, Span, Step};
use weft_core::kv::{PageId, pages_for};
use weft_core::plan::plan;
use weft_core::shapes;
use weft_core::store::HostRows;
use weft_core::weights::RandomWeights;
use weft_cuda::{CudaDevice, Options};

const CONTEXT: usize = 200;
const ROUNDS: usize = 3;

type Failed = Box<dyn std::error::Error>;

/// The same token of one lane, again and again.
struct Decoding {
    device: CudaDevice,
    config: Config,
    span: Span,
    logits: Vec<f32>,
    same: bool,
}

impl Decoding {
    /// Runs the token; how long it took.
    fn step(&mut self) -> Result<Duration, Failed> {
        let lane = Lane {
            tokens: &[11],
            positions: &[CONTEXT as u32 - 1],
            key_positions: &[CONTEXT as u32 - 1],
            store_at: &[self.span.slot(CONTEXT - 1)],
            spans: std::slice::from_ref(&self.span),
            marks: &[],
            outputs: Outputs::Last,
        };
        let start = Instant::now();
        self.device.run(&plan(&self.config), &Step { lanes: &[lane] })?;
        let time = start.elapsed();
        let logits = self.device.logits(0);
        self.same &= self.logits.is_empty() || self.logits == logits;
        self.logits = logits.to_vec();
        Ok(time)
    }

    /// Runs tokens until copies are over, at least one; how long each took, and all.
    fn steps_until(
        &mut self,
        mut is_over: impl FnMut(&CudaDevice) -> bool,
    ) -> Result<Vec<Duration>, Failed> {
        let mut times = Vec::new();
        while times.is_empty() || !is_over(&self.device) {
            times.push(self.step()?);
        }
        Ok(times)
    }
}

fn report(what: &str, mut steps: Vec<Duration>, copying: Option<(Duration, usize)>) {
    steps.sort();
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let (median, slowest) = (us(steps[steps.len() / 2]), us(*steps.last().expect("a step")));
    let copied = copying.map_or(String::new(), |(time, bytes)| {
        let (ms, speed) = (us(time) / 1e3, bytes as f64 / time.as_secs_f64() / 1e9);
        format!(r#", "copy_ms": {ms:.2}, "gb_per_s": {speed:.1}"#)
    });
    println!(
        r#"{{"beside": "{what}", "steps": {}, "step_us": {median:.1}, "slowest_us": {slowest:.1}{copied}}}"#,
        steps.len()
    );
}

fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "qwen3-0.6b".to_owned());
    let config = shapes::config(&name).ok_or("no such shape")?;
    let n_rows: usize = arguments.next().as_deref().unwrap_or("16384").parse()?;
    let chunk: usize = arguments.next().as_deref().unwrap_or("256").parse()?;
    let n_chunks = n_rows / chunk;
    let own = pages_for(CONTEXT);
    let limits = Limits {
        step_tokens: 64,
        step_outputs: 8,
        positions: 1024,
        pages: own + n_chunks * pages_for(chunk),
    };
    let device = CudaDevice::new(&config, &RandomWeights::new(&config, 1), Options::new(limits))?;
    let pages = (0..own as PageId).collect();
    let span = Span { pages, first_row: 0, len: CONTEXT, home_position: 0, position: 0 };
    let mut decoding =
        Decoding { device, config: config.clone(), span, logits: Vec::new(), same: true };

    let chunks: Vec<Vec<PageId>> = (own as PageId..limits.pages as PageId)
        .collect::<Vec<_>>()
        .chunks(pages_for(chunk))
        .map(<[PageId]>::to_vec)
        .collect();
    let layers = 0..config.layers as u16;
    let half = config.layers * chunk * config.kv_width() * 2;
    let bytes = 2 * half * n_chunks;
    let all: Vec<PageId> = chunks.concat();
    for _ in 0..ROUNDS {
        let alone = (0..200).map(|_| decoding.step()).collect::<Result<_, _>>()?;
        report("nothing", alone, None);

        let start = Instant::now();
        let leaving: Vec<_> = chunks
            .iter()
            .map(|pages| {
                let rows = PageRows { pages, first_row: 0, len: chunk };
                decoding.device.send_kv(layers.clone(), &rows, half)
            })
            .collect();
        let steps = decoding.steps_until(|device| device.is_settled(&all))?;
        report("rows that leave", steps, Some((start.elapsed(), bytes)));
        let kept: Vec<Arc<HostRows>> =
            leaving.iter().map(|rows| rows.recv().map(Arc::new)).collect::<Result<_, _>>()?;

        let start = Instant::now();
        for (pages, rows) in chunks.iter().zip(&kept) {
            let to = PageRows { pages, first_row: 0, len: chunk };
            decoding.device.bring_kv(&to, Arc::clone(rows));
        }
        let steps = decoding.steps_until(|device| device.is_settled(&all))?;
        report("rows that come", steps, Some((start.elapsed(), bytes)));
    }
    if decoding.same { Ok(()) } else { Err("bits differ".into()) }
}
