//! Texts to tokens and back, and conversations to the prompts they become.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use super::chat::find_chunks;
use crate::api_error::ApiError;
use crate::app::{App, off_thread};
use crate::http::Body;
use crate::requests::{ChatRequest, FromJson, TokenId, fields};

/// A text, by the name that llama.cpp gives it or the one that vLLM does.
#[derive(Deserialize)]
pub(super) struct Text {
    #[serde(alias = "prompt")]
    content: String,
    /// Whether what the tokenizer puts before a text is put there.
    #[serde(alias = "add_special_tokens")]
    add_special: Option<bool>,
    /// Whether `<|im_end|>` and the like are read as tokens.
    parse_special: Option<bool>,
}

impl FromJson for Text {
    fn from_json(json: &Value) -> Result<Self, ApiError> {
        fields(json)
    }
}

pub(super) async fn tokenize(
    State(app): State<Arc<App>>,
    body: Body<Text>,
) -> Result<Json<Value>, ApiError> {
    let served = app.served()?;
    off_thread(body.bytes, move || {
        let Text { content, add_special, parse_special } = body.value;
        let tokenizer = &served.tokenizer;
        let mut tokens = match add_special {
            Some(true) => tokenizer.bos().to_vec(),
            _ => Vec::new(),
        };
        tokens.extend(match parse_special {
            Some(true) => tokenizer.encode_markup(&content)?,
            _ => tokenizer.encode_text(&content)?,
        });
        let (count, max) = (tokens.len(), served.context);
        Ok(Json(json!({"tokens": tokens, "count": count, "max_model_len": max})))
    })
    .await
}

/// Tokens.
#[derive(Deserialize)]
pub(super) struct Tokens {
    tokens: Vec<TokenId>,
}

impl FromJson for Tokens {
    fn from_json(json: &Value) -> Result<Self, ApiError> {
        fields(json)
    }
}

pub(super) async fn detokenize(
    State(app): State<Arc<App>>,
    body: Body<Tokens>,
) -> Result<Json<Value>, ApiError> {
    let served = app.served()?;
    off_thread(body.bytes, move || {
        let vocab = served.vocab();
        let unknown = body.value.tokens.iter().find(|id| id.count() >= vocab);
        if let Some(id) = unknown {
            let message = format!("token {} is not in the vocabulary of {vocab}", id.get());
            return Err(ApiError::invalid(message).param("tokens"));
        }
        let ids: Vec<u32> = body.value.tokens.iter().map(|id| id.get() as u32).collect();
        let text = served.tokenizer.decode(&ids, false);
        Ok(Json(json!({"content": text, "prompt": text})))
    })
    .await
}

pub(super) async fn apply_template(
    State(app): State<Arc<App>>,
    body: Body<ChatRequest>,
) -> Result<Json<Value>, ApiError> {
    let served = app.served()?;
    let Body { value: request, bytes } = body;
    let chunks: BTreeMap<_, _> = find_chunks(&app, request.chunk_ids()).await?;
    off_thread(bytes, move || {
        let rendered = served.template()?.render(&request.conversation(&chunks)?)?;
        Ok(Json(json!({"prompt": rendered.text()})))
    })
    .await
}
