//! One launch per token: the plan is recorded once and replayed for every step of few tokens.
//!
//! Kernel arguments do not change between steps: everything that changes is in the lists, which are
//! copied before a step or updated by the previous one. A graph serves steps of up to a number of
//! attention items, a power of two, so that a short context does not wait for the blocks of a long
//! one. It also serves up to a number of shares, which it clears first: as many as so many items
//! have without marks, so that a draft of any length finds the same graph.

use std::collections::HashMap;

use weft_core::plan::Op;

use crate::CudaDevice;
use crate::driver::Graph;
use crate::error::CudaError;
use crate::ops::Pass;
use crate::sampling::{Chosen, Needs};
use crate::tables::{Counts, FEW, Family, SECTION_ROWS, queries_of_item};

/// The fewest shares that a graph clears: clearing fewer takes as long.
const FEWEST_CELLS: usize = 256;

/// The steps that a graph was recorded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    n_items: usize,
    n_cells: usize,
    has_outputs: bool,
    chosen: Chosen,
}

impl Key {
    fn of(counts: &Counts, most_items: usize, chosen: Chosen) -> Self {
        let n_items = counts.n_items.next_power_of_two().min(most_items);
        let without_marks = (n_items * FEW).max(FEWEST_CELLS);
        let n_cells = counts.n_cells.next_power_of_two().max(without_marks);
        Self { n_items, n_cells, has_outputs: counts.n_outputs > 0, chosen }
    }
}

/// The graphs of a device, recorded when first needed.
#[derive(Default)]
pub(crate) struct Graphs {
    recorded: HashMap<Key, Graph>,
}

/// Replays the plan on the lists that are on the GPU, `times` times.
pub(crate) fn run(
    device: &mut CudaDevice,
    plan: &[Op],
    chosen: Chosen,
    times: usize,
) -> Result<(), (Op, CudaError)> {
    let at = |op: Op| move |error| (op, error);
    let most_items = device.few.most_items();
    let key = Key::of(&device.lists.counts, most_items, chosen);
    if !device.graphs.recorded.contains_key(&key) {
        let graph = record(device, plan, key).map_err(at(plan[0]))?;
        device.graphs.recorded.insert(key, graph);
    }
    let graph = &device.graphs.recorded[&key];
    (0..times).try_for_each(|_| graph.launch()).map_err(at(plan[0]))
}

/// Records the graphs that one lane's drafts need, up to the longest context. Where tokens run in
/// the persistent kernel, no step has recorded them.
pub(crate) fn prepare_drafts(device: &mut CudaDevice) -> Result<(), CudaError> {
    let most_items = device.few.most_items();
    let sections = device.limits.positions.div_ceil(SECTION_ROWS);
    let of_section = FEW.div_ceil(queries_of_item(device.config.group()));
    let chosen = Chosen::ByGpu(Needs::default());
    let mut n_items = 1;
    while n_items < 2 * sections * of_section {
        let counts = Counts { n_items, n_outputs: FEW, ..Counts::default() };
        let key = Key::of(&counts, most_items, chosen);
        if !device.graphs.recorded.contains_key(&key) {
            let graph = record(device, &device.plan, key)?;
            graph.upload()?;
            device.graphs.recorded.insert(key, graph);
        }
        n_items *= 2;
    }
    Ok(())
}

fn record(device: &CudaDevice, plan: &[Op], key: Key) -> Result<Graph, CudaError> {
    let counts = Counts {
        n_tokens: FEW,
        n_outputs: if key.has_outputs { FEW } else { 0 },
        n_items: key.n_items,
        n_tiles: 0,
        n_sections: 0,
        lays_pages: false,
        n_splits: 1,
        n_partials: key.n_items * FEW,
        n_cells: key.n_cells,
    };
    let pass = Pass {
        device,
        step: device.few.addresses(),
        family: Family::Few,
        counts,
        joined: true,
        chosen: key.chosen,
        coming: None,
    };
    device.kernels.ready_for_tokens(key.chosen)?;
    device.gpu.capture(|| {
        device.clear_shares(&counts)?;
        pass.run(plan).map_err(|(_, error)| error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_of_all_lengths_after_a_context_have_one_graph() {
        let key = |n_items: usize, n_cells: usize| {
            let counts = Counts { n_items, n_cells, n_outputs: 1, ..Counts::default() };
            Key::of(&counts, 4096, Chosen::ByHost)
        };
        // One to eight tokens, each with a cell in each of some sections.
        for n_sections in [1, 3, 33, 120] {
            let keys: Vec<Key> = (1..=8).map(|k| key(n_sections, k * n_sections)).collect();
            assert!(keys.iter().all(|other| *other == keys[0]), "{n_sections} sections");
        }
        assert_ne!(key(3, 24), key(5, 24));
        assert!(key(2, 1000).n_cells >= 1000, "marks make more cells");
    }
}
