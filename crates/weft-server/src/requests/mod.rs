//! Requests in types that hold only valid values: what the readers of all dialects fill in.
//!
//! Every range and limit is checked here, before anything is allocated for a request: numbers by
//! newtypes, sampling by weft-core's own check. Unknown fields are ignored, because clients written
//! for other servers send them, except those that would change the answer (`unsupported`). Nothing
//! here reaches the running engine.

mod biases;
mod chat;
mod drafts;
mod embeddings;
mod json;
mod messages;
mod numbers;
mod output_format;
mod rerank;
pub(crate) mod reuse;
mod settings;
mod tools;
pub(crate) mod unsupported;

pub(crate) use self::chat::ChatRequest;
pub(crate) use self::embeddings::{EmbeddingsRequest, EncodingFormat};
pub(crate) use self::json::{FromJson, TextOr, fields};
pub(crate) use self::messages::{ChatContent, ChatMessage, ChatPart, ChunksById, Role, tool_call};
pub(crate) use self::numbers::{Bounded, Count, Parsed, TokenId};
pub(crate) use self::output_format::OutputFormat;
pub(crate) use self::rerank::{RankingForm, RerankRequest};
pub(crate) use self::settings::Settings;
pub(crate) use self::tools::{
    MAX_LONG_NAME_CHARS, MAX_NAME_CHARS, ToolChoice, Tools, strict_names,
};
