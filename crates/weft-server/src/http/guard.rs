//! Checks every request first: the host it names, the page it comes from, the key it sends.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::request_id::{X_REQUEST_ID, request_id};
use super::{HEADER_BYTES, Options, hosts};
use crate::api_error::ApiError;
use crate::app::App;
use crate::dialects::{Speaker, error_body};
use crate::routes;

const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE, OPTIONS");
/// Headers of responses that pages may read.
const EXPOSED: HeaderValue = HeaderValue::from_static("x-request-id, x-weft-model, retry-after");
/// The spaces, the version and the line break of a request's line.
const LINE_BYTES: usize = "  HTTP/1.1\r\n".len();
const PREFLIGHT_AGE_S: u32 = 600;

/// The address of this side of a request's connection.
#[derive(Clone, Copy)]
pub(super) struct LocalAddress(pub(super) IpAddr);

/// Passes a request on or refuses it, and counts it by its route.
pub(crate) async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "other".to_owned(), |path| path.as_str().to_owned());
    let origin = request.headers().get(header::ORIGIN).cloned();
    let id = request_id(request.headers());
    let speaker = Speaker::of(request.uri().path(), request.headers());
    let mut response = match check(&app.options, &request) {
        Err(error) => error.into_response(),
        // A preflight request: the browser asks, without the key, whether it may send the real one.
        Ok(()) if is_preflight(&request) => preflight(request.headers()),
        Ok(()) => match check_key(&app.options, &request) {
            Err(error) => with_origin(error.into_response(), origin),
            Ok(()) => with_origin(next.run(request).await, origin),
        },
    };
    // Errors have the form that the clients of the path read.
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        let body = error_body(speaker, &error).to_string();
        response.headers_mut().remove(header::CONTENT_LENGTH);
        *response.body_mut() = body.into();
    }
    response.headers_mut().insert(X_REQUEST_ID, id);
    app.requests.count(&route, response.status().as_u16());
    response
}

/// Bytes of a request's line and headers as they were sent.
fn head_bytes(request: &Request) -> usize {
    let line = request.method().as_str().len() + request.uri().to_string().len() + LINE_BYTES;
    let headers = request.headers().iter();
    line + headers.map(|(name, value)| name.as_str().len() + value.len() + 4).sum::<usize>()
}

fn check(options: &Options, request: &Request) -> Result<(), ApiError> {
    if head_bytes(request) > HEADER_BYTES {
        let message = format!("the headers have more than {HEADER_BYTES} bytes; send shorter ones");
        return Err(ApiError::refused(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, message));
    }
    let text = |name: HeaderName| {
        request.headers().get(name).map(|value| value.to_str().unwrap_or_default())
    };
    // Two programs on the way might each believe another one.
    if request.headers().get_all(header::HOST).iter().count() > 1 {
        return Err(ApiError::invalid("the request has more than one Host header"));
    }
    let host =
        text(header::HOST).ok_or_else(|| ApiError::invalid("the request has no Host header"))?;
    let refused = |what| Err(ApiError::refused(StatusCode::FORBIDDEN, what));
    let local = request.extensions().get::<LocalAddress>().map(|address| address.0);
    if !hosts::is_ours(host, local, options) {
        return refused(
            "this server is not called by that Host; use localhost, the address that it is bound \
             to, or a name or address given with --allow-host",
        );
    }
    match text(header::ORIGIN) {
        Some(origin) if !is_allowed(origin, host, options) => {
            refused("pages of that Origin may not use this server; --allow-origin allows one")
        }
        _ => Ok(()),
    }
}

fn is_allowed(origin: &str, host: &str, options: &Options) -> bool {
    hosts::is_own_origin(origin, host, options)
        || options.allowed_origins.iter().any(|allowed| allowed.allows(origin))
}

fn check_key(options: &Options, request: &Request) -> Result<(), ApiError> {
    let Some(key) = &options.api_key else { return Ok(()) };
    if routes::is_open(request.uri().path()) {
        return Ok(());
    }
    let headers = request.headers();
    let bearer = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.as_bytes().split_at_checked("Bearer ".len()))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"Bearer "))
        .map(|(_, key)| key);
    let given = bearer.or_else(|| headers.get("x-api-key").map(HeaderValue::as_bytes));
    match given {
        Some(given) if is_same(given, key.as_bytes()) => Ok(()),
        _ => Err(ApiError::unauthorized()),
    }
}

/// Compares in constant time: the time does not show where two keys differ.
fn is_same(given: &[u8], key: &[u8]) -> bool {
    let mut difference = usize::from(given.len() != key.len());
    for (index, byte) in given.iter().enumerate() {
        let wanted = key.get(index % key.len().max(1)).copied().unwrap_or_default();
        difference |= usize::from(byte ^ wanted);
    }
    std::hint::black_box(difference) == 0
}

fn is_preflight(request: &Request) -> bool {
    request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// The page's origin has been checked, so every header and method it asks for is allowed.
fn preflight(asked: &HeaderMap) -> Response {
    let mut response = StatusCode::OK.into_response();
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, PREFLIGHT_AGE_S.into());
    if let Some(names) = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
    with_origin(response, asked.get(header::ORIGIN).cloned())
}

fn with_origin(mut response: Response, origin: Option<HeaderValue>) -> Response {
    let headers = response.headers_mut();
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::VARY, HeaderValue::from_static("Origin"));
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_the_same_or_not() {
        assert!(is_same(b"secret", b"secret"));
        for wrong in [&b""[..], b"secre", b"secrets", b"secret\0", b"Secret", b"secretsecret"] {
            assert!(!is_same(wrong, b"secret"), "{wrong:?}");
        }
    }
}
