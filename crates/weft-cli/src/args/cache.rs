//! Flags of what is kept, where, and how much of it.

use std::path::PathBuf;

use clap::Args;

use crate::size;

/// Under which `--help` lists them.
const HEADING: &str = "What is kept";

/// Where KV rows and chunks are kept.
#[derive(Args, Clone, Default)]
pub(crate) struct CacheArgs {
    /// Memory for KV rows on the device (like 2g; default: two contexts, if a quarter of the free
    /// memory holds them)
    #[arg(help_heading = HEADING, long, value_name = "SIZE", value_parser = size::parse_bytes)]
    pub(crate) kv_memory: Option<u64>,
    /// Contexts that pages are wanted for, where it is not for one user's one answer
    #[arg(skip)]
    pub(crate) contexts: Option<usize>,
    /// Main memory for rows that left the device (default: up to 256m; 0 for none)
    #[arg(help_heading = HEADING, long, value_name = "SIZE", value_parser = size::parse_bytes)]
    pub(crate) ram_cache: Option<u64>,
    /// Disk for rows (default: 4g; 0 for none)
    #[arg(help_heading = HEADING, long, value_name = "SIZE", value_parser = size::parse_bytes)]
    pub(crate) disk_cache: Option<u64>,
    /// The folder of rows on disk (default: weft/kv in the user's cache folder)
    #[arg(help_heading = HEADING, long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// The folder of registered chunks (default: weft/chunks in the user's data folder)
    #[arg(help_heading = HEADING, long, value_name = "DIR")]
    pub(crate) chunk_dir: Option<PathBuf>,
    /// Compute everything afresh: neither use rows that are kept nor keep any
    #[arg(help_heading = HEADING, long)]
    pub(crate) no_cache: bool,
}
