//! Parses `config.json` into a [`Config`]: the keys of each family, and the bounds of each value.
//!
//! The bounds are generous for real models. They are small enough that no product of two overflows,
//! or asks for absurd amounts of memory before the weight files confirm it.

use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;

use super::experts::{self, RawExperts};
use super::packing;
use super::rope::{self, RawRope};
use super::{Config, ConfigError, Family, Packing};
use crate::dtype::Dtype;

/// A parser of how weights are packed.
type ParsePacking = fn(&serde_json::Value) -> Result<Packing, ConfigError>;

/// Files that may say how the weights are packed if config.json does not: ModelOpt's, and those of
/// early GPTQ and AWQ models.
const PACKING_FILES: [(&str, ParsePacking); 3] = [
    ("hf_quant_config.json", packing::parse_modelopt),
    ("quantize_config.json", |value| packing::parse(value, "gptq")),
    ("quant_config.json", |value| packing::parse(value, "awq")),
];

const FILE_LIMIT: u64 = 1 << 20;
pub(super) const LIMIT_WIDTH: usize = 1 << 17;
pub(super) const LIMIT_LAYERS: usize = 1024;
const LIMIT_HEADS: usize = 1024;
const LIMIT_HEAD_DIM: usize = 512;
const LIMIT_VOCAB: usize = 1 << 22;
const LIMIT_POSITIONS: usize = 1 << 24;

/// The keys of `config.json` that weft reads. It ignores all others.
#[derive(Deserialize)]
struct Raw {
    model_type: Option<String>,
    hidden_size: Option<usize>,
    num_hidden_layers: Option<usize>,
    num_attention_heads: Option<usize>,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    intermediate_size: Option<usize>,
    vocab_size: Option<usize>,
    rms_norm_eps: Option<f64>,
    max_position_embeddings: Option<usize>,
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    use_sliding_window: Option<bool>,
    layer_types: Option<Vec<String>>,
    hidden_act: Option<String>,
    quantization_config: Option<serde_json::Value>,
    quantization: Option<serde_json::Value>,
    torch_dtype: Option<String>,
    dtype: Option<String>,
    eos_token_id: Option<OneOrMany>,
    #[serde(flatten)]
    rope: RawRope,
    #[serde(flatten)]
    experts: RawExperts,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(u32),
    Many(Vec<u32>),
}

/// Reads `config.json`. A file beside it may say how the weights are packed.
pub(super) fn from_file(path: &Path) -> Result<Config, ConfigError> {
    let mut config = from_json(&read(path)?).map_err(|error| named(error, path))?;
    for (name, parse) in PACKING_FILES {
        let beside = path.with_file_name(name);
        if config.packing == Packing::None && beside.exists() {
            let json = read(&beside)?;
            let packing = serde_json::from_slice(&json).map_err(ConfigError::from);
            let packing = packing.and_then(|value| parse(&value));
            config.packing = packing.map_err(|error| named(error, &beside))?;
        }
    }
    Ok(config)
}

/// The error, with the file that is not valid.
fn named(error: ConfigError, path: &Path) -> ConfigError {
    match error {
        ConfigError::Json { source, .. } => {
            ConfigError::Json { file: path.display().to_string(), source }
        }
        other => other,
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ConfigError> {
    let name = path.display().to_string();
    let read = |source| ConfigError::Read { path: name.clone(), source };
    let file = File::open(path).map_err(read)?;
    let bytes = file.metadata().map_err(read)?.len();
    if bytes > FILE_LIMIT {
        return Err(ConfigError::TooLarge { path: name, bytes, limit: FILE_LIMIT });
    }
    let mut json = Vec::new();
    file.take(FILE_LIMIT).read_to_end(&mut json).map_err(read)?;
    Ok(json)
}

pub(super) fn from_json(json: &[u8]) -> Result<Config, ConfigError> {
    let raw: Raw = serde_json::from_slice(json)?;
    let model_type = raw.model_type.clone().unwrap_or_default();
    let family = family(&model_type)?;
    refuse_what_no_op_computes(&raw, family)?;

    let need = |field, value: Option<usize>| {
        value.ok_or_else(|| ConfigError::Missing { field, model_type: model_type.clone() })
    };
    let hidden = within("hidden_size", need("hidden_size", raw.hidden_size)?, LIMIT_WIDTH)?;
    let layers = within(
        "num_hidden_layers",
        need("num_hidden_layers", raw.num_hidden_layers)?,
        LIMIT_LAYERS,
    )?;
    let heads = need("num_attention_heads", raw.num_attention_heads)?;
    let heads = within("num_attention_heads", heads, LIMIT_HEADS)?;
    let kv_heads = kv_heads(&raw, heads)?;
    let head_dim = head_dim(&raw, hidden, heads)?;
    let intermediate = need("intermediate_size", raw.intermediate_size)?;
    let positions = need("max_position_embeddings", raw.max_position_embeddings)?;
    let trained = within("max_position_embeddings", positions, LIMIT_POSITIONS)?;
    let rope = rope::parse(&raw.rope, trained)?;

    Ok(Config {
        family,
        hidden,
        layers,
        heads,
        kv_heads,
        head_dim,
        intermediate: within("intermediate_size", intermediate, LIMIT_WIDTH)?,
        experts: experts::parse(&raw.experts, family)?,
        vocab: within("vocab_size", need("vocab_size", raw.vocab_size)?, LIMIT_VOCAB)?,
        norm_eps: norm_eps(&raw, family)?,
        max_positions: trained.max(rope.stretched_positions()).min(LIMIT_POSITIONS),
        rope,
        qkv_bias: family == Family::Qwen2,
        qk_norm: matches!(family, Family::Qwen3 | Family::Qwen3Moe),
        tied_head: raw.tie_word_embeddings.unwrap_or(false),
        dtype: dtype(&raw)?,
        eos_ids: match raw.eos_token_id {
            Some(OneOrMany::One(id)) => vec![id],
            Some(OneOrMany::Many(ids)) => ids,
            None => Vec::new(),
        },
        packing: match raw.quantization_config {
            Some(quantization) if !quantization.is_null() => packing::parse(&quantization, "")?,
            _ if raw.quantization.is_some() => return Err(packing::mlx()),
            _ => Packing::None,
        },
    })
}

fn family(model_type: &str) -> Result<Family, ConfigError> {
    let reason = match model_type {
        "qwen3" => return Ok(Family::Qwen3),
        "qwen3_moe" => return Ok(Family::Qwen3Moe),
        "qwen2" => return Ok(Family::Qwen2),
        "llama" => return Ok(Family::Llama),
        "qwen3_next" | "qwen3_5" | "qwen3_5_text" | "qwen3_5_moe" => {
            "its recurrent layers keep a state that no chunk of context can be cut from; \
             weft runs qwen3, qwen3_moe, qwen2 and llama"
        }
        "qwen2_moe" | "mixtral" => {
            "of the mixtures of experts, weft runs qwen3_moe; it also runs qwen3, qwen2 and llama"
        }
        _ => "weft supports qwen3, qwen3_moe, qwen2 (Qwen2.5 too) and llama",
    };
    Err(ConfigError::Unsupported { model_type: model_type.to_owned(), reason })
}

/// Refuses features that would silently change the result if they were ignored.
fn refuse_what_no_op_computes(raw: &Raw, family: Family) -> Result<(), ConfigError> {
    if raw.attention_bias == Some(true) && family != Family::Qwen2 {
        return Err(value("attention_bias", true, "false for this model type"));
    }
    if raw.mlp_bias == Some(true) {
        return Err(value("mlp_bias", true, "false"));
    }
    if raw.use_sliding_window == Some(true) {
        return Err(value("use_sliding_window", true, "false: full attention only"));
    }
    let windowed = raw.layer_types.iter().flatten().find(|kind| *kind != "full_attention");
    if let Some(kind) = windowed {
        return Err(value("layer_types", kind, "full_attention in every layer"));
    }
    let act = raw.hidden_act.as_deref().unwrap_or("silu");
    if act != "silu" && act != "swish" {
        return Err(value("hidden_act", act, "silu"));
    }
    Ok(())
}

fn kv_heads(raw: &Raw, heads: usize) -> Result<usize, ConfigError> {
    let kv_heads = raw.num_key_value_heads.unwrap_or(heads);
    if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        let expected = format!("a divisor of num_attention_heads ({heads})");
        return Err(value("num_key_value_heads", kv_heads, expected));
    }
    Ok(kv_heads)
}

fn head_dim(raw: &Raw, hidden: usize, heads: usize) -> Result<usize, ConfigError> {
    let head_dim = match raw.head_dim {
        Some(head_dim) => head_dim,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let expected = format!("a multiple of num_attention_heads ({heads}), or head_dim set");
            return Err(value("hidden_size", hidden, expected));
        }
    };
    if head_dim == 0 || head_dim > LIMIT_HEAD_DIM || !head_dim.is_multiple_of(2) {
        return Err(value("head_dim", head_dim, format!("an even number up to {LIMIT_HEAD_DIM}")));
    }
    Ok(head_dim)
}

fn norm_eps(raw: &Raw, family: Family) -> Result<f32, ConfigError> {
    let default = if family == Family::Llama { 1e-5 } else { 1e-6 };
    let eps = raw.rms_norm_eps.unwrap_or(default);
    // With a smaller eps, a row of zeros would divide by zero in f32.
    if !(1e-30..1.0).contains(&eps) {
        return Err(value("rms_norm_eps", eps, "a number between 1e-30 and 1"));
    }
    Ok(eps as f32)
}

/// The number format of the computation: f32 for float32 models, bf16 for all others.
fn dtype(raw: &Raw) -> Result<Dtype, ConfigError> {
    match raw.dtype.as_deref().or(raw.torch_dtype.as_deref()) {
        Some("float32") => Ok(Dtype::F32),
        Some("bfloat16" | "float16") | None => Ok(Dtype::Bf16),
        Some(other) => Err(value("dtype", other, "bfloat16, float16 or float32")),
    }
}

pub(super) fn within(
    field: &'static str,
    found: usize,
    limit: usize,
) -> Result<usize, ConfigError> {
    if found == 0 || found > limit {
        return Err(value(field, found, format!("1 to {limit}")));
    }
    Ok(found)
}

pub(super) fn value(
    field: &'static str,
    value: impl Display,
    expected: impl Into<String>,
) -> ConfigError {
    ConfigError::Value { field, value: value.to_string(), expected: expected.into() }
}
