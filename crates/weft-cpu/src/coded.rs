//! Coded matrices in the order in which the kernels read them.
//!
//! As with plain ones, 64 rows form a block, and the codes of one pair of columns lie together, row
//! after row. 32 columns are a run, \[16 pairs\]\[64 rows\]\[2\] codes: bytes if a code has 8 bits,
//! otherwise two planes of 16-bit words, so that a word needs no more than a shift to index a
//! table. The low plane has 4 bits of each code, \[4\]\[64\]\[2\] words of 4 pairs, the first in the
//! lowest bits. The high plane has the fifth bit, \[64\]\[2\] words of 16 pairs, or the last two,
//! \[2\]\[64\]\[2\] words of 8 pairs.

use half::{bf16, f16};
use weft_core::weights::{Code, Coded, CodedRow, Offset, Offsets, Scale, Scales, UNIT_COLUMNS};

use crate::memory::Bytes;
use crate::pack::BLOCK_ROWS;

/// Columns of a run.
pub(crate) const RUN: usize = 32;

/// How kernels turn codes into bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No longer codes, but bf16.
    Unpacked,
    /// 4 bits, by a table of 16 entries.
    Four,
    /// 5 bits, by a table of 32.
    Five,
    /// 6 bits, by a table of 64.
    Six,
    /// Signed bytes.
    Int8,
    /// Unsigned bytes.
    Uint8,
    /// e4m3 floats.
    Fp8,
}

impl Kind {
    fn of(code: Code) -> Self {
        match (code, code.bits()) {
            (Code::Fp8, _) => Self::Fp8,
            (Code::Int { .. }, 8) => Self::Int8,
            (_, 8) => Self::Uint8,
            (_, 6) => Self::Six,
            (_, 5) => Self::Five,
            _ => Self::Four,
        }
    }

    /// Bytes of a run's low plane, or of all its codes.
    pub(crate) const fn low_bytes(self) -> usize {
        match self {
            Self::Four | Self::Five | Self::Six => RUN * BLOCK_ROWS / 2,
            Self::Int8 | Self::Uint8 | Self::Fp8 => RUN * BLOCK_ROWS,
            Self::Unpacked => 2 * RUN * BLOCK_ROWS,
        }
    }

    /// Bits of a code in the high plane.
    const fn high_bits(self) -> Option<usize> {
        match self {
            Self::Five => Some(1),
            Self::Six => Some(2),
            _ => None,
        }
    }

    /// Bytes of a run's high plane.
    pub(crate) const fn high_bytes(self) -> usize {
        match self.high_bits() {
            Some(bits) => bits * RUN * BLOCK_ROWS / 8,
            None => 0,
        }
    }
}

/// A coded matrix in blocks, padded with zero rows and zero columns.
pub(crate) struct CodedMatrix {
    kind: Kind,
    /// Columns that share a scale.
    group: usize,
    run: usize,
    rows: usize,
    columns: usize,
    /// What the codes stand for: 64 numbers, those of fewer bits repeated.
    table: [bf16; 64],
    low: Bytes,
    high: Bytes,
    scales: Numbers,
    minimums: Option<Numbers>,
}

/// One number for each row and group: scales, or minimums.
struct Numbers {
    scale: Scale,
    /// \[blocks\]\[groups\]\[64\]
    numbers: Bytes,
    /// f16 \[blocks\]\[units\]\[64\], if the numbers are steps.
    units: Bytes,
    groups: usize,
    n_units: usize,
}

/// The codes and scales of one block.
#[derive(Clone, Copy)]
pub(crate) struct CodedBlock<'a> {
    pub(crate) kind: Kind,
    /// Columns that share a scale.
    pub(crate) group: usize,
    /// Columns whose products are summed before the sum is scaled: 16 or 32.
    pub(crate) run: usize,
    pub(crate) table: &'a [bf16; 64],
    /// \[runs\]\[low_bytes\]
    pub(crate) low: &'a [u8],
    /// \[runs\]\[high_bytes\]
    pub(crate) high: &'a [u8],
    /// \[columns/2\]\[64\]\[2\], if the kind is unpacked.
    pub(crate) unpacked: &'a [bf16],
    pub(crate) scales: NumbersOfBlock<'a>,
    pub(crate) minimums: Option<NumbersOfBlock<'a>>,
}

/// The scales, or the minimums, of one block.
#[derive(Clone, Copy)]
pub(crate) struct NumbersOfBlock<'a> {
    pub(crate) scale: Scale,
    /// \[groups\]\[64\]
    pub(crate) numbers: &'a [u8],
    /// f16 \[units\]\[64\], if the numbers are steps.
    pub(crate) units: &'a [u8],
}

impl CodedMatrix {
    pub(crate) fn zeroed(form: &Coded, rows: usize, columns: usize) -> Self {
        let kind = Kind::of(form.code);
        let values = form.code.values();
        let n_blocks = rows.div_ceil(BLOCK_ROWS);
        let runs = n_blocks * columns.div_ceil(RUN);
        let padded = columns.next_multiple_of(RUN);
        let numbers = |scale| Numbers::zeroed(scale, n_blocks, form.group, padded);
        Self {
            kind,
            group: form.group,
            run: form.run(),
            rows,
            columns,
            table: std::array::from_fn(|i| bf16::from_f32(values[i % values.len()])),
            low: Bytes::zeroed(runs * kind.low_bytes()),
            high: Bytes::zeroed(runs * kind.high_bytes()),
            scales: numbers(form.scale),
            minimums: match form.offset {
                Offset::None => None,
                // A zero becomes the minimum −scale · zero, which f32 holds.
                Offset::Zero => Some(numbers(Scale::F32)),
                Offset::Minimum => Some(numbers(form.scale)),
            },
        }
    }

    pub(crate) fn set_row(&mut self, row: usize, from: &CodedRow<'_>) {
        self.set_codes(row, from.codes);
        self.scales.set_row(row, &from.scales);
        let Some(minimums) = &mut self.minimums else { return };
        match from.offsets {
            Offsets::None => {}
            Offsets::Minimums(scales) => minimums.set_row(row, &scales),
            Offsets::Zeros(zeros) => {
                let scale = |g| from.scales.of(g, self.group);
                let units: Vec<f32> =
                    zeros.iter().enumerate().map(|(g, z)| -scale(g) * f32::from(*z)).collect();
                minimums.set_row(row, &Scales { units: &units, steps: &[] });
            }
        }
    }

    fn set_codes(&mut self, row: usize, codes: &[u8]) {
        let (block, row) = (row / BLOCK_ROWS, row % BLOCK_ROWS);
        let first_run = block * self.columns.div_ceil(RUN);
        let (low_bytes, high_bytes) = (self.kind.low_bytes(), self.kind.high_bytes());
        let flip = if self.kind == Kind::Int8 { 0x80 } else { 0 };
        for (r, codes) in codes.chunks(RUN).enumerate() {
            let low = &mut self.low.get_mut()[(first_run + r) * low_bytes..][..low_bytes];
            if low_bytes == RUN * BLOCK_ROWS {
                for (c, code) in codes.iter().enumerate() {
                    low[c / 2 * (2 * BLOCK_ROWS) + row * 2 + c % 2] = code ^ flip;
                }
                continue;
            }
            let high = &mut self.high.get_mut()[(first_run + r) * high_bytes..][..high_bytes];
            for (c, code) in codes.iter().enumerate() {
                let (pair, at) = (c / 2, row * 2 + c % 2);
                set_bits(low, 4, pair, at, code & 15);
                if let Some(bits) = self.kind.high_bits() {
                    set_bits(high, bits, pair, at, code >> 4);
                }
            }
        }
    }

    /// Copies a row out, rounded to bf16.
    pub(crate) fn copy_row(&self, row: usize, to: &mut [bf16]) {
        let block = self.block(row / BLOCK_ROWS);
        let row = row % BLOCK_ROWS;
        for (column, to) in to.iter_mut().enumerate() {
            let group = column / self.group;
            let minimum = block.minimums.map_or(0.0, |m| m.get(group, self.group, row));
            let scale = block.scales.get(group, self.group, row);
            *to = bf16::from_f32(scale * block.value(row, column) + minimum);
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn has_minimums(&self) -> bool {
        self.minimums.is_some()
    }

    pub(crate) fn block(&self, block: usize) -> CodedBlock<'_> {
        let runs = self.columns.div_ceil(RUN);
        let part = |bytes: usize| block * runs * bytes..(block + 1) * runs * bytes;
        let (low, high) = (self.kind.low_bytes(), self.kind.high_bytes());
        CodedBlock {
            kind: self.kind,
            group: self.group,
            run: self.run,
            table: &self.table,
            low: &self.low.get()[part(low)],
            high: &self.high.get()[part(high)],
            unpacked: &[],
            scales: self.scales.of_block(block),
            minimums: self.minimums.as_ref().map(|minimums| minimums.of_block(block)),
        }
    }
}

impl CodedBlock<'_> {
    /// Whether one kernel can take both.
    pub(crate) fn alike(a: &Self, b: &Self) -> bool {
        (a.kind, a.group, a.run, a.columns()) == (b.kind, b.group, b.run, b.columns())
    }

    /// Columns, including the padding to whole runs.
    pub(crate) fn columns(&self) -> usize {
        match self.kind {
            Kind::Unpacked => self.unpacked.len() / BLOCK_ROWS,
            kind => self.low.len() / kind.low_bytes() * RUN,
        }
    }

    /// The start of its codes, and of their high plane.
    ///
    /// # Panics
    /// If it has fewer than `n_runs` runs.
    #[inline(always)]
    pub(crate) fn planes(&self, n_runs: usize) -> [*const u8; 2] {
        assert!(n_runs * self.kind.high_bytes() <= self.high.len());
        if self.kind == Kind::Unpacked {
            assert!(n_runs * RUN * BLOCK_ROWS <= self.unpacked.len());
            return [self.unpacked.as_ptr().cast(), self.high.as_ptr()];
        }
        assert!(n_runs * self.kind.low_bytes() <= self.low.len());
        [self.low.as_ptr(), self.high.as_ptr()]
    }

    /// The number of one code, before scaling.
    pub(crate) fn value(&self, row: usize, column: usize) -> f32 {
        let (run, c) = (column / RUN, column % RUN);
        let (pair, at) = (c / 2, row * 2 + c % 2);
        let low = &self.low[run * self.kind.low_bytes()..];
        let high = &self.high[run * self.kind.high_bytes()..];
        let nibble = || bits_of(low, 4, pair, at);
        let byte = || low[pair * (2 * BLOCK_ROWS) + at];
        let of_table = |code: u8| self.table[usize::from(code)].to_f32();
        match self.kind {
            Kind::Four => of_table(nibble()),
            Kind::Five => of_table(nibble() | bits_of(high, 1, pair, at) << 4),
            Kind::Six => of_table(nibble() | bits_of(high, 2, pair, at) << 4),
            Kind::Int8 => f32::from(byte().cast_signed()),
            Kind::Uint8 => f32::from(byte()),
            Kind::Fp8 => weft_core::weights::fp8(byte()),
            Kind::Unpacked => self.unpacked[column / 2 * (2 * BLOCK_ROWS) + at].to_f32(),
        }
    }
}

impl Numbers {
    fn zeroed(scale: Scale, n_blocks: usize, group: usize, columns: usize) -> Self {
        let groups = columns.div_ceil(group);
        let n_units = if scale == Scale::Steps { columns.div_ceil(UNIT_COLUMNS) } else { 0 };
        Self {
            scale,
            numbers: Bytes::zeroed(n_blocks * groups * BLOCK_ROWS * bytes(scale)),
            units: Bytes::zeroed(n_blocks * n_units * BLOCK_ROWS * 2),
            groups,
            n_units,
        }
    }

    fn set_row(&mut self, row: usize, from: &Scales<'_>) {
        let (block, row) = (row / BLOCK_ROWS, row % BLOCK_ROWS);
        let place = |i: usize, n: usize| (block * n + i) * BLOCK_ROWS + row;
        let numbers = self.numbers.get_mut();
        if self.scale == Scale::Steps {
            for (g, step) in from.steps.iter().enumerate() {
                numbers[place(g, self.groups)] = step.cast_unsigned();
            }
            for (u, unit) in from.units.iter().enumerate() {
                let at = 2 * place(u, self.n_units);
                let unit = f16::from_f32(*unit).to_le_bytes();
                self.units.get_mut()[at..at + 2].copy_from_slice(&unit);
            }
            return;
        }
        for (g, number) in from.units.iter().enumerate() {
            let at = bytes(self.scale) * place(g, self.groups);
            let to = &mut numbers[at..at + bytes(self.scale)];
            match self.scale {
                Scale::F16 => to.copy_from_slice(&f16::from_f32(*number).to_le_bytes()),
                Scale::Bf16 => to.copy_from_slice(&bf16::from_f32(*number).to_le_bytes()),
                _ => to.copy_from_slice(&number.to_le_bytes()),
            }
        }
    }

    fn of_block(&self, block: usize) -> NumbersOfBlock<'_> {
        let part = |bytes: usize| block * bytes * BLOCK_ROWS..(block + 1) * bytes * BLOCK_ROWS;
        NumbersOfBlock {
            scale: self.scale,
            numbers: &self.numbers.get()[part(self.groups * bytes(self.scale))],
            units: &self.units.get()[part(self.n_units * 2)],
        }
    }
}

impl NumbersOfBlock<'_> {
    /// The number of a row, for a group of `width` columns.
    pub(crate) fn get(&self, group: usize, width: usize, row: usize) -> f32 {
        let at = group * BLOCK_ROWS + row;
        let half = |bytes: &[u8], at: usize| [bytes[2 * at], bytes[2 * at + 1]];
        match self.scale {
            Scale::F16 => f16::from_le_bytes(half(self.numbers, at)).to_f32(),
            Scale::Bf16 => bf16::from_le_bytes(half(self.numbers, at)).to_f32(),
            Scale::F32 => {
                let bytes = self.numbers[4 * at..].first_chunk().expect("four bytes a number");
                f32::from_le_bytes(*bytes)
            }
            Scale::Steps => {
                let unit = group * width / UNIT_COLUMNS * BLOCK_ROWS + row;
                let unit = f16::from_le_bytes(half(self.units, unit)).to_f32();
                unit * f32::from(self.numbers[at].cast_signed())
            }
        }
    }
}

/// Where a plane with some bits of each code has those of a pair's code: the byte, and its bits.
/// `at` is twice the row, plus 1 for the second code of the pair.
fn place(bits: usize, pair: usize, at: usize) -> (usize, usize) {
    let pairs = 16 / bits;
    let (word, shift) = (pair / pairs * (2 * BLOCK_ROWS) + at, pair % pairs * bits);
    (2 * word + shift / 8, shift % 8)
}

fn set_bits(plane: &mut [u8], bits: usize, pair: usize, at: usize, value: u8) {
    let (byte, shift) = place(bits, pair, at);
    plane[byte] |= value << shift;
}

fn bits_of(plane: &[u8], bits: usize, pair: usize, at: usize) -> u8 {
    let (byte, shift) = place(bits, pair, at);
    plane[byte] >> shift & ((1 << bits) - 1)
}

/// Bytes of a number.
const fn bytes(scale: Scale) -> usize {
    match scale {
        Scale::F16 | Scale::Bf16 => 2,
        Scale::F32 => 4,
        Scale::Steps => 1,
    }
}
