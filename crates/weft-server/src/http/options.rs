//! Where to listen and whom to let in.

use std::net::SocketAddr;
use std::time::Duration;

use weft_core::chunk::Reuse;

use super::{AllowedOrigin, ServeError};

/// The default number of requests that may wait for a lane.
const QUEUE: usize = 64;

/// Where to listen and whom to let in.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address.
    pub address: SocketAddr,
    /// The key that clients must send; without one, everybody who can reach the address is let in.
    pub api_key: Option<String>,
    /// Allows an address that other machines can reach without a key.
    pub insecure: bool,
    /// Names and addresses that clients may use for this server, besides `localhost` and the
    /// address that they connect to.
    pub allowed_hosts: Vec<String>,
    /// Origins of pages and apps that may use this server, besides its own.
    pub allowed_origins: Vec<AllowedOrigin>,
    /// How long an unused model stays loaded; `None` is for ever.
    pub keep_loaded: Option<Duration>,
    /// The most models that are loaded at a time, if memory does not set the limit.
    pub max_loaded: Option<usize>,
    /// Whether clients may name any model that the source finds.
    pub allow_load: bool,
    /// Refuses requests that name another model, instead of answering them with the one there is.
    /// Several models always do.
    pub strict_model: bool,
    /// How the pieces of chats are reused if a request does not say.
    pub reuse: Reuse,
    /// Requests that may wait for a lane.
    pub queue: usize,
    /// A folder for the socket through which other programs of the same user find this server.
    pub resident: Option<std::path::PathBuf>,
}

impl Options {
    /// Listens on an address, with the usual queue and without a key.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            api_key: None,
            insecure: false,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            keep_loaded: None,
            max_loaded: None,
            allow_load: false,
            strict_model: false,
            reuse: Reuse::Exact,
            queue: QUEUE,
            resident: None,
        }
    }

    /// Refuses options that would open the server to other machines by mistake.
    pub(super) fn check(&self) -> Result<(), ServeError> {
        if self.api_key.as_ref().is_some_and(|key| key.trim().is_empty()) {
            return Err(ServeError::EmptyKey);
        }
        let host = self.address.ip();
        let is_open = !host.is_loopback() && self.api_key.is_none() && !self.insecure;
        if is_open { Err(ServeError::NoKey { host }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_machines_need_a_key_or_an_explicit_word() {
        let open = Options::new("0.0.0.0:0".parse().unwrap());
        assert!(open.check().unwrap_err().to_string().contains("--api-key"));
        assert!(Options { insecure: true, ..open.clone() }.check().is_ok());
        assert!(Options { api_key: Some("k".into()), ..open }.check().is_ok());
        for address in ["127.0.0.1:0", "0.0.0.0:0"] {
            for empty in ["", " ", "\n"] {
                let api_key = Some(empty.to_owned());
                let options = Options { api_key, ..Options::new(address.parse().unwrap()) };
                for insecure in [false, true] {
                    let checked = Options { insecure, ..options.clone() }.check();
                    assert!(matches!(checked, Err(ServeError::EmptyKey)), "{empty:?} {insecure}");
                }
            }
        }
        for local in ["127.0.0.1:0", "[::1]:0"] {
            assert!(Options::new(local.parse().unwrap()).check().is_ok());
        }
    }
}
