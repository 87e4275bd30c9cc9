//! Rows in 8 bits: half the bytes of bf16, a quarter of f32, for rows that are only approximate.
//!
//! A row's numbers are cut into groups, such as those of one head. Each number is stored as an
//! integer, in 127ths of the largest magnitude of its group, and that magnitude follows the row's
//! integers in the format of the numbers themselves. So encoding what was decoded gives the same
//! bytes again, and coarse rows stay the same wherever they go.

use std::str::FromStr;
use std::thread;

use half::bf16;
use serde::{Deserialize, Serialize};

use super::reason::Reason;
use super::{Header, HostRows, KvKey, PlainMemory, RowBytes, RowMemory};
use crate::dtype::Dtype;

/// The largest integer.
const MOST: f32 = 127.0;

/// Smaller magnitudes count as zero: their fractions are not numbers of every format.
const LEAST: f32 = 1e-30;

/// Adding it leaves no digits after the point, and those before it in the lowest bits.
const ROUNDS: f32 = 12_582_912.0;

/// Threads that encode or decode at once, and the bytes that are worth one.
const MOST_THREADS: usize = 4;
const THREAD_BYTES: usize = 1 << 20;

/// How the numbers of rows are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RowForm {
    /// As the device computes them.
    #[default]
    Full,
    /// In 8 bits. Only approximate reuse reads such rows.
    Int8 {
        /// Consecutive numbers of a row that share a scale. It divides the width of a row.
        group: usize,
    },
}

impl RowForm {
    /// Whether rows in this form differ from those that were computed.
    pub const fn is_coarse(self) -> bool {
        matches!(self, Self::Int8 { .. })
    }

    /// How rows in this form may be reused, as headers have it.
    pub const fn reuse(self) -> &'static str {
        match self {
            Self::Full => "exact",
            Self::Int8 { .. } => "coarse",
        }
    }

    /// The key under which rows after `parent` are found in this form. Whoever looks for full rows
    /// never finds coarse ones.
    pub fn place(self, parent: &KvKey) -> KvKey {
        match self {
            Self::Full => *parent,
            Self::Int8 { group } => {
                let mut hasher = blake3::Hasher::new();
                hasher.update(b"weft rows in 8 bits 1\0").update(&(group as u64).to_le_bytes());
                KvKey::from_bytes(*hasher.update(parent.as_bytes()).finalize().as_bytes())
            }
        }
    }

    /// Bytes of a stored row of one layer. `None` if there cannot be such a row.
    pub fn row_bytes(self, kv_width: usize, dtype: Dtype) -> Option<usize> {
        match self {
            Self::Full => kv_width.checked_mul(dtype.bytes()),
            Self::Int8 { group } => {
                let n_groups = kv_width.checked_div(group)?;
                let is_whole = kv_width.is_multiple_of(group);
                let scales = n_groups.checked_mul(dtype.bytes()).filter(|_| is_whole)?;
                kv_width.checked_add(scales)
            }
        }
    }
}

/// How a user wants the rows of approximate reuse to be stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoredRows {
    /// As the device computes them.
    #[default]
    Full,
    /// In 8 bits, with a scale for each head.
    Int8,
}

impl StoredRows {
    /// The form of rows with heads of this size.
    pub const fn form(self, head_dim: usize) -> RowForm {
        match self {
            Self::Full => RowForm::Full,
            Self::Int8 => RowForm::Int8 { group: head_dim },
        }
    }
}

impl FromStr for StoredRows {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "full" => Ok(Self::Full),
            "int8" => Ok(Self::Int8),
            _ => Err(format!("{text:?} is not a form of stored rows; give full or int8")),
        }
    }
}

/// Rows that have no 8 bits, because some of their numbers are infinite or no numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the rows are not finite numbers; nothing can be computed from them")]
pub struct NotFinite;

impl Header {
    /// Coarse rows as they are stored, from full ones; `None` if the rows are stored as they are,
    /// because they are full or a device has already written them in 8 bits.
    ///
    /// # Errors
    /// If a number is not finite.
    ///
    /// # Panics
    /// If the rows do not have the header's size, full or stored.
    pub fn stored(&self, rows: &HostRows) -> Result<Option<HostRows>, NotFinite> {
        let RowForm::Int8 { group } = self.form else { return Ok(None) };
        if self.is_stored(rows) {
            return self.check_scales(rows).map(|()| None).map_err(|_| NotFinite);
        }
        let to = &PlainMemory;
        let encode = |tensor: &[u8]| match self.dtype {
            Dtype::Bf16 => self.convert(tensor, to, true, |a, b| encode::<bf16>(a, b, group)),
            Dtype::F32 => self.convert(tensor, to, true, |a, b| encode::<f32>(a, b, group)),
        };
        Ok(Some(HostRows { k: encode(&rows.k)?, v: encode(&rows.v)? }))
    }

    /// Whether rows are coarse and as they are stored.
    pub fn is_stored(&self, rows: &HostRows) -> bool {
        let sizes = (Some(rows.k.len()), Some(rows.v.len()));
        let (stored, full) = (self.tensor_bytes(), self.full_bytes());
        self.form.is_coarse() && sizes == (stored, stored) && stored != full
    }

    /// Checks that every scale of stored rows is a magnitude.
    pub(super) fn check_scales(&self, rows: &HostRows) -> Result<(), Reason> {
        let Some(row_bytes) = self.form.row_bytes(self.kv_width, self.dtype) else { return Ok(()) };
        let check = |scales: &[u8]| match self.dtype {
            Dtype::Bf16 => scales.chunks_exact(2).try_for_each(|one| scale::<bf16>(one).map(drop)),
            Dtype::F32 => scales.chunks_exact(4).try_for_each(|one| scale::<f32>(one).map(drop)),
        };
        let mut rows = rows.k.chunks_exact(row_bytes).chain(rows.v.chunks_exact(row_bytes));
        rows.try_for_each(|row| check(&row[self.kv_width..]))
    }

    /// Full rows from stored ones. Those of coarse rows are nearly the ones that were computed.
    ///
    /// # Errors
    /// If a scale is not a magnitude.
    ///
    /// # Panics
    /// If the rows do not have the stored size.
    pub fn read_stored(&self, rows: HostRows) -> Result<HostRows, Reason> {
        self.read_stored_to(rows, &PlainMemory)
    }

    /// The same; memory for coarse rows that are decoded is taken from `to`.
    pub(super) fn read_stored_to(
        &self,
        rows: HostRows,
        to: &dyn RowMemory,
    ) -> Result<HostRows, Reason> {
        let RowForm::Int8 { group } = self.form else { return Ok(rows) };
        let decode = |tensor: &[u8]| match self.dtype {
            Dtype::Bf16 => self.convert(tensor, to, false, |a, b| decode::<bf16>(a, b, group)),
            Dtype::F32 => self.convert(tensor, to, false, |a, b| decode::<f32>(a, b, group)),
        };
        Ok(HostRows { k: decode(&rows.k)?, v: decode(&rows.v)? })
    }

    /// Converts a tensor row by row, on several threads if it is large. `to_coarse` is the
    /// direction.
    fn convert<E: Send>(
        &self,
        tensor: &[u8],
        memory: &dyn RowMemory,
        to_coarse: bool,
        row: impl Fn(&[u8], &mut [u8]) -> Result<(), E> + Sync,
    ) -> Result<RowBytes, E> {
        let bytes = |form: RowForm| form.row_bytes(self.kv_width, self.dtype).unwrap_or_default();
        let (full, coarse) = (bytes(RowForm::Full), bytes(self.form));
        let (from, to) = if to_coarse { (full, coarse) } else { (coarse, full) };
        let n_rows = self.layers * self.tokens.len();
        assert_eq!(tensor.len(), n_rows * from, "bytes of a tensor");
        let mut converted = memory.take(n_rows * to);
        if converted.is_empty() {
            return Ok(converted);
        }
        let n_threads = thread::available_parallelism().map_or(1, usize::from);
        let n_threads = n_threads.min(MOST_THREADS).min(tensor.len().div_ceil(THREAD_BYTES));
        let share = n_rows.div_ceil(n_threads);
        let rows = |tensor: &[u8], converted: &mut [u8]| {
            let mut pairs = tensor.chunks_exact(from).zip(converted.chunks_exact_mut(to));
            pairs.try_for_each(|(from, to)| row(from, to))
        };
        let mut parts = tensor.chunks(share * from).zip(converted.chunks_mut(share * to));
        thread::scope(|scope| {
            let own = parts.next();
            let rows = &rows;
            let others: Vec<_> =
                parts.map(|(from, to)| scope.spawn(move || rows(from, to))).collect();
            own.map_or(Ok(()), |(from, to)| rows(from, to))?;
            others.into_iter().try_for_each(|other| other.join().expect("converting panicked"))
        })?;
        Ok(converted)
    }
}

/// A number of a row, in little-endian bytes.
trait Number {
    const BYTES: usize;
    fn read(bytes: &[u8]) -> f32;
    /// Writes a number, rounded to the nearest.
    fn write(number: f32, bytes: &mut [u8]);
}

impl Number for f32 {
    const BYTES: usize = 4;

    fn read(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    fn write(number: f32, bytes: &mut [u8]) {
        bytes.copy_from_slice(&number.to_le_bytes());
    }
}

impl Number for bf16 {
    const BYTES: usize = 2;

    fn read(bytes: &[u8]) -> f32 {
        f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16)
    }

    fn write(number: f32, bytes: &mut [u8]) {
        if number.is_nan() {
            return bytes.copy_from_slice(&Self::NAN.to_le_bytes());
        }
        let bits = number.to_bits();
        let rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        bytes.copy_from_slice(&(rounded as u16).to_le_bytes());
    }
}

/// Writes a row: its integers, then the largest magnitude of each group. A group with a number that
/// is not finite gets no integers and a scale that is no number.
fn encode<N: Number>(row: &[u8], coarse: &mut [u8], group: usize) -> Result<(), NotFinite> {
    let mut is_finite = true;
    let (integers, scales) = coarse.split_at_mut(row.len() / N::BYTES);
    let groups = row.chunks_exact(group * N::BYTES).zip(integers.chunks_exact_mut(group));
    for ((numbers, integers), scale) in groups.zip(scales.chunks_exact_mut(N::BYTES)) {
        let numbers = || numbers.chunks_exact(N::BYTES).map(N::read);
        let most = numbers().fold(0.0, |most: f32, number| most.max(number.abs()));
        // The largest does not tell whether there is a NaN; zero times it does.
        let nothing: f32 = numbers().map(|number| number * 0.0).sum();
        if nothing != 0.0 {
            is_finite = false;
            integers.fill(0);
            N::write(f32::NAN, scale);
            continue;
        }
        let most = if most < LEAST { 0.0 } else { most };
        N::write(most, scale);
        let unit = if most > 0.0 { most } else { f32::INFINITY };
        for (integer, number) in integers.iter_mut().zip(numbers()) {
            *integer = (number / unit * MOST + ROUNDS).to_bits() as u8;
        }
    }
    if is_finite { Ok(()) } else { Err(NotFinite) }
}

/// The largest magnitude of a group, if it is one.
fn scale<N: Number>(bytes: &[u8]) -> Result<f32, Reason> {
    let most = N::read(bytes);
    let is_magnitude = most.is_finite() && !most.is_sign_negative();
    if is_magnitude { Ok(most) } else { Err(Reason::Scale { found: most }) }
}

/// The reverse. Every result is finite, whatever the integers are.
fn decode<N: Number>(coarse: &[u8], row: &mut [u8], group: usize) -> Result<(), Reason> {
    let (integers, scales) = coarse.split_at(row.len() / N::BYTES);
    let groups = row.chunks_exact_mut(group * N::BYTES).zip(integers.chunks_exact(group));
    for ((numbers, integers), scale) in groups.zip(scales.chunks_exact(N::BYTES)) {
        decode_group::<N>(integers, self::scale::<N>(scale)?, numbers);
    }
    Ok(())
}

fn decode_group<N: Number>(integers: &[u8], most: f32, numbers: &mut [u8]) {
    for (number, integer) in numbers.chunks_exact_mut(N::BYTES).zip(integers) {
        let part = (f32::from(*integer as i8) / MOST).max(-1.0);
        N::write(part * most, number);
    }
}

/// Rows of bf16 that a device hands out or takes in 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedRows {
    /// Numbers of a row of one layer.
    pub kv_width: usize,
    /// Consecutive numbers that share a scale.
    pub group: usize,
}

impl PackedRows {
    /// Bytes of a row.
    pub fn row_bytes(self) -> usize {
        let bytes = RowForm::Int8 { group: self.group }.row_bytes(self.kv_width, Dtype::Bf16);
        bytes.expect("a group divides a row")
    }

    /// Packs whole rows of keys or values, as files have them. Groups that are not finite get a
    /// scale that no reader accepts.
    pub fn pack(self, numbers: &[u8]) -> RowBytes {
        let mut packed = vec![0; numbers.len() / (2 * self.kv_width) * self.row_bytes()];
        let rows = numbers.chunks_exact(2 * self.kv_width);
        for (row, packed) in rows.zip(packed.chunks_exact_mut(self.row_bytes())) {
            // Readers check scales.
            let _ = encode::<bf16>(row, packed, self.group);
        }
        packed.into()
    }

    /// The reverse. Where a scale is no number, neither are the results.
    pub fn unpack(self, packed: &[u8]) -> RowBytes {
        let mut numbers = vec![0; packed.len() / self.row_bytes() * 2 * self.kv_width];
        let rows = numbers.chunks_exact_mut(2 * self.kv_width);
        for (row, packed) in rows.zip(packed.chunks_exact(self.row_bytes())) {
            let (integers, scales) = packed.split_at(self.kv_width);
            let groups = row.chunks_exact_mut(2 * self.group).zip(integers.chunks(self.group));
            for ((numbers, integers), scale) in groups.zip(scales.chunks_exact(2)) {
                decode_group::<bf16>(integers, bf16::read(scale), numbers);
            }
        }
        numbers.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(dtype: Dtype, group: usize, kv_width: usize, n_rows: usize) -> Header {
        Header {
            fingerprint: "model".to_owned(),
            dtype,
            form: RowForm::Int8 { group },
            layers: 2,
            kv_width,
            reuse: "coarse".to_owned(),
            parent: KvKey::NOTHING,
            home_position: 0,
            tokens: vec![1; n_rows],
            prefill_us: 1,
        }
    }

    /// Numbers of many magnitudes, the same each time.
    fn numbers(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed | 1;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(state >> 8) / f64::from(1 << 24)
        };
        (0..n).map(|_| ((next() - 0.5) * 2f64.powf(next() * 20.0 - 10.0)) as f32).collect()
    }

    fn bytes(dtype: Dtype, numbers: &[f32]) -> Vec<u8> {
        let to = |number: &f32| match dtype {
            Dtype::F32 => number.to_le_bytes().to_vec(),
            Dtype::Bf16 => bf16::from_f32(*number).to_le_bytes().to_vec(),
        };
        numbers.iter().flat_map(to).collect()
    }

    fn sample(header: &Header) -> HostRows {
        let n = header.layers * header.tokens.len() * header.kv_width;
        let tensor = |seed| bytes(header.dtype, &numbers(n, seed));
        HostRows { k: tensor(7).into(), v: tensor(8).into() }
    }

    #[test]
    fn coarse_rows_are_within_half_a_step_and_stay_as_they_are() {
        for (dtype, n_rows) in [(Dtype::Bf16, 5), (Dtype::F32, 5), (Dtype::Bf16, 20_000)] {
            let header = header(dtype, 4, 12, n_rows);
            let rows = sample(&header);
            let stored = header.stored(&rows).unwrap().unwrap();
            assert_eq!(Some(stored.k.len()), header.tensor_bytes());
            let back = header.read_stored(stored.clone()).unwrap();
            assert_eq!(Some(back.v.len()), header.full_bytes());
            let (before, after) = (dtype.numbers(&rows.k), dtype.numbers(&back.k));
            for (before, after) in before.chunks(4).zip(after.chunks(4)) {
                let most = before.iter().fold(0f32, |most, number| most.max(number.abs()));
                // Half a step, and what the format rounds.
                let bound = most * (0.5 / MOST + 1.0 / 256.0);
                for (a, b) in before.iter().zip(after) {
                    assert!((a - b).abs() <= bound, "{before:?} {after:?}");
                }
            }
            assert!(header.stored(&back).unwrap().unwrap() == stored, "{dtype}");
        }
    }

    #[test]
    fn the_largest_and_nothing_are_exact() {
        for dtype in [Dtype::Bf16, Dtype::F32] {
            let header = header(dtype, 4, 4, 1);
            let numbers = [0.0, -3.375, 1e-38, 0.0, 1e-33, 0.0, 0.0, -1e-33];
            let rows =
                HostRows { k: bytes(dtype, &numbers).into(), v: bytes(dtype, &[0.0; 8]).into() };
            let stored = header.stored(&rows).unwrap().unwrap();
            let back = header.read_stored(stored).unwrap();
            let expected = [0.0, -3.375, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
            assert_eq!(dtype.numbers(&back.k), expected);
            assert_eq!(dtype.numbers(&back.v), [0.0; 8]);
        }
    }

    #[test]
    fn rows_that_are_not_finite_are_refused_both_ways() {
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for dtype in [Dtype::Bf16, Dtype::F32] {
                let header = header(dtype, 4, 4, 1);
                let mut numbers = numbers(8, 3);
                numbers[5] = wrong;
                let fine = sample(&header);
                let rows = HostRows { k: fine.k.clone(), v: bytes(dtype, &numbers).into() };
                assert_eq!(header.stored(&rows), Err(NotFinite));
                let mut stored = header.stored(&fine).unwrap().unwrap();
                let at = stored.v.len() - dtype.bytes();
                assert_eq!(header.stored(&stored), Ok(None), "it is stored as it is");
                stored.v[at..].copy_from_slice(&bytes(dtype, &[wrong]));
                let refused = header.read_stored(stored.clone()).unwrap_err();
                assert_eq!(refused.name(), "scale");
                assert_eq!(header.check_scales(&stored).unwrap_err().name(), "scale");
                assert_eq!(header.stored(&stored), Err(NotFinite));
                stored.v[at..].copy_from_slice(&bytes(dtype, &[-1.0]));
                assert_eq!(header.read_stored(stored).unwrap_err().name(), "scale");
            }
        }
    }

    #[test]
    fn no_integer_gives_more_than_the_scale() {
        for dtype in [Dtype::Bf16, Dtype::F32] {
            let header = header(dtype, 4, 4, 1);
            let most = dtype.numbers(&bytes(dtype, &[3.38e38]))[0];
            let row = [vec![0x80, 0x81, 0x7f, 0xff], bytes(dtype, &[most])].concat();
            let stored = HostRows { k: row.repeat(2).into(), v: row.repeat(2).into() };
            let numbers = dtype.numbers(&header.read_stored(stored).unwrap().k);
            assert!(numbers.iter().all(|number| number.abs() <= most), "{numbers:?}");
        }
    }

    #[test]
    fn a_group_that_does_not_divide_a_row_has_no_size() {
        for (group, kv_width) in [(0, 4), (3, 4), (8, 4), (1, usize::MAX)] {
            let form = RowForm::Int8 { group };
            assert_eq!(form.row_bytes(kv_width, Dtype::Bf16), None, "{group} {kv_width}");
        }
        assert_eq!(RowForm::Int8 { group: 2 }.row_bytes(4, Dtype::Bf16), Some(8));
        let parent = KvKey::from_bytes([3; 32]);
        let places = [1, 2].map(|group| RowForm::Int8 { group }.place(&parent));
        assert!(places[0] != places[1] && !places.contains(&parent));
        assert_eq!(RowForm::Full.place(&parent), parent);
    }
}
