//! The number formats of GGUF tensors: the size of their blocks, and the form that each one is.

use crate::weights::{Code, Coded, Form, Offset, Scale, Table};

/// What a refusal of a format recommends.
pub(super) const INSTEAD: &str = "weft reads F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K, IQ4_NL, IQ4_XS and \
     MXFP4, so take another file of this model, such as Q4_K_M or Q8_0";

/// The levels of IQ4_NL and IQ4_XS.
const IQ4: Table = Table::new([
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
    89.0, 113.0,
]);

/// 4-bit floats with 2 bits of exponent and 1 of mantissa. Code 8 is read as +0, as ggml does.
const FP4: Table = Table::new([
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
]);

/// A number format that weft reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
    Mxfp4,
}

impl Kind {
    /// The format with this number in files; otherwise its name, for a refusal.
    pub(super) fn of(id: u32) -> Result<Self, String> {
        let name = match id {
            0 => return Ok(Self::F32),
            1 => return Ok(Self::F16),
            2 => return Ok(Self::Q4_0),
            3 => return Ok(Self::Q4_1),
            6 => return Ok(Self::Q5_0),
            7 => return Ok(Self::Q5_1),
            8 => return Ok(Self::Q8_0),
            10 => return Ok(Self::Q2K),
            11 => return Ok(Self::Q3K),
            12 => return Ok(Self::Q4K),
            13 => return Ok(Self::Q5K),
            14 => return Ok(Self::Q6K),
            20 => return Ok(Self::Iq4Nl),
            23 => return Ok(Self::Iq4Xs),
            30 => return Ok(Self::Bf16),
            39 => return Ok(Self::Mxfp4),
            4 => "Q4_2",
            5 => "Q4_3",
            9 => "Q8_1",
            15 => "Q8_K",
            16 => "IQ2_XXS",
            17 => "IQ2_XS",
            18 => "IQ3_XXS",
            19 => "IQ1_S",
            21 => "IQ3_S",
            22 => "IQ2_S",
            24 => "I8",
            25 => "I16",
            26 => "I32",
            27 => "I64",
            28 => "F64",
            29 => "IQ1_M",
            31..=33 => "a repacked Q4_0",
            34 => "TQ1_0",
            35 => "TQ2_0",
            36..=38 => "a repacked IQ4_NL",
            40 => "NVFP4",
            41 => "Q1_0",
            42 => "Q2_0",
            _ => return Err(format!("the unknown type {id}")),
        };
        Err(name.to_owned())
    }

    /// The number of the format in files.
    pub(super) fn id(self) -> u32 {
        (0..).find(|id| Self::of(*id) == Ok(self)).expect("every format has a number")
    }

    /// Bytes of a row of whole blocks.
    pub(super) fn row_bytes(self, columns: usize) -> usize {
        columns / self.block() * self.block_bytes()
    }

    /// Elements of a block.
    pub(super) fn block(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K | Self::Iq4Xs => 256,
            _ => 32,
        }
    }

    /// Bytes of a block.
    pub(super) fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 | Self::Iq4Nl => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::Iq4Xs => 136,
            Self::Mxfp4 => 17,
        }
    }

    /// The form of a matrix that is stored like this.
    pub(super) fn form(self) -> Form {
        use Offset::{Minimum, None};
        let int = |bits| Code::Int { bits };
        let uint = |bits| Code::Uint { bits };
        let (code, group, scale, offset) = match self {
            Self::F32 | Self::F16 | Self::Bf16 => return Form::Plain,
            Self::Q8_0 => (int(8), 32, Scale::F16, None),
            Self::Q4_0 => (int(4), 32, Scale::F16, None),
            Self::Q5_0 => (int(5), 32, Scale::F16, None),
            Self::Q4_1 => (uint(4), 32, Scale::F16, Minimum),
            Self::Q5_1 => (uint(5), 32, Scale::F16, Minimum),
            Self::Q2K => (uint(4), 16, Scale::Steps, Minimum),
            Self::Q3K => (int(4), 16, Scale::Steps, None),
            Self::Q4K => (uint(4), 32, Scale::Steps, Minimum),
            Self::Q5K => (uint(5), 32, Scale::Steps, Minimum),
            Self::Q6K => (int(6), 16, Scale::Steps, None),
            Self::Iq4Nl => (Code::Table(IQ4), 32, Scale::F16, None),
            Self::Iq4Xs => (Code::Table(IQ4), 32, Scale::Steps, None),
            Self::Mxfp4 => (Code::Table(FP4), 32, Scale::Bf16, None),
        };
        Form::Coded(Coded { code, group, scale, offset })
    }
}
