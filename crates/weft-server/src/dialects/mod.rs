//! The dialects that clients speak. Each has its folder: a reader that turns its JSON into a
//! [`ChatRequest`](crate::requests::ChatRequest), a writer that turns the events of the answer into
//! its JSON, its routes, and the form of its errors. `answer` is what lies between the two. Adding
//! a dialect means adding a folder, and its line in [`ALL`].

pub(crate) mod answer;
mod messages;
mod ollama;
mod openai;
mod responses;

use std::sync::Arc;

use serde_json::Value;

use crate::api_error::ApiError;
use crate::routes::Routes;

pub(crate) use self::messages::{CountRequest, MessagesRequest};
pub(crate) use self::ollama::{OllamaChat, OllamaGenerate};
pub(crate) use self::openai::{CompletionRequest, OpenAiChat};
pub(crate) use self::responses::ResponsesRequest;

/// A dialect.
pub(crate) struct Dialect {
    /// How the paths of its routes begin.
    prefixes: &'static [&'static str],
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
const ALL: [Dialect; 4] =
    [openai::OPENAI, messages::MESSAGES, responses::RESPONSES, ollama::OLLAMA];

/// The routes of all dialects.
pub(crate) fn routes() -> Routes {
    ALL.iter().flat_map(|dialect| (dialect.routes)()).collect()
}

/// The body of an error on a path, as the clients of that path read it.
pub(crate) fn error_body(path: &str, error: &ApiError) -> Value {
    let speaks = |dialect: &&Dialect| dialect.prefixes.iter().any(|p| path.starts_with(p));
    let dialect = ALL.iter().find(speaks).unwrap_or(&ALL[0]);
    (dialect.error)(error)
}
