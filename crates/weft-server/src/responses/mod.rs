//! From a job's events to what clients read: complete responses and streams.
//!
//! A [`ResponseWriter`] knows the JSON of one route. Complete responses and streams give the same
//! events to the same writer, so that the pieces of a stream, joined, are the complete response.

mod chat;
mod choice;
mod complete;
mod completion;
mod logprobs;
mod recent;
mod stream;
mod tool_calls;
mod usage;

use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use weft_core::engine::{Finished, Token};

use crate::worker::Progress;

pub(crate) use self::chat::{ChatOptions, ChatWriter};
pub(crate) use self::choice::ToolMode;
pub(crate) use self::complete::complete;
pub(crate) use self::completion::{CompletionOptions, CompletionWriter};
pub(crate) use self::recent::{Recent, Recorder};
pub(crate) use self::stream::stream;

/// Writes a response of several choices as JSON.
pub(crate) trait ResponseWriter: Send + 'static {
    /// The first events of a stream.
    fn start(&mut self) -> Vec<Value>;

    /// The event that says how far a choice's prompt is.
    fn progress(&self, choice: usize, progress: &Progress) -> Value;

    /// Takes a choice's token; returns the event that a stream sends now, if any.
    fn token(&mut self, choice: usize, token: Token, is_drafted: bool) -> Option<Value>;

    /// Takes the end of a choice; returns the events that a stream sends now.
    fn end(&mut self, choice: usize, finished: Finished) -> Vec<Value>;

    /// The last event of a stream, if the client asked for the usage.
    fn usage(&self) -> Option<Value>;

    /// The complete response, after all choices have ended.
    fn into_response(self) -> Value;
}

/// Counts the drafted tokens of each choice since its last event, if the client wants to know.
struct Accepted(Option<Vec<usize>>);

impl Accepted {
    fn new(choices: usize, is_wanted: bool) -> Self {
        Self(is_wanted.then(|| vec![0; choices]))
    }

    fn count(&mut self, choice: usize, is_drafted: bool) {
        if let Self(Some(counts)) = self {
            counts[choice] += usize::from(is_drafted);
        }
    }

    /// Adds the number to the choice's event, unless it is 0. OpenAI's clients ignore the field.
    fn add_to(&mut self, choice: usize, event: &mut Value) {
        let counts = self.0.iter_mut();
        let n = counts.map(|counts| std::mem::take(&mut counts[choice])).sum::<usize>();
        if n > 0 {
            event["weft"] = serde_json::json!({"accepted": n});
        }
    }
}

/// Names the program that answered: another version may answer the same request differently.
const FINGERPRINT: &str = concat!("build-", env!("CARGO_PKG_VERSION"));

/// The id of a response.
pub(crate) fn response_id(prefix: &str) -> String {
    format!("{prefix}-{:016x}", RandomState::new().hash_one(SystemTime::now()))
}

/// Seconds since 1970.
pub(crate) fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn drafted_tokens_are_counted_with_the_next_event_of_their_choice() {
        let mut accepted = Accepted::new(2, true);
        for is_drafted in [true, false, true] {
            accepted.count(1, is_drafted);
        }
        let mut events = [json!({}), json!({}), json!({})];
        accepted.add_to(0, &mut events[0]);
        accepted.add_to(1, &mut events[1]);
        accepted.add_to(1, &mut events[2]);
        assert_eq!(events, [json!({}), json!({"weft": {"accepted": 2}}), json!({})]);
        let (mut unasked, mut event) = (Accepted::new(1, false), json!({}));
        unasked.count(0, true);
        unasked.add_to(0, &mut event);
        assert_eq!(event, json!({}), "nobody asked");
    }
}
