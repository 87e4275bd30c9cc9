//! The layouts of AWQ and GPTQ, which store a matrix transposed.

use safetensors::Dtype;

use super::schemes::{FoundScales, Module, PLAIN, scale_of};
use super::{Factor, Layout, Packed, Part, ScaleParts, Spread, Zeros};
use crate::config::GptqSettings;
use crate::weights::{Code, WeightsError};

impl Module<'_> {
    /// Scales of AWQ and GPTQ, \[groups, rows\].
    fn take_scales_of_columns(
        &mut self,
        group: Option<usize>,
    ) -> Result<FoundScales, WeightsError> {
        let group = group.unwrap_or(self.columns.next_multiple_of(32));
        let shape = [self.columns.div_ceil(group), self.rows];
        let part = self.take("scales", PLAIN, &[&shape])?;
        let scale = scale_of(part.dtype);
        let parts = ScaleParts { part, spread: Spread::Columns, factor: Factor::One };
        Ok(FoundScales { parts, group, scale })
    }

    pub(super) fn awq(mut self, group: Option<usize>) -> Result<Packed, WeightsError> {
        self.check_divides("qweight", self.rows, 8)?;
        let words = self.rows / 8;
        let codes = self.take("qweight", &[Dtype::I32], &[&[self.columns, words]])?;
        let scales = self.take_scales_of_columns(group)?;
        let groups = scales.parts.part.rows;
        let zeros = self.take("qzeros", &[Dtype::I32], &[&[groups, words]])?;
        let code = Code::Uint { bits: 4 };
        Ok(self.packed(code, (codes, Layout::Awq), scales, Zeros::Awq(zeros)))
    }

    pub(super) fn gptq(mut self, settings: GptqSettings) -> Result<Packed, WeightsError> {
        let GptqSettings { bits, group, is_v1 } = settings;
        let per_word = 32 / usize::from(bits);
        self.check_divides("qweight", self.columns, per_word)?;
        self.check_divides("qzeros", self.rows, per_word)?;
        let shape = [self.columns / per_word, self.rows];
        let codes = self.take("qweight", &[Dtype::I32], &[&shape])?;
        let scales = self.take_scales_of_columns(group)?;
        let groups = scales.parts.part.rows;
        let part = self.take("qzeros", &[Dtype::I32], &[&[groups, self.rows / per_word]])?;
        // Zeros in the middle are those of signed codes.
        let middle = match bits {
            8 => 0x80 - u8::from(is_v1),
            _ => 0x88 - 0x11 * u8::from(is_v1),
        };
        let is_signed = self.holds_only(&part, middle)?;
        let (zeros, code) = match (is_signed, bits) {
            (true, _) => (Zeros::None, Code::Int { bits }),
            (false, 8) => (Zeros::Gptq { part, is_v1 }, Code::Int { bits }),
            (false, _) => (Zeros::Gptq { part, is_v1 }, Code::Uint { bits }),
        };
        let width = scales.group;
        let mut packed = self.packed(code, (codes, Layout::Gptq), scales, zeros);
        if self.has("g_idx") {
            packed.order = self.take_order("g_idx", width, groups)?;
        }
        Ok(packed)
    }

    fn holds_only(&self, part: &Part, wanted: u8) -> Result<bool, WeightsError> {
        let mut bytes = Vec::new();
        for row in 0..part.rows {
            part.read(self.files, row..row + 1, 0..part.columns, &mut bytes)?;
            if bytes.iter().any(|byte| *byte != wanted) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
