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
    /// Address to listen on; other than loopback addresses need --api-key
    #[arg(long, value_name = "ADDRESS", value_parser = parse_host, default_value = "127.0.0.1")]
    pub(crate) host: IpAddr,
    /// Port to listen on (0: any free one)
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub(crate) port: u16,
    /// Key that clients must send (WEFT_API_KEY keeps it out of the process list)
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
    /// Accept other machines without a key
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Host name or address that clients may use, besides localhost and the address that they
    /// connect to; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) allow_host: Vec<String>,
    /// Maximum number of waiting requests; the server refuses more with status 429
    #[arg(long, value_name = "N", value_parser = size::parse_count, default_value = "64")]
    pub(crate) queue: usize,
}

fn parse_host(text: &str) -> Result<IpAddr, String> {
    match text {
        "localhost" => Ok(Ipv4Addr::LOCALHOST.into()),
        _ => text
            .parse()
            .map_err(|_| format!("`{text}` is not an IP address such as 127.0.0.1 or 0.0.0.0")),
    }
}
