//! Matrices that safetensors files hold as codes and scales, in the layouts of several tools.
//!
//! A [`Packed`] knows where the codes, scales and zeros of one matrix lie. It reads them in bands
//! of rows, so its memory is bounded even if the file stores the matrix transposed.

mod bits_and_bytes;
mod compressed;
mod modules;
mod part;
mod schemes;
mod transposed;
mod writer;

use std::ops::Range;

use super::files::Files;
use super::{Code, Coded, CodedRow, Form, Offset, Offsets, Scales, WeightsError};

pub(super) use self::modules::Patterns;
pub(super) use self::part::{Part, widen};
pub(super) use self::schemes::{Found, Stored, drop_zero_biases, is_for_activations, pack};
pub(crate) use self::writer::NewFolder;

/// Bytes of codes that are read at a time.
const BAND_BYTES: usize = 1 << 20;

/// Bytes of codes that are read at a time if the file stores the matrix transposed.
const TRANSPOSED_BAND_BYTES: usize = 16 << 20;

/// Rows of a band are a multiple of this, so that no word has codes of two bands.
const BAND_ROWS: usize = 32;

/// In which nibble of a word AWQ stores each of 8 columns.
const AWQ_NIBBLES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// A matrix of codes, scales and perhaps zeros.
pub(super) struct Packed {
    /// Its name, for messages.
    name: String,
    rows: usize,
    columns: usize,
    form: Coded,
    codes: Part,
    layout: Layout,
    scales: ScaleParts,
    zeros: Zeros,
    /// The group of each column, if groups are not contiguous.
    order: Option<Vec<u32>>,
}

/// How codes lie in their tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// A byte for each code, \[rows, columns\]; the code is the byte with these bits flipped.
    Bytes { flip: u8 },
    /// Two codes in a byte, the first in the low nibble; \[rows, bytes\].
    LowFirst,
    /// Two codes in a byte, the first in the high nibble; \[rows, bytes\].
    HighFirst,
    /// Words of 8 rows, \[columns, rows / 8\].
    Awq,
    /// Words of 8 or 4 columns, \[columns / codes, rows\].
    Gptq,
}

/// Where the scales are, and what they are multiplied by.
struct ScaleParts {
    part: Part,
    spread: Spread,
    factor: Factor,
}

/// Which scale belongs to which row and group.
#[derive(Clone, Copy, Debug)]
enum Spread {
    /// \[rows, groups\]
    Rows,
    /// \[blocks of rows, groups\]
    Blocks(usize),
    /// One for the matrix.
    Matrix,
    /// \[groups, rows\]
    Columns,
    /// One for this many elements of the flattened matrix.
    Flat(usize),
}

/// What turns a stored number into a scale.
enum Factor {
    One,
    Times(f32),
    Over(f32),
    /// Weights are multiplied by this after they are scaled.
    After(f32),
    /// The stored bytes are codes themselves.
    Nested(Nested),
}

/// Scales of bitsandbytes that are quantised: `table[code] · scale + offset`.
struct Nested {
    table: Vec<f32>,
    scales: Part,
    /// Codes that share a scale.
    block: usize,
    offset: f32,
}

/// Where the zeros are.
enum Zeros {
    None,
    /// Signed bytes \[rows, groups\].
    Bytes(Part),
    /// Words of 8 or 4 rows, \[rows / codes, groups\].
    Rows(Part),
    /// Words of 8 rows in AWQ's order, \[groups, rows / 8\].
    Awq(Part),
    /// Words of 8 or 4 rows, \[groups, rows / codes\]; version 1 stores one less.
    Gptq {
        part: Part,
        is_v1: bool,
    },
    /// In the middle of the codes' range, in no file.
    Middle,
}

impl Packed {
    /// The form as devices take it.
    pub(super) fn form(&self) -> Form {
        match self.order {
            None => Form::Coded(self.form),
            Some(_) => Form::Plain,
        }
    }

    /// Gives a matrix of GPTQ whose zeros were left out the form of one that has them.
    pub(super) fn add_zeros(&mut self) {
        if let (Layout::Gptq, Zeros::None) = (self.layout, &self.zeros) {
            self.zeros = Zeros::Middle;
            self.form.offset = Offset::Zero;
            if let Code::Int { bits: 4 } = self.form.code {
                self.form.code = Code::Uint { bits: 4 };
            }
        }
    }

    /// All tensors of the matrix, for the fingerprint.
    pub(super) fn parts(&self) -> impl Iterator<Item = &Part> {
        let zeros = match &self.zeros {
            Zeros::None | Zeros::Middle => None,
            Zeros::Bytes(part) | Zeros::Rows(part) | Zeros::Awq(part) => Some(part),
            Zeros::Gptq { part, .. } => Some(part),
        };
        let nested = match &self.scales.factor {
            Factor::Nested(nested) => Some(&nested.scales),
            _ => None,
        };
        [Some(&self.codes), Some(&self.scales.part), zeros, nested].into_iter().flatten()
    }

    /// What is in memory already, for the fingerprint.
    pub(super) fn settings(&self) -> String {
        let factor = match &self.scales.factor {
            Factor::One => String::new(),
            Factor::Times(factor) | Factor::After(factor) => format!("times {factor:?}"),
            Factor::Over(factor) => format!("over {factor:?}"),
            Factor::Nested(nested) => format!("{:?} {:?}", nested.table, nested.offset),
        };
        format!("{:?} {factor} {:?}\0", self.form, self.order)
    }

    /// Calls `visit(row, codes)` for each row, in order.
    pub(super) fn read_coded(
        &self,
        files: &Files,
        visit: &mut dyn FnMut(usize, &CodedRow<'_>),
    ) -> Result<(), WeightsError> {
        let after = match self.scales.factor {
            Factor::After(factor) => factor,
            _ => 1.0,
        };
        self.bands(files, self.rows_at_once(), after, visit)
    }

    /// Calls `visit(row, values)` for each row, in order.
    pub(super) fn read(
        &self,
        files: &Files,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), WeightsError> {
        let codes = self.form.code.values();
        let mut values = vec![0.0; self.columns];
        self.bands(files, self.rows_at_once(), 1.0, &mut |row, coded| {
            match &self.order {
                None => coded.widen(self.form.group, &codes, &mut values),
                Some(order) => {
                    for ((value, code), group) in values.iter_mut().zip(coded.codes).zip(order) {
                        let group = *group as usize;
                        let zero = match coded.offsets {
                            Offsets::Zeros(zeros) => f32::from(zeros[group]),
                            _ => 0.0,
                        };
                        *value = coded.scales.units[group] * (codes[usize::from(*code)] - zero);
                    }
                }
            }
            if let Factor::After(factor) = self.scales.factor {
                values.iter_mut().for_each(|value| *value *= factor);
            }
            visit(row, &values);
        })
    }

    /// Rows of a band.
    fn rows_at_once(&self) -> usize {
        let most = match self.layout {
            Layout::Awq | Layout::Gptq => TRANSPOSED_BAND_BYTES,
            _ => BAND_BYTES,
        };
        let row_bytes = (self.columns * self.form.code.bits()).div_ceil(8);
        (most / row_bytes).max(1).next_multiple_of(BAND_ROWS)
    }

    /// Reads bands of `at_once` rows. Scales are multiplied by `after`.
    pub(super) fn bands(
        &self,
        files: &Files,
        at_once: usize,
        after: f32,
        visit: &mut dyn FnMut(usize, &CodedRow<'_>),
    ) -> Result<(), WeightsError> {
        let groups = self.groups();
        let mut band = Band::default();
        let mut codes = vec![0; self.columns];
        // Widened by every value of the code and every zero, a scale must stay finite.
        let values = self.form.code.values();
        let has_nan = values.iter().any(|value| value.is_nan());
        let most = values.iter().filter(|v| v.is_finite()).fold(0.0_f32, |m, v| m.max(v.abs()));
        let most = if self.form.offset == Offset::Zero { 2.0 * most + 1.0 } else { most };
        for first in (0..self.rows).step_by(at_once) {
            let rows = first..self.rows.min(first + at_once);
            self.read_band_codes(files, rows.clone(), &mut band.codes)?;
            self.read_band_scales(files, rows.clone(), &mut band)?;
            self.read_band_zeros(files, rows.clone(), &mut band)?;
            for row in rows.clone() {
                let i = row - first;
                self.unpack(&band.codes, rows.len(), i, &mut codes);
                let scales = &mut band.scales[i * groups..][..groups];
                scales.iter_mut().for_each(|scale| *scale *= after);
                let unfit = |scale: &&f32| !(most * **scale).is_finite();
                if let Some(value) = scales.iter().find(unfit) {
                    return Err(self.not_finite(row, *value));
                }
                if has_nan && codes.iter().any(|code| values[usize::from(*code)].is_nan()) {
                    return Err(self.not_finite(row, f32::NAN));
                }
                let offsets = match self.form.offset {
                    Offset::Zero => Offsets::Zeros(&band.zeros[i * groups..][..groups]),
                    _ => Offsets::None,
                };
                let scales = Scales { units: scales, steps: &[] };
                visit(row, &CodedRow { codes: &codes, scales, offsets });
            }
        }
        Ok(())
    }

    /// Groups of a row in the file.
    fn groups(&self) -> usize {
        match self.scales.spread {
            Spread::Rows | Spread::Blocks(_) => self.scales.part.columns,
            Spread::Columns => self.scales.part.rows,
            Spread::Matrix => 1,
            Spread::Flat(_) => self.form.n_groups(self.columns),
        }
    }

    /// Codes in a 32-bit word.
    fn codes_of_word(&self) -> usize {
        32 / self.form.code.bits()
    }

    fn read_band_codes(
        &self,
        files: &Files,
        rows: Range<usize>,
        to: &mut Vec<u8>,
    ) -> Result<(), WeightsError> {
        let part = &self.codes;
        match self.layout {
            Layout::Awq => part.read(files, 0..part.rows, rows.start / 8..rows.end / 8, to),
            Layout::Gptq => part.read(files, 0..part.rows, rows, to),
            _ => part.read(files, rows, 0..part.columns, to),
        }
    }

    /// Unpacks row `i` of a band of `n` rows.
    fn unpack(&self, band: &[u8], n: usize, i: usize, to: &mut [u8]) {
        let row_bytes = self.codes.row_bytes();
        match self.layout {
            Layout::Bytes { flip } => {
                let row = &band[i * row_bytes..][..row_bytes];
                to.iter_mut().zip(row).for_each(|(code, byte)| *code = byte ^ flip);
            }
            Layout::LowFirst | Layout::HighFirst => {
                let row = &band[i * row_bytes..][..row_bytes];
                let first = if self.layout == Layout::LowFirst { 0 } else { 4 };
                for (codes, byte) in to.chunks_mut(2).zip(row) {
                    for (shift, code) in [first, 4 - first].into_iter().zip(codes) {
                        *code = byte >> shift & 15;
                    }
                }
            }
            Layout::Awq => {
                let nibble = AWQ_NIBBLES[i % 8];
                let (words, _) = band.as_chunks::<4>();
                let words = words.iter().skip(i / 8).step_by(n / 8);
                for (code, word) in to.iter_mut().zip(words) {
                    *code = word[nibble / 2] >> (nibble % 2 * 4) & 15;
                }
            }
            Layout::Gptq => {
                let (words, _) = band.as_chunks::<4>();
                let words = words.iter().skip(i).step_by(n);
                for (codes, word) in to.chunks_mut(self.codes_of_word()).zip(words) {
                    for (k, code) in codes.iter_mut().enumerate() {
                        *code = self.code_in_word(*word, k);
                    }
                }
            }
        }
    }

    /// Code `k` of a word, the first in the lowest bits.
    fn code_in_word(&self, word: [u8; 4], k: usize) -> u8 {
        match self.form.code.bits() {
            8 => word[k],
            _ => word[k / 2] >> (k % 2 * 4) & 15,
        }
    }

    fn read_band_scales(
        &self,
        files: &Files,
        rows: Range<usize>,
        band: &mut Band,
    ) -> Result<(), WeightsError> {
        let ScaleParts { part, spread, factor } = &self.scales;
        let (groups, group, first, n) = (self.groups(), self.form.group, rows.start, rows.len());
        let (from_rows, from) = match *spread {
            Spread::Rows => (rows.clone(), 0..groups),
            Spread::Blocks(height) => (first / height..(rows.end - 1) / height + 1, 0..groups),
            Spread::Matrix => (0..1, 0..1),
            Spread::Columns => (0..groups, rows.clone()),
            Spread::Flat(block) => {
                (0..1, first * self.columns / block..(rows.end * self.columns).div_ceil(block))
            }
        };
        let count = from_rows.len() * from.len();
        part.read(files, from_rows, from.clone(), &mut band.bytes)?;
        band.numbers.resize(count, 0.0);
        match factor {
            Factor::Nested(nested) => nested.widen(files, from.start, band)?,
            _ => widen(part.dtype, &band.bytes, &mut band.numbers),
        }
        match factor {
            Factor::Times(factor) => band.numbers.iter_mut().for_each(|scale| *scale *= factor),
            Factor::Over(factor) => band.numbers.iter_mut().for_each(|scale| *scale /= factor),
            _ => {}
        }
        band.scales.clear();
        for row in rows {
            let i = row - first;
            let index = |g: usize| match *spread {
                Spread::Rows => i * groups + g,
                Spread::Blocks(height) => (row / height - first / height) * groups + g,
                Spread::Matrix => 0,
                Spread::Columns => g * n + i,
                Spread::Flat(block) => (row * self.columns + g * group) / block - from.start,
            };
            band.scales.extend((0..groups).map(|g| band.numbers[index(g)]));
        }
        Ok(())
    }

    fn read_band_zeros(
        &self,
        files: &Files,
        rows: Range<usize>,
        band: &mut Band,
    ) -> Result<(), WeightsError> {
        let (groups, first, per_word) = (self.groups(), rows.start, self.codes_of_word());
        let words = first / per_word..rows.end.div_ceil(per_word);
        let n_words = words.len();
        match &self.zeros {
            Zeros::None => return Ok(()),
            Zeros::Middle => {}
            Zeros::Bytes(part) => part.read(files, rows.clone(), 0..groups, &mut band.bytes)?,
            Zeros::Rows(part) => part.read(files, words, 0..groups, &mut band.bytes)?,
            Zeros::Awq(part) | Zeros::Gptq { part, .. } => {
                part.read(files, 0..groups, words, &mut band.bytes)?;
            }
        }
        band.zeros.clear();
        let (stored, _) = band.bytes.as_chunks::<4>();
        // Codes of 8 bits count from -128, and so do their zeros.
        let least = if self.form.code.bits() == 8 { 128 } else { 0 };
        for row in rows {
            let (i, k) = (row - first, row % per_word);
            for g in 0..groups {
                let zero = match &self.zeros {
                    Zeros::None => 0,
                    Zeros::Middle => (1 << (self.form.code.bits() - 1)) - least,
                    Zeros::Bytes(_) => i16::from(band.bytes[i * groups + g].cast_signed()),
                    Zeros::Rows(_) => {
                        i16::from(self.code_in_word(stored[i / per_word * groups + g], k)) - least
                    }
                    Zeros::Awq(_) => {
                        i16::from(self.code_in_word(stored[g * n_words + i / 8], AWQ_NIBBLES[k]))
                    }
                    Zeros::Gptq { is_v1, .. } => {
                        let word = stored[g * n_words + i / per_word];
                        let zero = i16::from(self.code_in_word(word, k)) + i16::from(*is_v1);
                        if zero >= 1 << self.form.code.bits() {
                            return Err(self.wide_zero(row));
                        }
                        zero - least
                    }
                };
                let zero = i8::try_from(zero).map_err(|_| self.wide_zero(row))?;
                band.zeros.push(zero);
            }
        }
        Ok(())
    }

    fn not_finite(&self, row: usize, value: f32) -> WeightsError {
        WeightsError::NotFinite { name: self.name.clone(), row, value }
    }

    fn wide_zero(&self, row: usize) -> WeightsError {
        let reason = format!(
            "the zero point of row {row} does not fit its bits: gptq's version 1 cannot store \
             it reliably; take a gptq_v2 file"
        );
        WeightsError::Packed { name: self.name.clone(), reason }
    }
}

/// What is read of a band of rows.
#[derive(Default)]
struct Band {
    codes: Vec<u8>,
    bytes: Vec<u8>,
    numbers: Vec<f32>,
    /// \[rows\]\[groups\]
    scales: Vec<f32>,
    /// \[rows\]\[groups\]
    zeros: Vec<i8>,
}

impl Nested {
    /// Turns the codes in `band.bytes`, the first of which is number `first`, into `band.numbers`.
    fn widen(&self, files: &Files, first: usize, band: &mut Band) -> Result<(), WeightsError> {
        let blocks = first / self.block..(first + band.bytes.len()).div_ceil(self.block);
        let mut bytes = Vec::new();
        self.scales.read(files, 0..1, blocks.clone(), &mut bytes)?;
        let mut scales = vec![0.0; blocks.len()];
        widen(self.scales.dtype, &bytes, &mut scales);
        for (i, (number, code)) in band.numbers.iter_mut().zip(&band.bytes).enumerate() {
            let scale = scales[(first + i) / self.block - blocks.start];
            *number = self.table[usize::from(*code)] * scale + self.offset;
        }
        Ok(())
    }
}
