//! Converts texts to tokens and back, and conversations to prompts.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api_error::ApiError;
use crate::app::{App, off_thread};
use crate::dialects::OpenAiChat;
use crate::dialects::answer::{NamedChunks, find_chunks};
use crate::http::Body;
use crate::model_info::ModelInfo;
use crate::requests::{ChatRequest, FromJson, TokenId, fields};

/// The input to tokenize: a text, or a conversation as a prompt.
pub(super) enum TokenizeInput {
    Text(Text),
    Chat(Box<ChatRequest>),
}

/// A text, by llama.cpp's name or vLLM's.
#[derive(Deserialize)]
pub(super) struct Text {
    content: Option<String>,
    prompt: Option<String>,
    /// Whether the tokens that the tokenizer puts before a text are added; vLLM adds them by
    /// default.
    #[serde(alias = "add_special_tokens")]
    add_special: Option<bool>,
    /// Whether special tokens such as `<|im_end|>` are read as tokens.
    parse_special: Option<bool>,
}

/// How tokens are returned, by the names of llama.cpp and vLLM.
#[derive(Clone, Copy, Deserialize)]
struct TokenizeOptions {
    with_pieces: Option<bool>,
    return_token_strs: Option<bool>,
}

/// The model that a request names, if it does.
#[derive(Deserialize)]
struct NamedModel {
    model: Option<String>,
}

/// A request for tokens.
pub(super) struct Tokenize {
    input: TokenizeInput,
    options: TokenizeOptions,
    model: Option<String>,
}

impl FromJson for Tokenize {
    fn from_json(json: &Value) -> Result<Self, ApiError> {
        let input = match json.get("messages") {
            Some(_) => TokenizeInput::Chat(Box::new(OpenAiChat::from_json(json)?.0)),
            None => TokenizeInput::Text(fields(json)?),
        };
        let NamedModel { model } = fields(json)?;
        Ok(Self { input, options: fields(json)?, model })
    }
}

impl Text {
    fn tokens(&self, model: &ModelInfo) -> Result<Vec<u32>, ApiError> {
        let (text, has_special) = match (&self.content, &self.prompt) {
            (Some(content), _) => (content, false),
            (None, Some(prompt)) => (prompt, true),
            (None, None) => {
                let message = "content is missing: give a text, or messages";
                return Err(ApiError::invalid(message).param("content"));
            }
        };
        let tokenizer = &model.tokenizer;
        let tokens = match self.parse_special.unwrap_or(false) {
            true => tokenizer.encode_markup(text)?,
            false => tokenizer.encode_text(text)?,
        };
        let has_special = self.add_special.unwrap_or(has_special);
        Ok(if has_special { [tokenizer.bos(), &tokens].concat() } else { tokens })
    }
}

pub(super) async fn tokenize(
    State(app): State<Arc<App>>,
    body: Body<Tokenize>,
) -> Result<Json<Value>, ApiError> {
    let Tokenize { input, options, model } = body.value;
    let lease = app.models.open(model.as_deref()).await?;
    let model = Arc::clone(lease.info());
    let named = match &input {
        TokenizeInput::Chat(request) => find_chunks(&lease, request).await?,
        TokenizeInput::Text(_) => NamedChunks::default(),
    };
    off_thread(body.bytes + named.bytes, move || {
        let tokens = match input {
            TokenizeInput::Text(text) => text.tokens(&model)?,
            TokenizeInput::Chat(request) => {
                let conversation = request.conversation(&named.chunks)?;
                model.template()?.render(&conversation)?.tokens(&model.tokenizer)?
            }
        };
        Ok(Json(tokens_json(&tokens, options, &model)))
    })
    .await
}

fn tokens_json(tokens: &[u32], options: TokenizeOptions, model: &ModelInfo) -> Value {
    let bytes = |id: &u32| model.tokenizer.token_bytes(*id).unwrap_or_default();
    // A token that is part of a character has no text: it is returned as bytes.
    let piece = |id: &u32| match std::str::from_utf8(bytes(id)) {
        Ok(text) => json!({"id": id, "piece": text}),
        Err(_) => json!({"id": id, "piece": bytes(id)}),
    };
    let list: Value = match options.with_pieces.unwrap_or(false) {
        true => tokens.iter().map(piece).collect(),
        false => json!(tokens),
    };
    let texts = options
        .return_token_strs
        .unwrap_or(false)
        .then(|| tokens.iter().map(|id| String::from_utf8_lossy(bytes(id))).collect::<Vec<_>>());
    json!({
        "tokens": list,
        "count": tokens.len(),
        "max_model_len": model.context,
        "token_strs": texts,
    })
}

/// Tokens.
#[derive(Deserialize)]
pub(super) struct Tokens {
    tokens: Vec<TokenId>,
    model: Option<String>,
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
    let lease = app.models.open(body.value.model.as_deref()).await?;
    let model = Arc::clone(lease.info());
    off_thread(body.bytes, move || {
        let vocab = model.vocab();
        let unknown = body.value.tokens.iter().find(|id| id.count() >= vocab);
        if let Some(id) = unknown {
            let message = format!(
                "token {} is not in the model's vocabulary; ids are below {vocab}",
                id.get()
            );
            return Err(ApiError::invalid(message).param("tokens"));
        }
        let ids: Vec<u32> = body.value.tokens.iter().map(|id| id.get() as u32).collect();
        let text = model.tokenizer.decode(&ids, false);
        Ok(Json(json!({"content": text, "prompt": text})))
    })
    .await
}

pub(super) async fn apply_template(
    State(app): State<Arc<App>>,
    body: Body<OpenAiChat>,
) -> Result<Json<Value>, ApiError> {
    let Body { value: OpenAiChat(request), bytes, share: _share } = body;
    let lease = app.models.open(request.settings.model.as_deref()).await?;
    let model = Arc::clone(lease.info());
    let named = find_chunks(&lease, &request).await?;
    off_thread(bytes + named.bytes, move || {
        let rendered = model.template()?.render(&request.conversation(&named.chunks)?)?;
        Ok(Json(json!({"prompt": rendered.text()})))
    })
    .await
}
