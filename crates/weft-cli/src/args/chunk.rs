//! The flags of `weft chunk …`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use weft_core::chunk::{Kind, Reuse};

use super::{CacheArgs, ModelArgs};
use crate::size;

#[derive(Args)]
pub(crate) struct ChunkArgs {
    #[command(subcommand)]
    pub(crate) command: ChunkCommand,
}

/// IDs may be abbreviated to four digits or more, or be names.
#[derive(Subcommand)]
pub(crate) enum ChunkCommand {
    /// Register a text under a name, and print its id
    Add(AddArgs),
    /// List the registered chunks
    List(ListChunksArgs),
    /// Print a chunk: its text, and what is kept of it
    Show(ShowChunkArgs),
    /// Compute the rows of chunks ahead, in the order in which a prompt will have them
    Warm(WarmArgs),
    /// Keep the rows of chunks from being evicted
    Pin(PinArgs),
    /// Let the rows of chunks be evicted again
    Unpin(PinArgs),
    /// Forget chunks and their rows
    Rm(RmArgs),
    /// Write a chunk and its rows to a file, to pass it on
    Export(ExportArgs),
    /// Register the chunk in a file that `export` wrote, with those of its rows that fit
    Import(ImportArgs),
    /// Sweep the folder of rows: damaged and left-over files, rows over the budget
    Gc(GcArgs),
}

#[derive(Args)]
pub(crate) struct AddArgs {
    /// The file with the text; `-` reads stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: String,
    /// What it is
    #[arg(long, value_enum, default_value_t = KindArg::Context)]
    pub(crate) kind: KindArg,
    /// What to call it
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// What else to note of it; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_meta)]
    pub(crate) meta: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
}

/// Which chunks.
#[derive(Args)]
pub(crate) struct WhichArgs {
    /// Of this kind
    #[arg(long, value_enum)]
    pub(crate) kind: Option<KindArg>,
    /// Registered at least this long ago (like 90s, 30m, 12h, 7d or 2w)
    #[arg(long, value_name = "AGE", value_parser = size::parse_age)]
    pub(crate) older_than: Option<Duration>,
    /// With this note; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_meta)]
    pub(crate) meta: Vec<(String, String)>,
}

#[derive(Args)]
pub(crate) struct ListChunksArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
}

#[derive(Args)]
pub(crate) struct ShowChunkArgs {
    /// The chunk
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
}

#[derive(Args)]
pub(crate) struct WarmArgs {
    /// The chunks
    #[arg(value_name = "ID", num_args = 1.., required = true)]
    pub(crate) ids: Vec<String>,
    /// The system chunk that stands before them
    #[arg(long, value_name = "ID")]
    pub(crate) system: Option<String>,
    /// How they will be used again: exact, anchored or isolated
    #[arg(long, value_name = "HOW", default_value_t = Reuse::Exact)]
    pub(crate) reuse: Reuse,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
}

#[derive(Args)]
pub(crate) struct PinArgs {
    /// The chunks
    #[arg(value_name = "ID", num_args = 1.., required = true)]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
}

#[derive(Args)]
pub(crate) struct RmArgs {
    /// The chunks
    #[arg(value_name = "ID", num_args = 0..)]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// All of them
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
}

#[derive(Args)]
pub(crate) struct ExportArgs {
    /// The chunk
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// A file that does not exist yet
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
}

#[derive(Args)]
pub(crate) struct ImportArgs {
    /// The file
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// What to call it here
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
}

#[derive(Args)]
pub(crate) struct GcArgs {
    /// Remove the rows of all models but this one on this device
    #[arg(long)]
    pub(crate) other_models: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
}

/// Kinds that can be registered: a query is asked, not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KindArg {
    /// A system prompt
    System,
    /// A document
    Context,
    /// An answer
    Output,
}

impl From<KindArg> for Kind {
    fn from(kind: KindArg) -> Self {
        match kind {
            KindArg::System => Self::System,
            KindArg::Context => Self::Context,
            KindArg::Output => Self::Output,
        }
    }
}

fn parse_meta(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is not KEY=VALUE")),
    }
}
