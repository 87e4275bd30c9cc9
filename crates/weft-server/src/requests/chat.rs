//! The body of a chat: messages, tools, and settings of the answer.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};
use weft_core::chunk::{Chunk, ChunkId, Composition, Repair, Reuse, compose_conversation};
use weft_core::prompt::Conversation;
use weft_core::sampling::Sampling;

use super::json::{FromJson, fields};
use super::messages::{ApiMessage, to_messages};
use super::numbers::{Bounded, Parsed};
use super::output_format::OutputFormat;
use super::settings::Settings;
use super::tools::{ToolChoice, Tools};
use super::unsupported;
use crate::api_error::ApiError;
use crate::grammars::Rule;
use crate::model_info::ModelInfo;

/// The most messages of one request.
const MAX_MESSAGES: usize = 4096;

/// A chat.
pub(crate) struct ChatRequest {
    pub(crate) settings: Settings,
    format: OutputFormat,
    chat: Chat,
}

#[derive(Debug, Deserialize)]
struct Chat {
    messages: Vec<ApiMessage>,
    tools: Option<Tools>,
    tool_choice: Option<ToolChoice>,
    logprobs: Option<bool>,
    top_logprobs: Option<Bounded<0, 20>>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    chat_template_kwargs: Option<Map<String, Value>>,
    reuse: Option<Parsed<Reuse>>,
    repair: Option<Parsed<Repair>>,
}

impl FromJson for ChatRequest {
    fn from_json(json: &Value) -> Result<Self, ApiError> {
        unsupported::refuse(json)?;
        let request = Self { settings: fields(json)?, format: fields(json)?, chat: fields(json)? };
        request.check()?;
        Ok(request)
    }
}

impl ChatRequest {
    fn check(&self) -> Result<(), ApiError> {
        self.settings.check()?;
        self.format.check()?;
        let chat = &self.chat;
        if chat.messages.len() > MAX_MESSAGES {
            let n = chat.messages.len();
            let message = format!("there are {n} messages, and the limit is {MAX_MESSAGES}");
            return Err(ApiError::invalid(message).param("messages"));
        }
        if chat.top_logprobs.is_some_and(|n| n.count() > 0) && !chat.logprobs.unwrap_or(false) {
            let message = "top_logprobs needs logprobs to be true";
            return Err(ApiError::invalid(message).param("top_logprobs"));
        }
        chat.tools.as_ref().map_or(Ok(()), Tools::check)?;
        self.settings.check_rule(self.rule().as_ref())?;
        self.check_ending()?;
        match &chat.tool_choice {
            Some(ToolChoice::Named(name)) if self.tools().find(name).is_none() => {
                let message = format!("tool_choice names {name:?}, which is not among the tools");
                Err(ApiError::invalid(message).param("tool_choice"))
            }
            Some(ToolChoice::Required) if self.tools().0.is_empty() => {
                let message = "tool_choice is \"required\" and there are no tools";
                Err(ApiError::invalid(message).param("tool_choice"))
            }
            _ => self.thinking().map(drop),
        }
    }

    /// Checks that the answer either begins its own turn or continues the last message.
    fn check_ending(&self) -> Result<(), ApiError> {
        let refused =
            |message: &str| Err(ApiError::invalid(message).param("continue_final_message"));
        match (self.continues(), self.chat.add_generation_prompt) {
            (true, Some(true)) => {
                refused("continue_final_message and add_generation_prompt cannot both be true")
            }
            (true, _) if self.rule().is_some() => refused(
                "continue_final_message cannot be combined with an output format or a \
                 required tool, which applies from the first token of the answer",
            ),
            _ => Ok(()),
        }
    }

    fn continues(&self) -> bool {
        self.chat.continue_final_message.unwrap_or(false)
    }

    /// The tools that the model may call.
    pub(crate) fn tools(&self) -> &Tools {
        static NONE: Tools = Tools(Vec::new());
        match (&self.chat.tool_choice, &self.chat.tools) {
            (Some(ToolChoice::None), _) | (_, None) => &NONE,
            (_, Some(tools)) => tools,
        }
    }

    /// The tool that a required call names, if it can be no other.
    pub(crate) fn only_tool(&self) -> Option<String> {
        match &self.chat.tool_choice {
            Some(ToolChoice::Named(name)) => Some(name.clone()),
            _ => self.tools().only_name(),
        }
    }

    /// The chunks that the messages are made of.
    pub(crate) fn chunk_ids(&self) -> Vec<ChunkId> {
        self.chat.messages.iter().flat_map(ApiMessage::chunk_ids).collect()
    }

    /// The rule that the answer must follow, if there is one. A required tool takes precedence.
    pub(crate) fn rule(&self) -> Option<Rule> {
        let tools = self.tools();
        match &self.chat.tool_choice {
            Some(ToolChoice::Required) => Some(Rule::Call(tools.0.clone())),
            Some(ToolChoice::Named(name)) => {
                Some(Rule::Call(tools.find(name).into_iter().cloned().collect()))
            }
            _ => self.format.rule(),
        }
    }

    /// The field that the rule comes from.
    pub(crate) fn rule_param(&self) -> &'static str {
        match &self.chat.tool_choice {
            Some(ToolChoice::Required | ToolChoice::Named(_)) => "tools",
            _ => self.format.param(),
        }
    }

    fn thinking(&self) -> Result<Option<bool>, ApiError> {
        let kwargs = self.chat.chat_template_kwargs.as_ref();
        match kwargs.and_then(|kwargs| kwargs.get("enable_thinking")) {
            // Rules do not cover thinking.
            _ if self.rule().is_some() => Ok(Some(false)),
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(thinking)) => Ok(Some(*thinking)),
            Some(_) => {
                let param = "chat_template_kwargs.enable_thinking";
                Err(ApiError::invalid(format!("{param} must be true or false")).param(param))
            }
        }
    }

    /// The conversation as the template takes it.
    pub(crate) fn conversation(
        &self,
        chunks: &BTreeMap<ChunkId, Chunk>,
    ) -> Result<Conversation, ApiError> {
        Ok(Conversation {
            messages: to_messages(&self.chat.messages, chunks)?,
            tools: self.tools().0.clone(),
            add_generation_prompt: self.chat.add_generation_prompt.unwrap_or(!self.continues()),
            continue_last: self.continues(),
            enable_thinking: self.thinking()?,
            extra: self.chat.chat_template_kwargs.clone().unwrap_or_default(),
        })
    }

    /// The prompt that the engine runs. Chunks are reused as the request says; turns always
    /// exactly.
    pub(crate) fn compose(
        &self,
        model: &ModelInfo,
        chunks: &BTreeMap<ChunkId, Chunk>,
    ) -> Result<Composition, ApiError> {
        let conversation = self.conversation(chunks)?;
        let template = model.template()?;
        let mut prompt =
            compose_conversation(template, &model.tokenizer, &conversation, chunks.values())?;
        let reuse = self.chat.reuse.unwrap_or_default().0;
        for piece in prompt.pieces.iter_mut().filter(|piece| piece.kind.level() == 1) {
            if piece.chunk.is_some() {
                piece.reuse = reuse;
            }
        }
        prompt.repair = self.chat.repair.unwrap_or_default().0;
        model.check_length(prompt.len())?;
        Ok(prompt)
    }

    /// How the answer is sampled; checked.
    pub(crate) fn sampling(&self, model: &ModelInfo) -> Result<Sampling, ApiError> {
        let logprobs = self.chat.logprobs.unwrap_or(false);
        let top = logprobs.then(|| self.chat.top_logprobs.map_or(0, Bounded::count));
        self.settings.sampling(model, self.thinking()?, top, false)
    }
}
