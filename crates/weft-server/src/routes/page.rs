//! The page, which is part of the binary: plain files, and a policy that stops browsers from
//! loading or running anything else.

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Everything comes from this server, nothing is inline, and no other page may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; form-action 'none'; base-uri 'none'; \
                      frame-ancestors 'none'";

/// A file of the page.
pub(super) struct File {
    pub(super) path: &'static str,
    kind: &'static str,
    text: &'static str,
}

macro_rules! files {
    ($($path:literal $kind:ident $name:literal,)*) => {
        [$(File { path: $path, kind: $kind, text: include_str!(concat!("../../page/", $name)) }),*]
    };
}

/// All files, by path. A test compares this list with the folder.
pub(super) static FILES: [File; 20] = files![
    "/" HTML "index.html",
    "/style.css" CSS "style.css",
    "/icon.svg" SVG "icon.svg",
    "/api.js" SCRIPT "api.js",
    "/app.js" SCRIPT "app.js",
    "/chat.js" SCRIPT "chat.js",
    "/dom.js" SCRIPT "dom.js",
    "/export.js" SCRIPT "export.js",
    "/icons.js" SCRIPT "icons.js",
    "/loading.js" SCRIPT "loading.js",
    "/markdown.js" SCRIPT "markdown.js",
    "/notice.js" SCRIPT "notice.js",
    "/prompt.js" SCRIPT "prompt.js",
    "/ribbon.js" SCRIPT "ribbon.js",
    "/settings.js" SCRIPT "settings.js",
    "/shelf.js" SCRIPT "shelf.js",
    "/store.js" SCRIPT "store.js",
    "/tray.js" SCRIPT "tray.js",
    "/turn.js" SCRIPT "turn.js",
    "/welcome.js" SCRIPT "welcome.js",
];

impl IntoResponse for &'static File {
    fn into_response(self) -> Response {
        let headers: [(HeaderName, HeaderValue); 4] = [
            (header::CONTENT_TYPE, HeaderValue::from_static(self.kind)),
            (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
            // Another binary may have another page. The page is small, so the browser fetches it
            // every time.
            (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
            (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        ];
        (headers, self.text).into_response()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_file_of_the_folder_is_served() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("page");
        let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
        let names: BTreeSet<String> = entries
            .filter(|entry| entry.file_type().unwrap().is_file())
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        let name = |path: &'static str| match path {
            "/" => "index.html".to_owned(),
            path => path[1..].to_owned(),
        };
        let served: BTreeSet<String> = FILES.iter().map(|file| name(file.path)).collect();
        assert_eq!(served, names);
    }

    #[test]
    fn nothing_is_inline_or_from_elsewhere_and_no_text_becomes_markup() {
        for File { path, kind, text } in &FILES {
            let forbidden: &[&str] = match *kind {
                HTML => &["style=", " onclick=", "<style", "javascript:", "https://", "http://"],
                SCRIPT => {
                    &["innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "document.write"]
                }
                _ => &["@import", "https://"],
            };
            for word in forbidden {
                assert!(!text.contains(word), "{path} has {word}");
            }
        }
    }
}
