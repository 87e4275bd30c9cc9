//! The sequences of a bench: fixed tokens in their own KV pages.
//!
//! A token depends only on its lane and position. The same positions therefore give the same logits
//! whatever ran before, and tests can share the contents of the KV pages.

use std::ops::Range;

use weft_core::device::{Lane, Outputs, Span, Step};
use weft_core::kv::{PAGE_ROWS, PageId, Slot, pages_for};

/// The lanes of a device, all starting at position 0.
pub(crate) struct Lanes {
    tokens: Tokens,
    /// The pages of each lane.
    pages: Vec<Vec<PageId>>,
}

/// The source of tokens.
enum Tokens {
    /// Generated, below the size of a vocabulary.
    Made(usize),
    /// Given, the same for every lane.
    Given(Vec<u32>),
}

/// One lane's part of a step, with everything that it borrows.
struct Part {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    store_at: Vec<Slot>,
    spans: [Span; 1],
}

impl Part {
    fn lane(&self, outputs: Outputs) -> Lane<'_> {
        let Self { tokens, positions, store_at, spans } = self;
        let key_positions = positions;
        Lane { tokens, positions, key_positions, store_at, spans, marks: &[], outputs }
    }
}

impl Lanes {
    /// Lanes with room for these numbers of rows.
    pub(crate) fn new(rows: &[usize], vocab: usize) -> Self {
        let mut next = 0;
        let mut take = |rows: &usize| {
            let first = next;
            next += pages_for(*rows) as PageId;
            (first..next).collect()
        };
        Self { tokens: Tokens::Made(vocab), pages: rows.iter().map(&mut take).collect() }
    }

    /// One lane that runs these tokens.
    pub(crate) fn of_tokens(tokens: Vec<u32>) -> Self {
        let lanes = Self::new(&[tokens.len()], 0);
        Self { tokens: Tokens::Given(tokens), ..lanes }
    }

    /// Number of pages for lanes with these numbers of rows.
    pub(crate) fn pages_for(rows: &[usize]) -> usize {
        rows.iter().map(|rows| pages_for(*rows)).sum()
    }

    /// Calls `run` with a step of the tokens at `positions` in each of `lanes`. The tokens see
    /// everything before them.
    pub(crate) fn step<R>(
        &self,
        lanes: Range<usize>,
        positions: Range<usize>,
        outputs: Outputs,
        run: impl FnOnce(&Step<'_>) -> R,
    ) -> R {
        let parts: Vec<Part> = lanes.map(|lane| self.part(lane, &positions)).collect();
        let lanes: Vec<Lane<'_>> = parts.iter().map(|part| part.lane(outputs)).collect();
        run(&Step { lanes: &lanes })
    }

    /// The same with one given token in each lane.
    pub(crate) fn step_of<R>(
        &self,
        tokens: &[u32],
        position: usize,
        run: impl FnOnce(&Step<'_>) -> R,
    ) -> R {
        let mut parts: Vec<Part> =
            (0..tokens.len()).map(|lane| self.part(lane, &(position..position + 1))).collect();
        parts.iter_mut().zip(tokens).for_each(|(part, token)| part.tokens = vec![*token]);
        let lanes: Vec<Lane<'_>> = parts.iter().map(|part| part.lane(Outputs::Last)).collect();
        run(&Step { lanes: &lanes })
    }

    /// Number of rows after that of `position` in the same page.
    pub(crate) fn rows_left(position: usize) -> usize {
        PAGE_ROWS - 1 - position % PAGE_ROWS
    }

    fn part(&self, lane: usize, positions: &Range<usize>) -> Part {
        let pages = &self.pages[lane];
        let slot =
            |row: usize| pages[row / PAGE_ROWS] * PAGE_ROWS as Slot + (row % PAGE_ROWS) as Slot;
        Part {
            tokens: match &self.tokens {
                Tokens::Made(vocab) => {
                    positions.clone().map(|position| token(lane, position, *vocab)).collect()
                }
                Tokens::Given(tokens) => tokens[positions.clone()].to_vec(),
            },
            positions: positions.clone().map(|position| position as u32).collect(),
            store_at: positions.clone().map(slot).collect(),
            spans: [Span {
                pages: pages[..pages_for(positions.end)].to_vec(),
                first_row: 0,
                len: positions.end,
                home_position: 0,
                position: 0,
            }],
        }
    }
}

/// The token of a lane at a position.
fn token(lane: usize, position: usize, vocab: usize) -> u32 {
    let mixed = ((lane as u64) << 32 | position as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((mixed >> 32) % vocab as u64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_share_no_page_and_see_what_stands_before() {
        let lanes = Lanes::new(&[130, 64], 100);
        assert_eq!(lanes.pages, [vec![0, 1, 2], vec![3]]);
        lanes.step(0..2, 60..62, Outputs::Last, |step| {
            assert_eq!(
                (step.lanes[0].store_at, step.lanes[1].store_at),
                (&[60, 61][..], &[252, 253][..])
            );
            assert_eq!(step.lanes[1].spans[0].len, 62);
            assert_ne!(step.lanes[0].tokens, step.lanes[1].tokens);
        });
    }

    #[test]
    fn cuts_do_not_change_tokens() {
        let lanes = Lanes::new(&[64], 1000);
        let tokens = |range| lanes.step(0..1, range, Outputs::None, |s| s.lanes[0].tokens.to_vec());
        assert_eq!([tokens(0..3), tokens(3..9)].concat(), tokens(0..9));
    }
}
