//! The rows that a repair recomputes.

use std::sync::Mutex;

use super::wrapped::{wrapped, wrapped_results};
use super::*;

/// Records the positions of rows that are stored for another position.
struct Recording {
    device: Box<dyn Device>,
    /// Position, and the position that the key is rotated for.
    moved: Arc<Mutex<Vec<(u32, u32)>>>,
}

impl Device for Recording {
    fn run(&mut self, ops: &[Op], step: &Step<'_>) -> Result<(), DeviceError> {
        let rows = step.lanes.iter().flat_map(|lane| lane.positions.iter().zip(lane.key_positions));
        let moved = rows.filter(|(position, home)| position != home);
        self.moved.lock().unwrap().extend(moved.map(|(position, home)| (*position, *home)));
        self.device.run(ops, step)
    }

    wrapped_results!();
    wrapped!();
}

#[test]
fn a_link_computes_the_first_rows_of_each_moved_document_and_no_others() {
    let model = model();
    let limits = Limits { step_tokens: 64, step_outputs: 16, positions: CONTEXT, pages: 80 };
    let device = reference::open(&model.config, &*model.weights, limits).unwrap();
    let moved = Arc::default();
    let device = Box::new(Recording { device, moved: Arc::clone(&moved) });
    let mut engine = Engine::new(&model, device);
    let prompt = composition(&[1, 2, 3], 1, Reuse::Anchored, Repair::Link(8));
    ask(&mut engine, &prompt);
    // Documents are computed right after the system prompt; the first one stands there.
    let home = prompt.pieces[0].tokens.len() as u32;
    let [one, two] = [1, 2].map(|index| prompt.pieces[index].tokens.len() as u32);
    let starts = [home + one, home + one + two];
    let expected: Vec<(u32, u32)> =
        starts.iter().flat_map(|start| (0..8).map(move |row| (start + row, home + row))).collect();
    assert_eq!(*moved.lock().unwrap(), expected);
}
