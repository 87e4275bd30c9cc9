//! From a job's events to what clients read: complete responses and streams.
//!
//! A [`ResponseWriter`] knows the JSON of one route of one dialect. Complete responses and streams
//! give the same events to the same writer, so that the pieces of a stream, joined, are the
//! complete response.

mod choice;
mod complete;
mod loading;
pub(crate) mod logprobs;
mod parts;
mod recent;
mod stream;
pub(crate) mod time;
mod token_ids;
mod tool_calls;
mod usage;

use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use weft_core::engine::{Finished, PromptToken, Token};

use crate::api_error::ApiError;
use crate::worker::Progress;

pub(crate) use self::choice::{Choice, Delta, ToolMode};
pub(crate) use self::complete::complete;
pub(crate) use self::loading::when_loaded;
pub(crate) use self::parts::{Part, PartEvent, PartStream};
pub(crate) use self::recent::{Recent, Recorder};
pub(crate) use self::stream::{Framing, stream};
pub(crate) use self::token_ids::TokenIds;
pub(crate) use self::tool_calls::{
    Beginning, CallDelta, CallStyle, MAX_BARE_OPENING, ToolForm, calls_in_pieces, is_text_parameter,
};
pub(crate) use self::usage::{
    add_costs, add_progress, add_thought, add_usage, reason, running_usage, usage,
};

/// Writes a response of one or several choices as the JSON of a dialect.
pub(crate) trait ResponseWriter: Send + 'static {
    /// How the events of a stream are sent.
    const FRAMING: Framing;

    /// The id of the response, by which its answer can be verified.
    fn id(&self) -> &str;

    /// The first events of a stream.
    fn start(&mut self) -> Vec<Value>;

    /// The events that say how far a choice's prompt is; sent if the client asked for them.
    fn progress(&mut self, choice: usize, progress: &Progress) -> Vec<Value>;

    /// The events that keep a silent connection alive. If there are none, the framing has its own
    /// way.
    fn waiting(&mut self) -> Vec<Value> {
        Vec::new()
    }

    /// Takes tokens of a choice's prompt, with their log-probabilities, for a complete response.
    fn prompt(&mut self, _choice: usize, _tokens: Vec<PromptToken>) {}

    /// Takes a choice's token; returns the events that a stream sends now.
    fn token(&mut self, choice: usize, token: Token, is_drafted: bool) -> Vec<Value>;

    /// Whether a choice needs no further token: its lane can be freed.
    fn is_over(&self, choice: usize) -> bool;

    /// Takes the end of a choice; returns the events that a stream sends now.
    fn end(&mut self, choice: usize, finished: Finished) -> Vec<Value>;

    /// The last events of a stream, after all choices have ended.
    fn close(&mut self) -> Vec<Value>;

    /// The last events of a stream that fails.
    fn fail(&mut self, error: &ApiError) -> Vec<Value>;

    /// The events of a stream that fails before there is a writer.
    fn refuse(error: &ApiError) -> Vec<Value> {
        vec![error.json()]
    }

    /// The complete response, after all choices have ended.
    fn into_response(self) -> Value;
}

/// Counts the drafted tokens of each choice since its last event, if the client wants to know.
pub(crate) struct Accepted(Option<Vec<usize>>);

impl Accepted {
    pub(crate) fn new(choices: usize, is_wanted: bool) -> Self {
        Self(is_wanted.then(|| vec![0; choices]))
    }

    pub(crate) fn count(&mut self, choice: usize, is_drafted: bool) {
        if let Self(Some(counts)) = self {
            counts[choice] += usize::from(is_drafted);
        }
    }

    /// Adds the number to the choice's event, unless it is 0. OpenAI's clients ignore the field.
    pub(crate) fn add_to(&mut self, choice: usize, event: &mut Value) {
        let counts = self.0.iter_mut();
        let n = counts.map(|counts| std::mem::take(&mut counts[choice])).sum::<usize>();
        if n > 0 {
            event["weft"] = serde_json::json!({"accepted": n});
        }
    }
}

/// Names the program that answered: another version may answer the same request differently.
pub(crate) const FINGERPRINT: &str = concat!("build-", env!("CARGO_PKG_VERSION"));

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
