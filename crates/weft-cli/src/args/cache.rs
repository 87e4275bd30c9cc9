//! Flags of the KV cache and the chunk library.

use std::path::PathBuf;

use clap::Args;
use weft_core::store::StoredRows;

use super::RemoteArgs;
use crate::size;

/// The heading in `--help`.
const HEADING: &str = "Cache";

/// Sizes and folders for KV rows and chunks.
#[derive(Args, Clone, Default)]
pub(crate) struct CacheArgs {
    /// Memory for KV rows on the device (like 2g; default: two contexts, for `serve` eight, but at
    /// most a quarter of the free memory and at least one context)
    #[arg(help_heading = HEADING, long, value_name = "SIZE", value_parser = size::parse_bytes)]
    pub(crate) kv_memory: Option<u64>,
    /// Number of contexts to size the KV memory for; set by commands, not by a flag
    #[arg(skip)]
    pub(crate) contexts: Option<usize>,
    /// Main memory for KV rows evicted from the device (default: up to 256m; 0 for none)
    #[arg(help_heading = HEADING, long, value_name = "SIZE", value_parser = size::parse_bytes)]
    pub(crate) ram_cache: Option<u64>,
    /// Disk space for KV rows (default: 4g; 0 for none)
    #[arg(help_heading = HEADING, long, value_name = "SIZE", value_parser = size::parse_bytes)]
    pub(crate) disk_cache: Option<u64>,
    /// How KV rows of anchored and isolated documents are stored on disk and in the remote store:
    /// full, or int8, which takes about half the space and changes answers a little (default: full)
    #[arg(help_heading = HEADING, long, value_name = "FORM")]
    pub(crate) stored_rows: Option<StoredRows>,
    /// Folder for KV rows on disk (default: weft/kv in the user's cache folder)
    #[arg(help_heading = HEADING, long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// Folder for registered chunks (default: weft/chunks in the user's data folder)
    #[arg(help_heading = HEADING, long, value_name = "DIR")]
    pub(crate) chunk_dir: Option<PathBuf>,
    /// Compute everything from scratch, without reading or writing cached rows
    #[arg(help_heading = HEADING, long)]
    pub(crate) no_cache: bool,
    /// The remote store; set by commands, not by a flag
    #[arg(skip)]
    pub(crate) remote: RemoteArgs,
}
