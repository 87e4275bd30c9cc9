//! The id by which a client finds its request again: its own, or a new one.

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use crate::responses::response_id;

pub(super) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The most characters of an id.
const MAX_CHARS: usize = 128;

/// The id that a request brings, reduced to printable ASCII; a new one if nothing is left of it.
pub(super) fn request_id(headers: &HeaderMap) -> HeaderValue {
    let given = headers.get(X_REQUEST_ID).map(HeaderValue::as_bytes).unwrap_or_default();
    let given: Vec<u8> =
        given.iter().copied().filter(u8::is_ascii_graphic).take(MAX_CHARS).collect();
    let id = if given.is_empty() { response_id("req").into_bytes() } else { given };
    HeaderValue::from_bytes(&id).unwrap_or(HeaderValue::from_static("req"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_back_short_and_printable() {
        let id = |given: &[u8]| {
            let given = HeaderValue::from_bytes(given).unwrap();
            let headers = HeaderMap::from_iter([(X_REQUEST_ID, given)]);
            request_id(&headers).to_str().unwrap().to_owned()
        };
        assert_eq!(id(b"trace-7/a:b"), "trace-7/a:b");
        assert_eq!(id(b"a b\tc\xff"), "abc");
        assert_eq!(id(&[b'x'; 1000]).len(), MAX_CHARS);
        assert!(id(b" \xff").starts_with("req-"));
        let new = request_id(&HeaderMap::new());
        assert_ne!(new, request_id(&HeaderMap::new()));
    }
}
