//! From what the engine tells to what clients read: whole answers and streams of them.
//!
//! A [`Script`] knows the shape of one kind of answer. Both ways of answering feed the same script
//! with the same events, so that the pieces of a stream, joined, are the whole answer.

mod chat;
mod choice;
mod completion;
mod figures;
mod logprobs;
mod recent;
mod stream;
mod tool_calls;
mod whole;

use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use weft_core::engine::{Finished, Token};

pub(crate) use self::chat::{ChatScript, ChatShape};
pub(crate) use self::choice::Calls;
pub(crate) use self::completion::{CompletionScript, CompletionShape};
pub(crate) use self::recent::{Recent, Recorder};
pub(crate) use self::stream::stream;
pub(crate) use self::whole::whole;

/// The shape of an answer of several choices.
pub(crate) trait Script: Send + 'static {
    /// What a stream begins with.
    fn opening(&mut self) -> Vec<Value>;

    /// A choice has a token: what a stream tells of it now.
    fn token(&mut self, choice: usize, token: Token) -> Option<Value>;

    /// A choice is over: what a stream tells of that.
    fn ending(&mut self, choice: usize, finished: Finished) -> Vec<Value>;

    /// What a stream ends with where the client wants the usage.
    fn usage(&self) -> Value;

    /// The whole answer, once all choices are over.
    fn whole(self) -> Value;
}

/// Names the program that answered: the same request to another may be answered otherwise.
const FINGERPRINT: &str = concat!("build-", env!("CARGO_PKG_VERSION"));

/// The name of an answer.
pub(crate) fn answer_id(prefix: &str) -> String {
    format!("{prefix}-{:016x}", RandomState::new().hash_one(SystemTime::now()))
}

/// Seconds since 1970.
pub(crate) fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
