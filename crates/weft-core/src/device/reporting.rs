//! The tokens of a step whose attention is reported.
//!
//! Devices keep one row of shares for each of them. Their number does not depend on the size of a
//! step, so a device allocates all rows when it is created.

use super::{MAX_DRAFT, MAX_LANES, Step};

/// The tokens of a step whose attention is reported: every output of a step of at most
/// [`MAX_DRAFT`] tokens, and the last token of each lane of a larger step. A lane without outputs
/// reports its last token as output 0.
#[derive(Clone, Debug, Default)]
pub struct Reporting {
    lanes: Vec<LaneRows>,
}

#[derive(Clone, Copy, Debug)]
struct LaneRows {
    /// The row of the first token that is reported.
    first_row: usize,
    /// That token, counted in the lane.
    first_token: usize,
    n_tokens: usize,
    n_outputs: usize,
}

impl Reporting {
    /// Maximum number of rows.
    pub const MAX_ROWS: usize = if MAX_LANES > MAX_DRAFT { MAX_LANES } else { MAX_DRAFT };

    /// Forgets the last step, and finds the rows of this one.
    pub fn fill(&mut self, step: &Step<'_>) {
        let is_small = step.n_tokens() <= MAX_DRAFT;
        let mut first_row = 0;
        self.lanes.clear();
        self.lanes.extend(step.lanes.iter().map(|lane| {
            let (n_tokens, n_outputs) = (lane.tokens.len(), lane.n_outputs().max(1));
            let n_rows = if is_small { n_outputs } else { 1 };
            let rows = LaneRows { first_row, first_token: n_tokens - n_rows, n_tokens, n_outputs };
            first_row += n_rows;
            rows
        }));
    }

    /// The row of token `token` of a lane, if it is reported.
    pub fn row_of_token(&self, lane: usize, token: usize) -> Option<usize> {
        let rows = self.lanes[lane];
        let row = token.checked_sub(rows.first_token)?;
        (token < rows.n_tokens).then_some(rows.first_row + row)
    }

    /// The row of output `output` of a lane.
    ///
    /// # Panics
    /// If its attention is not reported.
    pub fn row_of_output(&self, lane: usize, output: usize) -> usize {
        let LaneRows { n_tokens, n_outputs, .. } = self.lanes[lane];
        self.row_of_token(lane, n_tokens - n_outputs + output).unwrap_or_else(|| {
            panic!("output {output} of lane {lane} has no attention: it is not the last of many")
        })
    }

    /// The lane and the token in it of every row, in order.
    pub fn tokens(&self) -> impl Iterator<Item = (usize, usize)> {
        let of_lane = |(index, lane): (usize, &LaneRows)| {
            (lane.first_token..lane.n_tokens).map(move |token| (index, token))
        };
        self.lanes.iter().enumerate().flat_map(of_lane)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Lane, Outputs, Span};

    #[test]
    fn a_small_step_reports_every_output_and_a_large_one_the_last_of_each_lane() {
        let span = Span { pages: vec![0], first_row: 0, len: 9, home_position: 0, position: 0 };
        let (numbers, spans) = ([0, 1, 2, 3, 4], [span]);
        let lane = |n: usize, outputs| Lane {
            tokens: &numbers[..n],
            positions: &numbers[..n],
            key_positions: &numbers[..n],
            store_at: &numbers[..n],
            spans: &spans,
            marks: &[],
            outputs,
        };
        let mut reporting = Reporting::default();
        let lanes = [lane(2, Outputs::None), lane(3, Outputs::All), lane(2, Outputs::Last)];
        reporting.fill(&Step { lanes: &lanes });
        let tokens: Vec<_> = reporting.tokens().collect();
        assert_eq!(tokens, [(0, 1), (1, 0), (1, 1), (1, 2), (2, 1)]);
        for (row, (lane, token)) in tokens.into_iter().enumerate() {
            assert_eq!(reporting.row_of_token(lane, token), Some(row));
        }
        assert_eq!((reporting.row_of_token(2, 0), reporting.row_of_token(1, 3)), (None, None));
        assert_eq!([0, 1, 2].map(|output| reporting.row_of_output(1, output)), [1, 2, 3]);
        assert_eq!((reporting.row_of_output(0, 0), reporting.row_of_output(2, 0)), (0, 4));

        let lanes = [lane(5, Outputs::All), lane(4, Outputs::Last)];
        reporting.fill(&Step { lanes: &lanes });
        assert_eq!(reporting.tokens().collect::<Vec<_>>(), [(0, 4), (1, 3)]);
        assert_eq!((reporting.row_of_output(0, 4), reporting.row_of_output(1, 0)), (0, 1));
    }
}
