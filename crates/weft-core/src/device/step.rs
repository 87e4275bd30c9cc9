//! A step: a few tokens of each lane, and the stored rows that they attend to.
//!
//! [`Step::check`] refuses every index that lies outside the device's memory, and slots that two
//! tokens would store to.

use super::{Limits, MAX_LANES, MAX_MARKS, MAX_SPANS};
use crate::config::Config;
use crate::kv::{PAGE_ROWS, PageId, Slot, pages_for, slot};
use crate::plan::Work;

/// Up to this many tokens, a step's slots are compared in pairs. That needs no memory, and a step
/// that decodes has no more.
const FEW_TOKENS: usize = 8;

/// Consecutive rows of stored keys and values, placed at some position of a context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The pages that hold the rows, from `first_row` of the first page on.
    pub pages: Vec<PageId>,
    /// The row of the first page that the span starts with. Earlier rows of that page belong to
    /// another span, and have been written.
    pub first_row: usize,
    /// Number of rows.
    pub len: usize,
    /// The position that the first row's key was rotated for when it was stored.
    pub home_position: usize,
    /// The position of the first row in this context. If it differs from the home position by Δ,
    /// the *query* is rotated by Δ less: (R_m q)·(R_{n+Δ} k) = (R_{m−Δ} q)·(R_n k).
    pub position: usize,
}

impl Span {
    /// The number of rows that a token at `position` sees: all rows up to its position.
    pub fn rows_seen_from(&self, position: usize) -> usize {
        (position + 1).saturating_sub(self.position).min(self.len)
    }

    /// The slot of row `row`.
    pub fn slot(&self, row: usize) -> Slot {
        slot(&self.pages, self.first_row + row)
    }
}

/// The tokens of a lane that need logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outputs {
    /// None: the prompt continues in a later step.
    None,
    /// The last token.
    Last,
    /// Every token.
    All,
}

/// The tokens of one sequence in a step. The slices of tokens have equal lengths.
#[derive(Clone, Copy, Debug)]
pub struct Lane<'a> {
    /// The tokens to run.
    pub tokens: &'a [u32],
    /// Each token's position in the context, ascending.
    pub positions: &'a [u32],
    /// The position that each token's key is rotated for: its own, or, if its row belongs to a
    /// moved span, its position at the span's home.
    pub key_positions: &'a [u32],
    /// The slot for each token's key and value. Tokens of this step see these rows, so the spans
    /// cover them too.
    pub store_at: &'a [Slot],
    /// The spans that the tokens attend to. A token sees every row up to its own position. Spans
    /// are in the order of their positions, without overlap; gaps are allowed. The last bits of the
    /// result can depend on where one span ends and the next starts, and on the row of a page that
    /// it starts with, but never on which pages they are.
    pub spans: &'a [Span],
    /// Positions that divide the context into stretches, ascending. The device reports a share of
    /// attention for each stretch, see [`attention`](super::Device::attention). Marks change
    /// nothing else.
    pub marks: &'a [u32],
    /// The tokens that need logits.
    pub outputs: Outputs,
}

impl Lane<'_> {
    /// Number of logit rows this lane asks for.
    pub fn n_outputs(&self) -> usize {
        match self.outputs {
            Outputs::None => 0,
            Outputs::Last => 1,
            Outputs::All => self.tokens.len(),
        }
    }

    /// The number of rows that a token at `position` sees in each stretch between marks. The rows
    /// of a stretch are consecutive in the list of spans.
    pub fn rows_of_stretches(&self, position: usize) -> impl Iterator<Item = usize> {
        let last_seen = move |mark: &u32| (*mark as usize - 1).min(position);
        let ends = self.marks.iter().map(last_seen).chain([position]);
        let rows_up_to = |last| self.spans.iter().map(|span| span.rows_seen_from(last)).sum();
        let mut before = 0;
        ends.map(rows_up_to).map(move |rows: usize| rows - std::mem::replace(&mut before, rows))
    }
}

/// What one run computes. Logit rows come in lane order, then token order.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// One to [`MAX_LANES`] lanes. Each lane's results are bit for bit the same as if it ran alone.
    pub lanes: &'a [Lane<'a>],
}

/// Consecutive rows in a list of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRows<'a> {
    /// The pages.
    pub pages: &'a [PageId],
    /// The row of the first page that they start with.
    pub first_row: usize,
    /// Number of rows.
    pub len: usize,
}

impl PageRows<'_> {
    /// The slot of each row.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        (self.first_row..self.first_row + self.len).map(|row| slot(self.pages, row))
    }

    /// The number of pages that hold the rows.
    pub fn n_pages(&self) -> usize {
        pages_for(self.first_row + self.len)
    }

    /// Panics unless the rows lie inside the pages, and the pages inside the device's memory.
    pub fn check(&self, limits: &Limits) {
        assert!(self.first_row < PAGE_ROWS, "first row {}", self.first_row);
        assert!(self.n_pages() <= self.pages.len(), "{} rows in too few pages", self.len);
        assert!(self.pages.iter().all(|page| (*page as usize) < limits.pages), "page range");
    }
}

impl Step<'_> {
    /// Tokens in all lanes.
    pub fn n_tokens(&self) -> usize {
        self.lanes.iter().map(|lane| lane.tokens.len()).sum()
    }

    /// Logit rows in all lanes.
    pub fn n_outputs(&self) -> usize {
        self.lanes.iter().map(Lane::n_outputs).sum()
    }

    /// The amount of work for the ops.
    pub fn work(&self) -> Work {
        let mut work = Work {
            n_tokens: self.n_tokens() as u64,
            n_outputs: self.n_outputs() as u64,
            ..Work::default()
        };
        for lane in self.lanes {
            let seen = |position: &u32| lane.rows_seen_from(*position as usize);
            work.n_rows += lane.positions.last().map_or(0, seen);
            work.n_pairs += lane.positions.iter().map(seen).sum::<u64>();
        }
        work
    }

    /// Panics unless every index in the step lies inside the device's memory, and every token has
    /// its own slot.
    pub fn check(&self, config: &Config, limits: &Limits) {
        assert!((1..=MAX_LANES).contains(&self.lanes.len()), "{} lanes", self.lanes.len());
        assert!(self.n_tokens() <= limits.step_tokens, "{} tokens in a step", self.n_tokens());
        assert!(self.n_outputs() <= limits.step_outputs, "{} outputs", self.n_outputs());
        for lane in self.lanes {
            lane.check(config, limits);
        }
        assert!(self.has_own_slots(), "two tokens of a step share a slot");
    }

    /// Whether each token has its own slot. Devices store the tokens of a step side by side.
    fn has_own_slots(&self) -> bool {
        let slots = || self.lanes.iter().flat_map(|lane| lane.store_at);
        if self.n_tokens() <= FEW_TOKENS {
            return { slots().enumerate() }.all(|(n, slot)| !slots().take(n).any(|s| s == slot));
        }
        let mut sorted: Vec<Slot> = slots().copied().collect();
        sorted.sort_unstable();
        sorted.is_sorted_by(|a, b| a < b)
    }
}

impl Lane<'_> {
    /// KV rows that a token at `position` sees.
    fn rows_seen_from(&self, position: usize) -> u64 {
        self.spans.iter().map(|span| span.rows_seen_from(position)).sum::<usize>() as u64
    }

    fn check(&self, config: &Config, limits: &Limits) {
        let n = self.tokens.len();
        assert!(n > 0, "a lane without tokens");
        assert!(self.positions.len() == n && self.store_at.len() == n, "uneven lane");
        assert!(self.key_positions.len() == n, "uneven lane");
        assert!(self.spans.len() <= MAX_SPANS, "{} spans", self.spans.len());
        assert!(self.marks.len() <= MAX_MARKS, "{} marks", self.marks.len());
        assert!(self.marks.is_sorted_by(|a, b| a < b), "marks do not rise");
        assert!(self.marks.iter().all(|mark| *mark > 0), "a mark before the context");
        assert!(self.positions.is_sorted_by(|a, b| a < b), "positions do not rise");
        assert!(self.tokens.iter().all(|token| (*token as usize) < config.vocab), "token range");
        let positions = self.positions.iter().chain(self.key_positions);
        assert!({ positions }.all(|p| (*p as usize) < limits.positions), "position range");
        let slots = limits.pages * PAGE_ROWS;
        assert!(self.store_at.iter().all(|slot| (*slot as usize) < slots), "slot range");
        for span in self.spans {
            assert!(span.len > 0, "an empty span");
            assert!(span.first_row < PAGE_ROWS, "first row {}", span.first_row);
            let n_pages = pages_for(span.first_row + span.len);
            assert!(n_pages <= span.pages.len(), "a span longer than its pages");
            assert!(span.pages.iter().all(|page| (*page as usize) < limits.pages), "page range");
            for first in [span.home_position, span.position] {
                let end = first.checked_add(span.len);
                assert!(end.is_some_and(|end| end <= limits.positions), "span position range");
            }
        }
        let in_order = |a: &Span, b: &Span| a.position + a.len <= b.position;
        assert!(self.spans.is_sorted_by(in_order), "spans overlap or are out of order");
        for position in self.positions {
            let visible = self.spans.iter().any(|span| span.position <= *position as usize);
            assert!(visible, "the token at position {position} sees nothing, not even itself");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;
    use crate::dtype::Dtype;
    use crate::plan::Op;
    use crate::shapes;
    use crate::weights::Forms;

    #[test]
    fn a_step_says_what_it_asks_for() {
        let span = |len, position| {
            let pages = vec![0];
            Span { pages, first_row: 0, len, home_position: 0, position }
        };
        let lane = Lane {
            tokens: &[1, 2, 3],
            positions: &[10, 11, 12],
            key_positions: &[10, 11, 12],
            store_at: &[0, 1, 2],
            spans: &[span(8, 0), span(3, 10)],
            marks: &[],
            outputs: Outputs::Last,
        };
        let work = Step { lanes: &[lane, lane] }.work();
        let once = Work { n_tokens: 3, n_outputs: 1, n_rows: 11, n_pairs: 9 + 10 + 11 };
        assert_eq!(work.n_rows, 2 * once.n_rows);
        assert_eq!((work.n_tokens, work.n_outputs, work.n_pairs), (6, 2, 60));
        let config = shapes::config("qwen3-0.6b").unwrap();
        let flops = Op::Attend { layer: 0 }.flops(&config, &once);
        assert_eq!(flops, once.n_pairs * 4 * 2048);
        assert_eq!(
            Op::NormHead.bytes(
                &config,
                &Forms::default(),
                Dtype::Bf16,
                &Work { n_outputs: 0, ..once }
            ),
            0
        );
    }

    /// Panics if a step of so many tokens in two lanes, each in its own slot, is refused.
    fn check_slots(slots: &[Slot]) {
        let config = shapes::config("qwen3-0.6b").unwrap();
        let limits = Limits { step_tokens: 64, step_outputs: 8, positions: 64, pages: 8 };
        let positions: Vec<u32> = (0..slots.len() as u32).collect();
        let tokens = vec![1; slots.len()];
        let span = Span { pages: vec![0], first_row: 0, len: 64, home_position: 0, position: 0 };
        let spans = [span];
        let lane = |range: std::ops::Range<usize>| Lane {
            tokens: &tokens[range.clone()],
            positions: &positions[range.clone()],
            key_positions: &positions[range.clone()],
            store_at: &slots[range],
            spans: &spans,
            marks: &[],
            outputs: Outputs::Last,
        };
        let half = slots.len() / 2;
        Step { lanes: &[lane(0..half), lane(half..slots.len())] }.check(&config, &limits);
    }

    #[test]
    fn no_two_tokens_of_a_step_have_one_slot() {
        for n in [2, 8, 9, 60] {
            let slots: Vec<Slot> = (0..n).rev().map(|i| i * 7 % 512).collect();
            check_slots(&slots);
            for (one, other) in [(0, n - 1), (n - 1, n / 2)] {
                let mut slots = slots.clone();
                slots[one as usize] = slots[other as usize];
                if one != other {
                    let said = catch_unwind(|| check_slots(&slots)).unwrap_err();
                    let said = said.downcast_ref::<&str>();
                    assert!(said.is_some_and(|said| said.contains("share a slot")), "{n} tokens");
                }
            }
        }
    }
}
