//! One choice of a chat while it is written: splits its text into thinking, answer and tool calls.

use weft_core::engine::Token;
use weft_core::reasoning::{Parts, ReasoningStream};
use weft_core::tokenizer::Tokenizer;

use super::logprobs::{Entry, Pending};
use super::tool_calls::{CallDelta, ToolCallStream, append};

/// The parts of a choice that became certain.
#[derive(Debug, Default)]
pub(super) struct Delta {
    pub(super) reasoning: String,
    pub(super) content: String,
    pub(super) calls: Vec<CallDelta>,
    pub(super) logprobs: Vec<Entry>,
}

impl Delta {
    pub(super) fn is_empty(&self) -> bool {
        self.reasoning.is_empty()
            && self.content.is_empty()
            && self.calls.is_empty()
            && self.logprobs.is_empty()
    }

    /// Appends a later delta.
    pub(super) fn append(&mut self, later: Self) {
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
    Auto,
    /// The text is one call and nothing else; of this tool, if it can be no other.
    Required(Option<String>),
}

/// Splits the text of a choice.
pub(super) struct Choice {
    reasoning: ReasoningStream,
    calls: Option<ToolCallStream>,
    logprobs: Pending,
}

impl Choice {
    /// `prompt_end` shows whether the prompt has already opened a thought.
    pub(super) fn new(prompt_end: &str, tools: &ToolMode) -> Self {
        Self {
            reasoning: ReasoningStream::after(prompt_end),
            calls: match tools {
                ToolMode::None => None,
                ToolMode::Auto => Some(ToolCallStream::default()),
                ToolMode::Required(only) => Some(ToolCallStream::required(only.clone())),
            },
            logprobs: Pending::default(),
        }
    }

    /// Whether it calls tools and no call was cut off.
    pub(super) fn has_complete_calls(&self) -> bool {
        self.calls.as_ref().is_some_and(ToolCallStream::has_complete_calls)
    }

    pub(super) fn push(&mut self, token: &Token, tokenizer: &Tokenizer) -> Delta {
        let parts = self.reasoning.push(&token.text);
        let logprobs = self.logprobs.push(token, tokenizer);
        self.split(parts, logprobs)
    }

    /// Returns the text that was held back.
    pub(super) fn finish(&mut self) -> Delta {
        let parts = self.reasoning.finish();
        let mut delta = self.split(parts, Vec::new());
        if let Some(calls) = &mut self.calls {
            delta.content.push_str(&calls.finish());
        }
        delta
    }

    fn split(&mut self, parts: Parts, logprobs: Vec<Entry>) -> Delta {
        let Parts { reasoning, answer } = parts;
        let (content, calls) = match &mut self.calls {
            Some(stream) => stream.push(&answer),
            None => (answer, Vec::new()),
        };
        Delta { reasoning, content, calls, logprobs }
    }
}
