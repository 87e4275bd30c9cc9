//! Which tokens attend together, and in which order.
//!
//! A tile is a few tokens that read each page of their spans at the same time: neighbours of one
//! lane, and tokens of lanes that begin with the same spans. Lanes stand in the order of the tree
//! that their span lists make, those with more in common closer, so that whoever shares a span in a
//! tile stands side by side. How tokens are put into tiles decides what is read how often, and never
//! what comes out.

use std::cmp::Reverse;
use std::ops::Range;

use weft::config::Config;
use weft::device::{Lane, Limits, MAX_LANES, Step};

use crate::matmul::TILE;

/// Tokens of the largest tile: one of each lane that a step can have.
pub(crate) const MAX_TOKENS: usize = MAX_LANES;
const _: () = assert!(TILE <= MAX_TOKENS, "a lane's own tile may be the largest");

/// A token of a tile.
pub(crate) struct Attending {
    /// Which of the step's tokens it is.
    pub(crate) token: usize,
    /// How many of its first spans it reads together with the token before it.
    n_shared: usize,
}

/// The tiles of a step.
pub(crate) struct Tiles {
    /// The tokens in the order of the tiles.
    order: Vec<Attending>,
    /// Runs of `order`.
    tiles: Vec<Range<usize>>,
    /// Tokens of one lane in a tile: with the query heads of one KV head they fill a matrix product.
    lane_tokens: usize,
    /// Items that each tile is.
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

    /// Puts a step's tokens into tiles.
    pub(crate) fn fill(&mut self, step: &Step<'_>) {
        self.order.clear();
        self.tiles.clear();
        // Lanes that read together are fewer items: no thread should go without.
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

    /// Adds a lane's tokens; the first few join the last tile if they share spans with it and there is
    /// room for them.
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

/// Splits a tile into the runs of tokens that read span `index` of their lists together, each with
/// where it begins.
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

/// How many spans two lanes have in common from the first on, as far as all their tokens see them
/// whole: then it does not matter whose tokens they are.
fn n_shared(a: &Lane<'_>, b: &Lane<'_>) -> usize {
    let first_position = a.positions[0].min(b.positions[0]) as usize;
    let pairs = a.spans.iter().zip(b.spans);
    pairs.take_while(|(a, b)| a == b && a.rows_seen_from(first_position) == a.len).count()
}

#[cfg(test)]
mod tests {
    use weft::device::{Outputs, Span};

    use super::*;

    /// The tokens of each tile, for lanes of some pages, each a span, and a number of tokens. There
    /// are 8 KV heads with two query heads each.
    fn tiles(lanes: &[(&[u32], usize)], n_threads: usize) -> Vec<Vec<usize>> {
        let span = |(i, page): (usize, &u32)| {
            let position = 4 * i;
            Span { pages: vec![*page], len: 4, home_position: 0, position }
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
                outputs: Outputs::None,
            });
        }
        let config = weft::shapes::config("qwen3-0.6b").unwrap();
        let limits = Limits { step_tokens: 64, step_outputs: 1, positions: 256, pages: 64 };
        let mut tiles = Tiles::new(&config, &limits, n_threads);
        tiles.fill(&Step { lanes: &step });
        (0..tiles.len()).map(|i| tiles.get(i).iter().map(|t| t.token).collect()).collect()
    }

    #[test]
    fn lanes_that_share_a_span_are_one_tile() {
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

    #[test]
    fn tokens_of_a_tile_part_where_their_spans_do() {
        let token = |n_shared| Attending { token: 0, n_shared };
        let tile = [token(0), token(2), token(1), token(usize::MAX)];
        let lengths = |index| runs(&tile, index).map(|(i, run)| (i, run.len())).collect::<Vec<_>>();
        assert_eq!(lengths(0), [(0, 4)]);
        assert_eq!(lengths(1), [(0, 2), (2, 2)]);
        assert_eq!(lengths(2), [(0, 1), (1, 1), (2, 2)]);
    }
}
