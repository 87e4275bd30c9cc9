//! Parses `quantization_config`: how the matrices of a safetensors model are packed.
//!
//! Every format that weft does not read is refused here by its name. This module knows no tensors:
//! `weights/packed` finds them.

use serde::Deserialize;
use serde_json::Value;

use super::ConfigError;

/// How the matrices of a safetensors model are packed.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Packing {
    /// They are plain numbers.
    #[default]
    None,
    /// `fp8`: 8-bit floats, a scale for each block (rows, columns) or for each matrix.
    Fp8 {
        /// Rows and columns that share a scale.
        block: Option<[usize; 2]>,
    },
    /// `compressed-tensors`
    Compressed {
        /// Its groups of modules.
        groups: Vec<ModuleGroup>,
        /// Modules that are plain: names, classes, or `re:` and a regular expression.
        ignore: Vec<String>,
    },
    /// `awq`, version gemm.
    Awq {
        /// Columns that share a scale; all, if absent.
        group: Option<usize>,
    },
    /// `gptq`
    Gptq {
        /// The settings of all modules without an exception.
        settings: GptqSettings,
        /// Exceptions: a regular expression and the settings of its modules.
        exceptions: Vec<(String, GptqSettings)>,
    },
    /// `bitsandbytes`; the tensors say the rest.
    BitsAndBytes,
    /// ModelOpt's FP8: a scale for each matrix.
    ModelOptFp8,
    /// ModelOpt's NVFP4.
    ModelOptNvfp4,
}

/// How GPTQ packs a matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GptqSettings {
    /// Bits of a code: 4 or 8.
    pub bits: u8,
    /// Columns that share a scale; all, if absent.
    pub group: Option<usize>,
    /// Whether stored zeros are one too small, as in version 1.
    pub is_v1: bool,
}

/// Modules that compressed-tensors packs alike.
#[derive(Clone, Debug, PartialEq)]
pub struct ModuleGroup {
    /// Names, classes, or `re:` and a regular expression.
    pub targets: Vec<String>,
    /// How the values are stored.
    pub layout: CompressedLayout,
    /// What shares a scale.
    pub shared: Shared,
    /// Whether codes have zeros.
    pub has_zeros: bool,
}

/// How compressed-tensors stores values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompressedLayout {
    /// 8-bit floats.
    Fp8,
    /// 8-bit floats with a power of two for each 32 columns.
    Mxfp8,
    /// Signed bytes.
    Int8,
    /// Integers of 4 or 8 bits in 32-bit words.
    Words {
        /// Bits of a code.
        bits: u8,
    },
    /// 4-bit floats with 8-bit float scales and one scale for the matrix.
    Nvfp4,
    /// 4-bit floats with powers of two.
    Mxfp4,
}

/// What shares a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    /// The matrix.
    Matrix,
    /// Each row.
    Row,
    /// This many columns of a row.
    Columns(usize),
    /// A block of rows and columns.
    Block([usize; 2]),
}

const INSTEAD: &str =
    "take the model's bf16, FP8, AWQ, GPTQ or compressed-tensors files, or a GGUF";

#[derive(Deserialize)]
struct Raw {
    quant_method: Option<String>,
    bits: Option<u8>,
    w_bit: Option<u8>,
    group_size: Option<i64>,
    q_group_size: Option<i64>,
    // fp8
    fmt: Option<String>,
    weight_block_size: Option<[usize; 2]>,
    // awq
    version: Option<String>,
    zero_point: Option<bool>,
    // gptq
    checkpoint_format: Option<String>,
    format: Option<String>,
    dynamic: Option<serde_json::Map<String, Value>>,
    // bitsandbytes
    load_in_4bit: Option<bool>,
    load_in_8bit: Option<bool>,
    // ModelOpt
    quant_algo: Option<String>,
    // compressed-tensors
    config_groups: Option<serde_json::Map<String, Value>>,
    ignore: Option<Vec<String>>,
    sparsity_config: Option<Value>,
    transform_config: Option<Value>,
}

/// Parses the value of `quantization_config`, or a file like it. `method` is its format if it does
/// not name one.
pub(super) fn parse(value: &Value, method: &str) -> Result<Packing, ConfigError> {
    let raw = Raw::deserialize(value)?;
    match raw.quant_method.as_deref().unwrap_or(method) {
        "fp8" => fp8(&raw),
        "compressed-tensors" => compressed(&raw),
        "awq" => awq(&raw),
        "gptq" => gptq(&raw),
        "bitsandbytes" => match (raw.load_in_4bit, raw.load_in_8bit) {
            (Some(true), _) | (_, Some(true)) => Ok(Packing::BitsAndBytes),
            _ => refused("bitsandbytes", "it has neither load_in_4bit nor load_in_8bit"),
        },
        "modelopt" => modelopt(raw.quant_algo.as_deref()),
        "mxfp4" => refused("mxfp4", "weft reads MXFP4 in compressed-tensors and GGUF files"),
        "" => refused("an unnamed format", "it has no quant_method"),
        other => refused(other, "weft does not read it"),
    }
}

/// Parses ModelOpt's own file, `hf_quant_config.json`.
pub(super) fn parse_modelopt(value: &Value) -> Result<Packing, ConfigError> {
    modelopt(value.pointer("/quantization/quant_algo").and_then(Value::as_str))
}

/// The refusal of MLX's format, which has a `quantization` without a method.
pub(super) fn mlx() -> ConfigError {
    let reason = format!("weft does not read it; {INSTEAD}");
    ConfigError::Packing { format: "MLX".to_owned(), reason }
}

fn modelopt(algorithm: Option<&str>) -> Result<Packing, ConfigError> {
    match algorithm {
        Some("FP8") => Ok(Packing::ModelOptFp8),
        Some("NVFP4") => Ok(Packing::ModelOptNvfp4),
        other => refused(
            &format!("modelopt {}", other.unwrap_or("without quant_algo")),
            "weft reads its FP8 and NVFP4",
        ),
    }
}

fn refused<T>(format: &str, reason: &str) -> Result<T, ConfigError> {
    let reason = format!("{reason}; {INSTEAD}");
    Err(ConfigError::Packing { format: format.to_owned(), reason })
}

fn fp8(raw: &Raw) -> Result<Packing, ConfigError> {
    match raw.fmt.as_deref() {
        None | Some("e4m3" | "float8_e4m3fn") => {}
        Some(other) => return refused(&format!("fp8 {other}"), "weft reads e4m3"),
    }
    if let Some([rows, columns]) = raw.weight_block_size {
        block("fp8", [rows, columns])?;
    }
    Ok(Packing::Fp8 { block: raw.weight_block_size })
}

/// Rows and columns of a block with one scale.
fn block(format: &str, [rows, columns]: [usize; 2]) -> Result<[usize; 2], ConfigError> {
    if rows == 0 {
        return refused(&format!("{format} with blocks of 0 rows"), "a block has rows");
    }
    columns_of_a_scale(format, columns as i64).map(|columns| [rows, columns])
}

fn columns_of_a_scale(format: &str, columns: i64) -> Result<usize, ConfigError> {
    match usize::try_from(columns) {
        Ok(columns) if columns > 0 && columns.is_multiple_of(16) && columns <= 1 << 20 => {
            Ok(columns)
        }
        _ => refused(
            &format!("{format} with groups of {columns} columns"),
            "weft reads groups of a multiple of 16",
        ),
    }
}

/// -1 stands for the whole row.
fn group(format: &str, size: Option<i64>) -> Result<Option<usize>, ConfigError> {
    match size {
        None | Some(-1) => Ok(None),
        Some(size) => columns_of_a_scale(format, size).map(Some),
    }
}

fn awq(raw: &Raw) -> Result<Packing, ConfigError> {
    let version = raw.version.as_deref().unwrap_or("gemm").to_lowercase();
    if version != "gemm" {
        return refused(&format!("awq {version}"), "weft reads the version gemm");
    }
    match raw.bits.or(raw.w_bit) {
        Some(4) => {}
        bits => return refused(&format!("awq with {bits:?} bits"), "weft reads 4 bits"),
    }
    if raw.zero_point == Some(false) {
        return refused("awq without zero points", "weft reads it with zero points");
    }
    let group = group("awq", raw.group_size.or(raw.q_group_size))?;
    Ok(Packing::Awq { group })
}

fn gptq(raw: &Raw) -> Result<Packing, ConfigError> {
    let format = raw.checkpoint_format.as_deref().or(raw.format.as_deref()).unwrap_or("gptq");
    let is_v1 = match format {
        "gptq" => true,
        "gptq_v2" => false,
        other => return refused(&format!("gptq {other}"), "weft reads gptq and gptq_v2"),
    };
    let settings = |bits: Option<u64>, size: Option<i64>| match bits {
        Some(bits @ (4 | 8)) => {
            Ok(GptqSettings { bits: bits as u8, group: group("gptq", size)?, is_v1 })
        }
        bits => refused(&format!("gptq with {bits:?} bits"), "weft reads 4 and 8 bits"),
    };
    let (bits, size) = (raw.bits.map(u64::from), raw.group_size);
    let mut exceptions = Vec::new();
    for (pattern, change) in raw.dynamic.iter().flatten() {
        // Modules under `-:` are plain, as their tensors show.
        if pattern.starts_with("-:") {
            continue;
        }
        let number = |key: &str| change.get(key);
        let bits = number("bits").and_then(Value::as_u64).or(bits);
        let size = number("group_size").and_then(Value::as_i64).or(size);
        let pattern = pattern.strip_prefix("+:").unwrap_or(pattern).to_owned();
        exceptions.push((pattern, settings(bits, size)?));
    }
    Ok(Packing::Gptq { settings: settings(bits, size)?, exceptions })
}

#[derive(Deserialize)]
struct RawGroup {
    targets: Vec<String>,
    weights: Option<RawWeights>,
    format: Option<String>,
}

#[derive(Deserialize)]
struct RawWeights {
    num_bits: Option<u8>,
    r#type: Option<String>,
    symmetric: Option<bool>,
    strategy: Option<String>,
    group_size: Option<i64>,
    block_structure: Option<Value>,
}

fn compressed(raw: &Raw) -> Result<Packing, ConfigError> {
    let sparsity = raw.sparsity_config.as_ref().and_then(|sparsity| sparsity.get("format"));
    if let Some(format) = sparsity.and_then(Value::as_str).filter(|format| *format != "dense") {
        let format = format!("compressed-tensors {format}");
        return refused(&format, "weft reads no sparse weights");
    }
    let is_empty = |value: &Value| value.as_object().is_none_or(serde_json::Map::is_empty);
    if raw.transform_config.as_ref().is_some_and(|transform| !is_empty(transform)) {
        return refused("compressed-tensors with transforms", "weft applies no transforms");
    }
    let mut groups = Vec::new();
    for value in raw.config_groups.iter().flat_map(|groups| groups.values()) {
        let group = RawGroup::deserialize(value)?;
        let Some(weights) = &group.weights else { continue };
        let format = group.format.as_deref().or(raw.format.as_deref()).unwrap_or("dense");
        if format == "dense" {
            continue;
        }
        let layout = layout(format, weights)?;
        let shared = shared(format, layout, weights)?;
        let has_zeros = weights.symmetric == Some(false);
        groups.push(ModuleGroup { targets: group.targets, layout, shared, has_zeros });
    }
    Ok(Packing::Compressed { groups, ignore: raw.ignore.clone().unwrap_or_default() })
}

fn layout(format: &str, weights: &RawWeights) -> Result<CompressedLayout, ConfigError> {
    let kind = weights.r#type.as_deref().unwrap_or("int");
    match (format, kind, weights.num_bits) {
        ("float-quantized" | "naive-quantized", "float", Some(8)) => Ok(CompressedLayout::Fp8),
        ("mxfp8-quantized", "float", Some(8)) => Ok(CompressedLayout::Mxfp8),
        ("int-quantized" | "naive-quantized", "int", Some(8)) => Ok(CompressedLayout::Int8),
        ("pack-quantized", "int", Some(bits @ (4 | 8))) => Ok(CompressedLayout::Words { bits }),
        ("nvfp4-pack-quantized", "float", Some(4)) => Ok(CompressedLayout::Nvfp4),
        ("mxfp4-pack-quantized", "float", Some(4)) => Ok(CompressedLayout::Mxfp4),
        (_, _, bits) => {
            let bits = bits.map_or("unknown".to_owned(), |bits| bits.to_string());
            refused(
                &format!("compressed-tensors {format}, {kind} of {bits} bits"),
                "weft reads float-quantized, int-quantized, pack-quantized (4 or 8 bits), \
                 nvfp4-pack-quantized, mxfp4-pack-quantized and mxfp8-quantized",
            )
        }
    }
}

fn shared(
    format: &str,
    layout: CompressedLayout,
    weights: &RawWeights,
) -> Result<Shared, ConfigError> {
    let size = weights.group_size;
    match layout {
        CompressedLayout::Nvfp4 => return Ok(Shared::Columns(16)),
        CompressedLayout::Mxfp4 | CompressedLayout::Mxfp8 => return Ok(Shared::Columns(32)),
        _ => {}
    }
    let default = match size {
        Some(1..) => "group",
        Some(_) => "channel",
        None => "tensor",
    };
    match weights.strategy.as_deref().unwrap_or(default) {
        "tensor" => Ok(Shared::Matrix),
        "channel" => Ok(Shared::Row),
        "group" => columns_of_a_scale(format, size.unwrap_or(-1)).map(Shared::Columns),
        "block" => match block_structure(weights.block_structure.as_ref()) {
            Some(sizes) => block(format, sizes).map(Shared::Block),
            None => refused(&format!("{format} without a block_structure"), "blocks need one"),
        },
        other => refused(
            &format!("compressed-tensors {format}, strategy {other}"),
            "weft reads the strategies tensor, channel, group and block",
        ),
    }
}

/// `[128, 128]` or `"128x128"`.
fn block_structure(value: Option<&Value>) -> Option<[usize; 2]> {
    match value? {
        Value::String(text) => {
            let (rows, columns) = text.split_once('x')?;
            Some([rows.trim().parse().ok()?, columns.trim().parse().ok()?])
        }
        list => Deserialize::deserialize(list).ok(),
    }
}
