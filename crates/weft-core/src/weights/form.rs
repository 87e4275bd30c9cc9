//! Forms: how the numbers of a weight matrix are stored.
//!
//! A matrix is plain, or it has codes of a few bits and a scale for each group of columns. Loaders
//! turn every file format into one of these forms, and devices compute with forms. Neither knows
//! about the other.

use crate::dtype::Dtype;

/// Columns that share a unit if scales are stored in steps.
pub const UNIT_COLUMNS: usize = 256;

/// How a matrix is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Form {
    /// Numbers, which a device rounds to its own format.
    #[default]
    Plain,
    /// Codes of a few bits, with scales.
    Coded(Coded),
}

impl Form {
    /// Bytes of a matrix in this form, without padding.
    pub fn bytes(&self, rows: usize, columns: usize, dtype: Dtype) -> u64 {
        match self {
            Self::Plain => (rows * columns * dtype.bytes()) as u64,
            Self::Coded(coded) => rows as u64 * coded.row_bytes(columns),
        }
    }
}

/// Codes of a few bits, with a scale for each group of columns and, in some forms, an offset.
///
/// The weight of a code that stands for `v` is `scale · v`, `scale · (v − zero)` or
/// `scale · v + minimum`, as [`Offset`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Coded {
    /// What a code stands for.
    pub code: Code,
    /// Columns that share a scale: a multiple of 16. The last group of a row may be shorter.
    pub group: usize,
    /// How scales and minimums are stored.
    pub scale: Scale,
    /// What is added to the scaled codes.
    pub offset: Offset,
}

/// What the codes of a form stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// Signed integers of 4, 5, 6 or 8 bits: code `c` stands for `c − 2^(bits − 1)`.
    Int {
        /// Bits of a code.
        bits: u8,
    },
    /// Integers of 4, 5, 6 or 8 bits that count from 0.
    Uint {
        /// Bits of a code.
        bits: u8,
    },
    /// 8-bit floats with 4 bits of exponent and 3 of mantissa (e4m3fn).
    Fp8,
    /// Codes of 4 bits that stand for 16 numbers.
    Table(Table),
}

/// The numbers that the codes of a table stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Table([u32; 16]);

impl Table {
    /// A table of these numbers.
    pub const fn new(values: [f32; 16]) -> Self {
        let mut bits = [0; 16];
        let mut i = 0;
        while i < 16 {
            bits[i] = values[i].to_bits();
            i += 1;
        }
        Self(bits)
    }

    fn values(self) -> [f32; 16] {
        self.0.map(f32::from_bits)
    }
}

/// How scales and minimums are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scale {
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// IEEE single precision.
    F32,
    /// A signed byte for each group, times an f16 for each [`UNIT_COLUMNS`] columns.
    Steps,
}

/// What is added to scaled codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Offset {
    /// Nothing.
    None,
    /// A signed byte for each group is subtracted from its codes before they are scaled.
    Zero,
    /// A number for each group, stored like the scales, is added to its scaled codes.
    Minimum,
}

impl Code {
    /// Bits of a code.
    pub fn bits(self) -> usize {
        match self {
            Self::Int { bits } | Self::Uint { bits } => usize::from(bits),
            Self::Fp8 => 8,
            Self::Table(_) => 4,
        }
    }

    /// The number that each code stands for, in the order of the codes.
    pub fn values(self) -> Vec<f32> {
        let codes = 0..1_u16 << self.bits();
        match self {
            Self::Int { bits } => {
                codes.map(|c| f32::from(c) - f32::from(1_u16 << (bits - 1))).collect()
            }
            Self::Uint { .. } => codes.map(f32::from).collect(),
            Self::Fp8 => codes.map(|c| fp8(c as u8)).collect(),
            Self::Table(table) => table.values().to_vec(),
        }
    }
}

/// The number of an e4m3fn code: no infinities, and NaN where all bits but the sign are set.
pub fn fp8(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 512.0,
        _ => (8.0 + mantissa) * 2.0_f32.powi(exponent - 10),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

impl Coded {
    /// Groups of a row.
    pub fn n_groups(&self, columns: usize) -> usize {
        columns.div_ceil(self.group)
    }

    /// Columns whose products are summed before the sum is scaled: at most 32, never from two
    /// groups.
    pub fn run(&self) -> usize {
        if self.group.is_multiple_of(32) { 32 } else { 16 }
    }

    /// Bytes of a row, without padding.
    fn row_bytes(&self, columns: usize) -> u64 {
        let groups = self.n_groups(columns);
        let scales = match self.scale {
            Scale::F16 | Scale::Bf16 => 2 * groups,
            Scale::F32 => 4 * groups,
            Scale::Steps => groups + 2 * columns.div_ceil(UNIT_COLUMNS),
        };
        let offsets = match self.offset {
            Offset::None => 0,
            Offset::Zero => groups,
            Offset::Minimum => scales,
        };
        ((columns * self.code.bits()).div_ceil(8) + scales + offsets) as u64
    }
}

/// A row of a coded matrix.
#[derive(Clone, Copy, Debug)]
pub struct CodedRow<'a> {
    /// One code for each column.
    pub codes: &'a [u8],
    /// The scale of each group.
    pub scales: Scales<'a>,
    /// What is added to the scaled codes of each group.
    pub offsets: Offsets<'a>,
}

/// The scales, or the minimums, of a row.
#[derive(Clone, Copy, Debug)]
pub struct Scales<'a> {
    /// One for each group; if there are steps, one for each [`UNIT_COLUMNS`] columns.
    pub units: &'a [f32],
    /// Multiples of the unit, one for each group; empty unless the form stores steps.
    pub steps: &'a [i8],
}

impl Scales<'_> {
    /// The scale of a group of `width` columns.
    pub fn of(&self, group: usize, width: usize) -> f32 {
        match self.steps {
            [] => self.units[group],
            steps => self.units[group * width / UNIT_COLUMNS] * f32::from(steps[group]),
        }
    }
}

/// What is added to the scaled codes of a row.
#[derive(Clone, Copy, Debug)]
pub enum Offsets<'a> {
    /// Nothing.
    None,
    /// The zero of each group.
    Zeros(&'a [i8]),
    /// The minimum of each group.
    Minimums(Scales<'a>),
}

impl CodedRow<'_> {
    /// The weights of the row, as exactly as f32 can hold them. `values` are those of the form's
    /// code.
    pub fn widen(&self, group: usize, values: &[f32], to: &mut [f32]) {
        let groups = to.chunks_mut(group).zip(self.codes.chunks(group));
        for (g, (to, codes)) in groups.enumerate() {
            let scale = self.scales.of(g, group);
            let codes = codes.iter().map(|code| values[usize::from(*code)]);
            let pairs = to.iter_mut().zip(codes);
            match self.offsets {
                Offsets::None => pairs.for_each(|(to, v)| *to = scale * v),
                Offsets::Zeros(zeros) => {
                    let zero = f32::from(zeros[g]);
                    pairs.for_each(|(to, v)| *to = scale * (v - zero));
                }
                Offsets::Minimums(minimums) => {
                    let minimum = minimums.of(g, group);
                    pairs.for_each(|(to, v)| *to = scale * v + minimum);
                }
            }
        }
    }
}
