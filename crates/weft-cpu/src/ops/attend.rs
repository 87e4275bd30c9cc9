//! `attend`: a = softmax(q · kᵀ / √head_dim) · v over every row that a token sees.
//!
//! An item is one KV head and a tile of tokens, which read each page together; see [`tiles`]. The
//! scores of a page are a matrix product, each one sum over the head. A sum of values adds rows in
//! the order of the span list. The result therefore depends neither on where spans and pages are
//! cut nor on how tokens share a tile.

use std::ops::Range;

use half::bf16;
use weft_core::config::Config;
use weft_core::device::{Lane, Span, Step};
use weft_core::dtype::Element;
use weft_core::kv::{PageId, pages_for};
use weft_core::rope::RopeTable;

use crate::buffers::{Activations, Kv, RowsOfPage};
use crate::matmul::{self, Rows, Sums, TILE};
use crate::memory::Disjoint;
use crate::pack::BLOCK_ROWS;
use crate::scratch::{Scratch, TokenPlace};
use crate::tiles::{self, Attending};
use crate::values::add_values;
use crate::{CpuDevice, Isa, vector};

pub(crate) fn run(device: &mut CpuDevice, step: &Step<'_>, layer: u16) {
    let CpuDevice { config, limits, pool, isa, rope, kv, buffers, scratch, lists, shares, .. } =
        device;
    let (isa, positions, tokens, lanes) = (*isa, limits.positions, &lists.tokens, step.lanes);
    let q = &buffers.qkv[0];
    let attention = Attention { config, isa, rope, kv, q, tokens, lanes, layer, positions };
    let width = config.group() * config.head_dim;
    let a_stride = buffers.a.stride;
    let a = Disjoint::new(buffers.a.all_mut());
    let (scratch, shares) = (Disjoint::new(scratch), shares.parts());
    pool.for_each(lists.tiles.len() * config.kv_heads, |thread, item| {
        let (tile, head) = (lists.tiles.get(item / config.kv_heads), item % config.kv_heads);
        // SAFETY: each thread has its own scratch.
        let scratch = unsafe { &mut scratch.part(thread, 1)[0] };
        attention.tile(tile, head, scratch);
        for (i, Attending { token, .. }) in tile.iter().enumerate() {
            // SAFETY: each item has its own columns in its tokens' rows.
            let a = unsafe { a.part(token * a_stride + head * width, width) };
            attention.store(i, scratch, a);
            if let Some(row) = lists.tokens[*token].share_row {
                // SAFETY: each token has its own row, and an item is one head of the token.
                let (rows, shares) = unsafe { shares.head(row, head) };
                attention.share(i, scratch, rows, shares);
            }
        }
    });
}

/// Data that all items share.
struct Attention<'a> {
    config: &'a Config,
    isa: Isa,
    rope: &'a RopeTable,
    kv: &'a Kv,
    q: &'a Activations,
    tokens: &'a [TokenPlace],
    lanes: &'a [Lane<'a>],
    layer: u16,
    positions: usize,
}

/// Pages of a span, and the tokens of a tile that read them together.
struct PageReading<'a> {
    span: &'a Span,
    /// Indices of the span's pages.
    pages: Range<usize>,
    /// Index of the first reader in the tile.
    first: usize,
    readers: &'a [Attending],
    /// Rows of the span that the last reader sees, which sees the most.
    rows: usize,
    /// Rows that the readers see before the span.
    n_rows: usize,
}

impl PageReading<'_> {
    /// The pages, each with its first row in the list and its visible rows.
    fn pages(&self) -> impl Iterator<Item = (PageId, usize, Range<usize>)> {
        self.pages.clone().map(|index| {
            let own = RowsOfPage::new(index, self.span.first_row, self.rows);
            (self.span.pages[index], self.n_rows + own.rows.start, own.in_page())
        })
    }

    /// The readers' queries in the tile.
    fn queries(&self, group: usize) -> Range<usize> {
        self.first * group..(self.first + self.readers.len()) * group
    }
}

impl Attention<'_> {
    /// The query heads of one KV head, for a tile of tokens. Query i · group + g is head g of the
    /// tile's token i.
    fn tile(&self, tile: &[Attending], head: usize, scratch: &mut Scratch) {
        let group = self.config.group();
        // The distance that each token's queries are rotated for; none yet.
        let mut rotated_for = [None; tiles::MAX_TOKENS];
        self.for_each_reading(tile, |reading| {
            self.rotate(reading, head, scratch, &mut rotated_for);
            for (page, n_rows, rows) in reading.pages() {
                let keys = self.kv.keys(self.layer, page, head);
                self.score(keys, reading.queries(group), rows, n_rows, scratch);
            }
        });
        for (i, Attending { token, .. }) in tile.iter().enumerate() {
            self.softmax(&self.tokens[*token], i * group..(i + 1) * group, scratch);
        }
        scratch.sums[..tile.len() * group * self.kv.layout().stride].fill(0.0);
        self.for_each_reading(tile, |reading| {
            for (page, n_rows, rows) in reading.pages() {
                let values = self.kv.values(self.layer, page, head, rows);
                let queries = reading.queries(group);
                for first in queries.clone().step_by(TILE) {
                    self.weigh(first..queries.end.min(first + TILE), n_rows, values, scratch);
                }
            }
        });
    }

    /// Calls `read` for all pages that tokens of a tile see, for each token in the order of its
    /// list.
    fn for_each_reading(&self, tile: &[Attending], mut read: impl FnMut(&PageReading<'_>)) {
        for stage in tiles::stages(tile) {
            for (first, readers) in tiles::runs(tile, stage.start) {
                let lane = &self.lanes[self.tokens[readers[0].token].lane];
                let last_position = self.tokens[readers[readers.len() - 1].token].position;
                let (mut n_pages, mut n_rows) = (0, 0);
                for span in lane.spans {
                    let rows = span.rows_seen_from(last_position);
                    // Spans are in the order of their positions, so no later one is visible either.
                    if rows == 0 || n_pages >= stage.end {
                        break;
                    }
                    let all = pages_for(span.first_row + rows);
                    let pages = stage.start.saturating_sub(n_pages)..all.min(stage.end - n_pages);
                    if !pages.is_empty() {
                        read(&PageReading { span, pages, first, readers, rows, n_rows });
                    }
                    n_pages += all;
                    n_rows += rows;
                }
            }
        }
    }

    /// Rotates the readers' queries for their distance from the span's home, and rounds them.
    /// Queries that have read other pages of the span are rotated already.
    fn rotate(
        &self,
        reading: &PageReading<'_>,
        head: usize,
        scratch: &mut Scratch,
        rotated_for: &mut [Option<usize>; tiles::MAX_TOKENS],
    ) {
        let (dim, group) = (self.config.head_dim, self.config.group());
        let Scratch { head: unrotated, rotated, queries, .. } = scratch;
        let span = reading.span;
        for (i, Attending { token, .. }) in (reading.first..).zip(reading.readers) {
            // A token before the span does not see it, and its scores are never read.
            let position = self.tokens[*token].position.max(span.position);
            let from_home = span.home_position + (position - span.position);
            if rotated_for[i].replace(from_home) == Some(from_home) {
                continue;
            }
            let heads = self.q.row(*token)[head * group * dim..][..group * dim].chunks_exact(dim);
            for (query, to) in heads.zip(queries[i * group * dim..].chunks_exact_mut(dim)) {
                unrotated.iter_mut().zip(query).for_each(|(to, q)| *to = Element::to_f32(*q));
                self.rope.rotate(from_home, unrotated, rotated);
                vector::store_sums(self.isa, rotated, None, to);
            }
        }
    }

    /// Scores of rows `rows` of a page, from row `n_rows` of the list on.
    fn score(
        &self,
        keys: &[bf16],
        queries: Range<usize>,
        rows: Range<usize>,
        n_rows: usize,
        scratch: &mut Scratch,
    ) {
        let dim = self.config.head_dim;
        let scale = 1.0 / (dim as f32).sqrt();
        let mut sums: Sums = [[0.0; BLOCK_ROWS]; TILE];
        let x = Rows { values: &scratch.queries, stride: dim, sums: &[], order: None };
        for first in queries.clone().step_by(TILE) {
            let n = TILE.min(queries.end - first);
            matmul::multiply(self.isa, keys, dim, x, first, n, &mut sums);
            for (i, sums) in sums[..n].iter().enumerate() {
                let start = (first + i) * self.positions + n_rows;
                let scores = &mut scratch.scores[start..start + rows.len()];
                let sums = &sums[rows.clone()];
                scores.iter_mut().zip(sums).for_each(|(score, sum)| *score = sum * scale);
            }
        }
    }

    /// Turns the scores of a token's queries into weights, and stores their sums.
    fn softmax(&self, token: &TokenPlace, queries: Range<usize>, scratch: &mut Scratch) {
        // Spans are in the order of their positions, so a token sees a prefix of them.
        let spans = self.lanes[token.lane].spans;
        let seen = spans.iter().map(|span| span.rows_seen_from(token.position)).sum();
        for query in queries {
            let scores = &mut scratch.scores[query * self.positions..][..seen];
            scratch.seen[query] = seen;
            scratch.totals[query] = vector::softmax(self.isa, scores);
        }
    }

    /// Adds a page's values, rows `n_rows..` of the list, to the sums of the queries that see them.
    fn weigh(&self, queries: Range<usize>, n_rows: usize, values: &[bf16], scratch: &mut Scratch) {
        let stride = self.kv.layout().stride;
        let Scratch { scores, sums, seen, .. } = scratch;
        let seen = |query: usize| seen[query].saturating_sub(n_rows).min(values.len() / stride);
        let weights =
            |query: usize, rows: Range<usize>| &scores[query * self.positions + n_rows..][rows];
        // First the rows that all queries see, then the rest of each. Later queries see more rows.
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

    /// Adds the attention of token i's heads to each stretch's share. A stretch's sum starts with
    /// its own first row, so that it does not depend on cuts.
    fn share(&self, i: usize, scratch: &Scratch, rows: &[usize], shares: &mut [f32]) {
        let group = self.config.group();
        for query in i * group..(i + 1) * group {
            let mut weights = &scratch.scores[query * self.positions..][..scratch.seen[query]];
            let total = scratch.totals[query];
            for (share, rows) in shares.iter_mut().zip(rows) {
                let own = weights.split_off(..*rows).expect("no more than are seen");
                *share += vector::sum_squares(self.isa, own) / (total * total);
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
