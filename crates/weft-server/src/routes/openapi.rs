//! The document that describes the routes.

use axum::http::header;
use axum::response::IntoResponse;

const DOCUMENT: &str = include_str!("../../openapi.json");

pub(super) async fn document() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn the_document_has_all_routes_and_no_others() {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        let documented: BTreeSet<String> =
            document["paths"].as_object().unwrap().keys().cloned().collect();
        let api = super::super::api();
        let routes = api.iter().map(|(path, _)| path.replace("{*", "{"));
        assert_eq!(documented, routes.collect());
    }

    #[test]
    fn the_document_is_of_this_version() {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    }

    #[test]
    fn references_lead_somewhere() {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        for reference in DOCUMENT.split("\"$ref\": \"#").skip(1) {
            let path = reference.split('"').next().unwrap();
            assert!(document.pointer(path).is_some(), "{path}");
        }
    }
}
