//! Units: how 8 rows × 32 columns of a matrix lie in the GPU's memory, in each form.
//!
//! A plain unit is 512 bytes: lane 4g + c of a warp holds columns 8c to 8c + 7 of row g. A coded
//! unit holds the codes of the same columns for each lane, then the scales and the offsets of its
//! rows, so that one copy brings all of it. `kernels/coded.cuh` reads what is written here.

use half::{bf16, f16};
use weft_core::weights::{Code, Coded, CodedRow, Form, Offset, Offsets, Scale, Scales};

use crate::shape::{TILE_ROWS, UNIT_BYTES};

/// Columns of a unit, and those of a lane.
pub(crate) const COLUMNS: usize = 32;
pub(crate) const CHUNK: usize = 8;

/// A form as the GPU stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct UnitForm(Form);

impl UnitForm {
    pub(crate) const PLAIN: Self = Self(Form::Plain);

    /// Steps are multiplied out: unpacking them takes longer than the bytes that they save.
    pub(crate) fn new(form: Form) -> Self {
        let Form::Coded(coded) = form else { return Self::PLAIN };
        assert!(coded.group.is_multiple_of(16), "groups are a multiple of 16 columns");
        let scale = if coded.scale == Scale::Steps { Scale::F32 } else { coded.scale };
        Self(Form::Coded(Coded { scale, ..coded }))
    }

    fn coded(&self) -> Option<&Coded> {
        match &self.0 {
            Form::Plain => None,
            Form::Coded(coded) => Some(coded),
        }
    }

    /// Bytes of a unit.
    pub(crate) fn bytes(&self) -> usize {
        self.coded().map_or(UNIT_BYTES, |coded| Places::of(coded).end.next_multiple_of(16))
    }

    /// Runs of a unit if the input is summed over them, for offsets.
    pub(crate) fn summed_runs(&self) -> usize {
        self.coded().filter(|coded| coded.offset != Offset::None).map_or(0, runs)
    }

    /// The form as a type of the kernels.
    pub(crate) fn kernel_type(&self) -> String {
        let Some(coded) = self.coded() else { return "Plain".to_owned() };
        let (codes, middle) = match coded.code {
            Code::Fp8 => ("FP8", 0),
            Code::Table(_) => ("TABLE", 0),
            Code::Int { bits: 8 } => ("INT8", 0),
            Code::Uint { bits: 8 } => ("UINT8", 0),
            Code::Int { bits } => ("BITS", 1 << (bits - 1)),
            Code::Uint { .. } => ("BITS", 0),
        };
        let scale = match coded.scale {
            Scale::F16 => "F16",
            Scale::Bf16 => "BF16",
            Scale::F32 | Scale::Steps => "F32",
        };
        let offset = match coded.offset {
            Offset::None => "NO_OFFSET",
            Offset::Zero => "ZERO",
            Offset::Minimum => "MINIMUM",
        };
        let (bits, runs, table) = (coded.code.bits(), runs(coded), table(coded.code));
        format!("Coded<{codes}, {bits}, {middle}, {runs}, {scale}, {offset}, {table}>")
    }

    /// Writes a row of a coded matrix; `unit_at` gives the place of each of its units.
    pub(crate) fn write_row(
        &self,
        to: &mut [u8],
        unit_at: impl Fn(usize) -> usize,
        row: usize,
        from: &CodedRow<'_>,
        group: usize,
    ) {
        let coded = self.coded().expect("rows of codes are those of a coded form");
        let places = Places::of(coded);
        for (unit, codes) in from.codes.chunks(COLUMNS).enumerate() {
            let to = &mut to[unit_at(unit)..][..places.end];
            for (chunk, codes) in codes.chunks(CHUNK).enumerate() {
                write_codes(to, coded.code, row * 4 + chunk, codes);
            }
            for run in 0..runs(coded) {
                let column = unit * COLUMNS + run * COLUMNS / runs(coded);
                if column >= from.codes.len() {
                    continue;
                }
                let (g, at) = (column / group, row * runs(coded) + run);
                let numbers = &mut to[places.scales..];
                write_number(numbers, coded, at, 0, &from.scales, g, group);
                match from.offsets {
                    Offsets::None => {}
                    Offsets::Zeros(zeros) => to[places.zeros + at] = zeros[g].cast_unsigned(),
                    Offsets::Minimums(minimums) => {
                        write_number(numbers, coded, at, 1, &minimums, g, group);
                    }
                }
            }
        }
    }
}

/// Runs of a unit.
fn runs(coded: &Coded) -> usize {
    COLUMNS / coded.run()
}

/// Numbers of each row and run: a scale, or a scale and a minimum beside it.
fn per_row(coded: &Coded) -> usize {
    if coded.offset == Offset::Minimum { 2 } else { 1 }
}

/// Where the parts of a unit begin, in bytes.
struct Places {
    scales: usize,
    zeros: usize,
    end: usize,
}

impl Places {
    fn of(coded: &Coded) -> Self {
        let scales = TILE_ROWS * COLUMNS * coded.code.bits() / 8;
        let numbers = match coded.scale {
            Scale::F16 | Scale::Bf16 => 2 * TILE_ROWS * runs(coded),
            Scale::F32 | Scale::Steps => 4 * TILE_ROWS * runs(coded),
        };
        let zeros = scales + numbers * per_row(coded);
        let is_zero = coded.offset == Offset::Zero;
        Self { scales, zeros, end: zeros + if is_zero { TILE_ROWS * runs(coded) } else { 0 } }
    }
}

/// Writes a lane's codes. Those of even columns are in the lower half of a word, those of odd
/// columns in the upper half, so that two of them become a pair of bf16 where they are.
fn write_codes(to: &mut [u8], code: Code, lane: usize, codes: &[u8]) {
    let bits = code.bits();
    if bits == 8 {
        // Integers are stored with a sign.
        let flip = if code == Code::Fp8 { 0 } else { 0x80 };
        for (c, code) in codes.iter().enumerate() {
            to[lane * 8 + c / 4 * 4 + c % 2 * 2 + c / 2 % 2] = code ^ flip;
        }
        return;
    }
    let (mut low, mut high) = (0_u32, 0_u16);
    for (c, code) in codes.iter().enumerate() {
        let (pair, is_odd) = (c / 2, c % 2);
        let (below, above) = match (bits, pair) {
            // Each half of the word has two codes and four bits of the last, each byte beside it a
            // code and the other two.
            (6, 0 | 1) => (u32::from(*code) << (pair * 6), 0),
            (6, 2) => (0, u16::from(*code)),
            (6, _) => (u32::from(code & 15) << 12, u16::from(code >> 4) << 6),
            (5, _) => (u32::from(code & 15) << (pair * 4), u16::from(code >> 4) << pair),
            _ => (u32::from(code & 15) << (pair * 4), 0),
        };
        low |= below << (is_odd * 16);
        high |= above << (is_odd * if bits == 5 { 4 } else { 8 });
    }
    to[lane * 4..][..4].copy_from_slice(&low.to_le_bytes());
    let (low_bytes, own) = (TILE_ROWS * COLUMNS / 2, bits - 4);
    to[low_bytes + lane * own..][..own].copy_from_slice(&high.to_le_bytes()[..own]);
}

/// Kernels make codes of most kinds so much smaller (`FACTOR` in `kernels/coded.cuh`). Scales that
/// are f32 are stored so much larger, which rounds nothing.
fn code_factor(code: Code) -> f32 {
    match code {
        Code::Fp8 | Code::Table(_) => 1.0,
        Code::Int { bits } | Code::Uint { bits } => {
            if bits == 5 {
                1.0
            } else {
                64.0
            }
        }
    }
}

/// Writes the scale of a group, which is the first of its row's numbers, or the minimum.
fn write_number(
    to: &mut [u8],
    coded: &Coded,
    row: usize,
    which: usize,
    from: &Scales<'_>,
    group: usize,
    width: usize,
) {
    let is_larger = which == 0 && !matches!(coded.scale, Scale::F16 | Scale::Bf16);
    let factor = if is_larger { code_factor(coded.code) } else { 1.0 };
    let number = from.of(group, width) * factor;
    let at = row * per_row(coded) + which;
    match coded.scale {
        Scale::F16 => to[at * 2..][..2].copy_from_slice(&f16::from_f32(number).to_le_bytes()),
        Scale::Bf16 => to[at * 2..][..2].copy_from_slice(&bf16::from_f32(number).to_le_bytes()),
        Scale::F32 | Scale::Steps => to[at * 4..][..4].copy_from_slice(&number.to_le_bytes()),
    }
}

/// The numbers of a table, rounded to bf16, as the kernels' `Table`: lower bytes, then upper ones.
fn table(code: Code) -> String {
    if !matches!(code, Code::Table(_)) {
        return "NoTable".to_owned();
    }
    let bits: Vec<u16> = code.values().iter().map(|v| bf16::from_f32(*v).to_bits()).collect();
    let words = [0, 8].into_iter().flat_map(|shift| {
        let word = |four: &[u16]| {
            let bytes = four.iter().map(|bits| u32::from(bits >> shift & 0xff));
            bytes.enumerate().fold(0, |word, (i, byte)| word | byte << (8 * i))
        };
        bits.chunks(4).map(word).map(|word| format!("{word:#x}u")).collect::<Vec<_>>()
    });
    format!("Table<{}>", words.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(code: Code, group: usize, scale: Scale, offset: Offset) -> UnitForm {
        UnitForm::new(Form::Coded(Coded { code, group, scale, offset }))
    }

    #[test]
    fn a_unit_takes_little_more_than_its_codes() {
        let (int, uint) = (|bits| Code::Int { bits }, |bits| Code::Uint { bits });
        let bytes = |code, group, scale, offset| unit(code, group, scale, offset).bytes();
        assert_eq!(bytes(int(4), 32, Scale::F16, Offset::None), 144);
        assert_eq!(bytes(int(8), 32, Scale::Bf16, Offset::None), 272);
        assert_eq!(bytes(uint(4), 32, Scale::Steps, Offset::Minimum), 192);
        assert_eq!(bytes(int(6), 16, Scale::Steps, Offset::None), 256);
        assert_eq!(bytes(int(4), 128, Scale::F16, Offset::Zero), 160);
        assert_eq!(UnitForm::PLAIN.bytes(), 512);
    }

    #[test]
    fn a_minimum_lies_beside_its_scale() {
        let coded = Coded {
            code: Code::Uint { bits: 4 },
            group: 32,
            scale: Scale::Steps,
            offset: Offset::Minimum,
        };
        let of = |unit, step| Scales { units: unit, steps: step };
        let row = CodedRow {
            codes: &[0; 32],
            scales: of(&[0.5], &[3]),
            offsets: Offsets::Minimums(of(&[0.25], &[-7])),
        };
        let mut to = [0; 192];
        UnitForm::new(Form::Coded(coded)).write_row(&mut to, |_| 0, 2, &row, 32);
        assert_eq!(to[128 + 16..][..4], (64.0 * 1.5_f32).to_le_bytes());
        assert_eq!(to[128 + 20..][..4], (-1.75_f32).to_le_bytes());
    }

    #[test]
    fn codes_of_a_lane_are_pairs() {
        let mut to = [0; 256];
        write_codes(&mut to, Code::Int { bits: 4 }, 1, &[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(to[4..8], 0x8642_7531_u32.to_le_bytes());
        write_codes(&mut to, Code::Uint { bits: 6 }, 0, &[0x1f, 0x20, 0, 0, 0, 0, 0x30, 0]);
        assert_eq!((to[0], to[2], to[3]), (0x1f, 0x20, 0x00));
        assert_eq!((to[1], to[128], to[129]), (0x00, 0xc0, 0x00));
        write_codes(&mut to, Code::Uint { bits: 6 }, 0, &[0, 0, 0x3f, 0, 0x15, 0x2a, 0, 0x2b]);
        assert_eq!((to[0], to[1], to[2], to[3]), (0xc0, 0x0f, 0x00, 0xb0));
        assert_eq!((to[128], to[129]), (0x15, 0xaa));
        write_codes(&mut to, Code::Fp8, 0, &[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(to[..8], [1, 3, 2, 4, 5, 7, 6, 8]);
    }
}
