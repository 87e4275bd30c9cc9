//! Finds the tensors of a packed matrix, and checks their shapes and formats.
//!
//! Each function knows the names of one format. A tensor that is taken leaves [`Found`], so what
//! stays there belongs to no matrix.

use std::collections::HashMap;

use safetensors::Dtype;
use serde::Deserialize;

use super::{Factor, Layout, Nested, Packed, Part, Patterns, ScaleParts, Spread, Zeros, widen};
use crate::config::{CompressedLayout, GptqSettings, ModuleGroup, Packing, Shared};
use crate::weights::files::Files;
use crate::weights::{Code, Coded, Offset, Scale, Table, TensorShape, WeightsError};

/// The number formats of plain tensors.
const PLAIN: &[Dtype] = &[Dtype::F32, Dtype::F16, Dtype::BF16];

/// Powers of two.
const EXPONENTS: &[Dtype] = &[Dtype::U8, Dtype::F8_E8M0];

/// The 4-bit floats of NVFP4 and MXFP4.
const FP4: Table = Table::new([
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
]);

/// bitsandbytes divides bytes by 127, as a product.
const ONE_OF_127: f32 = 7.874_015_7e-3;

/// Bytes of the settings that bitsandbytes stores with a matrix.
const MAX_STATE_BYTES: usize = 1 << 16;

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
    shape: &TensorShape,
) -> Result<Option<Packed>, WeightsError> {
    let name = shape.tensor.name();
    if let Some(stored) = found.0.get(&name)
        && PLAIN.contains(&stored.part.dtype)
        && stored.shape == shape.shape
    {
        return Ok(None);
    }
    let module = name.strip_suffix(".weight").unwrap_or(&name);
    let (rows, columns) = (shape.rows(), shape.row());
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
struct Module<'a> {
    /// Its name without `.weight`.
    name: &'a str,
    rows: usize,
    columns: usize,
    found: &'a mut Found,
    files: &'a Files,
}

/// The scales of a matrix, and their part of its form.
struct FoundScales {
    parts: ScaleParts,
    group: usize,
    scale: Scale,
}

impl Module<'_> {
    fn name_of(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.name)
    }

    fn has(&self, suffix: &str) -> bool {
        self.found.0.contains_key(&self.name_of(suffix))
    }

    fn unusable(&self, suffix: &str, reason: String) -> WeightsError {
        WeightsError::Packed { name: self.name_of(suffix), reason }
    }

    /// Takes a tensor of one of these formats and shapes.
    fn take(
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
    fn take_number(&mut self, suffix: &str) -> Result<f32, WeightsError> {
        let part = self.take(suffix, PLAIN, &[&[], &[1], &[1, 1]])?;
        let mut number = [0.0];
        widen(part.dtype, &part.read_all(self.files)?, &mut number);
        match number[0] {
            number if number.is_finite() && number != 0.0 => Ok(number),
            value => Err(WeightsError::NotFinite { name: self.name_of(suffix), row: 0, value }),
        }
    }

    /// Takes numbers in f32.
    fn take_table(&mut self, suffix: &str, len: usize) -> Result<Vec<f32>, WeightsError> {
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

    fn take_scales(
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

    fn packed(
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
    fn take_bytes(&mut self, dtype: Dtype, flip: u8) -> Result<(Part, Layout), WeightsError> {
        let shape = [self.rows, self.columns];
        Ok((self.take("weight", &[dtype], &[&shape])?, Layout::Bytes { flip }))
    }

    fn fp8(
        mut self,
        suffix: &str,
        dtypes: &[Dtype],
        shared: Shared,
    ) -> Result<Packed, WeightsError> {
        let codes = self.take_bytes(Dtype::F8_E4M3, 0)?;
        let scales = self.take_scales(suffix, dtypes, shared)?;
        Ok(self.packed(Code::Fp8, codes, scales, Zeros::None))
    }

    fn compressed(mut self, group: &ModuleGroup) -> Result<Packed, WeightsError> {
        match group.layout {
            CompressedLayout::Fp8 => self.fp8("weight_scale", PLAIN, group.shared),
            CompressedLayout::Mxfp8 => self.fp8("weight_scale", EXPONENTS, group.shared),
            CompressedLayout::Mxfp4 => {
                let codes = self.take_pairs("weight_packed")?;
                let scales = self.take_scales("weight_scale", EXPONENTS, group.shared)?;
                Ok(self.packed(Code::Table(FP4), codes, scales, Zeros::None))
            }
            CompressedLayout::Nvfp4 => {
                self.nvfp4("weight_packed", "weight_global_scale", Factor::Over)
            }
            CompressedLayout::Int8 => {
                let codes = self.take_bytes(Dtype::I8, 0x80)?;
                let scales = self.take_scales("weight_scale", PLAIN, group.shared)?;
                let zeros = self.take_zeros(group, &scales, 8)?;
                Ok(self.packed(Code::Int { bits: 8 }, codes, scales, zeros))
            }
            CompressedLayout::Words { bits } => self.words(group, bits),
        }
    }

    /// compressed-tensors' integers in words.
    fn words(mut self, group: &ModuleGroup, bits: u8) -> Result<Packed, WeightsError> {
        let words = (self.columns * usize::from(bits)).div_ceil(32);
        let mut codes = self.take("weight_packed", &[Dtype::I32], &[&[self.rows, words]])?;
        // In little-endian words, the first code is in the lowest bits of the first byte.
        (codes.dtype, codes.columns) = (Dtype::U8, 4 * words);
        let layout = match bits {
            8 => Layout::Bytes { flip: 0 },
            _ => Layout::LowFirst,
        };
        self.check_shape()?;
        let scales = self.take_scales("weight_scale", PLAIN, group.shared)?;
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
        let part = self.take("weight_shape", &[Dtype::I64, Dtype::I32], &[&[2]])?;
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
            false => {
                Err(WeightsError::Shape { name: self.name_of("weight_shape"), found, expected })
            }
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

    /// The group of each column; None if the groups are contiguous.
    fn take_order(
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
    fn take_pairs(&mut self, suffix: &str) -> Result<(Part, Layout), WeightsError> {
        self.check_divides(suffix, self.columns, 2)?;
        let shape = [self.rows, self.columns / 2];
        Ok((self.take(suffix, &[Dtype::U8], &[&shape])?, Layout::LowFirst))
    }

    fn check_divides(&self, suffix: &str, count: usize, by: usize) -> Result<(), WeightsError> {
        if count.is_multiple_of(by) {
            return Ok(());
        }
        let reason = format!("{count} codes do not fill words of {by}, as this format requires");
        Err(self.unusable(suffix, reason))
    }

    fn nvfp4(
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

    fn awq(mut self, group: Option<usize>) -> Result<Packed, WeightsError> {
        self.check_divides("qweight", self.rows, 8)?;
        let words = self.rows / 8;
        let codes = self.take("qweight", &[Dtype::I32], &[&[self.columns, words]])?;
        let scales = self.take_scales_of_columns(group)?;
        let groups = scales.parts.part.rows;
        let zeros = self.take("qzeros", &[Dtype::I32], &[&[groups, words]])?;
        let code = Code::Uint { bits: 4 };
        Ok(self.packed(code, (codes, Layout::Awq), scales, Zeros::Awq(zeros)))
    }

    fn gptq(mut self, settings: GptqSettings) -> Result<Packed, WeightsError> {
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

    fn bits_and_bytes(mut self) -> Result<Packed, WeightsError> {
        if self.has("SCB") {
            let codes = self.take_bytes(Dtype::I8, 0x80)?;
            let mut scales = self.take_scales("SCB", &[Dtype::F32], Shared::Row)?;
            scales.parts.factor = Factor::After(ONE_OF_127);
            if self.has("weight_format") {
                let part = self.take("weight_format", &[Dtype::U8], &[&[], &[1]])?;
                if part.read_all(self.files)? != [0] {
                    let reason = "its rows are not in order; save the model again by a current \
                                  bitsandbytes"
                        .to_owned();
                    return Err(self.unusable("weight_format", reason));
                }
            }
            return Ok(self.packed(Code::Int { bits: 8 }, codes, scales, Zeros::None));
        }
        let state = self.take_state()?;
        let (rows, columns) = (self.rows, self.columns);
        if state.shape != [rows, columns] {
            let (name, found) = (self.name_of("weight"), state.shape);
            return Err(WeightsError::Shape { name, found, expected: vec![rows, columns] });
        }
        self.check_divides("weight", columns, 2)?;
        let flat = rows * columns;
        let mut codes = self.take("weight", &[Dtype::U8], &[&[flat / 2, 1], &[1, flat / 2]])?;
        (codes.rows, codes.columns) = (rows, columns / 2);
        let group = common_divisor(state.blocksize, columns);
        if !group.is_multiple_of(16) {
            let reason = format!(
                "its blocks of {} cross rows of {columns}; take a file with smaller blocks",
                state.blocksize
            );
            return Err(self.unusable("weight", reason));
        }
        let blocks = flat.div_ceil(state.blocksize);
        let table = self.take_table("weight.quant_map", 16)?;
        let table: [f32; 16] = table.try_into().unwrap_or_default();
        let dtypes = [Dtype::F32, Dtype::U8];
        let part = self.take("weight.absmax", &dtypes, &[&[blocks]])?;
        let factor = match part.dtype {
            Dtype::U8 => Factor::Nested(self.nested(&state, blocks)?),
            _ => Factor::One,
        };
        let parts = ScaleParts { part, spread: Spread::Flat(state.blocksize), factor };
        let scales = FoundScales { parts, group, scale: Scale::F32 };
        let code = Code::Table(Table::new(table));
        Ok(self.packed(code, (codes, Layout::HighFirst), scales, Zeros::None))
    }

    fn nested(&mut self, state: &State, blocks: usize) -> Result<Nested, WeightsError> {
        let unset = |key: &str| format!("its settings have no `{key}`; download the file again");
        let block = state.nested_blocksize.filter(|block| *block > 0);
        let block =
            block.ok_or_else(|| self.unusable("weight.quant_state", unset("nested_blocksize")))?;
        let offset = state.nested_offset.filter(|offset| offset.is_finite());
        let offset =
            offset.ok_or_else(|| self.unusable("weight.quant_state", unset("nested_offset")))?;
        let table = self.take_table("weight.nested_quant_map", 256)?;
        let n_scales = blocks.div_ceil(block);
        let scales = self.take("weight.nested_absmax", &[Dtype::F32], &[&[n_scales]])?;
        Ok(Nested { table, scales, block, offset: offset as f32 })
    }

    /// The settings that bitsandbytes stores as the bytes of a JSON text.
    fn take_state(&mut self) -> Result<State, WeightsError> {
        let suffixes =
            ["nf4", "fp4"].map(|kind| format!("weight.quant_state.bitsandbytes__{kind}"));
        let suffix = suffixes.iter().find(|suffix| self.has(suffix)).unwrap_or(&suffixes[0]);
        let name = self.name_of(suffix);
        let Some(stored) = self.found.0.remove(&name) else {
            return Err(WeightsError::Missing { name });
        };
        let unusable = |reason: String| WeightsError::Packed { name: name.clone(), reason };
        let is_text = stored.part.dtype == Dtype::U8
            && stored.shape.len() == 1
            && stored.part.columns <= MAX_STATE_BYTES;
        if !is_text {
            let reason = format!("it is no text of at most {MAX_STATE_BYTES} bytes");
            return Err(unusable(reason));
        }
        let bytes = stored.part.read_all(self.files)?;
        let state: State =
            serde_json::from_slice(&bytes).map_err(|error| unusable(error.to_string()))?;
        match state.blocksize {
            1.. => Ok(state),
            0 => Err(unusable("its blocks are empty; download the file again".to_owned())),
        }
    }
}

/// Settings of a matrix of bitsandbytes.
#[derive(Deserialize)]
struct State {
    blocksize: usize,
    shape: Vec<usize>,
    nested_blocksize: Option<usize>,
    nested_offset: Option<f64>,
}

/// How devices store scales that a file has in this format.
fn scale_of(dtype: Dtype) -> Scale {
    match dtype {
        Dtype::F16 => Scale::F16,
        // A bf16 holds every power of two that an f32 holds.
        Dtype::BF16 | Dtype::U8 | Dtype::F8_E8M0 => Scale::Bf16,
        _ => Scale::F32,
    }
}

fn common_divisor(a: usize, b: usize) -> usize {
    match b {
        0 => a,
        _ => common_divisor(b, a % b),
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
