//! Repair: rows of a moved span are recomputed at its position, and stored for its home.

use weft_core::config::Config;
use weft_core::device::{Inspect, Limits, Outputs, Span};
use weft_core::plan::plan;

use super::{LIMITS, Make, SCALINGS, poisoned};
use crate::{
    Work, config, config_with, fill_before, max_difference, poison, run, span, span_from, tokens,
};

/// A row stored into a moved span, its key rotated for the span's home, equals the row stored at
/// its own position, within `tolerance` of the largest logit of a query after it. A key that is
/// rotated for the span's new position is detected.
pub fn a_row_repaired_in_a_moved_span_equals_one_there(make: Make<'_>, tolerance: f32) {
    let limits = Limits { positions: 30_200, ..LIMITS };
    for scaling in SCALINGS {
        let config = config_with("qwen3", scaling);
        let mut device = make(&config, limits);
        for shift in [1, 40, 1_000, 30_000] {
            let mut logits = |home, key_shift| {
                poison(&mut *device, &config);
                after_repair(&mut *device, &config, home, shift, key_shift)
            };
            let there = logits(shift, 0);
            let size = there.iter().fold(0.0_f32, |max, logit| max.max(logit.abs()));
            let moved = max_difference(&there, &logits(0, 0));
            assert!(moved <= tolerance * size, "{scaling} by {shift}: {moved} of {size}");
            let not_for_home = max_difference(&there, &logits(0, shift));
            let is_detected = not_for_home > 5.0 * tolerance * size;
            assert!(is_detected, "{scaling} by {shift}: {not_for_home} of {size} hides");
        }
    }
}

/// The logits of a query after a document at `position` that was prefilled at `home`. Most of its
/// rows are recomputed at `position`; their keys are off by `key_shift`.
fn after_repair(
    device: &mut dyn Inspect,
    config: &Config,
    home: usize,
    position: usize,
    key_shift: usize,
) -> Vec<f32> {
    let ops = plan(config);
    let document = tokens(80, 5, config.vocab);
    let stored = span_from(0, 37, document.len(), home);
    fill_before(device, config, &stored);
    run(device, &ops, &[Work::new(&document, 0, Vec::new(), stored.clone())]);
    let placed = Span { position, ..stored };
    let mut repair = Work::new(&document[10..70], 10, Vec::new(), placed.clone());
    repair.key_positions.iter_mut().for_each(|key| *key += key_shift as u32);
    run(device, &ops, &[repair]);
    let query = tokens(9, 6, config.vocab);
    let own = span(8, query.len(), position + document.len());
    let work = Work { outputs: Outputs::Last, ..Work::new(&query, 0, vec![placed], own) };
    run(device, &ops, &[work]).remove(0)
}

/// Rows of the moved document of [`repair`] that are recomputed.
const REPAIRED: [usize; 5] = [3, 10, 64, 65, 120];

/// How a device treats rows that a token does not see: it skips them, or it gives them zero weight.
/// In the second case, a NaN reaches all tokens of a step if it reaches one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unseen {
    LeftOut,
    WeighsNothing,
}

/// Scattered rows of a moved span, recomputed in one step, see every row before them, including
/// those of the same step, and none after them.
pub fn repaired_rows_see_all_before_them(make: Make<'_>, unseen: Unseen) {
    let config = config("qwen3");
    let device = |poisoned: Option<usize>| moved_document(make, &config, poisoned);
    let ops = plan(&config);
    let at_once = run(&mut *device(None), &ops, &[repair(&config, &REPAIRED)]);
    assert!(at_once.iter().flatten().all(|logit| logit.is_finite()), "sees rows after");

    let mut stepwise = device(None);
    let one_by_one = REPAIRED.iter().flat_map(|row| {
        let work = repair(&config, std::slice::from_ref(row));
        run(&mut *stepwise, &ops, &[work])
    });
    assert_eq!(at_once, one_by_one.collect::<Vec<_>>());

    for poisoned in [0, 2, 4, 10, 63, 64, 66, 119] {
        let logits = run(&mut *device(Some(poisoned)), &ops, &[repair(&config, &REPAIRED)]);
        for ((row, logits), clean) in REPAIRED.iter().zip(&logits).zip(&at_once) {
            // No token sees a row's value from before it is recomputed.
            let is_poison = !REPAIRED.contains(&poisoned);
            let sees_poison = poisoned < *row && is_poison;
            let may_see = is_poison && unseen == Unseen::WeighsNothing;
            let as_clean = logits == clean || (may_see && logits[0].is_nan());
            let shows = if sees_poison { logits[0].is_nan() } else { as_clean };
            assert!(shows, "row {row}, with row {poisoned} poisoned");
        }
    }
}

/// The spans of 30 rows and of the document of 150 rows after them.
fn places() -> [Span; 2] {
    [span(0, 30, 0), Span { position: 30, ..span_from(1, 9, 150, 200) }]
}

/// A device that holds both, with the document prefilled alone at home. One of its rows may be
/// poisoned; all rows after the last repaired one are.
fn moved_document(make: Make<'_>, config: &Config, poison: Option<usize>) -> Box<dyn Inspect> {
    let mut device = poisoned(make, config);
    let [system, document] = places();
    let at_home = Span { position: document.home_position, ..document.clone() };
    for (seed, span) in [system, at_home].into_iter().enumerate() {
        let tokens = tokens(span.len, seed as u32, config.vocab);
        fill_before(&mut *device, config, &span);
        run(&mut *device, &plan(config), &[Work::new(&tokens, 0, Vec::new(), span)]);
    }
    let nan = vec![f32::NAN; config.kv_width()];
    for row in (REPAIRED[4] + 1..document.len).chain(poison) {
        for layer in 0..config.layers as u16 {
            device.write_kv_row(layer, document.slot(row), &nan, &nan);
        }
    }
    device
}

/// Work that recomputes some rows of the moved document.
fn repair(config: &Config, rows: &[usize]) -> Work {
    let spans = places().to_vec();
    let document = &spans[1];
    let all = tokens(document.len, 1, config.vocab);
    let places_from =
        |first: usize| rows.iter().map(|row| (first + row) as u32).collect::<Vec<_>>();
    Work {
        tokens: rows.iter().map(|row| all[*row]).collect(),
        positions: places_from(document.position),
        key_positions: places_from(document.home_position),
        store_at: rows.iter().map(|row| document.slot(*row)).collect(),
        outputs: Outputs::All,
        spans,
        marks: Vec::new(),
    }
}
