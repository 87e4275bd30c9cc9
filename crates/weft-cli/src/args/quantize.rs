//! The flags of `weft quantize`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use weft_core::export::ExportForm;

#[derive(Args)]
pub(crate) struct QuantizeArgs {
    /// A plain model (bf16, f16 or f32): a folder, a GGUF file, `org/name[@revision]`, a name like
    /// qwen3:0.6b, or weft-tiny
    #[arg(value_name = "MODEL")]
    pub(crate) name: String,
    /// The new folder; for q8_0 and q4_0 the new file, whose name ends in .gguf
    #[arg(short, long, value_name = "PATH")]
    pub(crate) out: PathBuf,
    /// The form of the new model's weights
    #[arg(long, value_enum, default_value_t = NewForm::Int4)]
    pub(crate) form: NewForm,
    /// Replace what is there
    #[arg(long)]
    pub(crate) force: bool,
    /// Never use the network
    #[arg(long)]
    pub(crate) offline: bool,
    /// Print only errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// A form that models are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NewForm {
    /// compressed-tensors, 8 bits, group 32; for vLLM and transformers too
    Int8,
    /// compressed-tensors, 4 bits, group 32; for vLLM and transformers too
    Int4,
    /// GGUF, 8 bits; for llama.cpp too
    #[value(name = "q8_0")]
    Q8_0,
    /// GGUF, 4 bits; for llama.cpp too
    #[value(name = "q4_0")]
    Q4_0,
}

impl NewForm {
    pub(crate) fn export(self) -> ExportForm {
        match self {
            Self::Int8 => ExportForm::Int8,
            Self::Int4 => ExportForm::Int4,
            Self::Q8_0 => ExportForm::Q8_0,
            Self::Q4_0 => ExportForm::Q4_0,
        }
    }
}
