//! The page, which is part of the binary.

use axum::response::Html;

/// The one file of the page.
pub(super) async fn index() -> Html<&'static str> {
    Html(include_str!("../../page/index.html"))
}
