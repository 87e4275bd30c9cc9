//! The flags of `weft chunk …`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use weft_core::chunk::{Kind, Reuse};

use super::{CacheArgs, ModelArgs, PullChunksArgs, PushArgs, RemoteArgs, ThereArgs};
use crate::size;

#[derive(Args)]
pub(crate) struct ChunkArgs {
    #[command(subcommand)]
    pub(crate) command: ChunkCommand,
}

/// Name a chunk by its name, its id, or the first four or more digits of its id.
#[derive(Subcommand)]
pub(crate) enum ChunkCommand {
    /// Register a text under a name, and print its id
    Add(AddArgs),
    /// List the registered chunks
    List(ListChunksArgs),
    /// Print a chunk: its text and the state of its KV rows
    Show(ShowChunkArgs),
    /// Compute the KV rows of chunks in advance, in the order of a later prompt
    Warm(WarmArgs),
    /// Exempt the KV rows of chunks from eviction
    Pin(PinArgs),
    /// Allow the KV rows of chunks to be evicted again
    Unpin(PinArgs),
    /// Delete chunks and their KV rows
    Rm(RmArgs),
    /// Write a chunk to a file for another machine, with --key its KV rows too
    Export(ExportArgs),
    /// Register a chunk from a file of `export`, with --key the KV rows that fit this machine too
    Import(ImportArgs),
    /// Store chunks and their KV rows where other machines find them
    Push(PushArgs),
    /// Register chunks that another machine has pushed, with the KV rows that fit this machine
    Pull(PullChunksArgs),
    /// Write a new key to a file; people who share it accept each other's KV rows
    Key(KeyArgs),
    /// Clean the folder of KV rows: damaged files, leftovers, rows beyond the size limit
    Gc(GcArgs),
}

#[derive(Args)]
pub(crate) struct AddArgs {
    /// The file with the text; `-` reads stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: String,
    /// Kind of the chunk
    #[arg(long, value_enum, default_value_t = KindArg::Context)]
    pub(crate) kind: KindArg,
    /// Name of the chunk (default: the file's name without its ending)
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Metadata; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_meta)]
    pub(crate) meta: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
}

/// A filter for chunks.
#[derive(Args)]
pub(crate) struct WhichArgs {
    /// Only chunks of this kind
    #[arg(long, value_enum)]
    pub(crate) kind: Option<KindArg>,
    /// Only chunks registered at least this long ago (like 90s, 30m, 12h, 7d or 2w)
    #[arg(long, value_name = "AGE", value_parser = size::parse_age)]
    pub(crate) older_than: Option<Duration>,
    /// Only chunks with this metadata; may be given several times
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
    pub(crate) there: ThereArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
}

#[derive(Args)]
pub(crate) struct ShowChunkArgs {
    /// The chunk
    #[arg(value_name = "CHUNK")]
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
    #[arg(value_name = "CHUNK", num_args = 1.., required = true)]
    pub(crate) ids: Vec<String>,
    /// System prompt that comes before them: a text, `@FILE`, or a registered system chunk
    #[arg(long, value_name = "TEXT|@FILE|ID")]
    pub(crate) system: Option<String>,
    /// How a later prompt reuses them: exact, anchored or isolated
    #[arg(long, value_name = "HOW", default_value_t = Reuse::Exact)]
    pub(crate) reuse: Reuse,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
}

#[derive(Args)]
pub(crate) struct PinArgs {
    /// The chunks
    #[arg(value_name = "CHUNK", num_args = 1.., required = true)]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
}

#[derive(Args)]
pub(crate) struct RmArgs {
    /// The chunks
    #[arg(value_name = "CHUNK", num_args = 0..)]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// Delete all chunks
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
    #[arg(value_name = "CHUNK")]
    pub(crate) id: String,
    /// The new file
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
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
    /// Name of the chunk on this machine
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
}

/// Whose KV rows are accepted, and after what.
#[derive(Args)]
pub(crate) struct TrustArgs {
    /// File with the key that signs KV rows (see `weft chunk key`); without it, only the text is
    /// exported and imported
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// System prompt before the chunk, beside those that are registered: a text, `@FILE`, or a
    /// registered system chunk
    #[arg(long, value_name = "TEXT|@FILE|ID")]
    pub(crate) system: Option<String>,
}

#[derive(Args)]
pub(crate) struct KeyArgs {
    /// The new file
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

#[derive(Args)]
pub(crate) struct GcArgs {
    /// Remove the KV rows of all other models and devices
    #[arg(long, conflicts_with = "remote")]
    pub(crate) other_models: bool,
    /// Delete KV rows that were stored remotely at least this long ago (like 12h, 7d or 2w)
    #[arg(long, value_name = "AGE", value_parser = size::parse_age, requires = "remote")]
    pub(crate) older_than: Option<Duration>,
    /// Delete the oldest KV rows in the remote store until this size is left (like 100g)
    #[arg(long, value_name = "SIZE", value_parser = size::parse_bytes, requires = "remote")]
    pub(crate) max_size: Option<u64>,
    #[command(flatten)]
    pub(crate) there: ThereArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
}

/// Kinds that can be registered: all except queries.
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
        _ => Err(format!("`{text}` is not of the form KEY=VALUE")),
    }
}
