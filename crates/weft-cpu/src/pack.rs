//! Weight matrices in the order in which the kernels read them.
//!
//! 64 rows form a block. Inside a block, the weights of one pair of columns lie together, row after
//! row: \[columns/2\]\[64 rows\]\[2\]. One multiply-add instruction then serves 16 rows, a block is
//! read from front to back, and no sum runs across a vector.

use half::bf16;
use weft_core::config::Config;
use weft_core::dtype::Element;
use weft_core::weights::{Tensor, Weights, WeightsError};

use crate::memory::Lines;

/// Rows of one block.
pub(crate) const BLOCK_ROWS: usize = 64;

/// A matrix \[rows, columns\] in blocks, padded with zero rows and, if the width is odd, a zero
/// column.
pub(crate) struct Packed {
    values: Lines,
    rows: usize,
    columns: usize,
}

impl Packed {
    pub(crate) fn zeroed(rows: usize, columns: usize) -> Self {
        let values = Lines::zeroed(rows.next_multiple_of(BLOCK_ROWS) * columns.next_multiple_of(2));
        Self { values, rows, columns }
    }

    /// Reads a tensor of any form, rounded to bf16.
    pub(crate) fn read(
        config: &Config,
        from: &dyn Weights,
        tensor: Tensor,
    ) -> Result<Self, WeightsError> {
        let shape = tensor.shape(config);
        let mut packed = Self::zeroed(shape[0], shape[1]);
        from.read(tensor, &mut |row, values| packed.set_row(row, values))?;
        Ok(packed)
    }

    /// Stores a row, rounded to bf16.
    pub(crate) fn set_row(&mut self, row: usize, values: &[f32]) {
        let first = self.first_of(row);
        let to = self.values.get_mut();
        for (column, value) in values.iter().enumerate() {
            to[first + Self::offset(column)] = bf16::from_f32(*value);
        }
    }

    /// Copies a row out, as bf16.
    pub(crate) fn copy_row(&self, row: usize, to: &mut [bf16]) {
        let first = self.first_of(row);
        let values = self.values.get();
        for (column, to) in to.iter_mut().enumerate() {
            *to = values[first + Self::offset(column)];
        }
    }

    /// The offset of a row's first column.
    fn first_of(&self, row: usize) -> usize {
        row / BLOCK_ROWS * self.block_len() + row % BLOCK_ROWS * 2
    }

    /// The offset of another column from it.
    fn offset(column: usize) -> usize {
        column / 2 * (2 * BLOCK_ROWS) + column % 2
    }

    fn block_len(&self) -> usize {
        self.columns.next_multiple_of(2) * BLOCK_ROWS
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// The weights of one block.
    pub(crate) fn block(&self, block: usize) -> &[bf16] {
        &self.values.get()[block * self.block_len()..][..self.block_len()]
    }
}

/// Reads a vector, rounded to bf16 and widened again, because kernels compute with it in f32.
pub(crate) fn read_vector(from: &dyn Weights, tensor: Tensor) -> Result<Vec<f32>, WeightsError> {
    let mut vector = Vec::new();
    from.read(tensor, &mut |_, row| {
        vector.extend(row.iter().map(|value| Element::to_f32(bf16::from_f32(*value))));
    })?;
    Ok(vector)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_out_as_they_went_in() {
        for (rows, columns) in [(1, 1), (64, 2), (65, 7), (130, 33)] {
            let mut packed = Packed::zeroed(rows, columns);
            let value = |row: usize, column: usize| (row * 8 + column % 8) as f32 % 251.0;
            for row in 0..rows {
                packed.set_row(row, &(0..columns).map(|c| value(row, c)).collect::<Vec<_>>());
            }
            let mut out = vec![bf16::ZERO; columns];
            for row in 0..rows {
                packed.copy_row(row, &mut out);
                assert!(out.iter().enumerate().all(|(c, v)| v.to_f32() == value(row, c)));
            }
        }
    }
}
