//! `attend`: a = softmax(q · kᵀ / √head_dim) · v over every row that a token sees.
//!
//! A token sees the rows of its lane's spans up to its own position. Rows are taken in the order of
//! the span list, so the result does not depend on where spans or pages are cut. For each span, q
//! is rotated to the token's position minus the span's shift: the span is scored as if the query
//! stood near the span's home. Rounding: the rotated query once; probabilities never; a once.

use super::Reference;
use super::math::{dot, widen};
use crate::device::{Lane, Step};
use crate::dtype::Element;

pub(super) fn run<E: Element>(device: &mut Reference<E>, step: &Step<'_>, layer: u16) {
    let mut t = 0;
    for (index, lane) in step.lanes.iter().enumerate() {
        for (token, position) in lane.positions.iter().enumerate() {
            let row = device.reporting.row_of_token(index, token);
            for head in 0..device.config.heads {
                attend_head(device, lane, layer, t, *position as usize, head);
                if let Some(row) = row {
                    add_shares(device, row, lane, *position as usize);
                }
            }
            t += 1;
        }
    }
}

/// Adds the current head's attention to each stretch.
fn add_shares<E: Element>(device: &mut Reference<E>, row: usize, lane: &Lane<'_>, position: usize) {
    let n_rows = lane.spans.iter().map(|span| span.rows_seen_from(position)).sum();
    let total: f32 = device.scratch.scores[..n_rows].iter().sum();
    let mut probabilities = device.scratch.scores.iter().map(|weight| weight / total);
    for (share, rows) in device.attention[row].iter_mut().zip(lane.rows_of_stretches(position)) {
        let own = probabilities.by_ref().take(rows);
        *share += own.map(|probability| probability * probability).sum::<f32>();
    }
}

/// One query head of one token.
fn attend_head<E: Element>(
    device: &mut Reference<E>,
    lane: &Lane<'_>,
    layer: u16,
    t: usize,
    position: usize,
    head: usize,
) {
    let Reference { config, buffers, kv, rope, scratch, .. } = device;
    let dim = config.head_dim;
    let scale = 1.0 / (dim as f32).sqrt();
    let kv_head = head / config.group() * dim;
    let own = t * config.q_width() + head * dim..t * config.q_width() + (head + 1) * dim;
    let key = |slot| &kv.k[kv.row(layer, slot)][kv_head..][..dim];
    let value = |slot| &kv.v[kv.row(layer, slot)][kv_head..][..dim];

    widen(&buffers.q[own.clone()], &mut scratch.head);
    let mut n_rows = 0;
    for span in lane.spans {
        let rows = span.rows_seen_from(position);
        if rows == 0 {
            continue;
        }
        let from_home = span.home_position + (position - span.position);
        rope.rotate(from_home, &scratch.head, &mut scratch.rotated);
        scratch.rotated.iter_mut().for_each(|value| *value = E::from_f32(*value).to_f32());
        for row in 0..rows {
            scratch.scores[n_rows] = dot(&scratch.rotated, key(span.slot(row))) * scale;
            n_rows += 1;
        }
    }

    let total = softmax(&mut scratch.scores[..n_rows]);
    scratch.sum.fill(0.0);
    let rows =
        lane.spans.iter().flat_map(|s| (0..s.rows_seen_from(position)).map(|row| s.slot(row)));
    for (slot, weight) in rows.zip(&scratch.scores) {
        for (sum, value) in scratch.sum.iter_mut().zip(value(slot)) {
            *sum += weight * value.to_f32();
        }
    }
    for (a, sum) in buffers.a[own].iter_mut().zip(&scratch.sum) {
        *a = E::from_f32(sum / total);
    }
}

/// Scores → exp(score − max), and their sum.
fn softmax(scores: &mut [f32]) -> f32 {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut total = 0.0;
    for score in scores {
        *score = (*score - max).exp();
        total += *score;
    }
    total
}
