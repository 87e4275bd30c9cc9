//! llama.cpp's own completion, `POST /completion`, as its clients use it beside `/props`, `/slots`
//! and `/tokenize`: they apply the template themselves and send the whole prompt.

mod request;
mod writer;

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::post;
use serde_json::{Value, json};

use self::writer::LlamaWriter;
use super::Dialect;
use super::texts::continue_texts;
use crate::api_error::ApiError;
use crate::app::App;
use crate::http::Body;

pub(crate) use self::request::LlamaCompletion;

/// llama.cpp.
pub(super) const LLAMA: Dialect = Dialect {
    prefixes: &["/completion"],
    header: None,
    routes: || vec![("/completion", post(create))],
    error: error_json,
};

async fn create(
    State(app): State<Arc<App>>,
    body: Body<LlamaCompletion>,
) -> Result<Response, ApiError> {
    let Body { value: LlamaCompletion { texts, options }, bytes, share } = body;
    let body = Body { value: texts, bytes, share };
    continue_texts(&app, body, move |continuing| LlamaWriter::new(continuing, options)).await
}

/// An error as llama.cpp's clients read it.
fn error_json(error: &ApiError) -> Value {
    let kind = match error.status() {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::SERVICE_UNAVAILABLE => "unavailable_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "server_error",
    };
    let code = error.status().as_u16();
    let mut json = json!({"error": {"code": code, "message": error.message(), "type": kind}});
    if let Some((tokens, context)) = error.lengths() {
        json["error"]["type"] = "exceed_context_size_error".into();
        json["error"]["n_prompt_tokens"] = tokens.into();
        json["error"]["n_ctx"] = context.into();
    }
    json
}
