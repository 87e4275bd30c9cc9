//! A file's length and blob name, as the hub announces them in response headers.
//!
//! The blob name comes from the network and becomes a file name, so it is checked here.

use ureq::Body;
use ureq::http::Response;
use ureq::http::header::{CONTENT_LENGTH, ETAG};

use super::error::PullError;

/// The hub's headers for a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileInfo {
    /// The name of its blob: a sha-256 for large files, a git object id for small ones.
    pub(super) etag: String,
    /// Its length.
    pub(super) size_bytes: u64,
}

/// The announced length and blob name, if a response has both. The `Content-Length` of a redirect
/// is that of its own body, not of the file.
pub(super) fn read_info(
    url: &str,
    response: &Response<Body>,
) -> Result<Option<FileInfo>, PullError> {
    let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    let own_length =
        if response.status().is_redirection() { None } else { header(CONTENT_LENGTH.as_str()) };
    let etag = header("x-linked-etag").or_else(|| header(ETAG.as_str()));
    let (Some(etag), Some(size)) = (etag, header("x-linked-size").or(own_length)) else {
        return Ok(None);
    };
    let bad = |reason: String| PullError::BadAnswer { url: url.to_owned(), reason };
    Ok(Some(FileInfo {
        etag: blob_name(etag).ok_or_else(|| bad(format!("etag {etag:?} is not a blob name")))?,
        size_bytes: size.trim().parse().map_err(|_| bad(format!("length {size:?}")))?,
    }))
}

/// The bare etag, if it is a safe file name and differs from all other names in the cache.
fn blob_name(etag: &str) -> Option<String> {
    let etag = etag.trim();
    let bare = etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"');
    let is_valid = (1..=128).contains(&bare.len())
        && bare.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    is_valid.then(|| bare.to_owned())
}

#[cfg(test)]
mod tests {
    use super::blob_name;

    #[test]
    fn blob_name_takes_off_the_wrapping() {
        for etag in ["abc-1", "\"abc-1\"", "W/\"abc-1\"", " \"abc-1\" "] {
            assert_eq!(blob_name(etag).as_deref(), Some("abc-1"), "{etag}");
        }
    }

    #[test]
    fn blob_name_refuses_what_is_no_file_name() {
        let long = "a".repeat(129);
        let bad =
            ["", "\"\"", "..", "../x", "a/b", "a\\b", "a.incomplete", "a\0", "a b", "ä", &long];
        for etag in bad {
            assert_eq!(blob_name(etag), None, "{etag}");
        }
    }
}
