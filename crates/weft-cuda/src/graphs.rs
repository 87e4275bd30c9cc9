//! One launch per token: the plan is recorded once and replayed for every step of few tokens.
//!
//! Kernel arguments do not change between steps: everything that changes is in the lists, which are
//! copied before a step or updated by the previous one. A graph serves steps of up to a number of
//! attention items, a power of two, so that a short context does not wait for the blocks of a long
//! one. It also serves up to a number of shares, which it clears first.

use std::collections::HashMap;

use weft_core::plan::Op;

use crate::CudaDevice;
use crate::driver::Graph;
use crate::error::CudaError;
use crate::ops::Pass;
use crate::sampling::Chosen;
use crate::tables::{Counts, FEW, Family};

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
        let n_cells = counts.n_cells.next_power_of_two().max(FEWEST_CELLS);
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

fn record(device: &CudaDevice, plan: &[Op], key: Key) -> Result<Graph, CudaError> {
    let counts = Counts {
        n_tokens: FEW,
        n_outputs: if key.has_outputs { FEW } else { 0 },
        n_items: key.n_items,
        n_tiles: 0,
        n_sections: 0,
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
    };
    device.kernels.ready_for_tokens(key.chosen)?;
    device.gpu.capture(|| {
        device.clear_shares(&counts)?;
        pass.run(plan).map_err(|(_, error)| error)
    })
}
