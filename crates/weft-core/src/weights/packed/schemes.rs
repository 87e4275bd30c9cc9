//! Finds the tensors of a packed matrix, and checks their shapes and formats.
//!
//! The formats with one layout are here; the others have a file each. A tensor that is taken leaves
//! [`Found`], so what stays there belongs to no matrix.

use std::collections::HashMap;

use safetensors::Dtype;

use super::{Factor, Layout, Packed, Part, Patterns, ScaleParts, Spread, Zeros, widen};
use crate::config::{Packing, Shared};
use crate::weights::files::Files;
use crate::weights::{Code, Coded, Offset, Scale, Table, WeightsError};

/// The number formats of plain tensors.
pub(super) const PLAIN: &[Dtype] = &[Dtype::F32, Dtype::F16, Dtype::BF16];

/// Powers of two.
pub(super) const EXPONENTS: &[Dtype] = &[Dtype::U8, Dtype::F8_E8M0];

/// The 4-bit floats of NVFP4 and MXFP4.
pub(super) const FP4: Table = Table::new([
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
]);

/// Longest bias that is compared with zero.
const MAX_BIAS: usize = 1 << 18;

/// The tensors of all files that are not taken yet.
pub(in crate::weights) struct Found(pub(in crate::weights) HashMap<String, Stored>);

/// A tensor as its header says.
pub(in crate::weights) struct Stored {
    pub(in crate::weights) part: Part,
    pub(in crate::weights) shape: Vec<usize>,
}

/// A matrix that is packed. None if the model's files hold it as plain numbers.
pub(in crate::weights) fn pack(
    patterns: &Patterns,
    found: &mut Found,
    files: &Files,
    name: &str,
    [rows, columns]: [usize; 2],
) -> Result<Option<Packed>, WeightsError> {
    if let Some(stored) = found.0.get(name)
        && PLAIN.contains(&stored.part.dtype)
        && stored.shape == [rows, columns]
    {
        return Ok(None);
    }
    let module = name.strip_suffix(".weight").unwrap_or(name);
    let m = Module { name: module, rows, columns, found, files };
    match &patterns.packing {
        Packing::None => Ok(None),
        Packing::Fp8 { block: Some(block) } => {
            m.fp8("weight_scale_inv", &with(EXPONENTS), Shared::Block(*block)).map(Some)
        }
        Packing::Fp8 { block: None } | Packing::ModelOptFp8 => {
            m.fp8("weight_scale", PLAIN, Shared::Matrix).map(Some)
        }
        Packing::Compressed { .. } => match patterns.group(module)? {
            Some(group) => m.compressed(group).map(Some),
            None => Ok(None),
        },
        Packing::Awq { group } => m.awq(*group).map(Some),
        Packing::Gptq { .. } => match patterns.gptq(module)? {
            Some(settings) => m.gptq(settings).map(Some),
            None => Ok(None),
        },
        Packing::BitsAndBytes => m.bits_and_bytes().map(Some),
        Packing::ModelOptNvfp4 => m.nvfp4("weight", "weight_scale_2", Factor::Times).map(Some),
    }
}

/// Numbers, and these.
fn with(more: &[Dtype]) -> Vec<Dtype> {
    [PLAIN, more].concat()
}

/// One matrix.
pub(super) struct Module<'a> {
    /// Its name without `.weight`.
    name: &'a str,
    pub(super) rows: usize,
    pub(super) columns: usize,
    found: &'a mut Found,
    pub(super) files: &'a Files,
}

/// The scales of a matrix, and their part of its form.
pub(super) struct FoundScales {
    pub(super) parts: ScaleParts,
    pub(super) group: usize,
    pub(super) scale: Scale,
}

impl Module<'_> {
    pub(super) fn name_of(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.name)
    }

    pub(super) fn has(&self, suffix: &str) -> bool {
        self.found.0.contains_key(&self.name_of(suffix))
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<Stored> {
        self.found.0.remove(name)
    }

    pub(super) fn unusable(&self, suffix: &str, reason: String) -> WeightsError {
        WeightsError::Packed { name: self.name_of(suffix), reason }
    }

    /// Takes a tensor of one of these formats and shapes.
    pub(super) fn take(
        &mut self,
        suffix: &str,
        dtypes: &[Dtype],
        shapes: &[&[usize]],
    ) -> Result<Part, WeightsError> {
        let name = self.name_of(suffix);
        let Some(stored) = self.found.0.remove(&name) else {
            return Err(WeightsError::Missing { name });
        };
        if !dtypes.contains(&stored.part.dtype) {
            let found = stored.part.dtype;
            let reason = format!("it is stored as {found:?}; this format has {dtypes:?} there");
            return Err(WeightsError::Packed { name, reason });
        }
        if !shapes.contains(&stored.shape.as_slice()) {
            let (found, expected) = (stored.shape, shapes[0].to_vec());
            return Err(WeightsError::Shape { name, found, expected });
        }
        Ok(stored.part)
    }

    /// Takes a number.
    pub(super) fn take_number(&mut self, suffix: &str) -> Result<f32, WeightsError> {
        let part = self.take(suffix, PLAIN, &[&[], &[1], &[1, 1]])?;
        let mut number = [0.0];
        widen(part.dtype, &part.read_all(self.files)?, &mut number);
        match number[0] {
            number if number.is_finite() && number != 0.0 => Ok(number),
            value => Err(WeightsError::NotFinite { name: self.name_of(suffix), row: 0, value }),
        }
    }

    /// Takes numbers in f32.
    pub(super) fn take_table(
        &mut self,
        suffix: &str,
        len: usize,
    ) -> Result<Vec<f32>, WeightsError> {
        let part = self.take(suffix, &[Dtype::F32], &[&[len]])?;
        let mut table = vec![0.0; len];
        widen(part.dtype, &part.read_all(self.files)?, &mut table);
        match table.iter().find(|value| !value.is_finite()) {
            Some(value) => {
                let name = self.name_of(suffix);
                Err(WeightsError::NotFinite { name, row: 0, value: *value })
            }
            None => Ok(table),
        }
    }

    pub(super) fn take_scales(
        &mut self,
        suffix: &str,
        dtypes: &[Dtype],
        shared: Shared,
    ) -> Result<FoundScales, WeightsError> {
        let (rows, columns) = (self.rows, self.columns);
        let row = columns.next_multiple_of(32);
        let (mut part, spread, group) = match shared {
            Shared::Matrix => {
                (self.take(suffix, dtypes, &[&[1], &[], &[1, 1]])?, Spread::Matrix, row)
            }
            Shared::Row => (self.take(suffix, dtypes, &[&[rows, 1], &[rows]])?, Spread::Rows, row),
            Shared::Columns(group) => {
                let shape = [rows, columns.div_ceil(group)];
                (self.take(suffix, dtypes, &[&shape])?, Spread::Rows, group)
            }
            Shared::Block([height, group]) => {
                let shape = [rows.div_ceil(height), columns.div_ceil(group)];
                (self.take(suffix, dtypes, &[&shape])?, Spread::Blocks(height), group)
            }
        };
        if shared == Shared::Row {
            (part.rows, part.columns) = (rows, 1);
        }
        let scale = scale_of(part.dtype);
        Ok(FoundScales { parts: ScaleParts { part, spread, factor: Factor::One }, group, scale })
    }

    pub(super) fn packed(
        &self,
        code: Code,
        (codes, layout): (Part, Layout),
        FoundScales { parts, group, scale }: FoundScales,
        zeros: Zeros,
    ) -> Packed {
        let offset = match zeros {
            Zeros::None => Offset::None,
            _ => Offset::Zero,
        };
        Packed {
            name: self.name_of("weight"),
            rows: self.rows,
            columns: self.columns,
            form: Coded { code, group, scale, offset },
            codes,
            layout,
            scales: parts,
            zeros,
            order: None,
        }
    }

    /// Bytes, \[rows, columns\].
    pub(super) fn take_bytes(
        &mut self,
        dtype: Dtype,
        flip: u8,
    ) -> Result<(Part, Layout), WeightsError> {
        let shape = [self.rows, self.columns];
        Ok((self.take("weight", &[dtype], &[&shape])?, Layout::Bytes { flip }))
    }

    pub(super) fn fp8(
        mut self,
        suffix: &str,
        dtypes: &[Dtype],
        shared: Shared,
    ) -> Result<Packed, WeightsError> {
        let codes = self.take_bytes(Dtype::F8_E4M3, 0)?;
        let scales = self.take_scales(suffix, dtypes, shared)?;
        Ok(self.packed(Code::Fp8, codes, scales, Zeros::None))
    }

    /// The group of each column; None if the groups are contiguous.
    pub(super) fn take_order(
        &mut self,
        suffix: &str,
        group: usize,
        groups: usize,
    ) -> Result<Option<Vec<u32>>, WeightsError> {
        let part = self.take(suffix, &[Dtype::I32], &[&[self.columns]])?;
        let bytes = part.read_all(self.files)?;
        let order: Vec<u32> =
            bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        if let Some(wrong) = order.iter().find(|g| **g as usize >= groups) {
            let wrong = wrong.cast_signed();
            let reason = format!("it names group {wrong}, and there are {groups}");
            return Err(self.unusable(suffix, reason));
        }
        let is_contiguous = order.iter().enumerate().all(|(k, g)| k / group == *g as usize);
        Ok((!is_contiguous).then_some(order))
    }

    /// Two codes in each byte, the first in the low nibble.
    pub(super) fn take_pairs(&mut self, suffix: &str) -> Result<(Part, Layout), WeightsError> {
        self.check_divides(suffix, self.columns, 2)?;
        let shape = [self.rows, self.columns / 2];
        Ok((self.take(suffix, &[Dtype::U8], &[&shape])?, Layout::LowFirst))
    }

    pub(super) fn check_divides(
        &self,
        suffix: &str,
        count: usize,
        by: usize,
    ) -> Result<(), WeightsError> {
        if count.is_multiple_of(by) {
            return Ok(());
        }
        let reason = format!("{count} codes do not fill words of {by}, as this format requires");
        Err(self.unusable(suffix, reason))
    }

    pub(super) fn nvfp4(
        mut self,
        codes: &str,
        global: &str,
        factor: fn(f32) -> Factor,
    ) -> Result<Packed, WeightsError> {
        let codes = self.take_pairs(codes)?;
        let scales = &[Dtype::F8_E4M3];
        let mut scales = self.take_scales("weight_scale", scales, Shared::Columns(16))?;
        scales.parts.factor = factor(self.take_number(global)?);
        scales.scale = Scale::F32;
        Ok(self.packed(Code::Table(FP4), codes, scales, Zeros::None))
    }
}

/// How devices store scales that a file has in this format.
pub(super) fn scale_of(dtype: Dtype) -> Scale {
    match dtype {
        Dtype::F16 => Scale::F16,
        // A bf16 holds every power of two that an f32 holds.
        Dtype::BF16 | Dtype::U8 | Dtype::F8_E8M0 => Scale::Bf16,
        _ => Scale::F32,
    }
}

/// Drops the biases that GPTQ and AWQ tools write for modules without one. They must be zero.
pub(in crate::weights) fn drop_zero_biases(
    patterns: &Patterns,
    found: &mut Found,
    files: &Files,
) -> Result<(), WeightsError> {
    if !matches!(patterns.packing, Packing::Gptq { .. } | Packing::Awq { .. }) {
        return Ok(());
    }
    let mut zero = Vec::new();
    for (name, stored) in &found.0 {
        let is_bias = name.ends_with("_proj.bias")
            && PLAIN.contains(&stored.part.dtype)
            && stored.shape.len() == 1
            && stored.part.columns <= MAX_BIAS;
        if is_bias && stored.part.read_all(files)?.iter().all(|byte| *byte == 0) {
            zero.push(name.clone());
        }
    }
    zero.iter().for_each(|name| drop(found.0.remove(name)));
    Ok(())
}

/// Scales that belong to activations or to the KV cache. weft computes both in the model's format.
pub(in crate::weights) fn is_for_activations(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    matches!(
        last,
        "input_scale"
            | "input_global_scale"
            | "input_zero_point"
            | "output_scale"
            | "k_scale"
            | "v_scale"
            | "q_scale"
    )
}
