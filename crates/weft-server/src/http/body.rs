//! A request's body: JSON of limited size, read into a type that checks it.

use std::sync::Arc;
use std::time::Duration;

use axum::body;
use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde_json::Value;

use crate::api_error::ApiError;
use crate::app::{App, off_thread};
use crate::requests::FromJson;

/// The largest body.
const MAX_BYTES: usize = 16 << 20;
/// Bytes of a larger body that are read and discarded, so that the client can read the error.
const MAX_WASTE_BYTES: usize = 64 << 20;
/// How long a body may take to arrive.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A body parsed as a `T`, and its size.
pub(crate) struct Body<T> {
    pub(crate) value: T,
    pub(crate) bytes: usize,
}

impl<T: FromJson> FromRequest<Arc<App>> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &Arc<App>) -> Result<Self, ApiError> {
        let may_be_absent = T::EMPTY_IS_FINE && !request.headers().contains_key(CONTENT_TYPE);
        if !may_be_absent {
            check_type(request.headers())?;
        }
        check_encoding(request.headers())?;
        let mut bytes = read(request.into_body()).await?;
        if may_be_absent && bytes.is_empty() {
            bytes.extend_from_slice(b"{}");
        }
        let n = bytes.len();
        off_thread(n, move || Ok(Self { value: parse(&bytes)?, bytes: n })).await
    }
}

/// Accepts only JSON: browsers let any page send other types without a preflight request.
fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let given = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = given.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let message = "the body must be JSON, sent with `Content-Type: application/json`";
    Err(ApiError::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
}

/// Refuses a compressed body: what it unpacks to is not known before it is unpacked.
fn check_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    let mut encodings = headers.get_all(CONTENT_ENCODING).iter();
    if encodings.all(|value| value.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Ok(());
    }
    let message = "compressed bodies are not read; send the JSON without a Content-Encoding";
    Err(ApiError::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
}

async fn read(body: body::Body) -> Result<Vec<u8>, ApiError> {
    let late =
        |_| ApiError::refused(StatusCode::REQUEST_TIMEOUT, "the body took too long to arrive");
    tokio::time::timeout(TIMEOUT, read_limited(body)).await.map_err(late)?
}

async fn read_limited(mut body: body::Body) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|_| ApiError::invalid("the connection closed before the body ended"))?;
        let Some(data) = frame.data_ref() else { continue };
        if bytes.len() + data.len() > MAX_BYTES {
            drop(bytes);
            return Err(waste(body).await);
        }
        bytes.extend_from_slice(data);
    }
    Ok(bytes)
}

async fn waste(body: body::Body) -> ApiError {
    let mut rest = Limited::new(body, MAX_WASTE_BYTES);
    while let Some(Ok(_)) = rest.frame().await {}
    let message = format!("the body has more than {MAX_BYTES} bytes (16 MB), which is the limit");
    ApiError::refused(StatusCode::PAYLOAD_TOO_LARGE, message)
}

/// Parses JSON. The parser limits the nesting depth.
pub(crate) fn parse<T: FromJson>(bytes: &[u8]) -> Result<T, ApiError> {
    let json: Value = serde_json::from_slice(bytes)
        .map_err(|error| ApiError::invalid(format!("the body is not valid JSON: {error}")))?;
    T::from_json(&json)
}
