//! One choice of a chat while it is written: splits its text into thinking, answer and tool calls.

use weft_core::engine::Token;
use weft_core::reasoning::{Parts, ReasoningStream};
use weft_core::tokenizer::Tokenizer;

use super::logprobs::{Entry, Pending};
use super::tool_calls::{Call, ToolCallStream};

/// The parts of a choice that became certain.
#[derive(Debug, Default)]
pub(super) struct Delta {
    pub(super) reasoning: String,
    pub(super) content: String,
    pub(super) calls: Vec<Call>,
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
        self.calls.extend(later.calls);
        self.logprobs.extend(later.logprobs);
    }
}

/// Whether a text may call tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToolMode {
    None,
    Auto,
    /// The text is one call and nothing else.
    Required,
}

/// Splits the text of a choice.
pub(super) struct Choice {
    reasoning: ReasoningStream,
    calls: Option<ToolCallStream>,
    is_call: bool,
    logprobs: Pending,
}

impl Choice {
    /// `prompt_end` shows whether the prompt has already opened a thought.
    pub(super) fn new(prompt_end: &str, tools: ToolMode) -> Self {
        Self {
            reasoning: ReasoningStream::after(prompt_end),
            calls: (tools != ToolMode::None).then(ToolCallStream::default),
            is_call: tools == ToolMode::Required,
            logprobs: Pending::default(),
        }
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
        // A call that was cut off becomes text, unless the answer had to be a call.
        if let Some(calls) = self.calls.as_mut().filter(|_| !self.is_call) {
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
