//! A request whose model is being loaded: it waits, and a stream says how far the load is.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use futures_util::stream::unfold;

use super::{Framing, ResponseWriter};
use crate::api_error::ApiError;
use crate::app::App;
use crate::registry::{Entry, Found, Lease};

/// How long a connection may be silent.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// How long a model may load before the client of a stream gets the status 200. Errors that occur
/// sooner are sent with their own status.
const PATIENCE: Duration = Duration::from_secs(2);

type Answer = Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>>;

/// Answers a request by `then` when its model is loaded. If that takes long and the answer is
/// streamed, the stream begins with comments.
pub(crate) async fn when_loaded<W: ResponseWriter, F>(
    app: &Arc<App>,
    found: Found,
    streams: bool,
    then: impl FnOnce(Lease) -> F + Send + 'static,
) -> Result<Response, ApiError>
where
    F: Future<Output = Result<Response, ApiError>> + Send + 'static,
{
    let (models, entry) = (Arc::clone(&app.models), Arc::clone(&found.entry));
    let mut lease = Box::pin(async move { models.lease(&found).await });
    if !streams {
        return then(lease.await?).await;
    }
    if let Ok(lease) = tokio::time::timeout(PATIENCE, &mut lease).await {
        return then(lease?).await;
    }
    let answer: Answer = Box::pin(async move { then(lease.await?).await });
    let waiting =
        Waiting::Loading { entry, answer, fail: fail::<W>, comment: W::FRAMING.has_comments() };
    let body = unfold(waiting, async |mut waiting| {
        let bytes = waiting.next().await?;
        Some((Ok::<_, Infallible>(bytes), waiting))
    });
    let mut response = Body::from_stream(body).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(W::FRAMING.content_type()));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

/// The whole stream of an answer that fails before it begins.
fn fail<W: ResponseWriter>(error: &ApiError) -> Vec<u8> {
    let mut bytes = Vec::new();
    W::FRAMING.write(&mut bytes, &W::refuse(error));
    bytes.extend_from_slice(W::FRAMING.end());
    bytes
}

/// A stream whose answer has not begun, or has.
enum Waiting {
    Loading { entry: Arc<Entry>, answer: Answer, fail: fn(&ApiError) -> Vec<u8>, comment: bool },
    Answering(BodyDataStream),
    Over,
}

impl Waiting {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            match self {
                Self::Over => return None,
                Self::Answering(body) => return body.next().await?.ok(),
                Self::Loading { entry, answer, fail, comment } => {
                    match tokio::time::timeout(KEEP_ALIVE, answer).await {
                        Ok(Ok(response)) => {
                            *self = Self::Answering(response.into_body().into_data_stream());
                        }
                        Ok(Err(error)) => {
                            let bytes = fail(&error);
                            *self = Self::Over;
                            return Some(bytes.into());
                        }
                        Err(_) if *comment => return Some(progress(entry).into()),
                        Err(_) => {}
                    }
                }
            }
        }
    }
}

/// A comment that keeps the connection alive and says how far the load is.
fn progress(entry: &Entry) -> Vec<u8> {
    let (stage, done) = entry.progress.get();
    format!(": {} the model, {:.0} %\n\n", stage.name(), done * 100.0).into_bytes()
}

impl Framing {
    /// Whether readers skip comments.
    const fn has_comments(self) -> bool {
        !self.comment().is_empty()
    }
}
