//! An answer told while it is written: server-sent events.
//!
//! Events that are ready together leave in one write, and after the first token writes keep a small
//! distance: a fast model's tokens would each wake two threads and cost a system call. While nothing happens (a long prompt is
//! computed) comments keep the connection alive. A failure in the middle is an event like any other,
//! because the status has long been sent.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use serde_json::Value;

use super::{Recorder, Script};
use crate::api_error::ApiError;
use crate::worker::{Failure, Happening, Ticket, Told};

/// How long nothing may be heard.
const PING: Duration = Duration::from_secs(1);
/// How long an answer may wait for its lane before the client hears that it is accepted. Refusals
/// that come sooner have their own status.
const ADMISSION: Duration = Duration::from_secs(2);
/// The distance of writes, which nobody sees.
const GATHER: Duration = Duration::from_millis(2);
/// Bytes that are gathered before they leave.
const WRITE_BYTES: usize = 16 << 10;

/// A stream in the middle of it.
struct Streaming<S> {
    ticket: Ticket,
    script: S,
    recorder: Option<Recorder>,
    left: usize,
    includes_usage: bool,
    bytes: Vec<u8>,
    /// When tokens were written last.
    spoke: Option<Instant>,
    is_over: bool,
}

/// Answers with a stream, once the engine has taken the request.
pub(crate) async fn stream<S: Script>(
    mut ticket: Ticket,
    mut script: S,
    choices: usize,
    includes_usage: bool,
    recorder: Recorder,
) -> Result<Response, ApiError> {
    if let Ok(first) = tokio::time::timeout(ADMISSION, ticket.events.recv()).await
        && let Happening::Failed(failure) = first.ok_or(Failure::Fault)?.what
    {
        return Err(failure.into());
    }
    let mut bytes = Vec::new();
    script.opening().iter().for_each(|event| write(&mut bytes, event));
    let streaming = Streaming {
        ticket,
        script,
        recorder: Some(recorder),
        left: choices,
        includes_usage,
        bytes,
        spoke: None,
        is_over: false,
    };
    let body = unfold(streaming, async |mut streaming| {
        let bytes = streaming.next().await?;
        Some((Ok::<_, Infallible>(bytes), streaming))
    });
    let mut response = Body::from_stream(body).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

impl<S: Script> Streaming<S> {
    /// The next bytes; none at the end.
    async fn next(&mut self) -> Option<Vec<u8>> {
        if self.is_over {
            return None;
        }
        let wait = self.spoke.map_or(Duration::ZERO, |last| GATHER.saturating_sub(last.elapsed()));
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        while self.bytes.is_empty() && !self.is_over {
            match tokio::time::timeout(PING, self.ticket.events.recv()).await {
                Ok(told) => self.take(told),
                Err(_) => self.bytes.extend_from_slice(b": still at it\n\n"),
            }
        }
        while !self.is_over && self.bytes.len() < WRITE_BYTES {
            match self.ticket.events.try_recv() {
                Ok(told) => self.take(Some(told)),
                Err(_) => break,
            }
        }
        self.spoke = self.spoke.map(|_| Instant::now());
        Some(std::mem::take(&mut self.bytes))
    }

    fn take(&mut self, told: Option<Told>) {
        let Some(Told { choice, what }) = told else { return self.fail(Failure::Fault) };
        match what {
            Happening::Token(token) => {
                self.spoke.get_or_insert_with(Instant::now);
                self.recorder.iter_mut().for_each(|recorder| recorder.hear(choice, token.id));
                let event = self.script.token(choice, token);
                event.iter().for_each(|event| write(&mut self.bytes, event));
            }
            Happening::Done(finished) => {
                let events = self.script.ending(choice, *finished);
                events.iter().for_each(|event| write(&mut self.bytes, event));
                self.left -= 1;
                if self.left == 0 {
                    self.finish();
                }
            }
            Happening::Failed(failure) => self.fail(failure),
            Happening::Admitted | Happening::Rows(_) => {}
        }
    }

    fn fail(&mut self, failure: Failure) {
        write(&mut self.bytes, &ApiError::from(failure).json());
        self.end();
    }

    fn finish(&mut self) {
        if self.includes_usage {
            write(&mut self.bytes, &self.script.usage());
        }
        // Kept before the client can know that it is over, and ask for it.
        self.recorder.take().into_iter().for_each(Recorder::keep);
        self.end();
    }

    fn end(&mut self) {
        self.bytes.extend_from_slice(b"data: [DONE]\n\n");
        self.is_over = true;
    }
}

fn write(bytes: &mut Vec<u8>, event: &Value) {
    bytes.extend_from_slice(b"data: ");
    // Writing to memory cannot fail, and a Value is always JSON.
    let _ = serde_json::to_writer(&mut *bytes, event);
    bytes.extend_from_slice(b"\n\n");
}
