//! Coded matrices in the order in which the kernels read them.
//!
//! As with plain ones, 64 rows form a block, and the codes of one pair of columns lie together, row
//! after row. 32 columns are a run of 16 pairs. Codes of 8 bits are bytes, \[4\]\[4\]\[4
//! pairs\]\[16 rows\]\[2\]. Others lie in words of 16 bits, \[16 rows\]\[2\], each with the codes
//! of several pairs, so that a word needs no more than a shift to index a table. Four bits: four
//! pairs a word, the first in the lowest bits. Five bits: the same, and the fifth bits of all 16
//! pairs in words before those. Six bits: eight pairs in three words. A run's scales follow its
//! codes ([`layout`]).

mod layout;

use half::{bf16, f16};
use weft_core::weights::{Coded, CodedRow, Offsets, Scale, Scales, UNIT_COLUMNS};

use crate::memory::Bytes;
use crate::pack::BLOCK_ROWS;

pub(crate) use layout::{Kind, Layout, RUN, RunAt};

/// A coded matrix in blocks, padded with zero rows and zero columns.
pub(crate) struct CodedMatrix {
    layout: Layout,
    rows: usize,
    /// What the codes stand for: 64 numbers, those of fewer bits repeated.
    table: [bf16; 64],
    /// \[blocks\], each as its layout says.
    blocks: Bytes,
}

/// The codes and scales of one block.
#[derive(Clone, Copy)]
pub(crate) struct CodedBlock<'a> {
    /// That of its codes, or `Unpacked`.
    pub(crate) kind: Kind,
    pub(crate) layout: &'a Layout,
    pub(crate) table: &'a [bf16; 64],
    /// As the layout says.
    pub(crate) bytes: &'a [u8],
    /// \[columns/2\]\[64\]\[2\], if the kind is unpacked.
    pub(crate) unpacked: &'a [bf16],
}

/// The scales, or the minimums, of one group.
#[derive(Clone, Copy)]
pub(crate) struct Numbers<'a> {
    pub(crate) scale: Scale,
    /// \[64\]
    pub(crate) numbers: &'a [u8],
    /// f16 \[64\], if the numbers are steps.
    pub(crate) units: &'a [u8],
}

impl CodedMatrix {
    pub(crate) fn zeroed(form: &Coded, rows: usize, columns: usize) -> Self {
        let values = form.code.values();
        let layout = Layout::new(form, columns);
        Self {
            layout,
            rows,
            table: std::array::from_fn(|i| bf16::from_f32(values[i % values.len()])),
            blocks: Bytes::zeroed(rows.div_ceil(BLOCK_ROWS) * layout.block_bytes()),
        }
    }

    pub(crate) fn set_row(&mut self, row: usize, from: &CodedRow<'_>) {
        let layout = self.layout;
        let (block, row) = (row / BLOCK_ROWS, row % BLOCK_ROWS);
        let bytes = layout.block_bytes();
        let to = &mut self.blocks.get_mut()[block * bytes..][..bytes];
        set_codes(&layout, row, from.codes, to);
        let scales = Place { scale: layout.scale, after: 0, units_after: 0 };
        scales.set_row(&layout, row, &from.scales, to);
        let Some(scale) = layout.minimum else { return };
        let minimums = Place {
            scale,
            after: layout.minimums_after(),
            units_after: layout.minimum_units_after(),
        };
        match from.offsets {
            Offsets::None => {}
            Offsets::Minimums(scales) => minimums.set_row(&layout, row, &scales, to),
            Offsets::Zeros(zeros) => {
                let scale = |g| from.scales.of(g, layout.group);
                let units: Vec<f32> =
                    zeros.iter().enumerate().map(|(g, z)| -scale(g) * f32::from(*z)).collect();
                minimums.set_row(&layout, row, &Scales { units: &units, steps: &[] }, to);
            }
        }
    }

    /// Copies a row out, rounded to bf16.
    pub(crate) fn copy_row(&self, row: usize, to: &mut [bf16]) {
        let block = self.block(row / BLOCK_ROWS);
        let (row, half) = (row % BLOCK_ROWS, RUN / 2);
        for (at, to) in self.layout.runs().zip(to.chunks_mut(RUN)) {
            for (h, to) in to.chunks_mut(half).enumerate() {
                let scale = block.scales(&at, h).get(row);
                let minimum = block.minimums(&at, h).map_or(0.0, |minimums| minimums.get(row));
                for (i, to) in to.iter_mut().enumerate() {
                    let value = block.value(&at, row, half * h + i);
                    *to = bf16::from_f32(scale * value + minimum);
                }
            }
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn has_minimums(&self) -> bool {
        self.layout.minimum.is_some()
    }

    pub(crate) fn block(&self, block: usize) -> CodedBlock<'_> {
        let bytes = self.layout.block_bytes();
        CodedBlock {
            kind: self.layout.kind,
            layout: &self.layout,
            table: &self.table,
            bytes: &self.blocks.get()[block * bytes..][..bytes],
            unpacked: &[],
        }
    }
}

impl<'a> CodedBlock<'a> {
    /// The start of its bytes, after checking that they are all there.
    ///
    /// # Panics
    /// If it has fewer bytes than its layout says, or if unpacked codes are missing.
    #[inline(always)]
    pub(crate) fn start(&self) -> *const u8 {
        assert!(self.bytes.len() >= self.layout.block_bytes());
        if self.kind == Kind::Unpacked {
            assert!(self.unpacked.len() >= self.layout.columns() * BLOCK_ROWS);
        }
        self.bytes.as_ptr()
    }

    /// The scales of a half of a run.
    pub(crate) fn scales(&self, run: &RunAt, half: usize) -> Numbers<'a> {
        Numbers {
            scale: self.layout.scale,
            numbers: &self.bytes[run.numbers[half]..],
            units: &self.bytes[run.units..],
        }
    }

    /// The minimums of a half of a run.
    pub(crate) fn minimums(&self, run: &RunAt, half: usize) -> Option<Numbers<'a>> {
        Some(Numbers {
            scale: self.layout.minimum?,
            numbers: &self.bytes[run.numbers[half] + self.layout.minimums_after()..],
            units: &self.bytes[run.units + self.layout.minimum_units_after()..],
        })
    }

    /// The number of one code of a run, before scaling.
    pub(crate) fn value(&self, run: &RunAt, row: usize, column: usize) -> f32 {
        let kind = self.layout.kind;
        let codes = &self.bytes[run.codes..][..kind.bytes()];
        if kind.is_byte() {
            let byte = codes[byte_of(row, column)];
            return match kind {
                Kind::Int8 => f32::from(byte.cast_signed()),
                Kind::Fp8 => weft_core::weights::fp8(byte),
                _ => f32::from(byte),
            };
        }
        let (pair, word) = (column / 2, row % 16 * 2 + column % 2);
        let bits = |(at, shift): (usize, usize), mask: u16| {
            let word = [codes[at + 2 * word], codes[at + 2 * word + 1]];
            usize::from(u16::from_le_bytes(word) >> shift & mask)
        };
        let [low, high] = kind.places(pair, row / 16);
        let high = bits(high, (1 << kind.high_bits()) - 1);
        self.table[high << 4 | bits(low, 15)].to_f32()
    }
}

/// Two codes at a time, those of a pair.
fn set_codes(layout: &Layout, row: usize, codes: &[u8], to: &mut [u8]) {
    let kind = layout.kind;
    for (run, codes) in layout.runs().zip(codes.chunks(RUN)) {
        let to = &mut to[run.codes..][..kind.bytes()];
        for (pair, codes) in codes.chunks(2).enumerate() {
            let (even, odd) = (codes[0], *codes.get(1).unwrap_or(&0));
            if kind.is_byte() {
                let flip = if kind == Kind::Int8 { 0x80 } else { 0 };
                let at = byte_of(row, 2 * pair);
                to[at..at + 2].copy_from_slice(&[even ^ flip, odd ^ flip]);
                continue;
            }
            let [low, high] = kind.places(pair, row / 16);
            set_bits(to, low, row, [even & 15, odd & 15]);
            if kind.high_bits() > 0 {
                set_bits(to, high, row, [even >> 4, odd >> 4]);
            }
        }
    }
}

/// Adds bits to the two words of a row at one of [`Kind::places`].
fn set_bits(to: &mut [u8], (at, shift): (usize, usize), row: usize, [even, odd]: [u8; 2]) {
    let bits = (u32::from(even) | u32::from(odd) << 16) << shift;
    let at = at + row % 16 * 4;
    let words: &mut [u8; 4] = to[at..].first_chunk_mut().expect("two words");
    *words = (u32::from_le_bytes(*words) | bits).to_le_bytes();
}

/// Where a run has a code of one byte.
fn byte_of(row: usize, column: usize) -> usize {
    Kind::pair_bytes(column / 2, row / 16) + row % 16 * 2 + column % 2
}

/// Where scales or minimums are stored, from where a layout has a group's numbers and units.
struct Place {
    scale: Scale,
    after: usize,
    units_after: usize,
}

impl Place {
    fn set_row(&self, layout: &Layout, row: usize, from: &Scales<'_>, to: &mut [u8]) {
        let bytes = layout::bytes(self.scale);
        let (mut group, mut last) = (0, None);
        for numbers in layout.runs().flat_map(|run| run.numbers) {
            if last.replace(numbers) == Some(numbers) {
                continue;
            }
            let at = numbers + self.after + bytes * row;
            let to = &mut to[at..at + bytes];
            match (self.scale, from.units.get(group), from.steps.get(group)) {
                (Scale::Steps, _, Some(step)) => to[0] = step.cast_unsigned(),
                (Scale::F16, Some(x), _) => to.copy_from_slice(&f16::from_f32(*x).to_le_bytes()),
                (Scale::Bf16, Some(x), _) => to.copy_from_slice(&bf16::from_f32(*x).to_le_bytes()),
                (Scale::F32, Some(x), _) => to.copy_from_slice(&x.to_le_bytes()),
                // Columns that pad the last run have no group.
                _ => {}
            }
            group += 1;
        }
        if self.scale != Scale::Steps {
            return;
        }
        let runs = layout.runs().step_by(UNIT_COLUMNS / RUN);
        for (run, number) in runs.zip(from.units) {
            let at = run.units + self.units_after + 2 * row;
            to[at..at + 2].copy_from_slice(&f16::from_f32(*number).to_le_bytes());
        }
    }
}

impl Numbers<'_> {
    pub(crate) fn get(&self, row: usize) -> f32 {
        let half = |bytes: &[u8]| [bytes[2 * row], bytes[2 * row + 1]];
        match self.scale {
            Scale::F16 => f16::from_le_bytes(half(self.numbers)).to_f32(),
            Scale::Bf16 => bf16::from_le_bytes(half(self.numbers)).to_f32(),
            Scale::F32 => {
                let bytes = self.numbers[4 * row..].first_chunk().expect("four bytes a number");
                f32::from_le_bytes(*bytes)
            }
            Scale::Steps => {
                let unit = f16::from_le_bytes(half(self.units)).to_f32();
                unit * f32::from(self.numbers[row].cast_signed())
            }
        }
    }
}
