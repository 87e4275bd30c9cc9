//! weft over HTTP: the routes that clients of OpenAI, Anthropic and Ollama know, chunks, metrics
//! and a page.
//!
//! The engine lives in its own thread (`worker`) and never waits for a socket. Requests are parsed
//! by their dialect (`dialects`) into types that check them (`requests`) and become jobs for that
//! thread. Its events are written as a response, complete or streamed (`responses`). Each model has
//! its own engine thread; `registry` loads models on first use and unloads them. The crate prints
//! nothing and depends on no device: the caller passes a source of models and a function that takes
//! log lines.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod api_error;
mod app;
mod chunk_update;
mod dialects;
#[doc(hidden)]
pub mod fuzzing;
mod grammars;
mod http;
mod metrics;
mod model_info;
mod registry;
mod requests;
#[cfg(unix)]
pub mod resident;
mod responses;
mod routes;
mod worker;

pub use self::grammars::schema_constraint;
pub use self::http::{AllowedOrigin, LoadProgress, LoadStage, Options, ServeError, Server};
pub use self::model_info::{Load, LoadError, Loaded};
pub use self::registry::{About, LoadFailure, MemoryNeed, ModelName, ModelSource, OpenModel};
