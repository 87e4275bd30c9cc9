//! Origins of pages and desktop apps that the user allows beside the server's own.

use std::str::FromStr;

/// An origin, such as `https://app.example` or `tauri://localhost`. For schemes other than http and
/// https, the host may be `*`: apps such as VS Code give each of their views another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedOrigin {
    scheme: String,
    /// None for any.
    authority: Option<String>,
}

impl FromStr for AllowedOrigin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || {
            format!(
                "`{text}` is not an origin such as https://app.example, tauri://localhost or \
                 vscode-webview://*"
            )
        };
        let text = text.trim_end_matches('/').to_ascii_lowercase();
        let (scheme, authority) = text.split_once("://").ok_or_else(invalid)?;
        let is_in_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        let is_in_authority = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        let is_any = authority == "*";
        if !scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            || !scheme.chars().all(is_in_scheme)
            || !(is_any || (!authority.is_empty() && authority.chars().all(is_in_authority)))
        {
            return Err(invalid());
        }
        if is_any && matches!(scheme, "http" | "https" | "file") {
            return Err(format!(
                "`{text}` would let every page use this server; name the origin of one"
            ));
        }
        let authority = (!is_any).then(|| authority.to_owned());
        Ok(Self { scheme: scheme.to_owned(), authority })
    }
}

impl AllowedOrigin {
    /// Whether an `Origin` header is this origin.
    pub(super) fn allows(&self, origin: &str) -> bool {
        let Some((scheme, authority)) = origin.split_once("://") else { return false };
        scheme.eq_ignore_ascii_case(&self.scheme)
            && !authority.is_empty()
            && self.authority.as_ref().is_none_or(|allowed| authority.eq_ignore_ascii_case(allowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_of_apps_are_allowed_and_nothing_beside_them() {
        for (allowed, origin, other) in [
            ("tauri://localhost", "tauri://localhost", "tauri://other"),
            ("app://obsidian.md", "app://obsidian.md", "app://obsidian.md.evil.com"),
            ("vscode-webview://*", "vscode-webview://1a2b3c", "vscode-webviews://1a2b3c"),
            ("chrome-extension://abcd", "chrome-extension://abcd", "chrome-extension://abce"),
            ("https://Chat.example:8443/", "https://chat.example:8443", "https://chat.example"),
            ("moz-extension://*", "moz-extension://12-34", "moz-extension://"),
        ] {
            let allowed: AllowedOrigin = allowed.parse().unwrap();
            assert!(allowed.allows(origin), "{origin}");
            assert!(!allowed.allows(other) && !allowed.allows("null"), "{other}");
        }
        for wrong in [
            "",
            "*",
            "null",
            "localhost",
            "http://*",
            "https://*",
            "file://*",
            "tauri://",
            "://x",
            "http://a/b",
            "http://a b",
            "http://*.evil.com",
        ] {
            assert!(wrong.parse::<AllowedOrigin>().is_err(), "{wrong}");
        }
    }
}
