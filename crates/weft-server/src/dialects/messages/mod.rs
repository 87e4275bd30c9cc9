//! Anthropic's Messages: `POST /v1/messages` and `POST /v1/messages/count_tokens`.

mod blocks;
mod request;
mod writer;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::post;
use serde_json::{Value, json};

use self::request::THREAD_NOT_FOUND;
use self::writer::MessageWriter;
use super::Dialect;
use super::answer::{answer, count_tokens};
use crate::api_error::ApiError;
use crate::app::App;
use crate::http::Body;

pub(crate) use self::request::{CountRequest, MessagesRequest};

/// Messages.
pub(super) const MESSAGES: Dialect = Dialect {
    prefixes: &["/v1/messages"],
    header: Some("anthropic-version"),
    routes: || vec![("/v1/messages", post(create)), ("/v1/messages/count_tokens", post(count))],
    error: error_json,
};

async fn create(
    State(app): State<Arc<App>>,
    body: Body<MessagesRequest>,
) -> Result<Response, ApiError> {
    let asks_for_edits = body.value.asks_for_edits;
    let body = body.map(|request| request.chat);
    answer(&app, body, move |answering| MessageWriter::new(answering, asks_for_edits)).await
}

async fn count(
    State(app): State<Arc<App>>,
    body: Body<CountRequest>,
) -> Result<Json<Value>, ApiError> {
    let n = count_tokens(&app, body.map(|CountRequest(chat)| chat)).await?;
    Ok(Json(json!({"input_tokens": n})))
}

/// An error as Anthropic's clients read it.
fn error_json(error: &ApiError) -> Value {
    let kind = match error.status() {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "api_error",
    };
    let message = match error.lengths() {
        _ if error.missing_model().is_some() => {
            format!("model: {}", error.missing_model().unwrap_or_default())
        }
        // Agents look for the first words and then shorten their context.
        Some((tokens, context)) => format!(
            "prompt is too long: {tokens} tokens > {context} maximum, answer included; shorten \
             the prompt, or start the server with a larger --ctx-size"
        ),
        None => error.message().to_owned(),
    };
    let mut json = json!({"type": "error", "error": {"type": kind, "message": message}});
    if error.has_code(THREAD_NOT_FOUND) {
        json["error"]["details"] = json!({"error_code": THREAD_NOT_FOUND});
    }
    json
}
