//! The cells of tokens whose attention is reported, and the stretches that they are of.
//!
//! A token sees the whole of every section of its lane but the last that it sees. So sections have
//! the same cells for all tokens of a lane, and those of a token are the first ones of those of the
//! lane's last token.

use std::ops::Range;

use weft_core::device::Lane;

use super::{Lists, short};

/// The stretch of each cell of a lane's last token.
#[derive(Clone, Debug, Default)]
pub(super) struct LaneStretches {
    pub(super) of_cells: Vec<u32>,
    pub(super) n_stretches: usize,
}

/// The cells of a token, among those of the step.
pub(super) type TokenCells = Range<usize>;

impl Lists {
    /// Numbers the cells of a lane's sections, and those of its tokens.
    pub(super) fn number_cells(&mut self, index: usize, lane: &Lane<'_>) {
        if self.stretches.len() <= index {
            self.stretches.push(LaneStretches::default());
        }
        let LaneStretches { of_cells, n_stretches } = &mut self.stretches[index];
        *n_stretches = lane.marks.len() + 1;
        of_cells.clear();
        let last = lane.positions.last().copied().unwrap_or_default();
        let own = &mut self.sections[self.lanes[index].clone()];
        for section in own.iter_mut().take_while(|section| section.position <= last) {
            section.cell = short(of_cells.len());
            let first = lane.marks.partition_point(|mark| *mark <= section.position) as u32;
            of_cells.extend(first..first + section.n_cells(last) as u32);
        }
        for (token, position) in lane.positions.iter().enumerate() {
            if self.reporting.row_of_token(index, token).is_none() {
                continue;
            }
            let n_seen = own.partition_point(|section| section.position <= *position);
            let seen = n_seen.checked_sub(1).map(|last| &own[last]);
            let n = seen.map_or(0, |last| usize::from(last.cell) + last.n_cells(*position));
            let first = self.counts.n_cells;
            self.cells.push(first..first + n);
            self.counts.n_cells += n;
        }
    }

    /// The number of cells of a lane's token, and the first: none if it is not reported.
    pub(super) fn cells_of(&self, lane: usize, token: usize) -> [u32; 2] {
        match self.reporting.row_of_token(lane, token).map(|row| &self.cells[row]) {
            Some(cells) => [cells.len() as u32, cells.start as u32],
            None => [0, 0],
        }
    }

    /// The cells of the token of a lane's output.
    pub(crate) fn cells_of_output(&self, lane: usize, output: usize) -> Range<usize> {
        self.cells[self.reporting.row_of_output(lane, output)].clone()
    }

    /// The shares of such cells, summed over each stretch between a lane's marks.
    pub(crate) fn sum_stretches(&self, lane: usize, shares: &[f32]) -> Vec<f32> {
        let LaneStretches { of_cells, n_stretches } = &self.stretches[lane];
        let mut sums = vec![0.0; *n_stretches];
        for (stretch, share) in of_cells.iter().zip(shares) {
            sums[*stretch as usize] += share;
        }
        sums
    }
}
