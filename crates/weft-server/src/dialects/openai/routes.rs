//! `POST /v1/chat/completions`: a conversation answered. `POST /v1/completions`: texts continued.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use super::chat_request::OpenAiChat;
use super::chat_writer::{ChatOptions, ChatWriter};
use super::completion_request::CompletionRequest;
use super::completion_writer::CompletionWriter;
use crate::api_error::ApiError;
use crate::app::App;
use crate::dialects::answer::{answer, count_tokens};
use crate::dialects::texts::continue_texts;
use crate::http::Body;

pub(super) async fn chat(
    State(app): State<Arc<App>>,
    body: Body<OpenAiChat>,
) -> Result<Response, ApiError> {
    let body = body.map(|OpenAiChat(chat)| chat);
    let settings = &body.value.settings;
    let options = ChatOptions {
        includes_usage: settings.includes_usage(),
        includes_running_usage: settings.includes_running_usage(),
        includes_reasoning: settings.includes_reasoning(),
        sends_accepted: settings.sends_accepted(),
        echoed: body.value.echoed(),
    };
    answer(&app, body, move |answering| ChatWriter::new(answering, options)).await
}

/// The tokens of a chat's prompt.
pub(super) async fn count(
    State(app): State<Arc<App>>,
    body: Body<OpenAiChat>,
) -> Result<Json<Value>, ApiError> {
    let n = count_tokens(&app, body.map(|OpenAiChat(chat)| chat)).await?;
    Ok(Json(json!({"object": "response.input_tokens", "input_tokens": n})))
}

pub(super) async fn complete(
    State(app): State<Arc<App>>,
    body: Body<CompletionRequest>,
) -> Result<Response, ApiError> {
    continue_texts(&app, body.map(|CompletionRequest(texts)| texts), CompletionWriter::new).await
}
