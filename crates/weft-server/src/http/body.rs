//! A request's body: JSON of limited size, read into a type that checks it.

use std::sync::Arc;
use std::time::Duration;

use axum::body;
use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::api_error::ApiError;
use crate::app::{App, off_thread};
use crate::requests::{FromJson, reuse};

/// The largest body. What requests name or keep beside it may have as much.
pub(crate) const MAX_BYTES: usize = 16 << 20;
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
/// How long a body waits for its share.
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
pub(crate) struct Share(Option<OwnedSemaphorePermit>);

impl Share {
    /// Waits for as much as a body of this size needs, in the order of the requests. All of it is
    /// taken at once: bodies that each held a part and waited for the rest would wait for each
    /// other.
    async fn take(bytes: usize, budget: &BodyBudget) -> Result<Self, ApiError> {
        let units = bytes.min(MAX_BYTES).div_ceil(UNIT) as u32;
        let taken = timeout(PATIENCE, Arc::clone(&budget.0).acquire_many_owned(units)).await;
        let Ok(Ok(permit)) = taken else {
            return Err(ApiError::unavailable(
                "the bodies of other requests take all memory for bodies; try again in a second",
            ));
        };
        Ok(Self(Some(permit)))
    }

    /// Returns what a body of this size does not need.
    fn shrink(&mut self, bytes: usize) {
        if let Some(permit) = &mut self.0 {
            let excess = permit.num_permits().saturating_sub(bytes.div_ceil(UNIT));
            drop(permit.split(excess));
        }
    }
}

/// A body parsed as a `T`, its size, and its share of the budget, to be held as long as the value.
pub(crate) struct Body<T> {
    pub(crate) value: T,
    pub(crate) bytes: usize,
    pub(crate) share: Share,
}

impl<T> Body<T> {
    /// The same body as another type.
    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> Body<U> {
        let Self { value, bytes, share } = self;
        Body { value: change(value), bytes, share }
    }
}

impl<T: FromJson> FromRequest<Arc<App>> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let may_be_absent = T::EMPTY_IS_FINE && !request.headers().contains_key(CONTENT_TYPE);
        if !may_be_absent {
            check_type(request.headers())?;
        }
        check_encoding(request.headers())?;
        let announced = announced_bytes(request.headers());
        if announced.is_some_and(|bytes| bytes > MAX_BYTES as u64) {
            return Err(refuse(too_large(), request.into_body()));
        }
        let most = announced.map_or(MAX_BYTES, |bytes| bytes as usize);
        let given = reuse::fields_of(request.headers());
        let (mut bytes, share) = read(request.into_body(), most, &app.body_budget).await?;
        if T::EMPTY_IS_FINE && bytes.is_empty() {
            bytes.extend_from_slice(b"{}");
        }
        let n = bytes.len();
        off_thread(n, move || Ok(Self { value: parse_with(&bytes, given)?, bytes: n, share })).await
    }
}

/// Accepts only JSON: browsers let any page send other types without a preflight request. Programs,
/// which send no `Origin`, may leave the type out, as some clients of Ollama do.
fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    if !headers.contains_key(CONTENT_TYPE) && !headers.contains_key(ORIGIN) {
        return Ok(());
    }
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

/// The size that a request announces, if it announces one.
fn announced_bytes(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn too_large() -> ApiError {
    let message = format!("the body has more than {MAX_BYTES} bytes (16 MB), which is the limit");
    ApiError::refused(StatusCode::PAYLOAD_TOO_LARGE, message)
}

/// Reads a body of at most `most` bytes.
async fn read(
    body: body::Body,
    most: usize,
    budget: &BodyBudget,
) -> Result<(Vec<u8>, Share), ApiError> {
    timeout(TIMEOUT, read_limited(body, most, budget)).await.map_err(|_| late())?
}

fn late() -> ApiError {
    ApiError::refused(StatusCode::REQUEST_TIMEOUT, "the body took too long to arrive")
}

async fn read_limited(
    mut body: body::Body,
    most: usize,
    budget: &BodyBudget,
) -> Result<(Vec<u8>, Share), ApiError> {
    let mut bytes = Vec::new();
    let mut share = Share::default();
    while let Some(frame) = timeout(STALL, body.frame()).await.map_err(|_| late())? {
        let frame =
            frame.map_err(|_| ApiError::invalid("the connection closed before the body ended"))?;
        let Some(data) = frame.data_ref() else { continue };
        let n = bytes.len() + data.len();
        if n > MAX_BYTES {
            return Err(refuse(too_large(), body));
        }
        if n > FREE_BYTES && share.0.is_none() {
            share = match Share::take(most, budget).await {
                Ok(share) => share,
                Err(error) => return Err(refuse(error, body)),
            };
        }
        bytes.extend_from_slice(data);
    }
    share.shrink(bytes.len());
    Ok((bytes, share))
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
    parse_with(bytes, Vec::new())
}

/// Parses JSON, with fields that were given as headers.
fn parse_with<T: FromJson>(
    bytes: &[u8],
    given: Vec<(&'static str, String)>,
) -> Result<T, ApiError> {
    let mut json: Value = serde_json::from_slice(bytes)
        .map_err(|error| ApiError::invalid(format!("the body is not valid JSON: {error}")))?;
    reuse::add_fields(&mut json, given);
    T::from_json(&json)
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;

    /// 16 MiB in frames of 64 KiB, between which other tasks run.
    fn large() -> body::Body {
        let frames = futures_util::stream::iter(0..256);
        body::Body::from_stream(frames.then(|_| async {
            tokio::task::yield_now().await;
            Ok::<_, std::convert::Infallible>(vec![b' '; 64 << 10])
        }))
    }

    #[tokio::test]
    async fn large_bodies_that_arrive_side_by_side_do_not_wait_for_each_other() {
        let budget = Arc::new(BodyBudget::default());
        let readers: Vec<_> = (0..6)
            .map(|_| {
                let budget = Arc::clone(&budget);
                tokio::spawn(async move { read(large(), MAX_BYTES, &budget).await.map(drop) })
            })
            .collect();
        for reader in readers {
            assert!(reader.await.unwrap().is_ok());
        }
    }

    /// A body without an end, which sends a byte after each pause.
    fn endless(pause: Duration) -> body::Body {
        let pauses = futures_util::stream::repeat(pause);
        body::Body::from_stream(pauses.then(|pause| async move {
            tokio::time::sleep(pause).await;
            Ok::<_, std::convert::Infallible>(vec![b' '])
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_arrive_is_not_waited_for() {
        for (pause, limit) in [(2 * STALL, STALL), (STALL / 2, TIMEOUT)] {
            let (start, budget) = (tokio::time::Instant::now(), BodyBudget::default());
            let reading = read(endless(pause), MAX_BYTES, &budget);
            let refused = timeout(10 * TIMEOUT, reading).await.expect("it ends").err().unwrap();
            assert_eq!(refused.status(), StatusCode::REQUEST_TIMEOUT, "{pause:?}");
            let (waited, late) = (start.elapsed(), limit + Duration::from_secs(1));
            assert!((limit..late).contains(&waited), "{waited:?} with pauses of {pause:?}");
        }
    }

    #[tokio::test]
    async fn small_bodies_do_not_wait_for_large_ones() {
        let budget = BodyBudget::default();
        let mut held = Vec::new();
        for _ in 0..BUDGET_BYTES / MAX_BYTES {
            held.push(Share::take(MAX_BYTES, &budget).await.unwrap());
        }
        let body = |bytes| body::Body::from(vec![b' '; bytes]);
        let (bytes, share) = read(body(FREE_BYTES), FREE_BYTES, &budget).await.unwrap();
        assert!(bytes.len() == FREE_BYTES && share.0.is_none());
        let waits = read(body(FREE_BYTES + 1), FREE_BYTES + 1, &budget);
        assert!(timeout(Duration::from_millis(100), waits).await.is_err());
        drop(held);
        assert!(read(body(FREE_BYTES + 1), FREE_BYTES + 1, &budget).await.is_ok());
    }

    #[tokio::test]
    async fn a_body_keeps_the_share_of_its_size() {
        let budget = BodyBudget::default();
        let body = || body::Body::from(vec![b' '; 1 << 20]);
        // Sizes that were not announced count as the largest one until the body has ended.
        let mut held = Vec::new();
        for _ in 0..20 {
            held.push(read(body(), MAX_BYTES, &budget).await.map(|(_, share)| share).unwrap());
        }
        assert_eq!(budget.0.available_permits(), (44 << 20) / UNIT);
        drop(held);
        assert_eq!(budget.0.available_permits(), BUDGET_BYTES / UNIT);
    }
}
