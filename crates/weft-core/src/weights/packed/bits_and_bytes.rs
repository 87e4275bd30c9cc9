//! The layouts of bitsandbytes: 4 bits by a table, and bytes.

use safetensors::Dtype;
use serde::Deserialize;

use super::schemes::{FoundScales, Module};
use super::{Factor, Layout, Nested, Packed, ScaleParts, Spread, Zeros};
use crate::config::Shared;
use crate::weights::{Code, Scale, Table, WeightsError};

/// bitsandbytes divides bytes by 127, as a product.
const ONE_OF_127: f32 = 7.874_016e-3;

/// Bytes of the settings that bitsandbytes stores with a matrix.
const MAX_STATE_BYTES: usize = 1 << 16;

impl Module<'_> {
    pub(super) fn bits_and_bytes(mut self) -> Result<Packed, WeightsError> {
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
        let Some(stored) = self.remove(&name) else {
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

fn common_divisor(a: usize, b: usize) -> usize {
    match b {
        0 => a,
        _ => common_divisor(b, a % b),
    }
}
