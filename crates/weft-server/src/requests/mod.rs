//! Request bodies, parsed into types that hold only valid values.
//!
//! Every range and limit is checked here, before anything is allocated for a request: numbers by
//! newtypes, sampling by weft-core's own check. Unknown fields are ignored, because clients written
//! for other servers send them, except those that would change the answer (`unsupported`). Nothing
//! here depends on the engine.

mod chat;
mod completion;
mod drafts;
mod embeddings;
mod json;
mod messages;
mod numbers;
mod output_format;
mod rerank;
mod settings;
mod tools;
mod unsupported;

pub(crate) use self::chat::ChatRequest;
pub(crate) use self::completion::CompletionRequest;
pub(crate) use self::embeddings::{EmbeddingsRequest, EncodingFormat};
pub(crate) use self::json::{FromJson, fields};
pub(crate) use self::numbers::{Parsed, TokenId};
pub(crate) use self::rerank::RerankRequest;
