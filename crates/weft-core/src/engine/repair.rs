//! Repairs moved nodes: recomputes some of their rows, which then attend to everything before them.
//!
//! Repaired rows go into copies of their pages, rotated for their home like the rows beside them.
//! The node stays one span, and rows that others read are unchanged. `link` recomputes the first
//! rows of each moved node. `blend` computes the first layers of every row, and recomputes the rows
//! whose keys and values changed most.

use std::time::Duration;

use super::held::HeldNode;
use super::sequence::Sequence;
use crate::cache::{Cache, RowShape};
use crate::chunk::Repair;
use crate::device::{Device, DeviceError, Lane, Outputs, PageRows, Span, Step};
use crate::kv::{PAGE_ROWS, pages_for};
use crate::plan::Op;

/// The repairs of a lane, and their progress.
pub(super) struct Repairs {
    repair: Repair,
    /// The end of each run of moved nodes, the next one last. A run is repaired before the node
    /// after it, which attends to it, is computed. Later parts of a prompt change nothing before
    /// them.
    ends: Vec<usize>,
    /// Node and row of each token of a run to recompute, in the order of their positions.
    rows: Vec<(usize, usize)>,
    is_chosen: bool,
    done: usize,
}

impl Repairs {
    pub(super) fn new(nodes: &[HeldNode], repair: Repair) -> Self {
        let is_moved = |index: usize| nodes.get(index).is_some_and(HeldNode::is_moved);
        let is_end = |end: &usize| is_moved(end - 1) && !is_moved(*end) && repair != Repair::None;
        let ends = (1..=nodes.len()).rev().filter(is_end).collect();
        Self { repair, ends, rows: Vec::new(), is_chosen: false, done: 0 }
    }

    /// Whether node `at` has to wait for repairs.
    pub(super) fn is_due(&self, at: usize) -> bool {
        self.ends.last() == Some(&at)
    }

    /// Whether the rows to repair have to be chosen now.
    pub(super) fn is_to_choose(&self, at: usize) -> bool {
        self.is_due(at) && !self.is_chosen
    }

    pub(super) fn pending(&self) -> usize {
        self.rows.len() - self.done
    }

    /// The next `n` rows.
    pub(super) fn next(&self, n: usize) -> impl Iterator<Item = (usize, usize)> {
        self.rows[self.done..self.done + n].iter().copied()
    }

    /// Records that the next `n` rows were computed.
    pub(super) fn advance(&mut self, n: usize, nodes: &mut [HeldNode], time: Duration) {
        for (index, _) in &self.rows[self.done..self.done + n] {
            nodes[*index].repaired += 1;
            nodes[*index].time += time / n as u32;
        }
        self.done += n;
        self.end_run();
    }

    /// Moves to the next run, if all rows of this one are computed.
    fn end_run(&mut self) {
        if self.pending() == 0 {
            self.ends.pop();
            self.rows.clear();
            self.is_chosen = false;
            self.done = 0;
        }
    }
}

/// Chooses the rows of a run to repair and copies their pages.
pub(super) fn choose(
    lane: &mut Sequence,
    cache: &mut Cache,
    device: &mut dyn Device,
    plan: &[Op],
) -> Result<(), DeviceError> {
    let end = *lane.repairs.ends.last().expect("there is a run to repair");
    lane.complete_pages(end, cache, device);
    let before = lane.nodes[..end].iter().rposition(|held| !held.is_moved());
    // Anchors stay as they are: rows that are kept attend to them, also in later prompts.
    let moved = before.map_or(0, |before| before + 1)..end;
    let moved: Vec<usize> = moved.filter(|index| !lane.nodes[*index].is_anchor).collect();
    let mut rows = Vec::new();
    match lane.repairs.repair {
        Repair::None => {}
        Repair::Link(tokens) => {
            for index in moved {
                let n = tokens.min(lane.nodes[index].range.len());
                copy_pages(lane, index, n, cache, device);
                rows.extend((0..n).map(|row| (index, row)));
            }
        }
        Repair::Blend(share, layer) => {
            for index in &moved {
                let n = lane.nodes[*index].range.len();
                copy_pages(lane, *index, n, cache, device);
            }
            rows = most_deviating(lane, &moved, (share, layer), cache, device, plan)?;
        }
    }
    lane.repairs.rows = rows;
    lane.repairs.is_chosen = true;
    lane.repairs.end_run();
    Ok(())
}

/// Replaces the pages of a node's first rows by copies.
fn copy_pages(
    lane: &mut Sequence,
    index: usize,
    rows: usize,
    cache: &mut Cache,
    device: &mut dyn Device,
) {
    let copies = lane.take_pages(pages_for(lane.nodes[index].lead + rows), cache, device);
    for (page, copy) in lane.nodes[index].pages.iter_mut().zip(copies) {
        device.copy_rows(*page, copy, PAGE_ROWS);
        cache.give_back_pages([std::mem::replace(page, copy)]);
    }
}

/// The share of a run's rows whose keys and values change most when they attend to everything
/// before them, at a layer.
fn most_deviating(
    lane: &Sequence,
    moved: &[usize],
    (share, layer): (f64, u16),
    cache: &Cache,
    device: &mut dyn Device,
    plan: &[Op],
) -> Result<Vec<(usize, usize)>, DeviceError> {
    let shape = cache.shape();
    let layer = layer.min(shape.layers as u16 - 1);
    let is_last = |op: &Op| matches!(op, Op::RopeStore { layer: of } if *of == layer);
    let end = plan.iter().position(is_last).map_or(plan.len(), |last| last + 1);
    run_moved(lane, moved, &plan[..end], device)?;

    let mut deviations = Vec::new();
    for index in moved {
        let held = &lane.nodes[*index];
        let (first_row, len) = (held.lead, held.range.len());
        let stored = &cache.node(held.node).pages;
        let before = read_layer(device, shape, layer, &PageRows { pages: stored, first_row, len });
        let pages = &held.pages;
        let after = read_layer(device, shape, layer, &PageRows { pages, first_row, len });
        let row_len = 2 * shape.kv_width;
        let rows = before.chunks_exact(row_len).zip(after.chunks_exact(row_len));
        deviations.extend(rows.enumerate().map(|(row, (a, b))| (distance(a, b), *index, row)));
        // The partial run served only to measure the deviations.
        for (from, to) in stored.iter().zip(&held.pages) {
            device.copy_rows(*from, *to, PAGE_ROWS);
        }
    }
    let n = ((deviations.len() as f64 * share).ceil() as usize).min(deviations.len());
    deviations.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let mut rows: Vec<_> = deviations[..n].iter().map(|(_, index, row)| (*index, *row)).collect();
    rows.sort_unstable();
    Ok(rows)
}

/// Runs the first ops on all moved rows at their positions, and stores into their copies.
fn run_moved(
    lane: &Sequence,
    moved: &[usize],
    ops: &[Op],
    device: &mut dyn Device,
) -> Result<(), DeviceError> {
    let n_nodes = moved.last().map_or(0, |last| last + 1);
    let mut spans: Vec<Span> = Vec::new();
    lane.nodes[..n_nodes].iter().for_each(|held| held.add_to(&mut spans));
    let rows: Vec<(usize, usize)> = moved
        .iter()
        .flat_map(|index| (0..lane.nodes[*index].range.len()).map(|row| (*index, row)))
        .collect();
    let tokens = lane.prompt();
    for block in rows.chunks(device.limits().step_tokens) {
        let position = |(index, row): &(usize, usize)| lane.nodes[*index].range.start + row;
        let key_position = |(index, row): &(usize, usize)| (lane.nodes[*index].home + row) as u32;
        let block_tokens: Vec<u32> = block.iter().map(|at| tokens[position(at)]).collect();
        let positions: Vec<u32> = block.iter().map(|at| position(at) as u32).collect();
        let key_positions: Vec<u32> = block.iter().map(key_position).collect();
        let store_at: Vec<u32> =
            block.iter().map(|(index, row)| lane.nodes[*index].slot(*row)).collect();
        let lane = Lane {
            tokens: &block_tokens,
            positions: &positions,
            key_positions: &key_positions,
            store_at: &store_at,
            spans: &spans,
            marks: &[],
            outputs: Outputs::None,
        };
        device.run(ops, &Step { lanes: &[lane] })?;
    }
    Ok(())
}

/// Keys and values of one layer, row by row, as numbers.
fn read_layer(device: &dyn Device, shape: RowShape, layer: u16, rows: &PageRows<'_>) -> Vec<f32> {
    let bytes = shape.bytes(1, rows.len);
    let (mut k, mut v) = (vec![0; bytes], vec![0; bytes]);
    device.read_kv(layer..layer + 1, rows, &mut k, &mut v);
    let row_bytes = shape.bytes(1, 1);
    let both = k.chunks_exact(row_bytes).zip(v.chunks_exact(row_bytes));
    both.flat_map(|(k, v)| [shape.dtype.numbers(k), shape.dtype.numbers(v)]).flatten().collect()
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum()
}

// A repaired row's page must be its node's own copy.
const _: () = assert!(Repair::MAX_LINK <= PAGE_ROWS);
