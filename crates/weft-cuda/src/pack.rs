//! Weight matrices in the order in which tensor cores read them.
//!
//! A unit is 8 rows × 32 columns ([`crate::units`]). Units of a tile of 8 rows follow one another by
//! columns or in strips ([`unit_place`]), tiles by rows. The same packing serves one token and a
//! block of them.

use std::ops::Range;

use half::bf16;
use weft_core::weights::{CodedRow, Form, Tensor, Weights, WeightsError};

use crate::matrices::TileForms;
use crate::shape::{COLUMN_STEP, TILE_ROWS, WARPS, padded};
use crate::units::CHUNK;

/// A matrix in units; rows and columns beyond it are zeros.
pub(crate) struct Packed {
    pub(crate) bytes: Vec<u8>,
    forms: TileForms,
    /// Units of a warp in a tile.
    eighth: usize,
    longest_strip: usize,
}

impl Packed {
    /// A matrix of zeros; up to `longest_strip` plain units of a warp are contiguous.
    pub(crate) fn zeroed(
        forms: &TileForms,
        rows: usize,
        columns: usize,
        longest_strip: usize,
    ) -> Self {
        let bytes = vec![0; forms.bytes(rows, columns)];
        Self { bytes, forms: *forms, eighth: padded(columns) / COLUMN_STEP, longest_strip }
    }

    /// Copies each row of a tensor into the packed row that `row` returns for it.
    pub(crate) fn read(
        &mut self,
        from: &dyn Weights,
        tensor: Tensor,
        row: impl Fn(usize) -> usize,
    ) -> Result<(), WeightsError> {
        match from.form(tensor) {
            Form::Plain => from.read(tensor, &mut |i, values| self.set_row(row(i), values)),
            Form::Coded(coded) => from.read_coded(tensor, &mut |i, codes| {
                self.set_coded_row(row(i), codes, coded.group);
            }),
        }
    }

    /// Copies the rows of a tensor that has `n_rows` for each of several matrices, one after the
    /// other.
    pub(crate) fn read_all(
        all: &mut [Self],
        from: &dyn Weights,
        tensor: Tensor,
        n_rows: usize,
        row: impl Fn(usize) -> usize,
    ) -> Result<(), WeightsError> {
        let place = |i: usize| (i / n_rows, row(i % n_rows));
        match from.form(tensor) {
            Form::Plain => from.read(tensor, &mut |i, values| {
                let (matrix, row) = place(i);
                all[matrix].set_row(row, values);
            }),
            Form::Coded(coded) => from.read_coded(tensor, &mut |i, codes| {
                let (matrix, row) = place(i);
                all[matrix].set_coded_row(row, codes, coded.group);
            }),
        }
    }

    /// Copies some plain rows of a tensor, the first to row 0.
    pub(crate) fn read_plain(
        &mut self,
        from: &dyn Weights,
        tensor: Tensor,
        rows: Range<usize>,
    ) -> Result<(), WeightsError> {
        let first = rows.start;
        from.read_rows(tensor, rows, &mut |i, values| self.set_row(i - first, values))
    }

    fn set_row(&mut self, row: usize, values: &[f32]) {
        let unit_at = self.units_of(row / TILE_ROWS);
        for (chunk, values) in values.chunks(CHUNK).enumerate() {
            let at = unit_at(chunk / 4) + (row % TILE_ROWS * 4 + chunk % 4) * 16;
            for (to, value) in self.bytes[at..].chunks_exact_mut(2).zip(values) {
                to.copy_from_slice(&bf16::from_f32(*value).to_le_bytes());
            }
        }
    }

    fn set_coded_row(&mut self, row: usize, codes: &CodedRow<'_>, group: usize) {
        let tile = row / TILE_ROWS;
        let unit_at = self.units_of(tile);
        let form = self.forms.of(tile);
        form.write_row(&mut self.bytes, unit_at, row % TILE_ROWS, codes, group);
    }

    /// Where each unit of a tile begins.
    fn units_of(&self, tile: usize) -> impl Fn(usize) -> usize + use<> {
        let (eighth, bytes) = (self.eighth, self.forms.of(tile).bytes());
        let first = self.forms.place(tile) * (eighth * WARPS);
        let strip = strip_units(eighth, self.longest_strip, self.forms.coded_bytes());
        move |unit| first + unit_place(eighth, strip, unit) * bytes
    }
}

/// The most units of a warp's eighth of a tile that are contiguous, on any GPU, and the units of
/// each strip if the eighth has more.
pub(crate) const LONGEST_STRIP: usize = 12;
pub(crate) const SHORT_STRIP: usize = 4;

/// Bytes of a strip of coded units, at most: it is a stage of the persistent kernel's ring. Sixteen
/// units of a warp in four bits, or eight in eight.
pub(crate) const STRIP_BYTES: usize = 18 << 10;

/// Contiguous units of a warp in a tile whose eighth has `eighth` units. At most `longest` plain
/// units may be contiguous. If there are coded units, strips are of equal length if that leaves none
/// of them half empty, and as few as their largest unit allows.
pub(crate) fn strip_units(eighth: usize, longest: usize, coded_bytes: Option<usize>) -> usize {
    match coded_bytes {
        None if eighth <= longest => eighth,
        None => SHORT_STRIP,
        Some(bytes) => {
            let most = STRIP_BYTES / (WARPS * bytes);
            let even = |units: &usize| *units < eighth && eighth.is_multiple_of(*units);
            let equal = (most / 2 + 1..=most).rev().find(even);
            equal.unwrap_or(eighth.div_ceil(eighth.div_ceil(most)))
        }
    }
}

/// The index of a unit in its tile. Each of eight warps computes an eighth of the columns, and the
/// units that all of them need next are contiguous, `long` of each, so that one copy moves them.
/// The kernels' `unit_place` does the same.
fn unit_place(eighth: usize, long: usize, unit: usize) -> usize {
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
    use crate::units::UnitForm;

    /// What lane 4g + c of unit (tile, k) holds is row 8 · tile + g, columns 32k + 8c on.
    #[test]
    fn a_lane_s_chunk_is_eight_columns_of_its_row() {
        let (rows, columns) = (20, 300);
        let plain = TileForms::One(UnitForm::PLAIN);
        let mut packed = Packed::zeroed(&plain, rows, columns, LONGEST_STRIP);
        for row in 0..rows {
            // Whole numbers below 256 are exact in bf16.
            let values: Vec<f32> = (0..columns).map(|k| ((row * 7 + k) % 251) as f32).collect();
            packed.set_row(row, &values);
        }
        let units = packed.eighth * WARPS;
        for (i, value) in packed.bytes.chunks_exact(2).enumerate() {
            let (unit, lane, e) = (i / 256, i % 256 / 8, i % 8);
            let (row, k) = (unit / units * 8 + lane / 4, unit % units * 32 + lane % 4 * 8 + e);
            let expected = if row < rows && k < columns { (row * 7 + k) % 251 } else { 0 };
            let value = bf16::from_le_bytes([value[0], value[1]]).to_f32();
            assert_eq!(value, expected as f32, "row {row} column {k}");
        }
        assert_eq!(packed.bytes.len(), 2 * 128 * 512);
    }

    #[test]
    fn parts_of_a_matrix_follow_one_another() {
        let config = weft_core::shapes::config("qwen3-0.6b").unwrap();
        let config = weft_core::config::Config { vocab: 300, ..config };
        let weights = weft_core::weights::RandomWeights::new(&config, 3);
        let (plain, columns) = (TileForms::One(UnitForm::PLAIN), config.hidden);
        let mut whole = Packed::zeroed(&plain, config.vocab, columns, LONGEST_STRIP);
        whole.read(&weights, Tensor::Embed, |row| row).unwrap();
        let parts = [0..128, 128..256, 256..300].map(|rows: Range<usize>| {
            let mut part = Packed::zeroed(&plain, rows.len(), columns, LONGEST_STRIP);
            let place = plain.bytes(rows.start, columns);
            part.read_plain(&weights, Tensor::Embed, rows).unwrap();
            (place, part.bytes)
        });
        let mut joined = Vec::new();
        for (place, bytes) in parts {
            assert_eq!(place, joined.len());
            joined.extend(bytes);
        }
        assert!(joined == whole.bytes);
    }

    #[test]
    fn coded_units_are_in_equal_strips() {
        let strips = |bytes| [4, 12, 16, 48].map(|eighth| strip_units(eighth, 12, bytes));
        assert_eq!(strips(Some(144)), [4, 12, 16, 16]);
        assert_eq!(strips(Some(272)), [4, 6, 8, 8]);
        assert_eq!(strips(Some(512)), [4, 4, 4, 4]);
        // 68 units have no such part: 14 and then 12.
        assert_eq!([100, 20, 68].map(|eighth| strip_units(eighth, 12, Some(144))), [10, 10, 14]);
        assert_eq!(strips(None), [4, 12, 4, 4]);
    }

    #[test]
    fn a_strip_of_all_warps_lies_together() {
        let places = |eighth: usize| {
            let long = strip_units(eighth, 12, None);
            (0..8 * eighth).map(|unit| unit_place(eighth, long, unit)).collect::<Vec<_>>()
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
        assert_eq!((unit_place(38, 4, 36), unit_place(38, 4, 38 + 37)), (9 * 32, 9 * 32 + 3));
        // A small GPU has shorter strips.
        assert_eq!((strip_units(12, 12, None), strip_units(12, 8, None)), (12, 4));
        assert_eq!((unit_place(12, 12, 5), unit_place(12, 4, 5)), (5, 33));
    }

    #[test]
    fn gate_and_up_take_turns() {
        let rows: Vec<usize> = (0..17).map(gate_row).collect();
        assert_eq!(rows[..9], [0, 1, 2, 3, 4, 5, 6, 7, 16]);
        assert_eq!(rows[16], 32);
    }
}
