//! OpenAI's chats and completions, with the fields that vLLM and llama.cpp add to them.

mod chat_request;
mod chat_writer;
mod completion_request;
mod completion_writer;
mod routes;

use axum::routing::post;

use super::Dialect;
use crate::api_error::ApiError;

pub(crate) use self::chat_request::OpenAiChat;
pub(crate) use self::completion_request::CompletionRequest;

/// Chats and completions. Errors have this dialect's form on all routes of no dialect, too.
pub(super) const OPENAI: Dialect = Dialect {
    prefixes: &["/v1/chat/", "/v1/completions", "/chat/", "/completions"],
    header: None,
    routes: || {
        vec![
            ("/v1/chat/completions", post(routes::chat)),
            ("/v1/chat/completions/input_tokens", post(routes::count)),
            ("/v1/completions", post(routes::complete)),
        ]
    },
    error: ApiError::json,
};
