//! Flags of `weft embed`.

use clap::Args;

use super::{CacheArgs, ModelArgs};
use crate::size;

#[derive(Args)]
pub(crate) struct EmbedArgs {
    /// The texts, each in quotes (default: each line of stdin that is not empty)
    #[arg(value_name = "TEXT", num_args = 0..)]
    pub(crate) texts: Vec<String>,
    /// Keep the first values of each vector, and normalise them again
    #[arg(long, value_name = "N", value_parser = size::parse_count)]
    pub(crate) dimensions: Option<usize>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
}
