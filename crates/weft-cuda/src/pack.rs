//! Weight matrices in the order in which tensor cores read them.
//!
//! A unit is 8 rows × 32 columns, 512 bytes: lane 4g + c of a warp holds columns 8c to 8c + 7 of
//! row g, 16 bytes as they lie in the row. Units of a tile of 8 rows follow one another by columns
//! or in strips ([`unit_place`]), tiles by rows. The same packing serves one token and a block of
//! them.

use half::bf16;
use weft_core::weights::{Tensor, Weights, WeightsError};

use crate::shape::{BLOCK_ROWS, TILE_ROWS, WARPS, padded};

const CHUNK: usize = 8;
const UNIT: usize = 256;

/// A matrix in units; rows and columns beyond it are zeros.
pub(crate) struct Packed {
    pub(crate) values: Vec<bf16>,
    stride: usize,
    longest_strip: usize,
}

impl Packed {
    /// A matrix of zeros; up to `longest_strip` units of a warp are contiguous.
    pub(crate) fn zeroed(rows: usize, columns: usize, longest_strip: usize) -> Self {
        let stride = padded(columns);
        let values = vec![bf16::ZERO; rows.next_multiple_of(BLOCK_ROWS) * stride];
        Self { values, stride, longest_strip }
    }

    /// Copies each row of a tensor into the packed row that `row` returns for it.
    pub(crate) fn read(
        &mut self,
        from: &dyn Weights,
        tensor: Tensor,
        row: impl Fn(usize) -> usize,
    ) -> Result<(), WeightsError> {
        from.read(tensor, &mut |i, values| self.set_row(row(i), values))
    }

    fn set_row(&mut self, row: usize, values: &[f32]) {
        for (chunk, values) in values.chunks(CHUNK).enumerate() {
            let at = self.place(row, chunk);
            for (to, value) in self.values[at..].iter_mut().zip(values) {
                *to = bf16::from_f32(*value);
            }
        }
    }

    /// Where eight columns of a row lie.
    fn place(&self, row: usize, chunk: usize) -> usize {
        let units = self.stride / 32;
        let unit =
            row / TILE_ROWS * units + unit_place(units / WARPS, self.longest_strip, chunk / 4);
        unit * UNIT + (row % TILE_ROWS * 4 + chunk % 4) * CHUNK
    }
}

/// The most units of a warp's eighth of a tile that are contiguous, on any GPU, and the units of
/// each strip if the eighth has more.
pub(crate) const LONGEST_STRIP: usize = 12;
pub(crate) const SHORT_STRIP: usize = 4;

/// Contiguous units of a warp in a tile whose eighth has `eighth` units; at most `longest` may be
/// contiguous.
pub(crate) fn strip_units(eighth: usize, longest: usize) -> usize {
    if eighth <= longest { eighth } else { SHORT_STRIP }
}

/// The index of a unit in its tile. Each of eight warps computes an eighth of the columns, and the
/// units that all of them need next are contiguous, so that one copy moves them. The kernels'
/// `unit_place` does the same.
fn unit_place(eighth: usize, longest: usize, unit: usize) -> usize {
    let long = strip_units(eighth, longest);
    let (warp, own) = (unit / eighth, unit % eighth);
    let strip = own / long;
    strip * WARPS * long + warp * long.min(eighth - strip * long) + own % long
}

/// The packed row of a gate row: tiles of gate and up alternate. The up row is 8 rows later.
pub(crate) fn gate_row(row: usize) -> usize {
    row / TILE_ROWS * 2 * TILE_ROWS + row % TILE_ROWS
}

/// A vector, padded with zeros.
pub(crate) fn read_vector(from: &dyn Weights, tensor: Tensor) -> Result<Vec<bf16>, WeightsError> {
    let mut vector = Vec::new();
    from.read(tensor, &mut |_, values| vector.extend(values.iter().map(|v| bf16::from_f32(*v))))?;
    vector.resize(padded(vector.len()), bf16::ZERO);
    Ok(vector)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What lane 4g + c of unit (tile, k) holds is row 8 · tile + g, columns 32k + 8c on.
    #[test]
    fn a_lane_s_chunk_is_eight_columns_of_its_row() {
        let (rows, columns) = (20, 300);
        let mut packed = Packed::zeroed(rows, columns, LONGEST_STRIP);
        for row in 0..rows {
            // Whole numbers below 256 are exact in bf16.
            let values: Vec<f32> = (0..columns).map(|k| ((row * 7 + k) % 251) as f32).collect();
            packed.set_row(row, &values);
        }
        let units = packed.stride / 32;
        for (i, value) in packed.values.iter().enumerate() {
            let (unit, lane, e) = (i / 256, i % 256 / 8, i % 8);
            let (row, k) = (unit / units * 8 + lane / 4, unit % units * 32 + lane % 4 * 8 + e);
            let expected = if row < rows && k < columns { (row * 7 + k) % 251 } else { 0 };
            assert_eq!(value.to_f32(), expected as f32, "row {row} column {k}");
        }
        assert_eq!(packed.values.len(), 128 * 512);
    }

    #[test]
    fn a_strip_of_all_warps_lies_together() {
        let places = |eighth: usize| {
            (0..8 * eighth).map(|unit| unit_place(eighth, 12, unit)).collect::<Vec<_>>()
        };
        assert_eq!(places(12), (0..96).collect::<Vec<_>>());
        for eighth in [13, 16, 19, 38, 48] {
            let mut all = places(eighth);
            for warp in 0..8 {
                let strip = &all[warp * eighth..][..4];
                assert_eq!(
                    strip,
                    [0, 1, 2, 3].map(|unit| warp * 4 + unit),
                    "{eighth}: warp {warp}"
                );
            }
            all.sort_unstable();
            assert_eq!(
                all,
                (0..8 * eighth).collect::<Vec<_>>(),
                "{eighth}: every unit has its place"
            );
        }
        // The last strip is short.
        assert_eq!((unit_place(38, 12, 36), unit_place(38, 12, 38 + 37)), (9 * 32, 9 * 32 + 3));
        // A small GPU has shorter strips.
        assert_eq!((unit_place(12, 12, 5), unit_place(12, 8, 5)), (5, 33));
    }

    #[test]
    fn gate_and_up_take_turns() {
        let rows: Vec<usize> = (0..17).map(gate_row).collect();
        assert_eq!(rows[..9], [0, 1, 2, 3, 4, 5, 6, 7, 16]);
        assert_eq!(rows[16], 32);
    }
}
