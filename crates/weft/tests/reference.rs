//! The reference device against itself: cuts, neighbours and moves that must not show.

mod common;

use common::{
    LIMITS, Work, config, config_with, max_difference, poison, run, run_in_blocks, span, tokens,
};
use half::bf16;
use proptest::prelude::*;
use weft::config::Config;
use weft::device::{Device, Outputs, Span};
use weft::dtype::Element;
use weft::plan::plan;
use weft::reference::Reference;
use weft::weights::RandomWeights;

/// Llama 3 and YaRN scalings small enough to matter within a test's positions.
const LLAMA3: &str = r#""rope_scaling": {"rope_type": "llama3", "factor": 8.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}"#;
const YARN: &str = r#""rope_scaling": {"rope_type": "yarn", "factor": 4.0,
    "original_max_position_embeddings": 64}"#;

fn device<E: Element>(config: &Config) -> Reference<E> {
    let mut device = Reference::new(config, &RandomWeights::new(config, 7), LIMITS).unwrap();
    poison(&mut device, config);
    device
}

/// Block sizes that cover `n` tokens.
fn cuts(n: usize) -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1..n, 1..8).prop_map(move |mut blocks| {
        blocks.push(n);
        blocks
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Prefill in any split equals prefill at once, bit for bit.
    #[test]
    fn a_prompt_cut_anywhere_gives_the_same_bits(
        n in 2_usize..140,
        seed in any::<u32>(),
        family in prop::sample::select(vec!["qwen3", "qwen2", "llama"]),
        blocks in (2_usize..140).prop_flat_map(cuts),
    ) {
        let config = config(family);
        let prompt = tokens(n, seed, config.vocab);
        let own = span(3, n, 0);
        let mut blocks = blocks;
        blocks.push(n);
        let at_once = run_in_blocks(&mut device::<bf16>(&config), &config, &prompt, &[n], &own);
        let in_blocks = run_in_blocks(&mut device::<bf16>(&config), &config, &prompt, &blocks, &own);
        prop_assert_eq!(&at_once, &in_blocks);
        prop_assert!(at_once.iter().flatten().all(|logit| logit.is_finite()));
    }

    /// A batch of lanes equals each lane alone, bit for bit.
    #[test]
    fn neighbours_do_not_show(
        lengths in prop::collection::vec(1_usize..20, 2..=8),
        seed in any::<u32>(),
    ) {
        let config = config("qwen3");
        let ops = plan(&config);
        let work = |lane: usize, n: usize| {
            let prompt = tokens(n, seed.wrapping_add(lane as u32), config.vocab);
            let outputs = [Outputs::All, Outputs::Last][lane % 2];
            Work { outputs, ..Work::new(&prompt, 0, Vec::new(), span(lane as u32, n, 0)) }
        };
        let works: Vec<Work> = lengths.iter().enumerate().map(|(l, n)| work(l, *n)).collect();
        let together = run(&mut device::<bf16>(&config), &ops, &works);
        let alone: Vec<_> = works
            .iter()
            .flat_map(|work| run(&mut device::<bf16>(&config), &ops, std::slice::from_ref(work)))
            .collect();
        prop_assert_eq!(together, alone);
    }

    /// Where a context is cut into spans does not show: each span has pages of its own, partly used.
    #[test]
    fn cuts_between_spans_do_not_show(
        n in 3_usize..150,
        seed in any::<u32>(),
        parts in (3_usize..150).prop_flat_map(cuts),
    ) {
        let config = config("llama");
        let ops = plan(&config);
        let prompt = tokens(n, seed, config.vocab);
        let at_once =
            run_in_blocks(&mut device::<bf16>(&config), &config, &prompt, &[n], &span(0, n, 0));

        let mut device = device::<bf16>(&config);
        let mut spans: Vec<Span> = Vec::new();
        let mut logits = Vec::new();
        let mut page = 0;
        let mut start = 0;
        for part in parts.into_iter().chain([n]) {
            let end = (start + part).min(n);
            if start < end {
                let own = span(page, end - start, start);
                page += own.pages.len() as u32;
                let work = Work::new(&prompt[start..end], 0, spans.clone(), own.clone());
                logits.extend(run(&mut device, &ops, &[work]));
                spans.push(own);
            }
            start = end;
        }
        prop_assert_eq!(at_once, logits);
    }
}

#[test]
fn two_runs_give_the_same_bits() {
    let config = config("qwen3");
    let prompt = tokens(70, 1, config.vocab);
    let once =
        |device: &mut dyn Device| run_in_blocks(device, &config, &prompt, &[70], &span(0, 70, 0));
    assert_eq!(once(&mut device::<bf16>(&config)), once(&mut device::<bf16>(&config)));
}

/// The logits of a query after a span that was prefilled alone at `stored_at`, is used at
/// `position`, and says that its home is `home`.
fn after_moved_span(config: &Config, stored_at: usize, home: usize, position: usize) -> Vec<f32> {
    let ops = plan(config);
    let document = tokens(80, 5, config.vocab);
    let query = tokens(9, 6, config.vocab);
    let mut device = device::<f32>(config);
    let stored = span(0, document.len(), stored_at);
    run(&mut device, &ops, &[Work::new(&document, 0, Vec::new(), stored.clone())]);
    let placed = Span { home_position: home, position, ..stored };
    let own = span(8, query.len(), position + document.len());
    let work = Work { outputs: Outputs::Last, ..Work::new(&query, 0, vec![placed], own) };
    run(&mut device, &ops, &[work]).remove(0)
}

/// A span used elsewhere than at home scores as if it had been prefilled there.
#[test]
fn a_moved_span_equals_one_prefilled_there() {
    for scaling in [r#""rope_scaling": null"#, LLAMA3, YARN] {
        let config = config_with("qwen3", scaling);
        let logits =
            |stored_at, home, position| after_moved_span(&config, stored_at, home, position);
        let size = logits(0, 0, 0).iter().fold(0.0_f32, |max, logit| max.max(logit.abs()));
        for (home, position) in [(0, 1), (0, 63), (0, 400), (300, 17), (400, 0)] {
            let there = logits(position, position, position);
            let moved = max_difference(&there, &logits(home, home, position));
            assert!(moved < 2e-4 * size, "{scaling} {home} → {position}: {moved} of {size}");
            let shift_lost = max_difference(&there, &logits(home, position, position));
            assert!(shift_lost > 10.0 * moved, "{scaling} {home} → {position}: a lost shift hides");
        }
    }
}
