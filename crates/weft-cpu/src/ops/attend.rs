//! `attend`: a = softmax(q · kᵀ / √head_dim) · v over every row that a token sees.
//!
//! An item is one KV head of one token: the query heads that share it read its rows together. Rows
//! are taken in the order of the span list, page by page; a sum's order is that of the rows, so
//! where spans and pages are cut does not show.

use half::bf16;
use weft::config::Config;
use weft::device::{Lane, Span, Step};
use weft::dtype::Element;
use weft::kv::{PAGE_ROWS, Slot};
use weft::rope::RopeTable;

use crate::buffers::Kv;
use crate::memory::Disjoint;
use crate::scratch::Scratch;
use crate::{CpuDevice, Isa, vector};

pub(crate) fn run(device: &mut CpuDevice, step: &Step<'_>, layer: u16) {
    let CpuDevice { config, limits, pool, isa, rope, kv, buffers, scratch, tokens, .. } = device;
    let attention = Attention { config, isa: *isa, rope, kv, layer, positions: limits.positions };
    let width = config.group() * config.head_dim;
    let q = &buffers.qkv[0];
    let a_stride = buffers.a.stride;
    let a = Disjoint::new(buffers.a.all_mut());
    let scratch = Disjoint::new(scratch);
    pool.for_each(tokens.len() * config.kv_heads, |thread, item| {
        let (t, head) = (item / config.kv_heads, item % config.kv_heads);
        // SAFETY: a thread has scratch of its own, an item has columns of its own.
        let (scratch, a) = unsafe {
            (&mut scratch.part(thread, 1)[0], a.part(t * a_stride + head * width, width))
        };
        let queries = &q.row(t)[head * width..][..width];
        let lane = &step.lanes[tokens[t].lane];
        attention.group(lane, tokens[t].position, head, queries, scratch, a);
    });
}

/// What all items share.
struct Attention<'a> {
    config: &'a Config,
    isa: Isa,
    rope: &'a RopeTable,
    kv: &'a Kv,
    layer: u16,
    positions: usize,
}

impl Attention<'_> {
    /// The query heads of one KV head of one token.
    fn group(
        &self,
        lane: &Lane<'_>,
        position: usize,
        head: usize,
        queries: &[bf16],
        scratch: &mut Scratch,
        a: &mut [bf16],
    ) {
        let (dim, stride) = (self.config.head_dim, self.kv.stride());
        let scale = 1.0 / (dim as f32).sqrt();
        let mut n = 0;
        for span in lane.spans.iter().filter(|span| visible(span, position) > 0) {
            self.rotate(queries, span.home_position + (position - span.position), scratch);
            for (start, rows) in self.runs(span, position, head) {
                let keys = &self.kv.k()[start..][..rows * stride];
                let scores = scratch.scores.chunks_exact_mut(self.positions);
                for (query, scores) in scratch.queries.chunks_exact(stride).zip(scores) {
                    let scores = &mut scores[n..n + rows];
                    vector::score_rows(self.isa, query, keys, stride, scale, scores);
                }
                n += rows;
            }
        }

        let scores = scratch.scores.chunks_exact_mut(self.positions);
        for (total, scores) in scratch.totals.iter_mut().zip(scores) {
            *total = vector::softmax(self.isa, &mut scores[..n]);
        }
        scratch.sums.fill(0.0);
        let mut n = 0;
        for (start, rows) in lane.spans.iter().flat_map(|span| self.runs(span, position, head)) {
            let values = &self.kv.v()[start..][..rows * stride];
            let scores = scratch.scores.chunks_exact(self.positions);
            for (sum, scores) in scratch.sums.chunks_exact_mut(dim).zip(scores) {
                vector::add_values(self.isa, &scores[n..n + rows], values, stride, sum);
            }
            n += rows;
        }

        let sums = scratch.sums.chunks_exact(dim).zip(&scratch.totals);
        for (a, (sum, total)) in a.chunks_exact_mut(dim).zip(sums) {
            vector::store_quotients(self.isa, sum, *total, a);
        }
    }

    /// Rotates the queries to a position and rounds them.
    fn rotate(&self, queries: &[bf16], position: usize, scratch: &mut Scratch) {
        let (dim, stride) = (self.config.head_dim, self.kv.stride());
        let to = scratch.queries.chunks_exact_mut(stride);
        for (query, to) in queries.chunks_exact(dim).zip(to) {
            scratch.head.iter_mut().zip(query).for_each(|(to, q)| *to = Element::to_f32(*q));
            self.rope.rotate(position, &scratch.head, &mut to[..dim]);
            vector::store_sums(self.isa, &to[..dim], None, &mut scratch.rounded);
            to.iter_mut().zip(&scratch.rounded).for_each(|(to, q)| *to = Element::to_f32(*q));
        }
    }

    /// The rows of a span that a token sees, page by page: where they start, and how many.
    fn runs<'s>(
        &'s self,
        span: &'s Span,
        position: usize,
        head: usize,
    ) -> impl Iterator<Item = (usize, usize)> + 's {
        let rows = visible(span, position);
        let pages = span.pages.iter().zip((0..rows).step_by(PAGE_ROWS));
        pages.map(move |(page, first)| {
            let start = self.kv.start(self.layer, page * PAGE_ROWS as Slot, head);
            (start, PAGE_ROWS.min(rows - first))
        })
    }
}

/// How many rows of a span a token at `position` sees.
fn visible(span: &Span, position: usize) -> usize {
    (position + 1).saturating_sub(span.position).min(span.len)
}
