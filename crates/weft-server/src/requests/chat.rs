//! A chat as the reader of any dialect leaves it: messages, tools, and settings of the answer.
//!
//! Readers fill in what their dialect can say. What must hold for every chat is checked here, once,
//! and here the chat becomes a prompt and settings of the engine.

use serde_json::{Map, Value};
use weft_core::chunk::{ChunkId, Composition, Reuse, TurnReuse, compose_conversation};
use weft_core::prompt::Conversation;
use weft_core::sampling::Sampling;

use super::messages::{ChatMessage, ChunksById, Role, to_messages};
use super::reuse::ReuseFields;
use super::settings::Settings;
use super::tools::{ToolChoice, Tools};
use crate::api_error::ApiError;
use crate::grammars::{Rule, StrictTools};
use crate::model_info::ModelInfo;
use crate::responses::CallStyle;

/// The most messages of one request.
const MAX_MESSAGES: usize = 4096;
/// Parts of contents and calls of all messages: each is looked for in the rendered prompt.
const MAX_PARTS: usize = 16_384;

/// A chat.
#[derive(Debug, Default)]
pub(crate) struct ChatRequest {
    pub(crate) settings: Settings,
    pub(crate) messages: Vec<ChatMessage>,
    /// A prompt to be continued without the template, instead of messages.
    pub(crate) raw_prompt: Option<String>,
    pub(crate) tools: Tools,
    /// The names of tools whose calls must fit their schemas.
    pub(crate) strict: Vec<String>,
    pub(crate) tool_choice: ToolChoice,
    /// Whether the answer ends with its first call.
    pub(crate) calls_once: bool,
    /// The rule of the answer's format, and the field that it comes from.
    pub(crate) format: Option<(&'static str, Rule)>,
    /// Whether the model thinks first; the template decides if it is `None`.
    pub(crate) thinking: Option<bool>,
    /// The most tokens that the model thinks.
    pub(crate) thinking_tokens: Option<usize>,
    /// Log-probabilities of each token and of this many others.
    pub(crate) logprobs: Option<usize>,
    /// Whether the answer begins its own turn; by default it does unless it continues the last one.
    pub(crate) begins_turn: Option<bool>,
    /// Whether the answer continues the last message.
    pub(crate) continues: bool,
    /// Whether an answer that continues the last message begins with it.
    pub(crate) echoes: bool,
    /// Further variables for the template.
    pub(crate) template_values: Map<String, Value>,
    pub(crate) reuse: ReuseFields,
}

impl ChatRequest {
    /// Checks the parts against one another. Every reader calls it last.
    pub(crate) fn checked(self) -> Result<Self, ApiError> {
        if self.messages.len() > MAX_MESSAGES {
            let n = self.messages.len();
            let message = format!("there are {n} messages, and the limit is {MAX_MESSAGES}");
            return Err(ApiError::invalid(message).param("messages"));
        }
        let n_parts = self.messages.iter().map(ChatMessage::n_parts).sum::<usize>();
        if n_parts > MAX_PARTS {
            let message = format!(
                "the messages have {n_parts} parts and calls, and the limit is {MAX_PARTS}"
            );
            return Err(ApiError::invalid(message).param("messages"));
        }
        self.tools.check()?;
        self.settings.check_rule(self.has_rule())?;
        self.check_ending()?;
        match &self.tool_choice {
            ToolChoice::Named(name) if self.tools().find(name).is_none() => {
                let message = format!("tool_choice names {name:?}, which is not among the tools");
                Err(ApiError::invalid(message).param("tool_choice"))
            }
            ToolChoice::Required if self.tools().0.is_empty() => {
                let message = "tool_choice requires a call and there are no tools";
                Err(ApiError::invalid(message).param("tool_choice"))
            }
            _ => Ok(self),
        }
    }

    /// Checks that the answer either begins its own turn or continues the last message.
    fn check_ending(&self) -> Result<(), ApiError> {
        let refused =
            |message: &str| Err(ApiError::invalid(message).param("continue_final_message"));
        match (self.continues, self.begins_turn) {
            (true, Some(true)) => {
                refused("continue_final_message and add_generation_prompt cannot both be true")
            }
            (true, _) if self.has_rule() => refused(
                "an answer that continues the last message cannot have an output format or a \
                 required tool, which applies from the first token of the answer",
            ),
            _ => Ok(()),
        }
    }

    /// The text that the answer begins with: that of the last message, if the client wants it.
    pub(crate) fn echoed(&self) -> String {
        let last = self.messages.last().filter(|_| self.continues && self.echoes);
        last.map(ChatMessage::own_text).unwrap_or_default()
    }

    /// The tools that the model may call.
    pub(crate) fn tools(&self) -> &Tools {
        static NONE: Tools = Tools(Vec::new());
        if self.tool_choice == ToolChoice::None { &NONE } else { &self.tools }
    }

    /// The tool that a required call names, if it can be no other.
    pub(crate) fn only_tool(&self) -> Option<String> {
        match &self.tool_choice {
            ToolChoice::Named(name) => Some(name.clone()),
            _ => self.tools().only_name(),
        }
    }

    /// The chunks that the messages are made of, as often as they are named.
    pub(crate) fn chunk_ids(&self) -> impl Iterator<Item = ChunkId> {
        self.messages.iter().flat_map(ChatMessage::chunk_ids)
    }

    /// Whether the answer must follow a rule.
    fn has_rule(&self) -> bool {
        let is_forced = matches!(self.tool_choice, ToolChoice::Required | ToolChoice::Named(_));
        is_forced || self.format.is_some()
    }

    /// The rule that the answer must follow, if there is one. A required tool takes precedence; it
    /// is called in the model's own style.
    pub(crate) fn rule(&self, style: CallStyle) -> Option<Rule> {
        let tools = self.tools();
        match &self.tool_choice {
            ToolChoice::Required => Some(Rule::Call(tools.0.clone(), style)),
            ToolChoice::Named(name) => {
                Some(Rule::Call(tools.find(name).into_iter().cloned().collect(), style))
            }
            _ => self.format.as_ref().map(|(_, rule)| rule.clone()),
        }
    }

    /// The tools whose calls must fit their schemas if the model makes some by itself. A rule for
    /// the whole answer leaves no room for those.
    pub(crate) fn strict_tools(&self, style: CallStyle) -> Option<StrictTools> {
        let tools = self.tools();
        let strict: Vec<String> =
            self.strict.iter().filter(|name| tools.find(name).is_some()).cloned().collect();
        let is_free = !self.has_rule() && !strict.is_empty();
        let tools = tools.0.clone();
        is_free.then_some(StrictTools { tools, strict, style, in_thought: false })
    }

    /// The field that the rule comes from.
    pub(crate) fn rule_param(&self) -> &'static str {
        match &self.tool_choice {
            ToolChoice::Required | ToolChoice::Named(_) => "tools",
            _ => self.format.as_ref().map_or("response_format", |(param, _)| param),
        }
    }

    /// Whether the model thinks first. Rules do not cover thinking.
    fn thinks(&self) -> Option<bool> {
        if self.has_rule() { Some(false) } else { self.thinking }
    }

    /// The conversation as the template takes it.
    pub(crate) fn conversation(&self, chunks: &ChunksById) -> Result<Conversation, ApiError> {
        Ok(Conversation {
            messages: to_messages(&self.messages, chunks)?,
            tools: self.tools().0.clone(),
            add_generation_prompt: self.begins_turn.unwrap_or(!self.continues),
            continue_last: self.continues,
            enable_thinking: self.thinks(),
            extra: self.template_values.clone(),
        })
    }

    /// The prompt that the engine runs; it leaves room for an answer. `reuse` is what holds if the
    /// request does not say.
    pub(crate) fn compose(
        &self,
        model: &ModelInfo,
        chunks: &ChunksById,
        reuse: Reuse,
    ) -> Result<Composition, ApiError> {
        let prompt = self.prompt(model, chunks, reuse)?;
        model.check_length(prompt.len())?;
        Ok(prompt)
    }

    /// The prompt, of any length.
    pub(crate) fn prompt(
        &self,
        model: &ModelInfo,
        chunks: &ChunksById,
        reuse: Reuse,
    ) -> Result<Composition, ApiError> {
        if let Some(text) = &self.raw_prompt {
            let tokens = model.tokenizer.encode_markup(text)?;
            return Ok([model.tokenizer.bos(), &tokens].concat().into());
        }
        let conversation = self.conversation(chunks)?;
        let template = model.template()?;
        let reuse = TurnReuse { reuse: self.reuse.reuse(reuse), anchor: self.anchor() };
        let chunks = chunks.values().map(|chunk| &**chunk);
        let mut prompt =
            compose_conversation(template, &model.tokenizer, &conversation, chunks, &reuse)?;
        prompt.repair = self.reuse.repair();
        Ok(prompt)
    }

    /// The block of the system prompt that the client marked last.
    fn anchor(&self) -> Option<String> {
        let system = self.messages.iter().take_while(|message| message.role == Role::System);
        system.filter_map(ChatMessage::marked).last().map(str::to_owned)
    }

    /// How the answer is sampled; checked.
    pub(crate) fn sampling(&self, model: &ModelInfo) -> Result<Sampling, ApiError> {
        self.settings.sampling(model, self.thinks(), self.logprobs, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::{ChatContent, ChatPart, tool_call};

    /// Each is looked for in the rendered prompt.
    #[test]
    fn parts_and_calls_of_all_messages_are_limited_together() {
        let message = |n_parts: usize, n_calls: usize| {
            let parts = vec![ChatPart::text("x"); n_parts];
            let calls = vec![tool_call("1", "f", Value::Null); n_calls];
            let content = Some(ChatContent::Parts(parts));
            ChatMessage { tool_calls: Some(calls), ..ChatMessage::new(Role::Assistant, content) }
        };
        let refusal = |n_parts, n_calls| {
            let messages = vec![message(MAX_PARTS / 2, 0), message(n_parts, n_calls)];
            let checked = ChatRequest { messages, ..ChatRequest::default() }.checked();
            checked.err().map(|error| error.message().to_owned())
        };
        let half = MAX_PARTS / 2;
        assert_eq!(refusal(half - 1, 1), None);
        for (n_parts, n_calls) in [(half + 1, 0), (half, 1)] {
            let refusal = refusal(n_parts, n_calls).unwrap();
            assert!(refusal.contains("16385 parts and calls"), "{refusal}");
        }
    }
}
