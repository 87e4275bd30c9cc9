//! The page, which is part of the binary: plain files, and a policy that stops browsers from
//! loading or running anything else.

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
/// A library by others: its own text is not held to our rules, but the policy holds for it too.
const VENDORED: &str = "text/javascript; charset=UTF-8";
const SVG: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";

/// Everything comes from this server, nothing is inline, no text becomes markup, and no other page
/// may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; form-action 'none'; base-uri 'none'; \
                      frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

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
pub(super) static FILES: [File; 31] = files![
    "/" HTML "index.html",
    "/style.css" CSS "style.css",
    "/icon.svg" SVG "icon.svg",
    "/accepted.js" SCRIPT "accepted.js",
    "/api.js" SCRIPT "api.js",
    "/app.js" SCRIPT "app.js",
    "/chat.js" SCRIPT "chat.js",
    "/code.js" SCRIPT "code.js",
    "/conversations.js" SCRIPT "conversations.js",
    "/copy.js" SCRIPT "copy.js",
    "/dom.js" SCRIPT "dom.js",
    "/export.js" SCRIPT "export.js",
    "/files.js" SCRIPT "files.js",
    "/icons.js" SCRIPT "icons.js",
    "/loading.js" SCRIPT "loading.js",
    "/markdown.js" SCRIPT "markdown.js",
    "/maths.js" SCRIPT "maths.js",
    "/notice.js" SCRIPT "notice.js",
    "/prompt.js" SCRIPT "prompt.js",
    "/ribbon.js" SCRIPT "ribbon.js",
    "/settings.js" SCRIPT "settings.js",
    "/shelf.js" SCRIPT "shelf.js",
    "/store.js" SCRIPT "store.js",
    "/toast.js" SCRIPT "toast.js",
    "/tray.js" SCRIPT "tray.js",
    "/turn.js" SCRIPT "turn.js",
    "/welcome.js" SCRIPT "welcome.js",
    "/vendor/marked.js" VENDORED "vendor/marked.js",
    "/vendor/prism.js" VENDORED "vendor/prism.js",
    "/vendor/temml.js" VENDORED "vendor/temml.js",
    "/vendor/LICENSES.txt" TEXT "vendor/LICENSES.txt",
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
        let mut names = BTreeSet::new();
        for prefix in ["", "vendor/"] {
            let entries = std::fs::read_dir(folder.join(prefix)).unwrap().map(Result::unwrap);
            let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
            names.extend(files.map(|entry| format!("{prefix}{}", entry.file_name().display())));
        }
        names.remove("vendor/update.sh");
        let name = |path: &'static str| match path {
            "/" => "index.html".to_owned(),
            path => path[1..].to_owned(),
        };
        let served: BTreeSet<String> = FILES.iter().map(|file| name(file.path)).collect();
        assert_eq!(served, names);
    }

    /// The page stays small: a few hundred kilobytes in all.
    #[test]
    fn the_libraries_of_others_are_small() {
        let vendored = FILES.iter().filter(|file| file.kind == VENDORED);
        let bytes: usize = vendored.map(|file| file.text.len()).sum();
        assert!(bytes < 320_000, "the libraries have {bytes} bytes");
    }

    #[test]
    fn nothing_is_inline_or_from_elsewhere_and_no_text_becomes_markup() {
        for File { path, kind, text } in &FILES {
            let forbidden: &[&str] = match *kind {
                HTML => &["style=", " onclick=", "<style", "javascript:", "https://", "http://"],
                SCRIPT => {
                    &["innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "document.write"]
                }
                CSS | SVG => &["@import", "https://"],
                _ => &[],
            };
            for word in forbidden {
                assert!(!text.contains(word), "{path} has {word}");
            }
        }
    }
}
