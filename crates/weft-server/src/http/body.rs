//! A request's body: JSON of limited size, read into a type that checks it.

use std::sync::Arc;
use std::time::Duration;

use axum::body;
use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use crate::api_error::ApiError;
use crate::app::{App, off_thread};
use crate::requests::FromJson;

/// The largest body.
const MAX_BYTES: usize = 16 << 20;
/// Bytes of a larger body that are read and discarded, so that the client can read the error.
const MAX_WASTE_BYTES: usize = 64 << 20;
/// How long a body may take to arrive, and how long its client may pause.
const TIMEOUT: Duration = Duration::from_secs(60);
const STALL: Duration = Duration::from_secs(10);
/// Bytes of all bodies that are being received or processed. Parsed, they can take thirty times
/// as much memory.
const BUDGET_BYTES: usize = 64 << 20;
/// A body of up to this many bytes takes no share of the budget, so large ones cannot delay it.
const FREE_BYTES: usize = 16 << 10;
/// How long a body waits for its share, all its waits together.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of one permit.
const UNIT: usize = 1 << 10;

/// What the bodies of all requests may take together.
pub(crate) struct BodyBudget(Arc<Semaphore>);

impl Default for BodyBudget {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(BUDGET_BYTES / UNIT)))
    }
}

/// A body's share of the budget; returned when it is dropped.
#[derive(Default)]
pub(crate) struct Share {
    permit: Option<OwnedSemaphorePermit>,
    /// How long it has waited.
    waited: Duration,
}

impl Share {
    /// Takes as much as a body of this size needs. Clients that wait get their turns in order.
    async fn grow(&mut self, bytes: usize, budget: &BodyBudget) -> Result<(), ApiError> {
        let held = self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let wanted = if bytes <= FREE_BYTES { 0 } else { bytes.div_ceil(UNIT) };
        let Some(more) = u32::try_from(wanted).ok().and_then(|n| n.checked_sub(held as u32)) else {
            return Ok(());
        };
        if more == 0 {
            return Ok(());
        }
        let start = Instant::now();
        let left = PATIENCE.saturating_sub(self.waited);
        let taken = timeout(left, Arc::clone(&budget.0).acquire_many_owned(more)).await;
        self.waited += start.elapsed();
        let Ok(Ok(taken)) = taken else {
            return Err(ApiError::unavailable(
                "the bodies of other requests take all memory for bodies; try again in a second",
            ));
        };
        match &mut self.permit {
            Some(share) => share.merge(taken),
            none => *none = Some(taken),
        }
        Ok(())
    }
}

/// A body parsed as a `T`, its size, and its share of the budget, to be held as long as the value.
pub(crate) struct Body<T> {
    pub(crate) value: T,
    pub(crate) bytes: usize,
    pub(crate) share: Share,
}

impl<T: FromJson> FromRequest<Arc<App>> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let may_be_absent = T::EMPTY_IS_FINE && !request.headers().contains_key(CONTENT_TYPE);
        if !may_be_absent {
            check_type(request.headers())?;
        }
        check_encoding(request.headers())?;
        if announced_bytes(request.headers()) > MAX_BYTES as u64 {
            return Err(refuse(too_large(), request.into_body()));
        }
        let mut share = Share::default();
        let mut bytes = read(request.into_body(), &mut share, &app.body_budget).await?;
        if T::EMPTY_IS_FINE && bytes.is_empty() {
            bytes.extend_from_slice(b"{}");
        }
        let n = bytes.len();
        off_thread(n, move || Ok(Self { value: parse(&bytes)?, bytes: n, share })).await
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

/// The size that a request announces; 0 if it announces none.
fn announced_bytes(headers: &HeaderMap) -> u64 {
    let given = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    given.and_then(|given| given.parse().ok()).unwrap_or(0)
}

fn too_large() -> ApiError {
    let message = format!("the body has more than {MAX_BYTES} bytes (16 MB), which is the limit");
    ApiError::refused(StatusCode::PAYLOAD_TOO_LARGE, message)
}

async fn read(
    body: body::Body,
    share: &mut Share,
    budget: &BodyBudget,
) -> Result<Vec<u8>, ApiError> {
    timeout(TIMEOUT, read_limited(body, share, budget)).await.map_err(|_| late())?
}

fn late() -> ApiError {
    ApiError::refused(StatusCode::REQUEST_TIMEOUT, "the body took too long to arrive")
}

async fn read_limited(
    mut body: body::Body,
    share: &mut Share,
    budget: &BodyBudget,
) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::new();
    while let Some(frame) = timeout(STALL, body.frame()).await.map_err(|_| late())? {
        let frame =
            frame.map_err(|_| ApiError::invalid("the connection closed before the body ended"))?;
        let Some(data) = frame.data_ref() else { continue };
        if bytes.len() + data.len() > MAX_BYTES {
            return Err(refuse(too_large(), body));
        }
        if let Err(error) = share.grow(bytes.len() + data.len(), budget).await {
            return Err(refuse(error, body));
        }
        bytes.extend_from_slice(data);
    }
    Ok(bytes)
}

/// Refuses a body. Its rest is read and discarded while the answer is sent: a client whose bytes
/// nobody reads may not get to the answer.
fn refuse(error: ApiError, rest: body::Body) -> ApiError {
    let mut rest = Limited::new(rest, MAX_WASTE_BYTES);
    tokio::spawn(timeout(TIMEOUT, async move {
        while let Ok(Some(Ok(_))) = timeout(STALL, rest.frame()).await {}
    }));
    error
}

/// Parses JSON. The parser limits the nesting depth.
pub(crate) fn parse<T: FromJson>(bytes: &[u8]) -> Result<T, ApiError> {
    let json: Value = serde_json::from_slice(bytes)
        .map_err(|error| ApiError::invalid(format!("the body is not valid JSON: {error}")))?;
    T::from_json(&json)
}
