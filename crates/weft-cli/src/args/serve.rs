//! Flags of the server.

use std::net::{IpAddr, Ipv4Addr};

use clap::Args;

use super::{CacheArgs, ModelArgs};
use crate::size;

#[derive(Args)]
pub(crate) struct ServeArgs {
    /// The model, if --model is not given
    #[arg(value_name = "MODEL")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    /// The address to listen on; any but this machine's own needs --api-key
    #[arg(long, value_name = "ADDRESS", value_parser = parse_host, default_value = "127.0.0.1")]
    pub(crate) host: IpAddr,
    /// The port to listen on (0: any free one)
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub(crate) port: u16,
    /// What clients must send as their key (WEFT_API_KEY keeps it out of the list of processes)
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
    /// Let other machines in without a key
    #[arg(long)]
    pub(crate) insecure: bool,
    /// A name that clients may call this server by, besides localhost; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) allow_host: Vec<String>,
    /// Requests that may wait for a lane; more are told to come back
    #[arg(long, value_name = "N", value_parser = size::parse_count, default_value = "64")]
    pub(crate) queue: usize,
}

fn parse_host(text: &str) -> Result<IpAddr, String> {
    match text {
        "localhost" => Ok(Ipv4Addr::LOCALHOST.into()),
        _ => text.parse().map_err(|_| format!("`{text}` is no address like 127.0.0.1 or 0.0.0.0")),
    }
}
