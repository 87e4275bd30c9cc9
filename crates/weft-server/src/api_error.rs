//! Refusals and failures, in the form that OpenAI's clients read unless a dialect has its own.
//!
//! Every message says what is wrong, with which value, and what would be accepted. Clients must not
//! see paths or addresses of the machine, so file errors become one general sentence.

use std::convert::Infallible;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use weft_core::chunk::ChunkError;
use weft_core::engine::RequestError;
use weft_core::prompt::PromptError;
use weft_core::sampling::SamplingError;
use weft_core::tokenizer::TokenizerError;

/// Seconds after which a refused client may try again.
const RETRY_AFTER_S: u64 = 1;
const MAX_MESSAGE_BYTES: usize = 600;

/// An error response.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<String>,
    message: String,
    cause: Cause,
}

/// Reasons that some dialects have their own words for.
#[derive(Clone, Debug)]
enum Cause {
    Other,
    /// The prompt is too long: its tokens, and those of the context.
    TooLong(usize, usize),
    /// There is no model of this name.
    NoModel(Box<str>),
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let message = shortened(message.into());
        Self { status, kind, code: None, param: None, message, cause: Cause::Other }
    }

    /// A request that is invalid as it stands.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// The same with a status other than 400.
    pub(crate) fn refused(status: StatusCode, message: impl Into<String>) -> Self {
        Self::new(status, "invalid_request_error", message)
    }

    pub(crate) fn unauthorized() -> Self {
        let message = "this server requires its API key: send `Authorization: Bearer KEY` or \
                       `X-Api-Key: KEY`";
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message).code("invalid_api_key")
    }

    pub(crate) fn unknown_model(name: &str, ours: &str) -> Self {
        let message = format!("the model {name:?} is not served here; use {ours:?}");
        let error = Self::refused(StatusCode::NOT_FOUND, message);
        let cause = Cause::NoModel(shortened(name.to_owned()).into());
        Self { cause, ..error.code("model_not_found").param("model") }
    }

    /// A prompt that leaves no room for an answer.
    pub(crate) fn too_long(tokens: usize, context: usize, positions: usize) -> Self {
        let longer = match positions > context {
            true => {
                format!(", or start the server with a larger --ctx-size (at most {positions})")
            }
            false => String::new(),
        };
        // litellm and others look for the first words.
        let message = format!(
            "This model's maximum context length is {context} tokens, answer included, and the \
             prompt has {tokens} tokens; shorten the prompt{longer}"
        );
        let error = Self::invalid(message).code("context_length_exceeded");
        Self { cause: Cause::TooLong(tokens, context), ..error }
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::refused(StatusCode::NOT_FOUND, message)
    }

    pub(crate) fn too_busy(waiting: usize) -> Self {
        let message = format!("{waiting} requests are waiting already; try again in a second");
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message).code("queue_full")
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message).code("unavailable")
    }

    /// A fault of the server. The message must not show paths or other details of the machine.
    pub(crate) fn fault(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    pub(crate) fn code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    pub(crate) fn has_code(&self, code: &str) -> bool {
        self.code == Some(code)
    }

    /// Names the field that is wrong.
    pub(crate) fn param(self, param: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..self }
    }

    pub(crate) fn into_message(self) -> String {
        self.message
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Tokens of the prompt and of the context, if the prompt is too long.
    pub(crate) fn lengths(&self) -> Option<(usize, usize)> {
        match self.cause {
            Cause::TooLong(tokens, context) => Some((tokens, context)),
            Cause::Other | Cause::NoModel(_) => None,
        }
    }

    /// The model that is not here, if that is the reason.
    pub(crate) fn missing_model(&self) -> Option<&str> {
        match &self.cause {
            Cause::NoModel(name) => Some(name),
            Cause::Other | Cause::TooLong(..) => None,
        }
    }

    /// The body of the response, or the data of an event in a stream, in OpenAI's form.
    pub(crate) fn json(&self) -> Value {
        let mut error = json!({
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        });
        // llama.cpp's names.
        if let Some((tokens, context)) = self.lengths() {
            error["n_prompt_tokens"] = tokens.into();
            error["n_ctx"] = context.into();
        }
        json!({"error": error})
    }
}

/// Shortens a message: it may quote megabytes of what was sent.
fn shortened(mut message: String) -> String {
    if message.len() > MAX_MESSAGE_BYTES {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
        message.push('…');
    }
    message
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.with_body(self.json());
        // `guard` writes it again in the form of the route's dialect.
        response.extensions_mut().insert(self);
        response
    }
}

impl ApiError {
    /// The response with this body.
    pub(crate) fn with_body(&self, body: Value) -> Response {
        let mut response = (self.status, Json(body)).into_response();
        let headers = response.headers_mut();
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            headers.insert(header::RETRY_AFTER, RETRY_AFTER_S.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<Infallible> for ApiError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl From<SamplingError> for ApiError {
    fn from(error: SamplingError) -> Self {
        let param = match &error {
            SamplingError::Range { name, .. }
            | SamplingError::UnknownToken { name, .. }
            | SamplingError::TooMany { name, .. } => Some(*name),
            SamplingError::Bias { .. } => Some("logit_bias"),
            SamplingError::TooManyLogprobs { .. } => Some("top_logprobs"),
            SamplingError::EmptyStop { .. } | SamplingError::LongStop { .. } => Some("stop"),
            SamplingError::NoTokens => Some("max_tokens"),
            SamplingError::MinOverMax { .. } => Some("min_tokens"),
            _ => None,
        };
        match (&error, param) {
            (SamplingError::NotFinite { .. }, _) => {
                Self::fault(format!("the model failed on this text: {error}"))
            }
            (SamplingError::BadLogit { .. } | SamplingError::NoCandidate { .. }, _) => {
                Self::fault(format!("the model's output cannot be sampled: {error}"))
            }
            // From `grammars`: the field of the rule, and why the answer cannot follow it further.
            (SamplingError::Constraint(refusal), _) => match refusal.split_once(": ") {
                Some((param, reason)) => Self::invalid(reason).param(param),
                None => Self::invalid(refusal.as_str()),
            },
            // Clients use vLLM's name for it.
            (_, Some("stop_ids")) => {
                let message = error.to_string().replace("stop_ids", "stop_token_ids");
                Self::invalid(message).param("stop_token_ids")
            }
            (_, Some(param)) => Self::invalid(error.to_string()).param(param),
            (_, None) => Self::invalid(error.to_string()),
        }
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Sampling(error) => error.into(),
            RequestError::TooLong { tokens, context, positions } => {
                Self::too_long(tokens, context, positions)
            }
            error => Self::invalid(error.to_string()),
        }
    }
}

impl From<ChunkError> for ApiError {
    fn from(error: ChunkError) -> Self {
        match error {
            ChunkError::Unknown { .. } | ChunkError::BadId { .. } | ChunkError::NotFound { .. } => {
                Self::not_found(error.to_string()).code("chunk_not_found")
            }
            ChunkError::DiskFull { .. } => {
                let message = "the server's disk is full, so nothing was changed; free space there";
                Self::new(StatusCode::INSUFFICIENT_STORAGE, "server_error", message)
                    .code("disk_full")
            }
            // Requests have no flags.
            ChunkError::WrongKind { id, kind, wanted } => Self::invalid(format!(
                "chunk {id} is a {kind} chunk, and a {wanted} is needed here"
            )),
            ChunkError::BadName { .. } => Self::invalid(error.to_string()).param("name"),
            ChunkError::NameTaken { .. } => {
                let refused = Self::refused(StatusCode::CONFLICT, error.to_string());
                refused.code("name_taken").param("name")
            }
            ChunkError::File { .. } => Self::fault("the folder of chunks cannot be used"),
            ChunkError::Template(error) => error.into(),
            ChunkError::Tokenizer(error) => error.into(),
            error => Self::invalid(error.to_string()),
        }
    }
}

impl From<PromptError> for ApiError {
    fn from(error: PromptError) -> Self {
        match error {
            PromptError::Read { .. } | PromptError::Malformed { .. } => {
                Self::fault("the model's chat template cannot be read")
            }
            PromptError::Tokenizer(error) => error.into(),
            error => Self::invalid(error.to_string()).param("messages"),
        }
    }
}

impl From<TokenizerError> for ApiError {
    fn from(error: TokenizerError) -> Self {
        match error {
            TokenizerError::TextTooLong { .. } => Self::invalid(error.to_string()),
            _ => Self::fault("the model's tokenizer failed"),
        }
    }
}
