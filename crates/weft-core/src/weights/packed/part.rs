//! One tensor of a safetensors file, read by rows or by rectangles.

use std::ops::Range;

use half::{bf16, f16};
use safetensors::Dtype;

use crate::weights::files::Files;
use crate::weights::{WeightsError, fp8};

/// A tensor in a file: a matrix of `rows` rows of `columns` elements.
#[derive(Clone, Debug)]
pub(in crate::weights) struct Part {
    pub(in crate::weights) file: usize,
    /// Offset of its first byte in the file.
    pub(in crate::weights) start: u64,
    pub(in crate::weights) dtype: Dtype,
    pub(in crate::weights) rows: usize,
    pub(in crate::weights) columns: usize,
}

impl Part {
    pub(in crate::weights) fn row_bytes(&self) -> usize {
        self.columns * self.dtype.bitsize() / 8
    }

    pub(in crate::weights) fn bytes(&self) -> usize {
        self.rows * self.row_bytes()
    }

    /// Reads a rectangle, row after row.
    pub(super) fn read(
        &self,
        files: &Files,
        rows: Range<usize>,
        columns: Range<usize>,
        to: &mut Vec<u8>,
    ) -> Result<(), WeightsError> {
        let (row_bytes, element) = (self.row_bytes(), self.dtype.bitsize() / 8);
        let width = columns.len() * element;
        to.resize(rows.len() * width, 0);
        let offset = |row: usize| self.start + (row * row_bytes + columns.start * element) as u64;
        if width == row_bytes {
            return files.read(self.file, offset(rows.start), to);
        }
        for (row, to) in rows.zip(to.chunks_exact_mut(width.max(1))) {
            files.read(self.file, offset(row), to)?;
        }
        Ok(())
    }

    /// Reads all of a small tensor.
    pub(super) fn read_all(&self, files: &Files) -> Result<Vec<u8>, WeightsError> {
        let mut bytes = Vec::new();
        self.read(files, 0..self.rows, 0..self.columns, &mut bytes)?;
        Ok(bytes)
    }
}

/// Converts numbers to f32, without loss. Bytes are exponents, as in the MX formats.
pub(in crate::weights) fn widen(dtype: Dtype, bytes: &[u8], values: &mut [f32]) {
    let (words, _) = bytes.as_chunks::<2>();
    let pairs = values.iter_mut().zip(words);
    match dtype {
        Dtype::F32 => {
            let (words, _) = bytes.as_chunks::<4>();
            values.iter_mut().zip(words).for_each(|(v, w)| *v = f32::from_le_bytes(*w));
        }
        Dtype::F16 => pairs.for_each(|(v, w)| *v = f16::from_le_bytes(*w).to_f32()),
        Dtype::BF16 => pairs.for_each(|(v, w)| *v = bf16::from_le_bytes(*w).to_f32()),
        Dtype::F8_E4M3 => values.iter_mut().zip(bytes).for_each(|(v, b)| *v = fp8(*b)),
        Dtype::U8 | Dtype::F8_E8M0 => {
            values.iter_mut().zip(bytes).for_each(|(v, b)| *v = power(*b));
        }
        other => unreachable!("{other:?} was refused when the file was opened"),
    }
}

/// 2^(exponent - 127).
fn power(exponent: u8) -> f32 {
    match exponent {
        u8::MAX => f32::NAN,
        // Below the smallest normal number.
        0 => f32::from_bits(1 << 22),
        exponent => f32::from_bits(u32::from(exponent) << 23),
    }
}
