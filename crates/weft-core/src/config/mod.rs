//! The dimensions of a model: a checked `config.json`, or the metadata of a GGUF file, in weft's
//! own terms.
//!
//! Every size of memory comes from here, so every field is bounded before anything is allocated.
//! This module knows file formats and families, but neither tensors nor devices.

mod experts;
mod packing;
mod parse;
mod rope;
mod write;

use std::fmt;
use std::path::Path;

use thiserror::Error;

use crate::dtype::Dtype;

pub use experts::Experts;
pub use packing::{CompressedLayout, GptqSettings, ModuleGroup, Packing, Shared};
pub use rope::{RopeConfig, RopeScaling};

/// The model families that the plan supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Qwen3: per-head norm of q and k.
    Qwen3,
    /// Qwen3 with mixtures of experts.
    Qwen3Moe,
    /// Qwen2 and Qwen2.5: bias on q, k and v.
    Qwen2,
    /// Llama 3.x.
    Llama,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Qwen3 => "Qwen3",
            Self::Qwen3Moe => "Qwen3 MoE",
            Self::Qwen2 => "Qwen2",
            Self::Llama => "Llama",
        })
    }
}

/// The dimensions of a decoder, as every device needs them.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The model's family.
    pub family: Family,
    /// Width of the residual stream x.
    pub hidden: usize,
    /// Number of decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of one head; even.
    pub head_dim: usize,
    /// Width of the gated MLP of a dense layer.
    pub intermediate: usize,
    /// The experts of sparse layers, if the model has any.
    pub experts: Option<Experts>,
    /// Rows of the embedding and of the head.
    pub vocab: usize,
    /// Epsilon of every RMSNorm.
    pub norm_eps: f32,
    /// Settings of the rotary embedding.
    pub rope: RopeConfig,
    /// Maximum number of positions.
    pub max_positions: usize,
    /// Whether q, k and v have a bias.
    pub qkv_bias: bool,
    /// Whether q and k are normalised per head.
    pub qk_norm: bool,
    /// Whether the output head shares the embedding's weights.
    pub tied_head: bool,
    /// The number format of the computation.
    pub dtype: Dtype,
    /// End tokens that `config.json` names.
    pub eos_ids: Vec<u32>,
    /// How the matrices in safetensors files are packed.
    pub packing: Packing,
}

impl Config {
    /// Reads and checks a `config.json`.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        parse::from_file(path)
    }

    /// Parses and checks the text of a `config.json`.
    pub fn from_json(json: &[u8]) -> Result<Self, ConfigError> {
        parse::from_json(json)
    }

    /// Width of q: all query heads side by side. Need not equal `hidden`.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of k and of v: all KV heads side by side.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Query heads that share one KV head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Bytes of the keys and values of one token in all layers.
    pub fn kv_bytes_per_token(&self, dtype: Dtype) -> u64 {
        (2 * self.layers * self.kv_width() * dtype.bytes()) as u64
    }
}

impl From<serde_json::Error> for ConfigError {
    fn from(source: serde_json::Error) -> Self {
        Self::Json { file: "config.json".to_owned(), source }
    }
}

/// Why a `config.json` cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is too large for a config.
    #[error("{path} has {bytes} bytes; a config.json has at most {limit}, so download it again")]
    TooLarge {
        /// The file.
        path: String,
        /// Its length.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The text is not valid JSON for a config.
    #[error("{file} is not valid: {source}; download it again, or repair it")]
    Json {
        /// The file.
        file: String,
        /// Where it is not valid, and why.
        source: serde_json::Error,
    },
    /// A required field is missing.
    #[error("config.json has no `{field}`, which a {model_type} model needs")]
    Missing {
        /// The field.
        field: &'static str,
        /// The model type.
        model_type: String,
    },
    /// weft does not support a field's value.
    #[error("config.json: `{field}` is {value}; weft supports {expected}")]
    Value {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// The supported values.
        expected: String,
    },
    /// weft does not support a value in the metadata of a GGUF file.
    #[error("the GGUF file's metadata: `{key}` is {value}; weft supports {expected}")]
    Metadata {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The supported values.
        expected: String,
    },
    /// A tensor that belongs to the config of a GGUF file cannot be used.
    #[error("{0}")]
    Tensor(String),
    /// weft does not read the format of quantized weights.
    #[error("the weights are quantised as {format}: {reason}")]
    Packing {
        /// The format.
        format: String,
        /// Why, and what to take instead.
        reason: String,
    },
    /// weft does not support the model's family.
    #[error("model type `{model_type}` is not supported: {reason}")]
    Unsupported {
        /// The `model_type`.
        model_type: String,
        /// Why, and what is supported.
        reason: &'static str,
    },
}
