//! Flags of the server.

use std::net::{IpAddr, Ipv4Addr};

use clap::Args;
use weft_core::chunk::Reuse;
use weft_server::AllowedOrigin;

use super::{CacheArgs, ModelArgs, RemoteArgs, SpeculateArgs};
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
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
    #[command(flatten)]
    pub(crate) speculate: SpeculateArgs,
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
    #[arg(long, value_name = "NAME", value_parser = parse_allowed_host)]
    pub(crate) allow_host: Vec<String>,
    /// Origin of a page or a desktop app that may use this server, such as tauri://localhost,
    /// app://obsidian.md, vscode-webview://* or chrome-extension://ID; may be given several times
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',')]
    pub(crate) allow_origin: Vec<AllowedOrigin>,
    /// Name that clients use for the model, instead of its own; may be given several times. Answers
    /// carry the first one
    #[arg(long, value_name = "NAME", value_delimiter = ',',
          value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) served_model_name: Vec<String>,
    /// Refuse requests for other models with status 404 (default: the one model answers them)
    #[arg(long)]
    pub(crate) strict_model: bool,
    /// How system blocks, tools and messages of chats are reused, if a request does not say: exact
    /// (after the same prompt), anchored (after the same system block, at any place) or isolated
    /// (anywhere); the last two are approximate
    #[arg(long, value_name = "HOW", default_value_t = Reuse::Exact)]
    pub(crate) reuse: Reuse,
    /// Open the page in the browser
    #[arg(long)]
    pub(crate) open: bool,
    /// Maximum number of waiting requests; the server refuses more with status 429
    #[arg(long, value_name = "N", value_parser = size::parse_count, default_value = "64")]
    pub(crate) queue: usize,
}

/// A name or an address as the `Host` header has it, but without a port: any port is accepted.
fn parse_allowed_host(text: &str) -> Result<String, String> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let is_name = |name: &str| {
        let is_letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !name.is_empty() && name.chars().all(is_letter)
    };
    if bare.parse::<IpAddr>().is_ok() || is_name(bare) {
        return Ok(bare.to_owned());
    }
    Err(format!(
        "`{text}` is not a host name or an address; give it without a scheme, a port or a path, \
         such as box.lan or 192.168.1.5"
    ))
}

fn parse_host(text: &str) -> Result<IpAddr, String> {
    match text {
        "localhost" => Ok(Ipv4Addr::LOCALHOST.into()),
        _ => text
            .parse()
            .map_err(|_| format!("`{text}` is not an IP address such as 127.0.0.1 or 0.0.0.0")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_hosts_are_names_and_addresses() {
        for (given, taken) in [
            ("box.lan", "box.lan"),
            ("10.0.0.9", "10.0.0.9"),
            ("[::1]", "::1"),
            ("fd00::5", "fd00::5"),
        ] {
            assert_eq!(parse_allowed_host(given).as_deref(), Ok(taken));
        }
        for wrong in ["http://box.lan", "box.lan:8080", "box.lan/v1", "", "a b", "*.lan", "[box]:1"]
        {
            let reason = parse_allowed_host(wrong).unwrap_err();
            assert!(reason.contains("without a scheme, a port or a path"), "{reason}");
        }
    }
}
