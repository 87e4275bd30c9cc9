//! Flags of the store that several machines share, and of the commands that are about it.

use std::path::PathBuf;

use clap::Args;

use super::{CacheArgs, ModelArgs};

/// The heading in `--help`.
const HEADING: &str = "Remote store";

/// A store, for commands that always need one.
#[derive(Args, Clone, Default)]
pub(crate) struct RemoteArgs {
    /// The store: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER
    #[arg(help_heading = HEADING, long, value_name = "URL")]
    pub(crate) remote: Option<String>,
    #[command(flatten)]
    pub(crate) trust: RemoteTrustArgs,
}

/// A store, for commands that can do without. The environment and the config file give its URL, but
/// only the flag itself selects the store.
#[derive(Args, Clone, Default)]
pub(crate) struct ThereArgs {
    /// In the remote store instead of on this machine (the URL may be left out if it is set
    /// elsewhere)
    #[arg(help_heading = HEADING, long, value_name = "URL", num_args = 0..=1)]
    pub(crate) remote: Option<Option<String>>,
    #[command(flatten)]
    pub(crate) trust: RemoteTrustArgs,
}

/// Whose rows are used.
#[derive(Args, Clone, Default)]
pub(crate) struct RemoteTrustArgs {
    /// File with the key that signs what is stored; only what it has signed is used
    #[arg(help_heading = HEADING, long, value_name = "FILE")]
    pub(crate) remote_key: Option<PathBuf>,
    /// Use unsigned KV rows too: everybody who can write to the store can then change answers
    #[arg(help_heading = HEADING, long)]
    pub(crate) remote_unsigned: bool,
}

#[derive(Args)]
pub(crate) struct PushArgs {
    /// The chunks
    #[arg(value_name = "CHUNK", num_args = 1.., required = true)]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
}

#[derive(Args)]
pub(crate) struct PullChunksArgs {
    /// The chunks, as `weft chunk list --remote` names them
    #[arg(value_name = "CHUNK", num_args = 1.., required = true)]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
}
