//! What clients send, read into types that hold only what may be asked for.
//!
//! Every range and every cap is checked here, before anything is allocated for a request: numbers by
//! newtypes, sampling by the library's own check. Unknown fields are let pass, as clients of many
//! servers send them. Nothing here knows the engine.

mod chat;
mod completion;
mod json;
mod messages;
mod numbers;
mod output_format;
mod settings;
mod tools;

pub(crate) use self::chat::ChatRequest;
pub(crate) use self::completion::CompletionRequest;
pub(crate) use self::json::{FromJson, fields};
pub(crate) use self::numbers::{Parsed, TokenId};
