//! The environment variables of the hub's own tools.
//!
//! It interprets `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`, `HF_ENDPOINT`, `HF_TOKEN` and
//! `HF_HUB_OFFLINE`. All values come through one look-up function, so that tests need not change
//! the process environment. Nothing else in weft reads these variables.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use super::HubError;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Addresses of the hub and of its cache, and how to access them.
#[derive(Debug, Clone)]
pub struct HubEnv {
    /// The folder that holds the `models--org--name` folders.
    pub cache: PathBuf,
    /// The hub's URL, without a trailing slash.
    pub endpoint: String,
    /// The user's access token.
    pub token: Option<Token>,
    /// Whether network access is forbidden.
    pub offline: bool,
}

/// An access token. It has no `Display`, and its `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Checks a token: visible ASCII characters only, so that it cannot break out of an HTTP
    /// header.
    pub fn new(text: &str) -> Option<Self> {
        let is_valid = !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
        is_valid.then(|| Token(text.to_owned()))
    }

    /// The secret, for the header of a request.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

impl HubEnv {
    /// Reads the process environment.
    ///
    /// # Errors
    /// If there is no folder for the cache, or a value is invalid.
    pub fn from_env() -> Result<Self, HubError> {
        HubEnv::from_lookup(|name| std::env::var_os(name))
    }

    /// Reads an environment, given as a function from a variable's name to its value. An empty
    /// value counts as unset.
    ///
    /// # Errors
    /// If there is no folder for the cache, or a value is invalid.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, HubError> {
        let value = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let text = |name: &str| value(name).map(|v| v.to_string_lossy().into_owned());
        let user_home = value("HOME").or_else(|| value("USERPROFILE")).map(PathBuf::from);
        let folder = |name: &str| value(name).map(|v| expand_home(v.into(), user_home.as_deref()));

        let hf_home = folder("HF_HOME")
            .or_else(|| Some(folder("XDG_CACHE_HOME")?.join("huggingface")))
            .or_else(|| Some(user_home.as_ref()?.join(".cache").join("huggingface")));
        let cache = folder("HF_HUB_CACHE")
            .or_else(|| Some(hf_home.as_ref()?.join("hub")))
            .ok_or(HubError::NoHome)?;
        let token = match text("HF_TOKEN") {
            Some(text) => Some(read_token(&text, "HF_TOKEN")?),
            None => token_from_file(hf_home.as_deref())?,
        };
        Ok(HubEnv {
            cache,
            endpoint: check_endpoint(text("HF_ENDPOINT").as_deref().unwrap_or(DEFAULT_ENDPOINT))?,
            token,
            offline: text("HF_HUB_OFFLINE").is_some_and(|value| is_true(&value)),
        })
    }
}

/// The shell does not expand `~` in `HF_HOME="~/x"`. The hub's own tools do, and so does weft.
fn expand_home(path: PathBuf, user_home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), user_home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path,
    }
}

/// The values that `huggingface_hub` reads as true.
fn is_true(value: &str) -> bool {
    ["1", "on", "yes", "true"].contains(&value.to_ascii_lowercase().as_str())
}

fn check_endpoint(value: &str) -> Result<String, HubError> {
    let endpoint = value.trim_end_matches('/');
    let host = endpoint
        .strip_prefix("https://")
        .or_else(|| endpoint.strip_prefix("http://"))
        .unwrap_or("");
    let is_clean = endpoint.bytes().all(|b| b.is_ascii_graphic() && !b"?#@\\\"<>".contains(&b));
    if host.is_empty() || host.starts_with(['/', ':']) || !is_clean {
        return Err(HubError::BadEndpoint { value: value.to_owned() });
    }
    Ok(endpoint.to_owned())
}

/// The file that `hf auth login` writes.
fn token_from_file(hf_home: Option<&Path>) -> Result<Option<Token>, HubError> {
    let Some(path) = hf_home.map(|home| home.join("token")) else { return Ok(None) };
    match fs::read_to_string(&path) {
        Ok(text) if text.trim().is_empty() => Ok(None),
        Ok(text) => read_token(&text, &path.display().to_string()).map(Some),
        // Usually there is no file. An unreadable one must not block access to public models.
        Err(_) => Ok(None),
    }
}

fn read_token(text: &str, source_name: &str) -> Result<Token, HubError> {
    Token::new(text.trim())
        .ok_or_else(|| HubError::BadToken { source_name: source_name.to_owned() })
}
