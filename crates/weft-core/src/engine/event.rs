//! What a step reports: progress of prompts, tokens of answers, ends.

use super::{DraftSource, Finished, LaneId};
use crate::sampling::{Logprobs, SamplingError};

/// An event of a lane in a step.
#[derive(Debug)]
pub enum Event {
    /// Another block of the prompt was run.
    Prefill {
        /// The lane.
        lane: LaneId,
        /// Prompt tokens run up to now.
        done: usize,
        /// Prompt tokens in all.
        total: usize,
    },
    /// A token was generated (or, with echo, taken from the prompt).
    Token {
        /// The lane.
        lane: LaneId,
        /// The token.
        token: Token,
        /// Where it was drafted, if it was. Tokens of one step follow one another.
        drafted: Option<DraftSource>,
    },
    /// Tokens of the prompt with their log-probabilities, in order, as the request asked.
    Prompt {
        /// The lane.
        lane: LaneId,
        /// The tokens.
        tokens: Vec<PromptToken>,
    },
    /// The prompt's last token was read, as the request asked. The lane ends with this step.
    Read {
        /// The lane.
        lane: LaneId,
        /// The state, or the logits in the order of the request.
        values: Vec<f32>,
    },
    /// The lane has finished.
    Done {
        /// The lane.
        lane: LaneId,
        /// Why, with its times and counts.
        finished: Finished,
    },
    /// The lane failed.
    Failed {
        /// The lane.
        lane: LaneId,
        /// Why.
        error: SamplingError,
    },
}

impl Event {
    /// The lane of the event.
    pub fn lane(&self) -> LaneId {
        match self {
            Self::Prefill { lane, .. }
            | Self::Token { lane, .. }
            | Self::Prompt { lane, .. }
            | Self::Read { lane, .. }
            | Self::Done { lane, .. }
            | Self::Failed { lane, .. } => *lane,
        }
    }
}

/// A token of a prompt whose log-probabilities were asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptToken {
    /// Its id.
    pub id: u32,
    /// How likely it was; none for the first token, which nothing predicts.
    pub prediction: Option<PromptPrediction>,
}

/// How likely a token of a prompt was, after those before it.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptPrediction {
    /// Its log-probability, and those of the most likely tokens.
    pub logprobs: Logprobs,
    /// Its place among all tokens; 1 is the most likely one.
    pub rank: usize,
}

/// A token of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// The text that this token completes: whole characters, never part of a stop string. Empty
    /// while text is held back; the last token releases the rest.
    pub text: String,
    /// Log-probabilities, if the request asks for them.
    pub logprobs: Option<Logprobs>,
}
