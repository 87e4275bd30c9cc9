//! `attend`: a = softmax(q · kᵀ / √head_dim) · v over every row that a token sees.
//!
//! An item is one KV head and a tile of tokens of one lane: they read each page together. Scores of
//! a page are a matrix product, each one sum over the head; a value's sum adds rows in the order of
//! the span list. So where spans and pages are cut, and who shares a tile, does not show.

use std::ops::Range;

use half::bf16;
use weft::config::Config;
use weft::device::{Lane, Span, Step};
use weft::dtype::Element;
use weft::kv::{PAGE_ROWS, PageId};
use weft::rope::RopeTable;

use crate::buffers::{Activations, Kv};
use crate::matmul::{self, Rows, Sums, TILE};
use crate::memory::Disjoint;
use crate::pack::BLOCK_ROWS;
use crate::scratch::{Scratch, TokenPlace};
use crate::values::add_values;
use crate::{CpuDevice, Isa, vector};

pub(crate) fn run(device: &mut CpuDevice, step: &Step<'_>, layer: u16) {
    let CpuDevice { config, limits, pool, isa, rope, kv, buffers, scratch, lists, shares, .. } =
        device;
    let (isa, positions) = (*isa, limits.positions);
    let q = &buffers.qkv[0];
    let attention = Attention { config, isa, rope, kv, q, tokens: &lists.tokens, layer, positions };
    let width = config.group() * config.head_dim;
    let a_stride = buffers.a.stride;
    let a = Disjoint::new(buffers.a.all_mut());
    let (scratch, shares) = (Disjoint::new(scratch), shares.parts());
    pool.for_each(lists.tiles.len() * config.kv_heads, |thread, item| {
        let (tile, head) = (&lists.tiles[item / config.kv_heads], item % config.kv_heads);
        // SAFETY: a thread has scratch of its own.
        let scratch = unsafe { &mut scratch.part(thread, 1)[0] };
        let index = lists.tokens[tile.start].lane;
        let lane = &step.lanes[index];
        attention.tile(lane, tile.clone(), head, scratch);
        if lists.is_last_of_lane(tile.end - 1) {
            // SAFETY: a lane has one last token, and an item is one head of it.
            let shares = unsafe { shares.head(index, head) };
            attention.share(lane, tile.len() - 1, scratch, shares);
        }
        for (i, t) in tile.clone().enumerate() {
            // SAFETY: an item has columns of its own in its tokens' rows.
            let a = unsafe { a.part(t * a_stride + head * width, width) };
            attention.store(i, scratch, a);
        }
    });
}

/// What all items share.
struct Attention<'a> {
    config: &'a Config,
    isa: Isa,
    rope: &'a RopeTable,
    kv: &'a Kv,
    q: &'a Activations,
    tokens: &'a [TokenPlace],
    layer: u16,
    positions: usize,
}

impl Attention<'_> {
    /// The query heads of one KV head, for a tile of tokens. Query i · group + g is head g of the
    /// tile's token i.
    fn tile(&self, lane: &Lane<'_>, tile: Range<usize>, head: usize, scratch: &mut Scratch) {
        let group = self.config.group();
        let n_queries = tile.len() * group;
        let last = self.tokens[tile.end - 1].position;
        let mut n_rows = 0;
        for span in lane.spans {
            if span.rows_seen_from(last) > 0 {
                self.rotate(span, &tile, head, scratch);
            }
            for (page, rows) in pages(span, last) {
                self.score(self.kv.keys(self.layer, page, head), n_queries, n_rows, rows, scratch);
                n_rows += rows;
            }
        }
        for query in 0..n_queries {
            let position = self.tokens[tile.start + query / group].position;
            // Spans stand in the order of their positions: what a token sees of them is a prefix.
            let seen = lane.spans.iter().map(|span| span.rows_seen_from(position)).sum();
            let scores = &mut scratch.scores[query * self.positions..][..seen];
            scratch.seen[query] = seen;
            scratch.totals[query] = vector::softmax(self.isa, scores);
        }
        scratch.sums.fill(0.0);
        let mut n_rows = 0;
        for (page, rows) in lane.spans.iter().flat_map(|span| pages(span, last)) {
            let values = self.kv.values(self.layer, page, head, rows);
            for first in (0..n_queries).step_by(TILE) {
                let queries = first..(first + TILE).min(n_queries);
                self.weigh(queries, n_rows, values, scratch);
            }
            n_rows += rows;
        }
    }

    /// Rotates the tile's queries to where they stand from the span's home, and rounds them.
    fn rotate(&self, span: &Span, tile: &Range<usize>, head: usize, scratch: &mut Scratch) {
        let (dim, group) = (self.config.head_dim, self.config.group());
        let Scratch { head: unrotated, rotated, queries, .. } = scratch;
        for (i, t) in tile.clone().enumerate() {
            // A token before the span does not see it; its scores are never read.
            let position = self.tokens[t].position.max(span.position);
            let from_home = span.home_position + (position - span.position);
            let heads = self.q.row(t)[head * group * dim..][..group * dim].chunks_exact(dim);
            for (query, to) in heads.zip(queries[i * group * dim..].chunks_exact_mut(dim)) {
                unrotated.iter_mut().zip(query).for_each(|(to, q)| *to = Element::to_f32(*q));
                self.rope.rotate(from_home, unrotated, rotated);
                vector::store_sums(self.isa, rotated, None, to);
            }
        }
    }

    /// Scores of `rows` rows of a page, from row `n_rows` of the list on.
    fn score(
        &self,
        keys: &[bf16],
        n_queries: usize,
        n_rows: usize,
        rows: usize,
        scratch: &mut Scratch,
    ) {
        let dim = self.config.head_dim;
        let scale = 1.0 / (dim as f32).sqrt();
        let mut sums: Sums = [[0.0; BLOCK_ROWS]; TILE];
        let queries = Rows { values: &scratch.queries, stride: dim };
        for first in (0..n_queries).step_by(TILE) {
            let n = TILE.min(n_queries - first);
            matmul::multiply(self.isa, keys, dim, queries, first, n, &mut sums);
            for (i, sums) in sums[..n].iter().enumerate() {
                let start = (first + i) * self.positions + n_rows;
                let scores = &mut scratch.scores[start..start + rows];
                scores.iter_mut().zip(sums).for_each(|(score, sum)| *score = sum * scale);
            }
        }
    }

    /// Adds a page's values, rows `n_rows..` of the list, to the sums of the queries that see them.
    fn weigh(&self, queries: Range<usize>, n_rows: usize, values: &[bf16], scratch: &mut Scratch) {
        let stride = self.kv.layout().stride;
        let Scratch { scores, sums, seen, .. } = scratch;
        let seen = |query: usize| seen[query].saturating_sub(n_rows).min(values.len() / stride);
        let weights =
            |query: usize, rows: Range<usize>| &scores[query * self.positions + n_rows..][rows];
        // What all see, together; then the rest of each. Queries see more from first to last.
        let common = seen(queries.start);
        let mut together: [&[f32]; TILE] = [&[]; TILE];
        for (slot, query) in together.iter_mut().zip(queries.clone()) {
            *slot = weights(query, 0..common);
        }
        let together = &together[..queries.len()];
        let all = &mut sums[queries.start * stride..];
        add_values(self.isa, together, &values[..common * stride], stride, all);
        for query in queries.filter(|query| seen(*query) > common) {
            let rows = common..seen(query);
            let values = &values[rows.start * stride..rows.end * stride];
            let sums = &mut sums[query * stride..];
            add_values(self.isa, &[weights(query, rows)], values, stride, sums);
        }
    }

    /// Adds to each span's share what the heads of token i gave to it.
    fn share(&self, lane: &Lane<'_>, i: usize, scratch: &Scratch, shares: &mut [f32]) {
        let group = self.config.group();
        for query in i * group..(i + 1) * group {
            let mut weights = &scratch.scores[query * self.positions..][..scratch.seen[query]];
            for (share, span) in shares.iter_mut().zip(lane.spans) {
                let own = weights
                    .split_off(..span.len.min(weights.len()))
                    .expect("no more than are left");
                *share += vector::sum(self.isa, own) / scratch.totals[query];
            }
        }
    }

    /// Token i's output: its sums over their totals, rounded.
    fn store(&self, i: usize, scratch: &Scratch, a: &mut [bf16]) {
        let (dim, group, stride) =
            (self.config.head_dim, self.config.group(), self.kv.layout().stride);
        for (g, a) in a.chunks_exact_mut(dim).enumerate() {
            let query = i * group + g;
            let sums = &scratch.sums[query * stride..][..dim];
            vector::store_quotients(self.isa, sums, scratch.totals[query], a);
        }
    }
}

/// The pages of a span that a token at `position` sees, with the rows it sees of each.
fn pages(span: &Span, position: usize) -> impl Iterator<Item = (PageId, usize)> {
    let rows = span.rows_seen_from(position);
    let firsts = (0..rows).step_by(PAGE_ROWS);
    span.pages.iter().zip(firsts).map(move |(page, first)| (*page, PAGE_ROWS.min(rows - first)))
}
