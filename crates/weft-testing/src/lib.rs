//! Helpers for the tests of all crates: small models, lanes laid out by hand, properties that every
//! device must have, and a device that computes nothing. Only dev-dependencies use it.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "names and tests explain most items")]

pub mod conformance;
mod die_with_us;
pub mod drafts;
pub mod exact;
pub mod fake_hub;
pub mod forms;
pub mod gguf;
pub mod golden;
pub mod parity;
mod rule;
mod skip;
pub mod stub;

use std::ops::Range;
use std::path::{Path, PathBuf};

use weft_core::config::Config;
use weft_core::device::{Inspect, Lane, Limits, Outputs, PageRows, Span, Step};
use weft_core::dtype::Dtype;
use weft_core::kv::{PAGE_ROWS, PageId, Slot, pages_for};
use weft_core::plan::{Op, plan};

pub use self::die_with_us::DieWithUs;
pub use self::rule::{Allows, Rule};
pub use self::skip::{Missing, skip};

/// A file or a folder of the source tree: of the one that `WEFT_TEST_TREE` names, or of the one that this
/// was compiled in. Test programs may run on another machine than they were compiled on.
pub fn in_tree(path: &str) -> PathBuf {
    let here = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::env::var_os("WEFT_TEST_TREE").map_or_else(here, PathBuf::from).join(path)
}

/// Limits that suffice for every test here.
pub const LIMITS: Limits =
    Limits { step_tokens: 160, step_outputs: 160, positions: 512, pages: 24 };

/// A small model of a family, with odd sizes.
pub fn config(model_type: &str) -> Config {
    config_with(model_type, r#""rope_scaling": null"#)
}

/// The same, with one more key in `config.json`.
pub fn config_with(model_type: &str, key: &str) -> Config {
    let json = format!(
        r#"{{"model_type": "{model_type}", "hidden_size": 30, "num_hidden_layers": 2,
            "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10,
            "intermediate_size": 37, "vocab_size": 101, "max_position_embeddings": 512,
            "num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 21,
            "norm_topk_prob": true, "rope_theta": 10000.0, "tie_word_embeddings": true, {key}}}"#
    );
    Config::from_json(json.as_bytes()).unwrap()
}

/// Tokens from a seed.
pub fn tokens(n: usize, seed: u32, vocab: usize) -> Vec<u32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % vocab as u32
    };
    (0..n).map(|_| next()).collect()
}

/// Consecutive tokens of one lane, owned, so that a step can borrow them.
#[derive(Clone)]
pub struct Work {
    pub tokens: Vec<u32>,
    pub positions: Vec<u32>,
    pub key_positions: Vec<u32>,
    pub store_at: Vec<Slot>,
    pub spans: Vec<Span>,
    pub marks: Vec<u32>,
    pub outputs: Outputs,
}

impl Work {
    /// `tokens` stored in their own span, after the existing spans. Their span holds `before` rows
    /// of earlier steps. There is a mark between any two spans.
    pub fn new(tokens: &[u32], before: usize, mut left: Vec<Span>, own: Span) -> Self {
        let first = own.position + before;
        let own = Span { len: before + tokens.len(), ..own };
        let store_at = (before..own.len).map(|row| own.slot(row)).collect();
        let positions: Vec<u32> = (first..first + tokens.len()).map(|p| p as u32).collect();
        let from_home = own.home_position + before;
        let key_positions = (from_home..from_home + tokens.len()).map(|p| p as u32).collect();
        left.push(own);
        let marks = left[1..].iter().map(|span| span.position as u32).collect();
        Self {
            tokens: tokens.to_vec(),
            positions,
            key_positions,
            store_at,
            spans: left,
            marks,
            outputs: Outputs::All,
        }
    }

    /// The last of its outputs; 0 if it has none.
    pub fn last_output(&self) -> usize {
        self.lane().n_outputs().saturating_sub(1)
    }

    pub fn lane(&self) -> Lane<'_> {
        Lane {
            tokens: &self.tokens,
            positions: &self.positions,
            key_positions: &self.key_positions,
            store_at: &self.store_at,
            spans: &self.spans,
            marks: &self.marks,
            outputs: self.outputs,
        }
    }
}

/// A span at home, with room for `rows` rows from page `first` on.
pub fn span(first: PageId, rows: usize, position: usize) -> Span {
    span_from(first, 0, rows, position)
}

/// The same, starting at row `first_row` of the page.
pub fn span_from(first: PageId, first_row: usize, rows: usize, position: usize) -> Span {
    let pages = (first..first + pages_for(first_row + rows) as PageId).collect();
    Span { pages, first_row, len: rows, home_position: position, position }
}

/// Runs ops on lanes; returns the logits, a row for each output.
pub fn run(device: &mut dyn Inspect, ops: &[Op], works: &[Work]) -> Vec<Vec<f32>> {
    let lanes: Vec<Lane<'_>> = works.iter().map(Work::lane).collect();
    let step = Step { lanes: &lanes };
    device.run(ops, &step).unwrap();
    (0..step.n_outputs()).map(|output| device.logits(output).to_vec()).collect()
}

/// Runs a whole prompt in blocks of the given sizes; returns the logits of all its tokens.
pub fn run_in_blocks(
    device: &mut dyn Inspect,
    config: &Config,
    prompt: &[u32],
    blocks: &[usize],
    own: &Span,
) -> Vec<Vec<f32>> {
    let ops = plan(config);
    let mut logits = Vec::new();
    let mut start = 0;
    for block in blocks {
        let end = (start + block).min(prompt.len());
        if start < end {
            let work = Work::new(&prompt[start..end], start, Vec::new(), own.clone());
            logits.extend(run(device, &ops, &[work]));
        }
        start = end;
    }
    assert_eq!(logits.len(), prompt.len(), "the blocks cover the prompt");
    logits
}

/// Fills every KV row with NaN, so that a wrong read changes the result.
pub fn poison(device: &mut dyn Inspect, config: &Config) {
    let pages: Vec<PageId> = (0..device.limits().pages as PageId).collect();
    let rows = PageRows { pages: &pages, first_row: 0, len: pages.len() * PAGE_ROWS };
    let n = config.layers * rows.len * config.kv_width();
    let nan = match device.dtype() {
        Dtype::F32 => f32::NAN.to_le_bytes().repeat(n),
        Dtype::Bf16 => half::bf16::NAN.to_le_bytes().repeat(n),
    };
    device.write_kv(&rows, &nan, &nan);
}

/// Fills the rows of a span's first page before the span. The values are finite, as [`Span`]
/// promises, and so large that reading them as rows of the span changes the result.
pub fn fill_before(device: &mut dyn Inspect, config: &Config, span: &Span) {
    let (k, v) = (vec![100.0; config.kv_width()], vec![-5000.0; config.kv_width()]);
    let first = span.slot(0) - span.first_row as Slot;
    for layer in 0..config.layers as u16 {
        (first..span.slot(0)).for_each(|slot| device.write_kv_row(layer, slot, &k, &v));
    }
}

/// Fills every row of a span with values of ordinary size from a seed, and calls [`fill_before`].
pub fn fill(device: &mut dyn Inspect, config: &Config, span: &Span, seed: u32) {
    fill_before(device, config, span);
    fill_rows(device, config, span, 0..span.len, seed);
}

/// The same for some rows of a span.
pub fn fill_rows(
    device: &mut dyn Inspect,
    config: &Config,
    span: &Span,
    rows: Range<usize>,
    seed: u32,
) {
    for row in rows {
        for layer in 0..config.layers as u16 {
            let seed = seed.wrapping_add(row as u32 * 7 + u32::from(layer));
            let numbers = tokens(2 * config.kv_width(), seed, 4001);
            let numbers: Vec<f32> = numbers.iter().map(|n| *n as f32 / 1000.0 - 2.0).collect();
            let (k, v) = numbers.split_at(config.kv_width());
            device.write_kv_row(layer, span.slot(row), k, v);
        }
    }
}

/// The largest difference between two rows.
pub fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// log softmax.
pub fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|l| f64::from(l - max).exp()).sum();
    logits.iter().map(|l| f64::from(l - max) - sum.ln()).collect()
}
