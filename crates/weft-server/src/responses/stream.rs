//! A response that is sent while it is written: server-sent events, or lines of JSON.
//!
//! Events that are ready together are sent in one write, and after the first token there is a short
//! pause between writes: otherwise each token of a fast model would wake two threads and cost a
//! system call. While a long prompt is computed, comments keep the connection alive. A failure
//! during the stream is sent as an event, because the status has already been sent.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use serde_json::Value;
use weft_core::engine::Finished;

use super::{Recorder, ResponseWriter};
use crate::api_error::ApiError;
use crate::worker::{ChoiceEvent, JobError, JobEvent, JobHandle};

/// How long a connection may be silent.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// How long an answer may wait for its lane before the client gets the status 200. Errors that
/// occur sooner are sent with their own status.
const ADMISSION: Duration = Duration::from_secs(2);
/// The time between two writes: too short for a reader to notice.
const GATHER: Duration = Duration::from_millis(2);
/// Bytes that are collected before they are sent.
const WRITE_BYTES: usize = 16 << 10;

/// How the events of a stream are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Server-sent events, of which the last is `[DONE]`.
    Data,
    /// Server-sent events that end without a mark.
    Plain,
    /// Server-sent events, each named by its field `type`.
    Named,
    /// JSON, one object per line.
    Lines,
}

impl Framing {
    pub(super) const fn content_type(self) -> &'static str {
        match self {
            Self::Data | Self::Plain | Self::Named => "text/event-stream",
            Self::Lines => "application/x-ndjson",
        }
    }

    pub(super) fn write(self, bytes: &mut Vec<u8>, events: &[Value]) {
        for event in events {
            if self == Self::Named {
                let name = event["type"].as_str().unwrap_or_default();
                bytes.extend_from_slice(b"event: ");
                bytes.extend_from_slice(name.as_bytes());
                bytes.push(b'\n');
            }
            if self != Self::Lines {
                bytes.extend_from_slice(b"data: ");
            }
            // Writing to memory cannot fail, and a Value is always JSON.
            let _ = serde_json::to_writer(&mut *bytes, event);
            bytes.extend_from_slice(if self == Self::Lines { b"\n" } else { b"\n\n" });
        }
    }

    /// What keeps a connection alive. Lines have nothing that their readers would skip.
    pub(super) const fn comment(self) -> &'static [u8] {
        match self {
            Self::Data | Self::Plain | Self::Named => b": still working\n\n",
            Self::Lines => b"",
        }
    }

    pub(super) const fn end(self) -> &'static [u8] {
        match self {
            Self::Data => b"data: [DONE]\n\n",
            Self::Plain | Self::Named | Self::Lines => b"",
        }
    }
}

/// A stream that is being sent.
struct EventStream<W> {
    handle: JobHandle,
    writer: W,
    recorder: Option<Recorder>,
    left: usize,
    bytes: Vec<u8>,
    /// When tokens were last written.
    last_write: Option<Instant>,
    is_over: bool,
}

/// Answers with a stream, once the engine has taken the request.
pub(crate) async fn stream<W: ResponseWriter>(
    mut handle: JobHandle,
    mut writer: W,
    recorder: Recorder,
) -> Result<Response, ApiError> {
    if let Ok(first) = tokio::time::timeout(ADMISSION, handle.events.recv()).await
        && let JobEvent::Failed(error) = first.ok_or(JobError::Fault)?.event
    {
        return Err(error.into());
    }
    let mut bytes = Vec::new();
    W::FRAMING.write(&mut bytes, &writer.start());
    let stream = EventStream {
        left: handle.n_jobs(),
        handle,
        writer,
        recorder: Some(recorder),
        bytes,
        last_write: None,
        is_over: false,
    };
    let body = unfold(stream, async |mut stream| {
        let bytes = stream.next().await?;
        Some((Ok::<_, Infallible>(bytes), stream))
    });
    let mut response = Body::from_stream(body).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(W::FRAMING.content_type()));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

impl<W: ResponseWriter> EventStream<W> {
    /// The next bytes; none at the end.
    async fn next(&mut self) -> Option<Vec<u8>> {
        if self.is_over {
            return None;
        }
        let since = self.last_write.map_or(GATHER, |last| last.elapsed());
        let wait = GATHER.saturating_sub(since);
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        // Events that write nothing, such as progress that nobody asked for, do not count.
        let soon = || tokio::time::Instant::now() + KEEP_ALIVE;
        let mut deadline = soon();
        while self.bytes.is_empty() && !self.is_over {
            match tokio::time::timeout_at(deadline, self.handle.events.recv()).await {
                Ok(event) => self.write_event(event),
                Err(_) => {
                    self.keep_alive();
                    deadline = soon();
                }
            }
        }
        while !self.is_over && self.bytes.len() < WRITE_BYTES {
            match self.handle.events.try_recv() {
                Ok(event) => self.write_event(Some(event)),
                Err(_) => break,
            }
        }
        self.last_write = self.last_write.map(|_| Instant::now());
        Some(std::mem::take(&mut self.bytes))
    }

    fn write_event(&mut self, event: Option<ChoiceEvent>) {
        let Some(ChoiceEvent { choice, event }) = event else { return self.fail(JobError::Fault) };
        match event {
            JobEvent::Progress(progress) => {
                let events = self.writer.progress(choice, &progress);
                self.write(&events);
            }
            JobEvent::Token { token, is_drafted } => {
                self.last_write.get_or_insert_with(Instant::now);
                self.recorder.iter_mut().for_each(|recorder| recorder.record(choice, token.id));
                let events = self.writer.token(choice, token, is_drafted);
                self.write(&events);
                if self.writer.is_over(choice) {
                    self.handle.cancel(choice);
                }
            }
            JobEvent::Done(finished) => self.end_choice(choice, *finished),
            JobEvent::Cancelled(finished) if self.writer.is_over(choice) => {
                self.end_choice(choice, *finished);
            }
            JobEvent::Cancelled(_) => self.fail(JobError::Ended),
            JobEvent::Failed(error) => self.fail(error),
            // Streams that ask for them are refused.
            JobEvent::Prompt(_) => {}
            JobEvent::Admitted | JobEvent::Rows(_) | JobEvent::Read(_) => {}
        }
    }

    fn write(&mut self, events: &[Value]) {
        W::FRAMING.write(&mut self.bytes, events);
    }

    fn keep_alive(&mut self) {
        let events = self.writer.waiting();
        self.write(&events);
        if events.is_empty() {
            self.bytes.extend_from_slice(W::FRAMING.comment());
        }
    }

    fn end_choice(&mut self, choice: usize, finished: Finished) {
        let events = self.writer.end(choice, finished);
        self.write(&events);
        self.left -= 1;
        if self.left == 0 {
            self.finish();
        }
    }

    fn fail(&mut self, error: JobError) {
        let events = self.writer.fail(&error.into());
        self.write(&events);
        self.end();
    }

    fn finish(&mut self) {
        let events = self.writer.close();
        self.write(&events);
        // Recorded before the client reads the end of the answer and can ask to verify it.
        self.recorder.take().into_iter().for_each(Recorder::keep);
        self.end();
    }

    fn end(&mut self) {
        self.bytes.extend_from_slice(W::FRAMING.end());
        self.is_over = true;
    }
}
