//! Flags of `weft compare`.

use std::path::PathBuf;

use clap::Args;

use super::{DeviceArgs, ModelArgs, Quantize};
use crate::bench::Format;
use crate::size;

pub(super) const USAGE: &str = "weft compare [OPTIONS] A B --text FILE
       weft compare [OPTIONS] A --text FILE --save-base FILE
       weft compare [OPTIONS] --base FILE B";

#[derive(Args)]
pub(crate) struct CompareArgs {
    /// The model A that counts as right, and the model B. Each is a folder, a GGUF file,
    /// `org/name[:TAG][@revision]`, a name like qwen3:0.6b, or weft-tiny
    #[arg(value_name = "A B", num_args = 1..=2, required = true)]
    pub(crate) models: Vec<String>,
    /// The text that both models read, `-` for stdin
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// Write A's distributions to this file. llama.cpp reads it too: `llama-perplexity
    /// --kl-divergence-base FILE --kl-divergence`
    #[arg(long, value_name = "FILE")]
    pub(crate) save_base: Option<PathBuf>,
    /// Read A's distributions and the tokens from this file, which --save-base or `llama-perplexity
    /// --kl-divergence-base` wrote
    #[arg(long, value_name = "FILE",
          conflicts_with_all = ["text", "save_base", "window", "quantize_a"])]
    pub(crate) base: Option<PathBuf>,
    /// Quantise A while loading
    #[arg(long, value_enum, value_name = "FORM")]
    pub(crate) quantize_a: Option<Quantize>,
    /// Quantise B while loading
    #[arg(long, value_enum, value_name = "FORM")]
    pub(crate) quantize_b: Option<Quantize>,
    /// Tokens of a window. The text is cut into windows, and each is read from scratch; the tokens
    /// of its second half are scored (default: 512)
    #[arg(id = "window", short = 'c', long = "ctx-size", value_name = "TOKENS",
          value_parser = size::parse_count)]
    pub(crate) window: Option<usize>,
    /// Stop after this many windows (default: the whole text)
    #[arg(long, visible_alias = "chunks", value_name = "N", value_parser = size::parse_count)]
    pub(crate) windows: Option<usize>,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Never use the network
    #[arg(long)]
    pub(crate) offline: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    pub(crate) output: Format,
    /// Print only the result and errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

impl CompareArgs {
    /// The flags of one of the models, with room for windows of this many tokens.
    pub(crate) fn model(&self, name: &str, window: usize) -> ModelArgs {
        ModelArgs {
            model: Some(name.to_owned()),
            ctx_size: Some(window),
            device: self.device,
            offline: self.offline,
            quiet: self.quiet,
            ..ModelArgs::default()
        }
    }
}
