//! The layouts of compressed-tensors.

use safetensors::Dtype;

use super::schemes::{EXPONENTS, FP4, FoundScales, Module, PLAIN};
use super::{Factor, Layout, Packed, Spread, Zeros};
use crate::config::{CompressedLayout, ModuleGroup};
use crate::weights::{Code, WeightsError};

/// The tensors of a matrix in words: the codes, their scales, and the shape.
pub(super) const PACKED: &str = "weight_packed";
pub(super) const SCALE: &str = "weight_scale";
pub(super) const SHAPE: &str = "weight_shape";

impl Module<'_> {
    pub(super) fn compressed(mut self, group: &ModuleGroup) -> Result<Packed, WeightsError> {
        match group.layout {
            CompressedLayout::Fp8 => self.fp8(SCALE, PLAIN, group.shared),
            CompressedLayout::Mxfp8 => self.fp8(SCALE, EXPONENTS, group.shared),
            CompressedLayout::Mxfp4 => {
                let codes = self.take_pairs(PACKED)?;
                let scales = self.take_scales(SCALE, EXPONENTS, group.shared)?;
                Ok(self.packed(Code::Table(FP4), codes, scales, Zeros::None))
            }
            CompressedLayout::Nvfp4 => self.nvfp4(PACKED, "weight_global_scale", Factor::Over),
            CompressedLayout::Int8 => {
                let codes = self.take_bytes(Dtype::I8, 0x80)?;
                let scales = self.take_scales(SCALE, PLAIN, group.shared)?;
                let zeros = self.take_zeros(group, &scales, 8)?;
                Ok(self.packed(Code::Int { bits: 8 }, codes, scales, zeros))
            }
            CompressedLayout::Words { bits } => self.words(group, bits),
        }
    }

    /// compressed-tensors' integers in words.
    fn words(mut self, group: &ModuleGroup, bits: u8) -> Result<Packed, WeightsError> {
        let words = (self.columns * usize::from(bits)).div_ceil(32);
        let mut codes = self.take(PACKED, &[Dtype::I32], &[&[self.rows, words]])?;
        // In little-endian words, the first code is in the lowest bits of the first byte.
        (codes.dtype, codes.columns) = (Dtype::U8, 4 * words);
        let layout = match bits {
            8 => Layout::Bytes { flip: 0 },
            _ => Layout::LowFirst,
        };
        self.check_shape()?;
        let scales = self.take_scales(SCALE, PLAIN, group.shared)?;
        let zeros = self.take_zeros(group, &scales, bits)?;
        let code = match (&zeros, bits) {
            // Zeros in words count from 0, as the codes beside them do.
            (Zeros::Rows(_), 4) => Code::Uint { bits },
            _ => Code::Int { bits },
        };
        let group = scales.group;
        let mut packed = self.packed(code, (codes, layout), scales, zeros);
        if self.has("weight_g_idx") {
            packed.order = self.take_order("weight_g_idx", group, packed.groups())?;
        }
        Ok(packed)
    }

    /// The shape that is stored beside words must be that of the config.
    fn check_shape(&mut self) -> Result<(), WeightsError> {
        let part = self.take(SHAPE, &[Dtype::I64, Dtype::I32], &[&[2]])?;
        let bytes = part.read_all(self.files)?;
        let found: Vec<usize> = bytes
            .chunks_exact(part.dtype.bitsize() / 8)
            .map(|word| {
                let mut whole = [0; 8];
                whole[..word.len()].copy_from_slice(word);
                u64::from_le_bytes(whole) as usize
            })
            .collect();
        let expected = vec![self.rows, self.columns];
        match found == expected {
            true => Ok(()),
            false => Err(WeightsError::Shape { name: self.name_of(SHAPE), found, expected }),
        }
    }

    fn take_zeros(
        &mut self,
        group: &ModuleGroup,
        scales: &FoundScales,
        bits: u8,
    ) -> Result<Zeros, WeightsError> {
        if !group.has_zeros {
            return Ok(Zeros::None);
        }
        let groups = match scales.parts.spread {
            Spread::Rows => scales.parts.part.columns,
            _ => {
                let reason = "zero points for a whole matrix or for blocks are not supported; \
                              take a file with one for each row or group"
                    .to_owned();
                return Err(self.unusable("weight_zero_point", reason));
            }
        };
        let words = [(self.rows * usize::from(bits)).div_ceil(32), groups];
        let bytes = [self.rows, groups];
        let dtypes = [Dtype::I32, Dtype::I8];
        let part = self.take("weight_zero_point", &dtypes, &[&words, &bytes])?;
        match (part.dtype, part.rows) {
            (Dtype::I32, rows) if rows == words[0] => Ok(Zeros::Rows(part)),
            (Dtype::I8, rows) if rows == self.rows => Ok(Zeros::Bytes(part)),
            (found, _) => {
                let reason = format!("zero points of this shape are not stored as {found:?}");
                Err(self.unusable("weight_zero_point", reason))
            }
        }
    }
}
