//! How a lane ended, with its times and token counts.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Speculation;
use crate::chunk::Report;

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FinishReason {
    /// An end token or a stop string.
    Stop,
    /// `max_tokens`, or the end of the context.
    Length,
    /// The caller cancelled the request.
    Cancelled,
}

impl fmt::Display for FinishReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
        })
    }
}

/// The end of a lane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// Why it ended.
    pub reason: FinishReason,
    /// Times and token counts.
    pub stats: Stats,
    /// Where its context came from.
    pub report: Report,
    /// Which of the request's stop strings ended it, if one did.
    #[serde(default)]
    pub stop: Option<usize>,
}

/// Times and token counts of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens whose rows were cached.
    pub cached_tokens: usize,
    /// Tokens generated, including an end token.
    pub generated_tokens: usize,
    /// From admission to the first generated token.
    pub first_token: Duration,
    /// From admission to the end.
    pub total: Duration,
    /// Tokens that were drafted, and those that were accepted.
    pub speculation: Speculation,
}

impl Stats {
    /// Tokens per second after the first one, which belongs to prefill. `None` if there is only
    /// one.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let decode = self.total.saturating_sub(self.first_token).as_secs_f64();
        let tokens = self.generated_tokens.saturating_sub(1);
        (tokens > 0 && decode > 0.0).then(|| tokens as f64 / decode)
    }
}
