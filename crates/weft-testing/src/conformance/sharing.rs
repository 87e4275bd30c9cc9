//! Lanes of one step that start with the same spans.

use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use weft_core::config::Config;
use weft_core::device::{Limits, Outputs, Span};
use weft_core::kv::{PAGE_ROWS, PageId};

use super::{LIMITS, Make, Results, first_row, marks, poisoned_with, results};
use crate::{Work, config, fill, fill_before, span_from, tokens};

/// Spans that start late in a page need one more page.
const WIDE: Limits = Limits { pages: COMMON_PAGES + 8 * 4, ..LIMITS };
/// Pages of the common list. Each lane has four of its own after them.
const COMMON_PAGES: usize = 9;

/// How a lane's first spans relate to those of the others.
#[derive(Clone, Copy, Debug)]
enum Prefix {
    Same,
    /// Its last span is a row shorter.
    Shorter,
    /// Its last span is one position later.
    Shifted,
    /// Its last span has another home.
    Rehomed,
    /// Its last span starts one row later in the same page.
    Narrowed,
    /// The tokens are inside the prefix and do not see all of it.
    SeenInPart,
}

#[derive(Clone, Debug)]
struct LaneCase {
    /// Spans that it takes from the common list.
    n_spans: usize,
    prefix: Prefix,
    /// Rows of its own old span after them; 0 for none.
    n_old: usize,
    n_new: usize,
    /// The rows of their pages at which its own spans start.
    first_rows: [usize; 2],
    marks: Vec<u32>,
}

fn lane_case() -> impl Strategy<Value = LaneCase> {
    use Prefix::{Narrowed, Rehomed, Same, SeenInPart, Shifted, Shorter};
    let prefix = prop::sample::select(vec![
        Same, Same, Same, Shorter, Shifted, Rehomed, Narrowed, SeenInPart,
    ]);
    let first_rows = [first_row(), first_row()];
    // The larger of two random lengths, so that several lanes share long prefixes.
    (0_usize..4, 0_usize..4, prefix, 0_usize..40, 1_usize..9, first_rows, marks(300)).prop_map(
        |(a, b, prefix, n_old, n_new, first_rows, marks)| {
            let n_spans = a.max(b);
            LaneCase { n_spans, prefix, n_old, n_new, first_rows, marks }
        },
    )
}

/// Lanes that start with the same, nearly the same, or other spans equal each lane alone bit for
/// bit, in their logits and attention.
pub fn lanes_that_share_spans_equal_each_alone(make: Make<'_>) {
    let common = prop::collection::vec((2_usize..120, 0_usize..60, first_row()), 3);
    let lanes = prop::collection::vec(lane_case(), 2..=8);
    TestRunner::new(Cases::with_cases(40))
        .run(&(common, lanes, any::<u32>()), |(common, lanes, seed)| {
            let config = config("qwen3");
            let common = place(&common);
            let lanes = lanes.iter().enumerate();
            let works: Vec<Work> =
                lanes.map(|(index, lane)| work(&config, &common, lane, index)).collect();
            let run = |works: &[Work]| run_filled(make, &config, &common, works, seed);
            let (logits, attention) = run(&works);
            let alone: Vec<_> = works.iter().map(|work| run(std::slice::from_ref(work))).collect();
            let (alone_logits, alone_attention): (Vec<_>, Vec<_>) = alone.into_iter().unzip();
            prop_assert!(logits.iter().flatten().all(|logit| logit.is_finite()));
            prop_assert_eq!(logits, alone_logits.concat());
            prop_assert_eq!(attention, alone_attention.concat());
            Ok(())
        })
        .unwrap();
}

/// Spans of (rows, gap before it, first row of the page), on their own pages, all away from home.
fn place(common: &[(usize, usize, usize)]) -> Vec<Span> {
    let (mut page, mut position) = (0, 0);
    let place = |(rows, gap, first_row): &(usize, usize, usize)| {
        position += gap / 20;
        let placed = span_from(page, *first_row, *rows, position);
        let placed = Span { home_position: 3 * gap, ..placed };
        page += placed.pages.len() as PageId;
        position += rows;
        placed
    };
    common.iter().map(place).collect()
}

/// A lane's work, with its own rows on its own pages.
fn work(config: &Config, common: &[Span], lane: &LaneCase, index: usize) -> Work {
    let mut spans = common[..lane.n_spans].to_vec();
    if let Some(last) = spans.last_mut() {
        match lane.prefix {
            Prefix::Same | Prefix::SeenInPart => {}
            Prefix::Shorter => last.len -= 1,
            Prefix::Shifted => last.position += 1,
            Prefix::Rehomed => last.home_position += 1,
            Prefix::Narrowed if last.first_row + 1 < PAGE_ROWS => {
                (last.first_row, last.len) = (last.first_row + 1, last.len - 1);
            }
            Prefix::Narrowed => {}
        }
    }
    let end = |spans: &[Span]| spans.last().map_or(0, |last| last.position + last.len);
    let page = (COMMON_PAGES + 4 * index) as PageId;
    if lane.n_old > 0 {
        spans.push(span_from(page, lane.first_rows[0], lane.n_old, end(&spans)));
    }
    let own = span_from(page + 2, lane.first_rows[1], lane.n_new, end(&spans));
    let new = tokens(lane.n_new, index as u32, config.vocab);
    let outputs = [Outputs::All, Outputs::Last][index % 2];
    let marks = lane.marks.clone();
    let mut work = Work { outputs, marks, ..Work::new(&new, 0, spans, own) };
    if matches!(lane.prefix, Prefix::SeenInPart) && lane.n_spans > 0 {
        let middle = common[lane.n_spans - 1].position as u32 + 1;
        work.positions = (middle..middle + lane.n_new as u32).collect();
    }
    work
}

/// Logits and attention of lanes whose old spans and common spans are filled; all other rows are
/// poisoned.
fn run_filled(
    make: Make<'_>,
    config: &Config,
    common: &[Span],
    works: &[Work],
    seed: u32,
) -> Results {
    let mut device = poisoned_with(make, config, WIDE);
    let mut fill = |span: &Span| fill(&mut *device, config, span, seed ^ span.pages[0]);
    common.iter().for_each(&mut fill);
    let is_own = |span: &&Span| span.pages[0] as usize >= COMMON_PAGES;
    for work in works {
        // The last span is that of the new rows.
        let (_, old) = work.spans.split_last().unwrap();
        old.iter().filter(is_own).for_each(&mut fill);
    }
    for new in works.iter().filter_map(|work| work.spans.last()) {
        fill_before(&mut *device, config, new);
    }
    results(&mut *device, config, works)
}
