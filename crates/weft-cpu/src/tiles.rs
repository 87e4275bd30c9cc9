//! Groups the tokens that attend together, and orders them.
//!
//! A tile is a few tokens that read each page of their spans at the same time: neighbours of one
//! lane, and tokens of lanes whose lists start with the same pages, counted through all their
//! spans. Lanes are ordered by the tree of their page lists, so that tokens that share a page are
//! adjacent in a tile. Tiles determine how often pages are read, and never change the result.

use std::cmp::Reverse;
use std::iter::successors;
use std::ops::Range;

use weft_core::config::Config;
use weft_core::device::{Lane, Limits, MAX_LANES, Span, Step};
use weft_core::kv::{PAGE_ROWS, pages_for};

use crate::matmul::TILE;

/// Tokens of the largest tile: one of each lane of a step.
pub(crate) const MAX_TOKENS: usize = MAX_LANES;
const _: () = assert!(TILE <= MAX_TOKENS, "a lane's own tile may be the largest");

/// A token of a tile.
pub(crate) struct Attending {
    /// Its index in the step.
    pub(crate) token: usize,
    /// Number of first pages that it reads together with the token before it.
    n_shared: usize,
}

/// The tiles of a step.
pub(crate) struct Tiles {
    /// The tokens in the order of the tiles.
    order: Vec<Attending>,
    /// Runs of `order`.
    tiles: Vec<Range<usize>>,
    /// Maximum tokens of one lane in a tile: together with the query heads of one KV head, they
    /// fill a matrix product.
    lane_tokens: usize,
    /// Number of items per tile.
    kv_heads: usize,
    n_threads: usize,
}

impl Tiles {
    pub(crate) fn new(config: &Config, limits: &Limits, n_threads: usize) -> Self {
        Self {
            order: Vec::with_capacity(limits.step_tokens),
            tiles: Vec::with_capacity(limits.step_tokens),
            lane_tokens: (TILE / config.group()).max(1),
            kv_heads: config.kv_heads,
            n_threads,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.tiles.len()
    }

    pub(crate) fn get(&self, tile: usize) -> &[Attending] {
        &self.order[self.tiles[tile].clone()]
    }

    /// Assigns a step's tokens to tiles.
    pub(crate) fn fill(&mut self, step: &Step<'_>) {
        self.order.clear();
        self.tiles.clear();
        // Lanes that read together give fewer items, and every thread should get one.
        let shared_tokens = step.lanes.len() * self.kv_heads / self.n_threads;
        let mut is_placed = [false; MAX_LANES];
        let mut last: Option<&Lane<'_>> = None;
        for _ in step.lanes {
            let n_shared = |lane: &Lane<'_>| last.map_or(0, |last| n_shared(last, lane));
            let left = (0..step.lanes.len()).filter(|lane| !is_placed[*lane]);
            let next = left.min_by_key(|lane| Reverse(n_shared(&step.lanes[*lane])));
            let next = next.expect("a lane is left in each turn");
            let first = step.lanes[..next].iter().map(|lane| lane.tokens.len()).sum();
            let lane = &step.lanes[next];
            self.add_lane(first..first + lane.tokens.len(), n_shared(lane), shared_tokens);
            (is_placed[next], last) = (true, Some(lane));
        }
    }

    /// Adds a lane's tokens. The first few join the last tile if they share pages with it and fit.
    fn add_lane(&mut self, tokens: Range<usize>, n_shared: usize, shared_tokens: usize) {
        let room = shared_tokens.min(MAX_TOKENS);
        for start in tokens.clone().step_by(self.lane_tokens) {
            let n = self.lane_tokens.min(tokens.end - start);
            let is_first = start == tokens.start;
            self.order.extend((start..start + n).map(|token| Attending {
                token,
                n_shared: if token == tokens.start { n_shared } else { usize::MAX },
            }));
            let end = self.order.len();
            match self.tiles.last_mut() {
                Some(last) if is_first && n_shared > 0 && last.len() + n <= room => last.end = end,
                _ => self.tiles.push(end - n..end),
            }
        }
    }
}

/// Splits the pages of a tile's tokens into stages: the same tokens read all pages of a stage
/// together. The last stage has no end, and only tokens of one lane read together in it.
pub(crate) fn stages(tile: &[Attending]) -> impl Iterator<Item = Range<usize>> {
    let end = |start| {
        let cuts = tile.iter().skip(1).map(|next| next.n_shared);
        cuts.filter(|cut| *cut > start).min().unwrap_or(usize::MAX)
    };
    successors(Some(0..end(0)), move |stage| {
        (stage.end < usize::MAX).then(|| stage.end..end(stage.end))
    })
}

/// Splits a tile into the runs of tokens that read page `index` of their lists together, each with
/// its start.
pub(crate) fn runs(
    tile: &[Attending],
    index: usize,
) -> impl Iterator<Item = (usize, &[Attending])> {
    let mut start = 0;
    tile.chunk_by(move |_, next| next.n_shared > index).map(move |run| {
        let from = start;
        start += run.len();
        (from, run)
    })
}

/// Number of first pages that two lanes have in common, as far as all their tokens see all rows of
/// these pages. It then does not matter whose tokens read them.
fn n_shared(a: &Lane<'_>, b: &Lane<'_>) -> usize {
    let first_position = a.positions[0].min(b.positions[0]) as usize;
    let mut n_shared = 0;
    for (a, b) in a.spans.iter().zip(b.spans) {
        let place = |span: &Span| (span.first_row, span.home_position, span.position);
        if place(a) != place(b) {
            break;
        }
        let same = a.pages.iter().zip(&b.pages).take_while(|(a, b)| a == b).count();
        let rows = a.len.min(b.len).min(a.rows_seen_from(first_position));
        let all = pages_for(a.first_row + a.len);
        if same < all || rows < a.len || rows < b.len {
            // The lanes differ inside the next page, so each reads that page separately.
            return n_shared + same.min((a.first_row + rows) / PAGE_ROWS);
        }
        n_shared += all;
    }
    n_shared
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use weft_core::device::Outputs;

    use super::*;

    /// The tokens of each tile, for lanes of some pages, each a span, and a number of tokens. There
    /// are 8 KV heads with two query heads each.
    fn tiles(lanes: &[(&[u32], usize)], n_threads: usize) -> Vec<Vec<usize>> {
        let span = |(i, page): (usize, &u32)| {
            let position = 4 * i;
            Span { pages: vec![*page], first_row: 0, len: 4, home_position: 0, position }
        };
        let spans: Vec<Vec<Span>> =
            lanes.iter().map(|(pages, _)| pages.iter().enumerate().map(span).collect()).collect();
        let numbers: Vec<u32> = (100..200).collect();
        let mut step = Vec::new();
        for (spans, (_, n)) in spans.iter().zip(lanes) {
            let numbers = &numbers[..*n];
            step.push(Lane {
                tokens: numbers,
                positions: numbers,
                key_positions: numbers,
                store_at: numbers,
                spans,
                marks: &[],
                outputs: Outputs::None,
            });
        }
        let config = weft_core::shapes::config("qwen3-0.6b").unwrap();
        let limits = Limits { step_tokens: 64, step_outputs: 1, positions: 256, pages: 64 };
        let mut tiles = Tiles::new(&config, &limits, n_threads);
        tiles.fill(&Step { lanes: &step });
        (0..tiles.len()).map(|i| tiles.get(i).iter().map(|t| t.token).collect()).collect()
    }

    #[test]
    fn lanes_that_share_a_page_are_one_tile() {
        let lanes: [(&[u32], usize); 4] = [(&[1, 2], 1), (&[9], 1), (&[1, 3], 1), (&[1, 2, 4], 1)];
        assert_eq!(tiles(&lanes, 2), [vec![0, 3, 2], vec![1]], "those with more in common closer");
        assert_eq!(tiles(&lanes, 16), [vec![0, 3], vec![2], vec![1]], "every thread has an item");
    }

    #[test]
    fn a_lane_s_many_tokens_are_tiles_of_their_own() {
        assert_eq!(tiles(&[(&[1], 7)], 2), [vec![0, 1, 2], vec![3, 4, 5], vec![6]]);
        let both = tiles(&[(&[1], 4), (&[1], 4)], 1);
        assert_eq!(both, [vec![0, 1, 2], vec![3, 4, 5, 6], vec![7]]);
    }

    /// How many pages two lanes share, each with one token at the end of its spans.
    fn n_shared_of(a: &[Span], b: &[Span]) -> usize {
        let end = |spans: &[Span]| spans.last().map_or(0, |last| last.position + last.len) as u32;
        let positions = [[end(a) - 1], [end(b) - 1]];
        let lane = |spans, positions| Lane {
            tokens: &[0],
            positions,
            key_positions: positions,
            store_at: &[0],
            spans,
            marks: &[],
            outputs: Outputs::None,
        };
        let (a, b) = (lane(a, &positions[0]), lane(b, &positions[1]));
        assert_eq!(n_shared(&a, &b), n_shared(&b, &a));
        n_shared(&a, &b)
    }

    #[test]
    fn lanes_share_their_first_pages_as_far_as_they_are_full() {
        let span = |pages: &[u32], first_row, len, position| Span {
            pages: pages.to_vec(),
            first_row,
            len,
            home_position: 7,
            position,
        };
        let whole = span(&[1, 2, 3], 0, 150, 0);
        let beside = |other: Span| n_shared_of(from_ref(&whole), &[other]);
        assert_eq!(beside(whole.clone()), 3, "all of it, if they end together");
        assert_eq!(beside(span(&[1, 2, 4], 0, 150, 0)), 2);
        assert_eq!(beside(span(&[1, 2, 3], 0, 149, 0)), 2, "not a page that one sees more of");
        assert_eq!(beside(span(&[1, 2], 0, 128, 0)), 2);
        assert_eq!(beside(span(&[1, 2], 0, 127, 0)), 1);
        assert_eq!(beside(span(&[1, 4, 3], 0, 150, 0)), 1);
        assert_eq!(beside(span(&[4, 2, 3], 0, 150, 0)), 0);
        assert_eq!(beside(span(&[1, 2, 3], 1, 150, 0)), 0);
        assert_eq!(beside(span(&[1, 2, 3], 0, 150, 1)), 0);
        assert_eq!(beside(Span { home_position: 8, ..whole.clone() }), 0);

        let moved = span(&[5, 6], 60, 8, 150);
        let then = |other: &[Span]| {
            n_shared_of(
                &[&[whole.clone(), moved.clone()], other].concat(),
                &[whole.clone(), moved.clone(), span(&[7, 8], 10, 118, 160)],
            )
        };
        assert_eq!(then(&[]), 5, "pages count through all spans");
        assert_eq!(then(&[span(&[7, 8], 10, 118, 160)]), 7);
        assert_eq!(then(&[span(&[7, 9], 10, 118, 160)]), 6);
        assert_eq!(then(&[span(&[7, 9], 11, 117, 160)]), 5);
        assert_eq!(then(&[span(&[7], 10, 53, 160)]), 5);
        assert_eq!(then(&[span(&[7], 10, 54, 160)]), 6);
    }

    #[test]
    fn a_page_that_a_token_sees_in_part_is_not_shared() {
        let span = |last| Span {
            pages: vec![1, 2, last],
            first_row: 0,
            len: 150,
            home_position: 0,
            position: 0,
        };
        let spans = [[span(3)], [span(4)]];
        let n_shared = |first: &[u32]| {
            let lane = |spans, positions| Lane {
                tokens: positions,
                positions,
                key_positions: positions,
                store_at: positions,
                spans,
                marks: &[],
                outputs: Outputs::None,
            };
            n_shared(&lane(&spans[0], first), &lane(&spans[1], &[149]))
        };
        assert_eq!([n_shared(&[127, 149]), n_shared(&[126, 149]), n_shared(&[62])], [2, 1, 0]);
    }

    #[test]
    fn tokens_of_a_tile_part_where_their_pages_do() {
        let token = |n_shared| Attending { token: 0, n_shared };
        let tile = [token(0), token(2), token(1), token(usize::MAX)];
        assert_eq!(stages(&tile).collect::<Vec<_>>(), [0..1, 1..2, 2..usize::MAX]);
        // The first token's shared pages belong to another tile.
        let tile_after = [token(2), token(usize::MAX)];
        assert!(stages(&tile_after).eq(std::iter::once(0..usize::MAX)));
        let lengths = |index| runs(&tile, index).map(|(i, run)| (i, run.len())).collect::<Vec<_>>();
        assert_eq!(lengths(0), [(0, 4)]);
        assert_eq!(lengths(1), [(0, 2), (2, 2)]);
        assert_eq!(lengths(2), [(0, 1), (1, 1), (2, 2)]);
    }
}
