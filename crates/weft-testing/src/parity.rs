//! Compares a device with the reference, op by op, over lanes of any layout.

use proptest::prelude::*;
use weft_core::config::Config;
use weft_core::device::{Buffer, Inspect, Lane, Outputs, Span, Step};
use weft_core::kv::{PAGE_ROWS, Slot};
use weft_core::plan::{Op, plan};

use super::{Work, fill, fill_before, span_from, tokens};

/// Allowed differences, relative to the largest value: from another order of summation, and, for
/// sums of values, from rounding the attention weights.
#[derive(Clone, Copy)]
pub struct Noise {
    pub sums: f32,
    pub weights: f32,
}

/// One step of bf16 (at most 2⁻⁷ of the value), plus `noise` of the largest value.
pub fn assert_close(
    what: &str,
    ours: &[f32],
    reference: &[f32],
    noise: f32,
) -> Result<(), TestCaseError> {
    let size = reference.iter().fold(0.0_f32, |max, value| max.max(value.abs()));
    for (i, (a, b)) in ours.iter().zip(reference).enumerate() {
        let bound = b.abs() / 128.0 + noise * size;
        prop_assert!((a - b).abs() <= bound, "{what}[{i}]: {a} against {b}");
    }
    Ok(())
}

/// The experts of each token and their weights. Where two experts are all but equally likely, sums in
/// another order may choose the other one.
pub fn assert_routes_close(
    ours: &[f32],
    reference: &[f32],
    chosen: usize,
) -> Result<(), TestCaseError> {
    for (ours, theirs) in ours.chunks(2 * chosen).zip(reference.chunks(2 * chosen)) {
        let pairs = |routes: &[f32]| -> Vec<(f32, f32)> {
            let (experts, weights) = routes.split_at(chosen);
            experts.iter().copied().zip(weights.iter().copied()).collect()
        };
        let (a, b) = (pairs(ours), pairs(theirs));
        prop_assert!(a.is_sorted_by(|a, b| a.0 < b.0), "{ours:?}");
        let is_in = |expert: f32, routes: &[(f32, f32)]| routes.iter().any(|r| r.0 == expert);
        let only_ours = a.iter().filter(|route| !is_in(route.0, &b));
        let only_theirs = b.iter().filter(|route| !is_in(route.0, &a));
        let both = a.iter().flat_map(|a| b.iter().filter(|b| b.0 == a.0).map(move |b| (a, b)));
        for (a, b) in both.chain(only_ours.zip(only_theirs)) {
            prop_assert!((a.1 - b.1).abs() <= 1e-4, "{ours:?} against {theirs:?}");
        }
    }
    Ok(())
}

/// Apart from the weights, the differences come from another order of summation and another `exp`.
pub fn assert_shares_close(
    ours: &[f32],
    reference: &[f32],
    noise: Noise,
) -> Result<(), TestCaseError> {
    prop_assert_eq!(ours.len(), reference.len());
    for (a, b) in ours.iter().zip(reference) {
        let bound = 1e-4 + noise.weights * b.abs();
        prop_assert!((a - b).abs() < bound, "{ours:?} against {reference:?}");
    }
    Ok(())
}

/// Runs the plan on both devices, each op on the reference's inputs, and compares the outputs.
pub fn compare(
    config: &Config,
    ours: &mut dyn Inspect,
    theirs: &mut dyn Inspect,
    works: &[Work],
    noise: Noise,
) -> Result<(), TestCaseError> {
    let lanes: Vec<Lane<'_>> = works.iter().map(Work::lane).collect();
    let step = Step { lanes: &lanes };
    for op in plan(config) {
        for buffer in Buffer::of(config) {
            ours.write(buffer, &theirs.read(buffer));
        }
        if let Op::Attend { layer } = op {
            copy_rows(ours, theirs, works, layer);
        }
        ours.run(&[op], &step).unwrap();
        theirs.run(&[op], &step).unwrap();
        let of_op = if matches!(op, Op::Attend { .. }) { noise.weights } else { noise.sums };
        for buffer in Buffer::of(config) {
            let n = buffer.width(config) * step.n_tokens();
            let what = format!("{op} {buffer:?}");
            let (ours, theirs) = (ours.read(buffer), theirs.read(buffer));
            match (op, buffer) {
                (Op::NormRoute { .. }, Buffer::Routes) => {
                    assert_routes_close(&ours[..n], &theirs[..n], buffer.width(config) / 2)?;
                }
                _ => assert_close(&what, &ours[..n], &theirs[..n], of_op)?,
            }
        }
        match op {
            Op::RopeStore { layer } => {
                for slot in works.iter().flat_map(|work| &work.store_at) {
                    let (ours, theirs) = (ours.kv_row(layer, *slot), theirs.kv_row(layer, *slot));
                    assert_close(&format!("{op} keys"), &ours.0, &theirs.0, noise.sums)?;
                    prop_assert_eq!(ours.1, theirs.1);
                }
            }
            Op::Attend { .. } => {
                for (lane, work) in works.iter().enumerate() {
                    let of = |device: &dyn Inspect| device.attention(lane, work.last_output());
                    assert_shares_close(&of(ours), &of(theirs), noise)?;
                }
            }
            _ => {}
        }
    }
    for output in 0..step.n_outputs() {
        assert_close("logits", ours.logits(output), theirs.logits(output), noise.sums)?;
    }
    // Both have the same x now.
    let (ours, theirs) = (ours.states(&[], &step).unwrap(), theirs.states(&[], &step).unwrap());
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_close("states", ours, theirs, noise.sums)?;
    }
    Ok(())
}

/// Copies the reference's keys and values to our device: all rows that the lanes see, and the rows
/// before them in their pages.
pub fn copy_rows(ours: &mut dyn Inspect, theirs: &dyn Inspect, works: &[Work], layer: u16) {
    for span in works.iter().flat_map(|work| &work.spans) {
        let before = span.slot(0) - span.first_row as Slot..span.slot(0);
        for slot in before.chain((0..span.len).map(|row| span.slot(row))) {
            let (k, v) = theirs.kv_row(layer, slot);
            ours.write_kv_row(layer, slot, &k, &v);
        }
    }
}

/// A lane's old spans, each with its rows and its home, and the number of new tokens after them.
pub type Layout = (Vec<(usize, usize)>, usize);

/// Turns up to three layouts into work. Old rows hold values of ordinary size; all others stay
/// poisoned. Spans start anywhere in their pages, and marks lie anywhere.
pub fn works(config: &Config, theirs: &mut dyn Inspect, lanes: &[Layout], seed: u32) -> Vec<Work> {
    let mut page = 0;
    let mut take = |rows: usize, position: usize| {
        let first_row = tokens(1, seed ^ page, 2 * PAGE_ROWS)[0] as usize;
        // Half of them start with the page.
        let first_row = if first_row < PAGE_ROWS { first_row } else { 0 };
        let span = span_from(page, first_row, rows, position);
        page += span.pages.len() as u32;
        span
    };
    let mut works = Vec::new();
    for (lane, (old, n_new)) in lanes.iter().enumerate() {
        let mut position = 0;
        let mut left = Vec::new();
        for (rows, home) in old {
            // All lanes together must fit the pages and the positions of the limits.
            let rows = (*rows).min(180 - position);
            if rows == 0 {
                break;
            }
            let placed = Span { home_position: *home, ..take(rows, position) };
            fill(theirs, config, &placed, seed);
            position += rows;
            left.push(placed);
        }
        let new = tokens(*n_new, seed.wrapping_add(lane as u32), config.vocab);
        let outputs = [Outputs::Last, Outputs::All, Outputs::None][lane];
        let own = take(*n_new, position);
        fill_before(theirs, config, &own);
        let mut marks = tokens(5, seed.wrapping_sub(lane as u32), 200);
        marks.retain(|mark| *mark > 0);
        marks.sort_unstable();
        marks.dedup();
        works.push(Work { outputs, marks, ..Work::new(&new, 0, left, own) });
    }
    works
}

/// Hidden width, KV heads, query heads of each, half of a head's width, MLP width and vocabulary.
pub type Sizes = (usize, usize, usize, usize, usize, usize);

/// Models of one layer of every family, of some sizes.
pub fn shapes(sizes: impl Strategy<Value = Sizes>) -> impl Strategy<Value = Config> {
    let family = prop::sample::select(vec!["qwen3", "qwen2", "llama"]);
    let eps = prop::sample::select(vec!["1e-6", "1e-5", "0.3"]);
    (family, eps, sizes).prop_map(|(family, eps, (hidden, kv_heads, group, half, inter, vocab))| {
        let json = format!(
            r#"{{"model_type": "{family}", "hidden_size": {hidden}, "num_hidden_layers": 1,
                "num_attention_heads": {}, "num_key_value_heads": {kv_heads}, "head_dim": {},
                "intermediate_size": {inter}, "vocab_size": {vocab}, "rope_theta": 10000.0,
                "rms_norm_eps": {eps}, "max_position_embeddings": 512, "tie_word_embeddings": {}}}"#,
            kv_heads * group,
            2 * half,
            vocab % 2 == 0
        );
        Config::from_json(json.as_bytes()).unwrap()
    })
}

/// Mixtures of experts of one layer or two, one of which may be dense, of some sizes.
pub fn sparse_shapes(sizes: impl Strategy<Value = Sizes>) -> impl Strategy<Value = Config> {
    let experts = (1_usize..10).prop_flat_map(|count| (Just(count), 1..=count.min(4)));
    let layers = prop::sample::select(vec![(1, "[]"), (2, "[0]"), (2, "[1]"), (2, "[]")]);
    let rest = (experts, layers, any::<bool>(), 1_usize..150);
    (rest, sizes).prop_map(|(rest, (hidden, kv_heads, group, half, inter, vocab))| {
        let ((count, chosen), (layers, dense), normalised, width) = rest;
        let json = format!(
            r#"{{"model_type": "qwen3_moe", "hidden_size": {hidden}, "num_hidden_layers": {layers},
                "num_attention_heads": {}, "num_key_value_heads": {kv_heads}, "head_dim": {},
                "intermediate_size": {inter}, "vocab_size": {vocab}, "rope_theta": 10000.0,
                "num_experts": {count}, "num_experts_per_tok": {chosen},
                "moe_intermediate_size": {width}, "norm_topk_prob": {normalised},
                "mlp_only_layers": {dense}, "max_position_embeddings": 512}}"#,
            kv_heads * group,
            2 * half
        );
        Config::from_json(json.as_bytes()).unwrap()
    })
}
