//! Helpers for URLs: escaping, redirect targets, and the comparison of origins.
//!
//! The comparison of origins decides who receives the token.

use ureq::http::Uri;

/// Escapes all characters with a special meaning in a URL. Slashes stay if the text is a path.
pub(super) fn percent_encode(text: &str, is_path: bool) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let is_plain = byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
        if is_plain || (is_path && byte == b'/') {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// Scheme, host and port. Two URLs belong to one server only if all three are equal.
pub(super) fn origin(url: &str) -> Option<(String, String, u16)> {
    let uri: Uri = url.parse().ok()?;
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let default_port = match scheme.as_str() {
        "https" => 443,
        "http" => 80,
        _ => return None,
    };
    // `https://hub@other/` leads to `other`. No legitimate redirect needs that form.
    let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'))?;
    let port = authority.port_u16().unwrap_or(default_port);
    Some((scheme, authority.host().to_ascii_lowercase(), port))
}

/// The absolute URL of a redirect's target; `None` if it is not an HTTP URL, or if it would leave
/// HTTPS.
pub(super) fn join(base: &str, location: &str) -> Option<String> {
    let location = location.split('#').next().filter(|location| !location.is_empty())?;
    let (scheme, rest) = base.split_once("://")?;
    let authority = rest.split(['/', '?']).next()?;
    let url = if location.contains("://") {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else {
        let path = rest.split('?').next()?;
        let folder = path.rsplit_once('/').map_or(authority, |(folder, _)| folder);
        format!("{scheme}://{folder}/{location}")
    };
    let (target_scheme, ..) = origin(&url)?;
    let keeps_encryption = target_scheme == "https" || scheme.eq_ignore_ascii_case("http");
    keeps_encryption.then_some(url)
}

/// Whether a URL points to this machine itself.
pub(super) fn is_loopback(url: &str) -> bool {
    origin(url).is_some_and(|(_, host, _)| {
        host == "localhost" || host == "[::1]" || host.starts_with("127.")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_encode_leaves_only_plain_characters() {
        assert_eq!(percent_encode("refs/pr/1", false), "refs%2Fpr%2F1");
        assert_eq!(percent_encode("a b/c?d#é.json", true), "a%20b/c%3Fd%23%C3%A9.json");
    }

    #[test]
    fn origins_distinguish_servers() {
        assert_eq!(origin("https://Hub.co/x"), origin("https://hub.co:443/y?z"));
        let others =
            ["http://hub.co", "https://hub.co:444", "https://hub.co.evil.org", "https://x"];
        for other in others {
            assert_ne!(origin("https://hub.co"), origin(other), "{other}");
        }
        for bad in ["hub.co", "/x", "ftp://hub.co", "https://hub.co@evil.org/", "https://", ""] {
            assert_eq!(origin(bad), None, "{bad}");
        }
    }

    #[test]
    fn join_resolves_redirect_targets() {
        let base = "https://hub.co:8443/a/b?q=/1";
        let cases = [
            ("https://cdn.co/x?y=z", "https://cdn.co/x?y=z"),
            ("//cdn.co/x", "https://cdn.co/x"),
            ("/x/y", "https://hub.co:8443/x/y"),
            ("c#part", "https://hub.co:8443/a/c"),
        ];
        for (location, expected) in cases {
            assert_eq!(join(base, location).as_deref(), Some(expected), "{location}");
        }
        assert_eq!(join("https://hub.co", "x").as_deref(), Some("https://hub.co/x"));
        assert_eq!(join("http://hub.co", "http://cdn.co/x").as_deref(), Some("http://cdn.co/x"));
        assert_eq!(join(base, "http://cdn.co/x"), None, "encryption is given up");
        for bad in ["", "#x", "file:///etc/passwd", "https://hub.co@evil.org/", "http://a b/"] {
            assert_eq!(join(base, bad), None, "{bad}");
        }
    }

    #[test]
    fn loopback_is_this_machine_only() {
        for url in ["http://127.0.0.1:8080", "http://localhost/x", "http://[::1]:1/"] {
            assert!(is_loopback(url), "{url}");
        }
        for url in ["https://huggingface.co", "http://localhost.evil.com", "http://10.0.0.1"] {
            assert!(!is_loopback(url), "{url}");
        }
    }
}
