//! Flags of the server.

use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use weft_core::chunk::Reuse;
use weft_server::AllowedOrigin;

use super::{CacheArgs, ModelArgs, RemoteArgs, SpeculateArgs};
use crate::size;

#[derive(Args)]
pub(crate) struct ServeArgs {
    /// The models. A single model is loaded immediately, several on first use
    #[arg(value_name = "MODEL", num_args = 0..)]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
    #[command(flatten)]
    pub(crate) speculate: SpeculateArgs,
    /// Address to listen on; all but loopback addresses need --api-key
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
    /// Load any model of the hub or its cache that a client names; paths are refused
    #[arg(long)]
    pub(crate) allow_load: bool,
    /// How long an unused model stays loaded, such as 10m or 1h, or `forever` (default: 10m; the
    /// only model of a server stays)
    #[arg(long, value_name = "TIME")]
    pub(crate) keep_loaded: Option<KeepLoaded>,
    /// Maximum number of models in memory at a time (default: as many as fit)
    #[arg(long, value_name = "N", value_parser = size::parse_count)]
    pub(crate) max_loaded: Option<usize>,
    /// Another name that clients may use for a model; may be given several times
    #[arg(long, value_name = "NAME=MODEL", value_delimiter = ',')]
    pub(crate) alias: Vec<Alias>,
    /// Name that clients use for the model, instead of its own; may be given several times. Answers
    /// carry the first one
    #[arg(long, value_name = "NAME", value_delimiter = ',',
          value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) served_model_name: Vec<String>,
    /// Refuse requests for other models with status 404 (default: a server with one model answers
    /// them; a server with several always refuses them)
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

/// How long a model stays loaded; none is for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeepLoaded(pub(crate) Option<Duration>);

impl FromStr for KeepLoaded {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "forever" | "-1" => Ok(Self(None)),
            "0" => Ok(Self(Some(Duration::ZERO))),
            text => size::parse_age(text).map(|time| Self(Some(time))).map_err(|_| {
                format!("`{text}` is not a time like 90s, 10m, 1h or 1d, nor `forever`")
            }),
        }
    }
}

/// Another name of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Alias {
    pub(crate) name: String,
    pub(crate) model: String,
}

impl FromStr for Alias {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, model)) if !name.is_empty() && !model.is_empty() => {
                Ok(Self { name: name.to_owned(), model: model.to_owned() })
            }
            _ => Err(format!("`{text}` is not NAME=MODEL, such as gpt-4o=qwen3:0.6b")),
        }
    }
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
    fn times_and_aliases_are_read() {
        let keep = |text: &str| text.parse().map(|KeepLoaded(time)| time);
        assert_eq!(keep("10m"), Ok(Some(Duration::from_secs(600))));
        assert_eq!((keep("0"), keep("forever")), (Ok(Some(Duration::ZERO)), Ok(None)));
        assert!(keep("soon").unwrap_err().contains("forever"));
        let alias = "a=b=c".parse::<Alias>().unwrap();
        assert_eq!((&alias.name[..], &alias.model[..]), ("a", "b=c"));
        for wrong in ["a", "=b", "a="] {
            assert!(wrong.parse::<Alias>().unwrap_err().contains("NAME=MODEL"), "{wrong}");
        }
    }

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
