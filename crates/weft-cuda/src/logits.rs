//! Rows of logits on the host, copied on first use.

use std::cell::Cell;
use std::sync::Arc;

use crate::driver::{Gpu, Memory, Pinned};
use crate::error::CudaError;

pub(crate) struct HostLogits {
    /// f32 \[outputs\]\[vocab\]
    rows: Pinned,
    vocab: usize,
    /// Which rows have been copied since the last run.
    there: Vec<Cell<bool>>,
}

impl HostLogits {
    pub(crate) fn new(gpu: &Arc<Gpu>, outputs: usize, vocab: usize) -> Result<Self, CudaError> {
        let rows = Pinned::new(gpu, outputs * vocab * 4)?;
        Ok(Self { rows, vocab, there: vec![Cell::new(false); outputs] })
    }

    /// Marks all rows as outdated.
    pub(crate) fn forget(&mut self) {
        self.there.iter().for_each(|there| there.set(false));
    }

    /// A row of the last run, which `from` holds.
    pub(crate) fn row(&self, output: usize, from: &Memory) -> Result<&[f32], CudaError> {
        let vocab = self.vocab;
        let row = self.rows.row(output * vocab, vocab);
        if !self.there[output].get() {
            // SAFETY: nobody holds the row: it is handed out below only once it is there, and
            // `forget`, which takes it back, needs all rows alone.
            let row = unsafe { std::slice::from_raw_parts_mut(row, vocab) };
            from.read(output * vocab * 4, row)?;
            self.there[output].set(true);
        }
        // SAFETY: inside the pinned memory, and not written again while `self` is borrowed.
        Ok(unsafe { std::slice::from_raw_parts(row, vocab) })
    }
}
