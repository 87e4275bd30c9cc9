//! Writes a plain model in a quantised form, as files that other programs read too.
//!
//! int8 and int4 become a folder in the format of compressed-tensors, Q8_0 and Q4_0 a GGUF file.
//! The weights pass through row by row. The result gets its name when it is complete.

mod files;
mod gguf;
mod target;

use std::fmt;
use std::path::{Path, PathBuf};

use safetensors::Dtype as FileDtype;
use serde_json::{Value, json};
use thiserror::Error;

use self::files::ModelFiles;
use self::target::Target;
use crate::config::ConfigError;
use crate::model::Model;
use crate::tokenizer::TokenizerError;
use crate::weights::{
    Blocks, Coded, Form, INDEX_FILE, Meter, NewFolder, NewGguf, WriteError, tensors,
};

/// Columns that share a scale, in all forms.
const GROUP: usize = 32;

/// A form that models are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportForm {
    /// 8 bits and a bf16 scale for each 32 columns, by compressed-tensors.
    Int8,
    /// 4 bits and a bf16 scale for each 32 columns, by compressed-tensors.
    Int4,
    /// 8 bits and an f16 scale for each 32 columns, in a GGUF file.
    Q8_0,
    /// 4 bits and an f16 scale for each 32 columns, in a GGUF file.
    Q4_0,
}

impl ExportForm {
    /// Whether the form is written as a GGUF file. The others are folders.
    pub fn is_gguf(self) -> bool {
        matches!(self, Self::Q8_0 | Self::Q4_0)
    }
}

impl fmt::Display for ExportForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Int8 => "int8",
            Self::Int4 => "int4",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
        })
    }
}

/// Why a model could not be written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The model has no files.
    #[error("{name} has no files to quantise; give a model's folder or GGUF file")]
    NoFiles {
        /// The model.
        name: String,
    },
    /// The model is quantised.
    #[error(
        "{name} is quantised already ({tensor} has codes of {bits} bits), and rounding again would \
         cost quality; take the model's bf16, f16 or f32 files"
    )]
    Quantised {
        /// The model.
        name: String,
        /// A tensor that is quantised.
        tensor: String,
        /// Bits of its codes.
        bits: usize,
    },
    /// The rows of a matrix have no whole groups.
    #[error(
        "{tensor} has rows of {width} weights, which is not a multiple of {GROUP}; weft quantises \
         groups of {GROUP}, so this model stays as it is"
    )]
    Width {
        /// The tensor.
        tensor: String,
        /// The length of its rows.
        width: usize,
    },
    /// The target cannot be written.
    #[error("{}: {reason}", path.display())]
    Target {
        /// The path.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// A file of the model cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// GGUF files have no words for a setting of the model.
    #[error("a GGUF file cannot say that {0}; write int8 or int4")]
    NotInGguf(String),
    /// The config cannot be written.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The tokenizer cannot be written.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The files cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Writes a model to `to`: a folder, or a GGUF file. `force` replaces what is there. `go_on` is
/// called with the bytes written so far and all bytes; if it returns `false`, the writing ends.
/// Returns the bytes of the weight files.
pub fn export(
    model: &Model,
    form: ExportForm,
    to: &Path,
    force: bool,
    go_on: &(dyn Fn(u64, u64) -> bool + Sync),
) -> Result<u64, ExportError> {
    check(model)?;
    let target = Target::new(to, form, force, model.origin.path())?;
    let files = ModelFiles::of(model)?;
    let bytes = match form {
        ExportForm::Int8 => folder(model, &files, 8, &target, go_on),
        ExportForm::Int4 => folder(model, &files, 4, &target, go_on),
        ExportForm::Q8_0 => file(model, &files, Blocks::Q8_0, &target, go_on),
        ExportForm::Q4_0 => file(model, &files, Blocks::Q4_0, &target, go_on),
    }?;
    target.commit()?;
    Ok(bytes)
}

/// The matrices are plain, and their rows have whole groups.
fn check(model: &Model) -> Result<(), ExportError> {
    for shape in tensors(&model.config) {
        let tensor = shape.tensor.name();
        if let Form::Coded(coded) = model.weights.form(shape.tensor) {
            let (name, bits) = (model.name.clone(), coded.code.bits());
            return Err(ExportError::Quantised { name, tensor, bits });
        }
        if shape.shape.len() > 1 && !shape.row().is_multiple_of(GROUP) {
            return Err(ExportError::Width { tensor, width: shape.row() });
        }
    }
    Ok(())
}

fn folder(
    model: &Model,
    files: &ModelFiles,
    bits: u8,
    target: &Target,
    go_on: &(dyn Fn(u64, u64) -> bool + Sync),
) -> Result<u64, ExportError> {
    let mut config = files.config.clone().map_err(ConfigError::Tensor)?;
    let plain = match config.get("dtype").or(config.get("torch_dtype")).and_then(Value::as_str) {
        Some("float32") => FileDtype::F32,
        Some("float16") => FileDtype::F16,
        _ => FileDtype::BF16,
    };
    config.insert("quantization_config".to_owned(), quantization_config(bits));
    let weights = NewFolder::new(&model.config, Coded::int(bits), plain);
    let meter = Meter::new(weights.bytes(), go_on);
    let folder = target.temporary();
    let fault = |source| meter.fault(folder, source);
    std::fs::create_dir(folder).map_err(fault)?;
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes).map_err(fault);
    for (name, bytes) in &files.others {
        write(name, bytes)?;
    }
    write("tokenizer.json", &files.tokenizer)?;
    write("config.json", format!("{:#}\n", Value::Object(config)).as_bytes())?;
    if let Some(index) = weights.index() {
        write(INDEX_FILE, format!("{index:#}\n").as_bytes())?;
    }
    weights.write(folder, &*model.weights, &meter)?;
    Ok(weights.bytes())
}

/// How compressed-tensors describes what [`NewFolder`] writes.
fn quantization_config(bits: u8) -> Value {
    json!({
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "format": "pack-quantized",
                "targets": ["Linear"],
                "weights": {
                    "num_bits": bits,
                    "type": "int",
                    "symmetric": true,
                    "strategy": "group",
                    "group_size": GROUP,
                    "dynamic": false,
                    "actorder": null,
                    "block_structure": null,
                    "observer": "minmax",
                    "observer_kwargs": {},
                },
                "input_activations": null,
                "output_activations": null,
            },
        },
        "ignore": ["lm_head", "re:.*mlp\\.gate$"],
        "kv_cache_scheme": null,
        "global_compression_ratio": null,
    })
}

fn file(
    model: &Model,
    files: &ModelFiles,
    blocks: Blocks,
    target: &Target,
    go_on: &(dyn Fn(u64, u64) -> bool + Sync),
) -> Result<u64, ExportError> {
    let (metadata, rope_factors) = gguf::metadata(model, files, blocks)?;
    let file = NewGguf::new(&metadata, &model.config, blocks, rope_factors.as_deref());
    let meter = Meter::new(file.bytes(), go_on);
    file.write(target.temporary(), &*model.weights, &meter)?;
    Ok(file.bytes())
}
