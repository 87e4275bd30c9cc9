//! One choice of a chat while it is written: splits its text into thinking, answer and tool calls.

use std::sync::Arc;

use weft_core::engine::{FinishReason, Finished, Token};
use weft_core::reasoning::{Parts, ReasoningStream};
use weft_core::tokenizer::Tokenizer;

use super::logprobs::{Entry, Pending};
use super::tool_calls::{CallDelta, Found, ToolCallStream, ToolForm, append};

/// The parts of a choice that became certain.
#[derive(Debug, Default)]
pub(crate) struct Delta {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    pub(crate) calls: Vec<CallDelta>,
    /// Text that follows the calls.
    pub(crate) after: String,
    pub(crate) logprobs: Vec<Entry>,
}

impl Delta {
    pub(crate) fn is_empty(&self) -> bool {
        self.reasoning.is_empty()
            && self.content.is_empty()
            && self.calls.is_empty()
            && self.after.is_empty()
            && self.logprobs.is_empty()
    }

    /// The same with all its text in one place, for dialects that keep text apart from calls.
    pub(crate) fn joined(mut self) -> Self {
        self.content.push_str(&std::mem::take(&mut self.after));
        self
    }

    /// Appends a later delta.
    pub(crate) fn append(&mut self, later: Self) {
        let later = later.joined();
        self.reasoning.push_str(&later.reasoning);
        self.content.push_str(&later.content);
        append(&mut self.calls, later.calls);
        self.logprobs.extend(later.logprobs);
    }
}

/// Whether a text may call tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToolMode {
    None,
    Auto(Arc<ToolForm>),
    /// The text is one call and nothing else; of this tool, if it can be no other.
    Required(Arc<ToolForm>, Option<String>),
}

/// Splits the text of a choice.
pub(crate) struct Choice {
    reasoning: ReasoningStream,
    calls: Option<ToolCallStream>,
    logprobs: Pending,
    n_tokens: usize,
    n_thought_tokens: usize,
    /// Whether it ends with its first call.
    calls_once: bool,
}

impl Choice {
    /// `prompt_end` shows whether the prompt has already opened a thought.
    pub(crate) fn new(prompt_end: &str, tools: &ToolMode) -> Self {
        Self {
            reasoning: ReasoningStream::after(prompt_end),
            calls: match tools {
                ToolMode::None => None,
                ToolMode::Auto(form) => Some(ToolCallStream::new(Arc::clone(form))),
                ToolMode::Required(form, only) => {
                    Some(ToolCallStream::required(Arc::clone(form), only.clone()))
                }
            },
            logprobs: Pending::default(),
            n_tokens: 0,
            n_thought_tokens: 0,
            calls_once: false,
        }
    }

    /// The same for an answer that ends with its first call.
    pub(crate) fn ending_with_a_call(mut self, calls_once: bool) -> Self {
        self.calls_once = calls_once;
        self
    }

    /// Whether nothing more is wanted: the one call is complete.
    pub(crate) fn is_over(&self) -> bool {
        self.calls_once && self.has_complete_calls()
    }

    /// The number of tokens that the model has thought, the tags around them included.
    pub(crate) fn n_thought_tokens(&self) -> usize {
        self.n_thought_tokens
    }

    /// The number of calls that are complete; those come first.
    pub(crate) fn n_complete_calls(&self) -> usize {
        self.calls.as_ref().map_or(0, ToolCallStream::n_complete)
    }

    /// Whether it calls tools and no call was cut off.
    pub(crate) fn has_complete_calls(&self) -> bool {
        self.calls.as_ref().is_some_and(ToolCallStream::has_complete_calls)
    }

    pub(crate) fn push(&mut self, token: &Token, tokenizer: &Tokenizer) -> Delta {
        if self.is_over() {
            return Delta::default();
        }
        let was_closed = self.reasoning.is_closed();
        let parts = self.reasoning.push(&token.text);
        self.n_tokens += 1;
        if self.reasoning.is_open() || self.reasoning.is_closed() && !was_closed {
            self.n_thought_tokens = self.n_tokens;
        }
        let logprobs = self.logprobs.push(token, tokenizer);
        self.split(parts, logprobs)
    }

    /// Returns what was held back.
    pub(crate) fn finish(&mut self, finished: &Finished) -> Delta {
        if self.is_over() {
            return Delta::default();
        }
        let parts = self.reasoning.finish();
        let mut delta = self.split(parts, Vec::new());
        if let Some(calls) = &mut self.calls {
            // A stop string cuts a call off like a limit does.
            let is_cut = finished.reason == FinishReason::Length || finished.stop.is_some();
            let Found { before, calls, after } = calls.finish(is_cut);
            if !delta.calls.is_empty() || !delta.after.is_empty() {
                delta.after.push_str(&before);
            } else {
                delta.content.push_str(&before);
            }
            append(&mut delta.calls, calls);
            delta.after.push_str(&after);
        }
        delta
    }

    fn split(&mut self, parts: Parts, logprobs: Vec<Entry>) -> Delta {
        let Parts { reasoning, answer } = parts;
        let Found { before: content, calls, after } = match &mut self.calls {
            Some(stream) => stream.push(&answer),
            None => Found { before: answer, ..Found::default() },
        };
        Delta { reasoning, content, calls, after, logprobs }
    }
}
