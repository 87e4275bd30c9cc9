//! Converts texts to tokens and back, and conversations to prompts.

use std::borrow::Cow;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::api_error::ApiError;
use crate::app::{App, off_thread};
use crate::dialects::OpenAiChat;
use crate::dialects::answer::{NamedChunks, find_chunks};
use crate::http::{Body, MAX_BODY_BYTES};
use crate::model_info::ModelInfo;
use crate::requests::{ChatRequest, FromJson, TokenId, fields};

/// The most tokens of a request and of its answer.
const MAX_TOKENS: usize = 1 << 20;
/// The most bytes of the text of a request's tokens: as many as a body may have.
const MAX_TEXT_BYTES: usize = MAX_BODY_BYTES;

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
    /// The field that has the text.
    const fn param(&self) -> &'static str {
        if self.content.is_some() { "content" } else { "prompt" }
    }

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

/// The tokens of an input. They are written as they are, because a tree of JSON values would take
/// many times their memory.
#[derive(Serialize)]
struct Tokenized<'m> {
    tokens: TokenList<'m>,
    count: usize,
    max_model_len: usize,
    token_strs: Option<Vec<Cow<'m, str>>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum TokenList<'m> {
    Ids(Vec<u32>),
    Pieces(Vec<Piece<'m>>),
}

#[derive(Serialize)]
struct Piece<'m> {
    id: u32,
    piece: PieceText<'m>,
}

/// A token that is part of a character has no text: it is returned as bytes.
#[derive(Serialize)]
#[serde(untagged)]
enum PieceText<'m> {
    Text(&'m str),
    Bytes(&'m [u8]),
}

impl<'m> Tokenized<'m> {
    fn new(tokens: Vec<u32>, options: TokenizeOptions, model: &'m ModelInfo) -> Self {
        let bytes = |id: &u32| model.tokenizer.token_bytes(*id).unwrap_or_default();
        let piece = |id: &u32| Piece {
            id: *id,
            piece: match std::str::from_utf8(bytes(id)) {
                Ok(text) => PieceText::Text(text),
                Err(_) => PieceText::Bytes(bytes(id)),
            },
        };
        let count = tokens.len();
        let token_strs = options
            .return_token_strs
            .unwrap_or(false)
            .then(|| tokens.iter().map(|id| String::from_utf8_lossy(bytes(id))).collect());
        let tokens = match options.with_pieces.unwrap_or(false) {
            true => TokenList::Pieces(tokens.iter().map(piece).collect()),
            false => TokenList::Ids(tokens),
        };
        Self { tokens, count, max_model_len: model.context, token_strs }
    }
}

pub(super) async fn tokenize(
    State(app): State<Arc<App>>,
    body: Body<Tokenize>,
) -> Result<Response, ApiError> {
    let Body { value: Tokenize { input, options, model }, bytes, share: _share } = body;
    let lease = app.models.open(model.as_deref()).await?;
    let model = Arc::clone(lease.info());
    let named = match &input {
        TokenizeInput::Chat(request) => find_chunks(&lease, request).await?,
        TokenizeInput::Text(_) => NamedChunks::default(),
    };
    off_thread(bytes + named.bytes, move || {
        let (tokens, param) = match input {
            TokenizeInput::Text(text) => (text.tokens(&model)?, text.param()),
            TokenizeInput::Chat(request) => {
                let conversation = request.conversation(&named.chunks)?;
                let rendered = model.template()?.render(&conversation)?;
                (rendered.tokens(&model.tokenizer)?, "messages")
            }
        };
        check_count(tokens.len(), param)?;
        Ok(Json(Tokenized::new(tokens, options, &model)).into_response())
    })
    .await
}

fn check_count(n: usize, param: &'static str) -> Result<(), ApiError> {
    if n <= MAX_TOKENS {
        return Ok(());
    }
    let message =
        format!("{param} has {n} tokens, and the limit is {MAX_TOKENS}; send it in several parts");
    Err(ApiError::invalid(message).param(param))
}

/// Tokens.
#[derive(Deserialize)]
pub(super) struct Tokens {
    tokens: Vec<TokenId>,
    model: Option<String>,
}

impl FromJson for Tokens {
    fn from_json(json: &Value) -> Result<Self, ApiError> {
        check_count(json.get("tokens").and_then(Value::as_array).map_or(0, Vec::len), "tokens")?;
        fields(json)
    }
}

/// The text of tokens, by the names of llama.cpp and vLLM.
#[derive(Serialize)]
struct Detokenized {
    content: String,
    prompt: String,
}

pub(super) async fn detokenize(
    State(app): State<Arc<App>>,
    body: Body<Tokens>,
) -> Result<Response, ApiError> {
    let Body { value: Tokens { tokens, model }, bytes, share: _share } = body;
    let lease = app.models.open(model.as_deref()).await?;
    let model = Arc::clone(lease.info());
    off_thread(bytes, move || {
        let vocab = model.vocab();
        if let Some(id) = tokens.iter().find(|id| id.count() >= vocab) {
            let message = format!(
                "token {} is not in the model's vocabulary; ids are below {vocab}",
                id.get()
            );
            return Err(ApiError::invalid(message).param("tokens"));
        }
        let ids: Vec<u32> = tokens.iter().map(|id| id.get() as u32).collect();
        let n_bytes = |id: &u32| model.tokenizer.token_bytes(*id).map_or(0, <[u8]>::len);
        check_text(ids.iter().map(n_bytes).sum())?;
        let content = model.tokenizer.decode(&ids, false);
        let prompt = content.clone();
        Ok(Json(Detokenized { content, prompt }).into_response())
    })
    .await
}

/// A token may have hundreds of bytes.
fn check_text(n_bytes: usize) -> Result<(), ApiError> {
    if n_bytes <= MAX_TEXT_BYTES {
        return Ok(());
    }
    let message = format!(
        "the tokens have {n_bytes} bytes of text, and the limit is {MAX_TEXT_BYTES}; send them in \
         several parts"
    );
    Err(ApiError::invalid(message).param("tokens"))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens of some models have 256 bytes, so a request's could have 256 MB.
    #[test]
    fn the_text_of_tokens_is_limited() {
        assert!(check_text(MAX_TEXT_BYTES).is_ok());
        let refusal = check_text(MAX_TEXT_BYTES + 1).unwrap_err();
        assert!(refusal.message().contains("16777217 bytes of text, and the limit is 16777216"));
    }
}
