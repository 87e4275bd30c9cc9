//! The dialects that clients speak. Each has its folder: a reader that turns its JSON into a
//! [`ChatRequest`](crate::requests::ChatRequest) or a [`TextsRequest`], a writer that turns the
//! events of the answer into its JSON, its routes, and the form of its errors. `answer` and `texts`
//! are what lies between reader and writer. To add a dialect, add a folder and its line in [`ALL`].

pub(crate) mod answer;
mod llama;
mod messages;
mod ollama;
mod openai;
mod responses;
mod texts;

use std::sync::Arc;

use axum::http::HeaderMap;
use serde_json::Value;

use crate::api_error::ApiError;
use crate::routes::Routes;

pub(crate) use self::llama::LlamaCompletion;
pub(crate) use self::messages::{CountRequest, MessagesRequest};
pub(crate) use self::ollama::{OllamaChat, OllamaGenerate};
pub(crate) use self::openai::{CompletionRequest, OpenAiChat};
pub(crate) use self::responses::ResponsesRequest;
pub(crate) use self::texts::TextsRequest;

/// A dialect.
pub(crate) struct Dialect {
    /// How the paths of its routes begin.
    prefixes: &'static [&'static str],
    /// A header that its clients send to routes of no dialect, too.
    header: Option<&'static str>,
    routes: fn() -> Routes,
    /// The body of an error.
    error: fn(&ApiError) -> Value,
}

/// What dialects keep from one request to the next.
#[derive(Default)]
pub(crate) struct State {
    responses: Arc<responses::Store>,
}

/// All dialects. The first is that of routes which belong to none.
static ALL: [Dialect; 5] =
    [openai::OPENAI, messages::MESSAGES, responses::RESPONSES, ollama::OLLAMA, llama::LLAMA];

/// The routes of all dialects.
pub(crate) fn routes() -> Routes {
    ALL.iter().flat_map(|dialect| (dialect.routes)()).collect()
}

/// The body of an error as the client that sent the request reads it.
pub(crate) fn error_body(speaker: Speaker, error: &ApiError) -> Value {
    (speaker.0.error)(error)
}

/// The dialect that a request is written in.
#[derive(Clone, Copy)]
pub(crate) struct Speaker(&'static Dialect);

impl Speaker {
    /// By the path, or on routes of no dialect by a header.
    pub(crate) fn of(path: &str, headers: &HeaderMap) -> Self {
        let has_path = |dialect: &&Dialect| dialect.prefixes.iter().any(|p| path.starts_with(p));
        let has_header =
            |dialect: &&Dialect| dialect.header.is_some_and(|name| headers.contains_key(name));
        let found = ALL.iter().find(has_path).or_else(|| ALL.iter().find(has_header));
        Self(found.unwrap_or(&ALL[0]))
    }
}
