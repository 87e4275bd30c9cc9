//! Every device must refuse indices that lie outside its memory.

use std::panic::{AssertUnwindSafe, catch_unwind};

use weft_core::device::{MAX_LANES, MAX_MARKS, MAX_SPANS};
use weft_core::kv::{PAGE_ROWS, PageId, Slot};
use weft_core::plan::plan;

use super::{LIMITS, Make, Work, config, run, span, tokens};

/// A message, and a change that makes a valid lane invalid in one way.
type Wrong = (&'static str, fn(&mut Work));

const WRONG: [Wrong; 22] = [
    ("a lane without tokens", |lane| {
        lane.tokens.clear();
        lane.positions.clear();
        lane.key_positions.clear();
        lane.store_at.clear();
    }),
    ("uneven lane", |lane| lane.positions.truncate(1)),
    ("uneven lane", |lane| lane.key_positions.truncate(1)),
    ("uneven lane", |lane| lane.store_at.truncate(1)),
    ("spans", |lane| lane.spans = vec![lane.spans[0].clone(); MAX_SPANS + 1]),
    ("marks", |lane| lane.marks = (1..=MAX_MARKS as u32 + 1).collect()),
    ("marks do not rise", |lane| lane.marks = vec![2, 2]),
    ("a mark before the context", |lane| lane.marks = vec![0]),
    ("positions do not rise", |lane| lane.positions.swap(0, 1)),
    ("token range", |lane| lane.tokens[0] = 101),
    ("position range", |lane| lane.positions[2] = LIMITS.positions as u32),
    ("position range", |lane| lane.key_positions[2] = LIMITS.positions as u32),
    ("slot range", |lane| lane.store_at[2] = (LIMITS.pages * PAGE_ROWS) as Slot),
    ("share a slot", |lane| lane.store_at[2] = lane.store_at[0]),
    ("an empty span", |lane| lane.spans[0].len = 0),
    ("first row", |lane| lane.spans[0].first_row = PAGE_ROWS),
    ("a span longer than its pages", |lane| lane.spans[0].len = PAGE_ROWS + 1),
    ("page range", |lane| lane.spans[0].pages[0] = LIMITS.pages as u32),
    ("span position range", |lane| lane.spans[0].position = LIMITS.positions),
    ("span position range", |lane| lane.spans[0].home_position = usize::MAX),
    ("spans overlap", |lane| lane.spans.push(lane.spans[0].clone())),
    ("sees nothing", |lane| lane.spans[0].position = 1),
];

/// Steps and copies with an index outside the device's memory are refused before anything is
/// computed.
pub fn wrong_steps_are_refused(make: Make<'_>) {
    let config = config("qwen3");
    let mut device = make(&config, LIMITS);
    let right = Work::new(&tokens(3, 1, config.vocab), 0, Vec::new(), span(0, 3, 0));
    let ops = plan(&config);
    let mut refuses = |what: &str, works: &[Work]| {
        is_refused(what, || drop(run(&mut *device, &ops, works)));
    };
    for (what, spoil) in WRONG {
        let mut lane = right.clone();
        spoil(&mut lane);
        refuses(what, &[lane]);
    }
    refuses("lanes", &[]);
    refuses("lanes", &vec![right.clone(); MAX_LANES + 1]);
    let long = tokens(LIMITS.step_tokens + 1, 1, config.vocab);
    let own = span(0, long.len(), 0);
    refuses("tokens in a step", &[Work::new(&long, 0, Vec::new(), own)]);
    let outside = LIMITS.pages as PageId;
    for (from, to) in [(0, outside), (outside, 0), (PageId::MAX, 0)] {
        is_refused("page range", || device.copy_rows(from, to, 1));
    }
    is_refused("rows of a page", || device.copy_rows(0, 1, PAGE_ROWS + 1));
    run(&mut *device, &ops, &[right]);
}

/// Checks that a call panics, and says `what` is wrong.
fn is_refused(what: &str, call: impl FnOnce()) {
    let said = catch_unwind(AssertUnwindSafe(call)).expect_err(what);
    let said = said.downcast_ref::<String>().cloned().unwrap_or_else(|| {
        said.downcast_ref::<&str>().expect("a panic says something").to_string()
    });
    assert!(said.contains(what), "`{said}` does not say `{what}`");
}
