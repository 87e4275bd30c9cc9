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
use crate::served::Served;

/// What is to become tokens: a text, or a conversation as it is prompted.
pub(super) enum Tokenized {
    Text(Text),
    Chat(Box<ChatRequest>),
}

/// A text, by the name that llama.cpp gives it or the one that vLLM does.
#[derive(Deserialize)]
pub(super) struct Text {
    content: Option<String>,
    prompt: Option<String>,
    /// Whether what the tokenizer puts before a text is put there; vLLM does unless told not to.
    #[serde(alias = "add_special_tokens")]
    add_special: Option<bool>,
    /// Whether `<|im_end|>` and the like are read as tokens.
    parse_special: Option<bool>,
}

/// How tokens are told, in the words of llama.cpp and of vLLM.
#[derive(Clone, Copy, Deserialize)]
struct Telling {
    with_pieces: Option<bool>,
    return_token_strs: Option<bool>,
}

/// A request for tokens.
pub(super) struct Tokenize {
    what: Tokenized,
    telling: Telling,
}

impl FromJson for Tokenize {
    fn from_json(json: &Value) -> Result<Self, ApiError> {
        let what = match json.get("messages") {
            Some(_) => Tokenized::Chat(Box::new(ChatRequest::from_json(json)?)),
            None => Tokenized::Text(fields(json)?),
        };
        Ok(Self { what, telling: fields(json)? })
    }
}

impl Text {
    fn tokens(&self, served: &Served) -> Result<Vec<u32>, ApiError> {
        let (text, has_special) = match (&self.content, &self.prompt) {
            (Some(content), _) => (content, false),
            (None, Some(prompt)) => (prompt, true),
            (None, None) => {
                let message = "content is missing: give a text, or messages";
                return Err(ApiError::invalid(message).param("content"));
            }
        };
        let tokenizer = &served.tokenizer;
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
    let served = app.served()?;
    let Tokenize { what, telling } = body.value;
    let chunks = match &what {
        Tokenized::Chat(request) => find_chunks(&app, request.chunk_ids()).await?,
        Tokenized::Text(_) => BTreeMap::new(),
    };
    off_thread(body.bytes, move || {
        let tokens = match what {
            Tokenized::Text(text) => text.tokens(&served)?,
            Tokenized::Chat(request) => {
                let conversation = request.conversation(&chunks)?;
                served.template()?.render(&conversation)?.tokens(&served.tokenizer)?
            }
        };
        Ok(Json(tell(&tokens, telling, &served)))
    })
    .await
}

fn tell(tokens: &[u32], telling: Telling, served: &Served) -> Value {
    let bytes = |id: &u32| served.tokenizer.token_bytes(*id).unwrap_or_default();
    // Part of a character has no text: it is told byte by byte.
    let piece = |id: &u32| match std::str::from_utf8(bytes(id)) {
        Ok(text) => json!({"id": id, "piece": text}),
        Err(_) => json!({"id": id, "piece": bytes(id)}),
    };
    let told: Value = match telling.with_pieces.unwrap_or(false) {
        true => tokens.iter().map(piece).collect(),
        false => json!(tokens),
    };
    let texts = telling
        .return_token_strs
        .unwrap_or(false)
        .then(|| tokens.iter().map(|id| String::from_utf8_lossy(bytes(id))).collect::<Vec<_>>());
    json!({
        "tokens": told,
        "count": tokens.len(),
        "max_model_len": served.context,
        "token_strs": texts,
    })
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
            let message = format!("token {} is out of vocabulary, which has {vocab}", id.get());
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
