//! The body of a chat in OpenAI's words, with those of vLLM and llama.cpp.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::api_error::ApiError;
use crate::requests::{
    Bounded, ChatMessage, ChatRequest, FromJson, OutputFormat, Settings, ToolChoice, Tools, fields,
    unsupported,
};

/// A chat in OpenAI's words.
pub(crate) struct OpenAiChat(pub(crate) ChatRequest);

#[derive(Debug, Deserialize)]
struct Chat {
    messages: Vec<ChatMessage>,
    tools: Option<Tools>,
    tool_choice: Option<ToolChoice>,
    parallel_tool_calls: Option<bool>,
    logprobs: Option<bool>,
    top_logprobs: Option<Bounded<0, 20>>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    echo: Option<bool>,
    chat_template_kwargs: Option<Map<String, Value>>,
}

impl FromJson for OpenAiChat {
    fn from_json(json: &Value) -> Result<Self, ApiError> {
        unsupported::refuse(json)?;
        let settings: Settings = fields(json)?;
        let format = OutputFormat::rule_of(json)?;
        let chat: Chat = fields(json)?;
        settings.check()?;
        let logprobs = chat.logprobs.unwrap_or(false);
        if chat.top_logprobs.is_some_and(|n| n.count() > 0) && !logprobs {
            let message = "top_logprobs needs logprobs to be true";
            return Err(ApiError::invalid(message).param("top_logprobs"));
        }
        let mut tools = chat.tools.unwrap_or_default();
        let template_values = chat.chat_template_kwargs.unwrap_or_default();
        let request = ChatRequest {
            settings,
            messages: chat.messages,
            strict: tools.take_strict(),
            tools,
            tool_choice: chat.tool_choice.unwrap_or_default(),
            calls_once: chat.parallel_tool_calls == Some(false),
            format,
            thinking: thinking(&template_values)?,
            logprobs: logprobs.then(|| chat.top_logprobs.map_or(0, Bounded::count)),
            begins_turn: chat.add_generation_prompt,
            continues: chat.continue_final_message.unwrap_or(false),
            echoes: chat.echo.unwrap_or(false),
            template_values,
            reuse: fields(json)?,
            ..ChatRequest::default()
        };
        request.checked().map(Self)
    }
}

fn thinking(template_values: &Map<String, Value>) -> Result<Option<bool>, ApiError> {
    match template_values.get("enable_thinking") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(thinking)) => Ok(Some(*thinking)),
        Some(_) => {
            let param = "chat_template_kwargs.enable_thinking";
            Err(ApiError::invalid(format!("{param} must be true or false")).param(param))
        }
    }
}
