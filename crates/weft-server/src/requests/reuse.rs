//! How the pieces of a prompt are reused, in the fields of every dialect or in headers.

use axum::http::HeaderMap;
use serde::Deserialize;
use serde_json::Value;
use weft_core::chunk::{Repair, Reuse};

use super::numbers::Parsed;

/// Headers that stand for fields of the body: agents let users set headers, not fields.
const HEADERS: [(&str, &str); 2] = [("x-weft-reuse", "reuse"), ("x-weft-repair", "repair")];

/// The fields of a body that say how pieces are reused.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct ReuseFields {
    reuse: Option<Parsed<Reuse>>,
    repair: Option<Parsed<Repair>>,
}

impl ReuseFields {
    /// What the pieces attend to; as the server is set if the request does not say.
    pub(crate) fn reuse(self, default: Reuse) -> Reuse {
        self.reuse.map_or(default, |reuse| reuse.0)
    }

    /// Which rows of moved pieces are recomputed.
    pub(crate) fn repair(self) -> Repair {
        self.repair.unwrap_or_default().0
    }
}

/// The fields that a request's headers stand for.
pub(crate) fn fields_of(headers: &HeaderMap) -> Vec<(&'static str, String)> {
    let field = |(header, field): (&str, &'static str)| {
        let value = String::from_utf8_lossy(headers.get(header)?.as_bytes());
        Some((field, value.trim().to_owned()))
    };
    HEADERS.into_iter().filter_map(field).collect()
}

/// Adds such fields to a body, unless it has them.
pub(crate) fn add_fields(json: &mut Value, given: Vec<(&'static str, String)>) {
    let Some(body) = json.as_object_mut() else { return };
    for (field, value) in given {
        let held = body.entry(field).or_insert(Value::Null);
        if held.is_null() {
            *held = value.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::requests::fields;

    #[test]
    fn a_field_takes_precedence_over_a_header_and_both_over_the_server() {
        let mut headers = HeaderMap::new();
        headers.insert("x-weft-reuse", "anchored".parse().unwrap());
        headers.insert("X-Weft-Repair", " link:4 ".parse().unwrap());
        let read = |mut json: Value, headers: &HeaderMap| {
            add_fields(&mut json, fields_of(headers));
            let read: ReuseFields = fields(&json).unwrap();
            (read.reuse(Reuse::Isolated), read.repair())
        };
        assert_eq!(read(json!({}), &headers), (Reuse::Anchored, Repair::Link(4)));
        assert_eq!(read(json!({"reuse": null}), &headers).0, Reuse::Anchored);
        assert_eq!(read(json!({"reuse": "exact"}), &headers).0, Reuse::Exact);
        assert_eq!(read(json!({}), &HeaderMap::new()), (Reuse::Isolated, Repair::None));
        let mut list = json!([1]);
        add_fields(&mut list, fields_of(&headers));
        assert_eq!(list, json!([1]));
        headers.insert("x-weft-reuse", "sometimes".parse().unwrap());
        let mut wrong = json!({});
        add_fields(&mut wrong, fields_of(&headers));
        let error = fields::<ReuseFields>(&wrong).unwrap_err().json().to_string();
        assert!(error.contains("sometimes") && error.contains("anchored"), "{error}");
    }
}
