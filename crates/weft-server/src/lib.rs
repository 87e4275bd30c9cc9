//! weft over HTTP: the routes that OpenAI's clients know, chunks, metrics and a page.
//!
//! The engine lives in a thread of its own (`worker`) and never waits for a socket. Requests are
//! read and checked at the border (`requests`), become work for that thread, and what it tells is
//! written down as an answer, whole or streamed (`answers`). The crate prints nothing and knows no
//! device: whoever runs it says how to load the engine and where to tell what happens.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod answers;
mod api_error;
mod app;
mod chunk_shelf;
#[doc(hidden)]
pub mod fuzzing;
mod grammars;
mod http;
mod metrics;
mod requests;
mod routes;
mod served;
mod worker;

pub use self::http::{Options, ServeError, Server};
pub use self::served::{Load, LoadError, Loaded};
