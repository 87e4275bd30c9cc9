//! Unpacks the blocks of a row into codes, scales and minimums.
//!
//! The layouts are those of ggml-common.h. Every loop runs over a whole block without branches, so
//! that the compiler can use vector instructions.

use half::f16;

use super::kind::Kind;
use crate::weights::{Coded, CodedRow, Offset, Offsets, Scale, Scales, UNIT_COLUMNS};

/// An MXFP4 scale with this exponent or more overflows when it is multiplied by 6.
const MXFP4_OVERFLOW: u8 = 253;

/// A row, unpacked: the memory behind a [`CodedRow`].
pub(super) struct Unpacked {
    kind: Kind,
    codes: Vec<u8>,
    units: Vec<f32>,
    steps: Vec<i8>,
    minimum_units: Vec<f32>,
    minimum_steps: Vec<i8>,
}

impl Unpacked {
    /// Memory for rows of this many columns.
    pub(super) fn new(kind: Kind, coded: &Coded, columns: usize) -> Self {
        let groups = coded.n_groups(columns);
        let (units, steps) = match coded.scale {
            Scale::Steps => (columns / UNIT_COLUMNS, groups),
            _ => (groups, 0),
        };
        let minimums = usize::from(coded.offset == Offset::Minimum);
        Self {
            kind,
            codes: vec![0; columns],
            units: vec![0.0; units],
            steps: vec![0; steps],
            minimum_units: vec![0.0; units * minimums],
            minimum_steps: vec![0; steps * minimums],
        }
    }

    /// The row as devices take it.
    pub(super) fn row(&self) -> CodedRow<'_> {
        let minimums = Scales { units: &self.minimum_units, steps: &self.minimum_steps };
        CodedRow {
            codes: &self.codes,
            scales: Scales { units: &self.units, steps: &self.steps },
            offsets: match minimums.units {
                [] => Offsets::None,
                _ => Offsets::Minimums(minimums),
            },
        }
    }

    /// Unpacks the bytes of a row. Returns a scale that is not finite, if there is one.
    pub(super) fn unpack(&mut self, bytes: &[u8]) -> Result<(), f32> {
        match self.kind {
            Kind::F32 | Kind::F16 | Kind::Bf16 => unreachable!("plain rows have no blocks"),
            Kind::Q8_0 => self.q8_0(bytes),
            Kind::Q4_0 | Kind::Iq4Nl => self.q4_0(bytes),
            Kind::Q4_1 => self.q4_1(bytes),
            Kind::Q5_0 => self.q5_0(bytes),
            Kind::Q5_1 => self.q5_1(bytes),
            Kind::Q2K => self.q2_k(bytes),
            Kind::Q3K => self.q3_k(bytes),
            Kind::Q4K => self.q4_k(bytes),
            Kind::Q5K => self.q5_k(bytes),
            Kind::Q6K => self.q6_k(bytes),
            Kind::Iq4Xs => self.iq4_xs(bytes),
            Kind::Mxfp4 => self.mxfp4(bytes),
        }
        let mut units = self.units.iter().chain(&self.minimum_units);
        units.find(|unit| !unit.is_finite()).map_or(Ok(()), |unit| Err(*unit))
    }

    fn q8_0(&mut self, bytes: &[u8]) {
        let (codes, _) = self.codes.as_chunks_mut::<32>();
        let (blocks, _) = bytes.as_chunks::<34>();
        for ((block, codes), unit) in blocks.iter().zip(codes).zip(&mut self.units) {
            *unit = f16_at(block, 0);
            for (code, q) in codes.iter_mut().zip(&block[2..]) {
                // From two's complement to a code that counts from -128.
                *code = q ^ 0x80;
            }
        }
    }

    fn q4_0(&mut self, bytes: &[u8]) {
        let (codes, _) = self.codes.as_chunks_mut::<32>();
        let (blocks, _) = bytes.as_chunks::<18>();
        for ((block, codes), unit) in blocks.iter().zip(codes).zip(&mut self.units) {
            *unit = f16_at(block, 0);
            nibbles(&block[2..], codes);
        }
    }

    fn q4_1(&mut self, bytes: &[u8]) {
        let (codes, _) = self.codes.as_chunks_mut::<32>();
        let (blocks, _) = bytes.as_chunks::<20>();
        let pairs = self.units.iter_mut().zip(&mut self.minimum_units);
        for ((block, codes), (unit, minimum)) in blocks.iter().zip(codes).zip(pairs) {
            (*unit, *minimum) = (f16_at(block, 0), f16_at(block, 2));
            nibbles(&block[4..], codes);
        }
    }

    fn q5_0(&mut self, bytes: &[u8]) {
        let (codes, _) = self.codes.as_chunks_mut::<32>();
        let (blocks, _) = bytes.as_chunks::<22>();
        for ((block, codes), unit) in blocks.iter().zip(codes).zip(&mut self.units) {
            *unit = f16_at(block, 0);
            nibbles(&block[6..], codes);
            fifth_bits(&block[2..6], codes);
        }
    }

    fn q5_1(&mut self, bytes: &[u8]) {
        let (codes, _) = self.codes.as_chunks_mut::<32>();
        let (blocks, _) = bytes.as_chunks::<24>();
        let pairs = self.units.iter_mut().zip(&mut self.minimum_units);
        for ((block, codes), (unit, minimum)) in blocks.iter().zip(codes).zip(pairs) {
            (*unit, *minimum) = (f16_at(block, 0), f16_at(block, 2));
            nibbles(&block[8..], codes);
            fifth_bits(&block[4..8], codes);
        }
    }

    fn mxfp4(&mut self, bytes: &[u8]) {
        let (codes, _) = self.codes.as_chunks_mut::<32>();
        let (blocks, _) = bytes.as_chunks::<17>();
        for ((block, codes), unit) in blocks.iter().zip(codes).zip(&mut self.units) {
            *unit = match block[0] {
                u8::MAX => f32::NAN,
                MXFP4_OVERFLOW.. => f32::INFINITY,
                // 2^-127 is below the smallest normal number.
                0 => f32::from_bits(1 << 22),
                exponent => f32::from_bits(u32::from(exponent) << 23),
            };
            nibbles(&block[1..], codes);
        }
    }

    /// 16 bytes of scale and minimum, 64 of codes, d, dmin.
    fn q2_k(&mut self, bytes: &[u8]) {
        let (codes, _) = self.codes.as_chunks_mut::<256>();
        let (steps, _) = self.steps.as_chunks_mut::<16>();
        let (minimum_steps, _) = self.minimum_steps.as_chunks_mut::<16>();
        let (blocks, _) = bytes.as_chunks::<84>();
        for (i, block) in blocks.iter().enumerate() {
            self.units[i] = f16_at(block, 80);
            self.minimum_units[i] = -f16_at(block, 82);
            for (g, packed) in block[..16].iter().enumerate() {
                steps[i][g] = (packed & 15) as i8;
                minimum_steps[i][g] = (packed >> 4) as i8;
            }
            pairs_of_bits(&block[16..80], &mut codes[i]);
        }
    }

    /// 32 bytes of high bits, 64 of low pairs, 12 of scales, d.
    fn q3_k(&mut self, bytes: &[u8]) {
        let (codes, _) = self.codes.as_chunks_mut::<256>();
        let (steps, _) = self.steps.as_chunks_mut::<16>();
        let (blocks, _) = bytes.as_chunks::<110>();
        for (i, block) in blocks.iter().enumerate() {
            self.units[i] = f16_at(block, 108);
            let packed = &block[96..108];
            for (g, step) in steps[i].iter_mut().enumerate() {
                let low = packed[g % 8] >> (4 * (g / 8)) & 15;
                let high = packed[8 + g % 4] >> (2 * (g / 4)) & 3;
                *step = (low | high << 4) as i8 - 32;
            }
            pairs_of_bits(&block[32..96], &mut codes[i]);
            let (runs, _) = codes[i].as_chunks_mut::<32>();
            for (run, codes) in runs.iter_mut().enumerate() {
                for (code, high) in codes.iter_mut().zip(&block[..32]) {
                    // From -4 to 3, as a code that counts from -8.
                    *code += 4 + (high >> run & 1) * 4;
                }
            }
        }
    }

    /// d, dmin, 12 bytes of scales and minimums, 128 of codes.
    fn q4_k(&mut self, bytes: &[u8]) {
        let (codes, _) = self.codes.as_chunks_mut::<256>();
        let (steps, _) = self.steps.as_chunks_mut::<8>();
        let (minimum_steps, _) = self.minimum_steps.as_chunks_mut::<8>();
        let (blocks, _) = bytes.as_chunks::<144>();
        for (i, block) in blocks.iter().enumerate() {
            self.units[i] = f16_at(block, 0);
            self.minimum_units[i] = -f16_at(block, 2);
            six_bits(&block[4..16], &mut steps[i], &mut minimum_steps[i]);
            nibbles_of_64(&block[16..], &mut codes[i]);
        }
    }

    /// As Q4_K, with 32 bytes of fifth bits before the codes.
    fn q5_k(&mut self, bytes: &[u8]) {
        let (codes, _) = self.codes.as_chunks_mut::<256>();
        let (steps, _) = self.steps.as_chunks_mut::<8>();
        let (minimum_steps, _) = self.minimum_steps.as_chunks_mut::<8>();
        let (blocks, _) = bytes.as_chunks::<176>();
        for (i, block) in blocks.iter().enumerate() {
            self.units[i] = f16_at(block, 0);
            self.minimum_units[i] = -f16_at(block, 2);
            six_bits(&block[4..16], &mut steps[i], &mut minimum_steps[i]);
            nibbles_of_64(&block[48..], &mut codes[i]);
            let (runs, _) = codes[i].as_chunks_mut::<32>();
            for (run, codes) in runs.iter_mut().enumerate() {
                for (code, high) in codes.iter_mut().zip(&block[16..48]) {
                    *code |= (high >> run & 1) << 4;
                }
            }
        }
    }

    /// 128 bytes of low nibbles, 64 of high pairs, 16 signed scales, d.
    fn q6_k(&mut self, bytes: &[u8]) {
        let (codes, _) = self.codes.as_chunks_mut::<256>();
        let (steps, _) = self.steps.as_chunks_mut::<16>();
        let (blocks, _) = bytes.as_chunks::<210>();
        for (i, block) in blocks.iter().enumerate() {
            self.units[i] = f16_at(block, 208);
            for (step, byte) in steps[i].iter_mut().zip(&block[192..208]) {
                *step = byte.cast_signed();
            }
            for (half, codes) in codes[i].as_chunks_mut::<128>().0.iter_mut().enumerate() {
                let low = &block[64 * half..][..64];
                let high = &block[128 + 32 * half..][..32];
                for l in 0..32 {
                    codes[l] = low[l] & 15 | (high[l] & 3) << 4;
                    codes[l + 32] = low[l + 32] & 15 | (high[l] >> 2 & 3) << 4;
                    codes[l + 64] = low[l] >> 4 | (high[l] >> 4 & 3) << 4;
                    codes[l + 96] = low[l + 32] >> 4 | (high[l] >> 6) << 4;
                }
            }
        }
    }

    /// d, 2 bytes of high and 4 of low scale bits, 128 of codes.
    fn iq4_xs(&mut self, bytes: &[u8]) {
        let (codes, _) = self.codes.as_chunks_mut::<256>();
        let (steps, _) = self.steps.as_chunks_mut::<8>();
        let (blocks, _) = bytes.as_chunks::<136>();
        for (i, block) in blocks.iter().enumerate() {
            self.units[i] = f16_at(block, 0);
            let high = u16::from_le_bytes([block[2], block[3]]);
            for (g, step) in steps[i].iter_mut().enumerate() {
                let low = block[4 + g / 2] >> (4 * (g % 2)) & 15;
                *step = (low | ((high >> (2 * g)) as u8 & 3) << 4) as i8 - 32;
            }
            let (runs, _) = codes[i].as_chunks_mut::<32>();
            for (codes, packed) in runs.iter_mut().zip(block[8..].as_chunks::<16>().0) {
                nibbles(packed, codes);
            }
        }
    }
}

fn f16_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// 16 bytes: the low nibbles are the first 16 codes, the high nibbles the others.
fn nibbles(packed: &[u8], codes: &mut [u8; 32]) {
    // A length that the compiler knows.
    let packed = &packed.as_chunks::<16>().0[0];
    let (low, high) = codes.split_at_mut(16);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(packed) {
        (*low, *high) = (byte & 15, byte >> 4);
    }
}

/// 4 runs of 32 bytes: the low nibbles of a run are 32 codes, the high nibbles the next 32.
fn nibbles_of_64(packed: &[u8], codes: &mut [u8; 256]) {
    let (packed, _) = packed.as_chunks::<32>();
    for (codes, packed) in codes.as_chunks_mut::<64>().0.iter_mut().zip(packed) {
        let (low, high) = codes.split_at_mut(32);
        for ((low, high), byte) in low.iter_mut().zip(high).zip(packed) {
            (*low, *high) = (byte & 15, byte >> 4);
        }
    }
}

/// 2 runs of 32 bytes: each pair of bits, from the lowest, is a run of 32 codes.
fn pairs_of_bits(packed: &[u8], codes: &mut [u8; 256]) {
    let (packed, _) = packed.as_chunks::<32>();
    for (codes, packed) in codes.as_chunks_mut::<128>().0.iter_mut().zip(packed) {
        for (shift, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (code, byte) in codes.iter_mut().zip(packed) {
                *code = byte >> (2 * shift) & 3;
            }
        }
    }
}

/// Adds the fifth bit of each code: bit j of 4 bytes belongs to code j.
fn fifth_bits(packed: &[u8], codes: &mut [u8; 32]) {
    for (codes, byte) in codes.as_chunks_mut::<8>().0.iter_mut().zip(packed) {
        for (j, code) in codes.iter_mut().enumerate() {
            *code |= (byte >> j & 1) << 4;
        }
    }
}

/// The 6-bit scales and minimums of Q4_K and Q5_K.
fn six_bits(packed: &[u8], scales: &mut [i8; 8], minimums: &mut [i8; 8]) {
    for j in 0..4 {
        let (scale, minimum, rest) = (packed[j], packed[j + 4], packed[j + 8]);
        scales[j] = (scale & 63) as i8;
        minimums[j] = (minimum & 63) as i8;
        scales[j + 4] = (rest & 15 | scale >> 6 << 4) as i8;
        minimums[j + 4] = (rest >> 4 | minimum >> 6 << 4) as i8;
    }
}
