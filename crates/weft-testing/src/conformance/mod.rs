//! Properties that every device must have, one function each: results must not depend on cuts, on
//! other lanes, or on moves. The test file of a device calls them with a function that creates the
//! device.

mod checks;
mod drafts;
mod experts;
mod kv_rows;
mod one_span;
mod repair;
mod shares;
mod sharing;
mod states;

use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use weft_core::config::Config;
use weft_core::device::{Inspect, Limits, Outputs, Span};
use weft_core::kv::PAGE_ROWS;
use weft_core::plan::plan;

use super::{
    LIMITS, Work, config, config_with, fill_before, max_difference, poison, run, run_in_blocks,
    span, span_from, tokens,
};

pub use checks::wrong_steps_are_refused;
pub use drafts::a_draft_gives_the_bits_of_single_steps;
pub use experts::{
    MakeWith, experts_show_neither_cuts_nor_neighbours, laid_routes_match_the_reference,
    ties_go_to_the_lower_index,
};
pub use kv_rows::{
    a_copied_page_is_the_page, rows_come_out_and_go_in_as_they_are,
    rows_copied_elsewhere_give_the_same_bits, where_a_page_is_entered_does_not_show,
};
pub use one_span::{a_context_in_one_span_shows_no_cut, pages_that_lanes_share_in_part};
pub use repair::{
    Unseen, a_row_repaired_in_a_moved_span_equals_one_there, repaired_rows_see_all_before_them,
};
pub use shares::{shares_are_the_lane_s_own, the_span_with_the_matching_key_gets_the_share};
pub use sharing::lanes_that_share_spans_equal_each_alone;
pub use states::states_show_neither_cuts_nor_neighbours;

/// Creates a device for a model, with these limits.
pub type Make<'m> = &'m dyn Fn(&Config, Limits) -> Box<dyn Inspect>;

const FAMILIES: [&str; 3] = ["qwen3", "qwen2", "llama"];

/// Llama 3 and YaRN scalings that are small enough to matter within a test's positions.
const SCALINGS: [&str; 3] = [
    r#""rope_scaling": null"#,
    r#""rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64}"#,
    r#""rope_scaling": {"rope_type": "yarn", "factor": 4.0,
        "original_max_position_embeddings": 64}"#,
];

fn poisoned(make: Make<'_>, config: &Config) -> Box<dyn Inspect> {
    poisoned_with(make, config, LIMITS)
}

fn poisoned_with(make: Make<'_>, config: &Config, limits: Limits) -> Box<dyn Inspect> {
    let mut device = make(config, limits);
    poison(&mut *device, config);
    device
}

/// Rows of a page at which a span may start.
fn first_row() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), Just(1), Just(PAGE_ROWS - 1), 0..PAGE_ROWS]
}

/// Marks anywhere below `end`.
fn marks(end: u32) -> impl Strategy<Value = Vec<u32>> {
    prop::collection::btree_set(1..end, 0..12).prop_map(|marks| marks.into_iter().collect())
}

/// Logits and attention of all lanes.
type Results = (Vec<Vec<f32>>, Vec<Vec<f32>>);

/// Runs the plan on lanes.
fn results(device: &mut dyn Inspect, config: &Config, works: &[Work]) -> Results {
    let logits = run(device, &plan(config), works);
    (logits, shares_of_last(device, works))
}

/// The attention of each lane's last token.
fn shares_of_last(device: &dyn Inspect, works: &[Work]) -> Vec<Vec<f32>> {
    let lanes = works.iter().enumerate();
    lanes.map(|(lane, work)| device.attention(lane, work.last_output())).collect()
}

/// Cuts of up to 150 tokens: sizes of parts, the last one as large as necessary.
fn parts() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1_usize..80, 0..6).prop_map(|mut parts| {
        parts.push(150);
        parts
    })
}

/// Prefill in any split equals prefill in one step, bit for bit.
pub fn a_prompt_cut_anywhere_gives_the_same_bits(make: Make<'_>) {
    let family = prop::sample::select(&FAMILIES[..]);
    let cases = (1_usize..150, any::<u32>(), family, parts(), first_row());
    TestRunner::new(Cases::with_cases(20))
        .run(&cases, |(n, seed, family, blocks, first_row)| {
            let config = config(family);
            let prompt = tokens(n, seed, config.vocab);
            let own = span_from(3, first_row, n, 0);
            let run = |blocks: &[usize]| {
                let mut device = poisoned(make, &config);
                fill_before(&mut *device, &config, &own);
                run_in_blocks(&mut *device, &config, &prompt, blocks, &own)
            };
            let at_once = run(&[n]);
            prop_assert!(at_once.iter().flatten().all(|logit| logit.is_finite()));
            prop_assert_eq!(at_once, run(&blocks));
            Ok(())
        })
        .unwrap();
}

/// A batch of lanes equals each lane alone, bit for bit.
pub fn neighbours_do_not_show(make: Make<'_>) {
    let cases = (prop::collection::vec((1_usize..20, first_row()), 2..=8), any::<u32>());
    TestRunner::new(Cases::with_cases(20))
        .run(&cases, |(lanes, seed)| {
            let config = config("qwen3");
            let ops = plan(&config);
            let work = |(lane, (n, first_row)): (usize, &(usize, usize))| {
                let own = span_from(2 * lane as u32, *first_row, *n, 0);
                let prompt = tokens(*n, seed.wrapping_add(lane as u32), config.vocab);
                let outputs = [Outputs::All, Outputs::Last][lane % 2];
                Work { outputs, ..Work::new(&prompt, 0, Vec::new(), own) }
            };
            let works: Vec<Work> = lanes.iter().enumerate().map(work).collect();
            let run = |works: &[Work]| {
                let mut device = poisoned(make, &config);
                let spans = works.iter().flat_map(|work| &work.spans);
                spans.for_each(|span| fill_before(&mut *device, &config, span));
                run(&mut *device, &ops, works)
            };
            let alone: Vec<_> =
                works.iter().flat_map(|work| run(std::slice::from_ref(work))).collect();
            prop_assert_eq!(run(&works), alone);
            Ok(())
        })
        .unwrap();
}

/// The result does not depend on where a context is cut into spans. Each span has its own pages,
/// partly filled.
pub fn cuts_between_spans_do_not_show(make: Make<'_>) {
    let first_rows = prop::collection::vec(first_row(), 7);
    let cases = (3_usize..150, any::<u32>(), parts(), first_rows);
    TestRunner::new(Cases::with_cases(20))
        .run(&cases, |(n, seed, parts, first_rows)| {
            let config = config("llama");
            let ops = plan(&config);
            let prompt = tokens(n, seed, config.vocab);
            let whole = span(0, n, 0);
            let at_once =
                run_in_blocks(&mut *poisoned(make, &config), &config, &prompt, &[n], &whole);

            let mut device = poisoned(make, &config);
            let mut spans: Vec<Span> = Vec::new();
            let mut logits = Vec::new();
            let (mut page, mut start) = (0, 0);
            for (part, first_row) in parts.into_iter().zip(first_rows) {
                let end = (start + part).min(n);
                if start < end {
                    let own = span_from(page, first_row, end - start, start);
                    page += own.pages.len() as u32;
                    fill_before(&mut *device, &config, &own);
                    let work = Work::new(&prompt[start..end], 0, spans.clone(), own.clone());
                    logits.extend(run(&mut *device, &ops, &[work]));
                    spans.push(own);
                }
                start = end;
            }
            prop_assert_eq!(at_once, logits);
            Ok(())
        })
        .unwrap();
}

/// The same steps give the same bits on a fresh device, and on one that has run others before.
pub fn two_runs_give_the_same_bits(make: Make<'_>) {
    let config = config("qwen3");
    let prompt = tokens(70, 1, config.vocab);
    let once =
        |device: &mut dyn Inspect| run_in_blocks(device, &config, &prompt, &[70], &span(0, 70, 0));
    let fresh = once(&mut *make(&config, LIMITS));
    let mut used = make(&config, LIMITS);
    let first = once(&mut *used);
    // More tokens, more lanes and other rows in the same pages.
    let other =
        |lane| Work::new(&tokens(50, lane + 2, config.vocab), 0, Vec::new(), span(lane, 50, 9));
    let others: Vec<Work> = (0..3).map(other).collect();
    run(&mut *used, &plan(&config), &others);
    assert!(first == fresh, "two fresh devices differ");
    assert!(once(&mut *used) == fresh, "an earlier step shows");
}

/// A moved span scores as if it had been prefilled at its new position, within `tolerance` of the
/// largest logit. A span that loses its shift is detected.
pub fn a_moved_span_equals_one_prefilled_there(make: Make<'_>, tolerance: f32) {
    for scaling in SCALINGS {
        let config = config_with("qwen3", scaling);
        let logits =
            |stored_at, home, position| after_moved_span(make, &config, stored_at, home, position);
        let size = logits(0, 0, 0).iter().fold(0.0_f32, |max, logit| max.max(logit.abs()));
        for (home, position) in [(0, 1), (0, 63), (0, 400), (300, 17), (400, 0)] {
            let there = logits(position, position, position);
            let moved = max_difference(&there, &logits(home, home, position));
            assert!(moved <= tolerance * size, "{scaling} {home} → {position}: {moved} of {size}");
            let shift_lost = max_difference(&there, &logits(home, position, position));
            let is_detected = home.abs_diff(position) == 1 || shift_lost > 2.0 * moved;
            assert!(is_detected, "{scaling} {home} → {position}: a lost shift hides");
        }
    }
}

/// The logits of a query after a span that was prefilled alone at `stored_at`, is used at
/// `position`, and claims `home` as its home.
fn after_moved_span(
    make: Make<'_>,
    config: &Config,
    stored_at: usize,
    home: usize,
    position: usize,
) -> Vec<f32> {
    let ops = plan(config);
    let document = tokens(80, 5, config.vocab);
    let query = tokens(9, 6, config.vocab);
    let mut device = poisoned(make, config);
    let stored = span_from(0, 21, document.len(), stored_at);
    fill_before(&mut *device, config, &stored);
    run(&mut *device, &ops, &[Work::new(&document, 0, Vec::new(), stored.clone())]);
    let placed = Span { home_position: home, position, ..stored };
    let own = span(8, query.len(), position + document.len());
    let work = Work { outputs: Outputs::Last, ..Work::new(&query, 0, vec![placed], own) };
    run(&mut *device, &ops, &[work]).remove(0)
}
