//! The bodies of Ollama's `/api/chat` and `/api/generate`, read into a chat.
//!
//! `options` has the sampling settings; fields that the dialect does not have are those of chats.

use serde::Deserialize;
use serde_json::{Value, json};

use super::untagged;
use crate::api_error::ApiError;
use crate::grammars::Rule;
use crate::requests::{
    Bounded, ChatContent, ChatMessage, ChatRequest, FromJson, OutputFormat, Role, Settings, Tools,
    fields, tool_call, unsupported,
};

/// A chat in Ollama's words.
pub(crate) struct OllamaChat(pub(crate) OllamaRequest);

/// A text that is answered or, if it is raw, continued.
pub(crate) struct OllamaGenerate(pub(crate) OllamaRequest);

/// What both are read into.
pub(crate) struct OllamaRequest {
    pub(crate) chat: ChatRequest,
    /// Whether there is nothing to answer: the client wants the model to be loaded.
    pub(super) is_empty: bool,
    /// Whether the model must be one that thinks.
    pub(super) needs_thinking: bool,
    /// Whether the model is not kept loaded.
    pub(super) unloads: bool,
}

/// The fields of both routes.
#[derive(Deserialize)]
struct Common {
    model: String,
    stream: Option<bool>,
    format: Option<Value>,
    options: Option<Value>,
    think: Option<Think>,
    logprobs: Option<bool>,
    top_logprobs: Option<Bounded<0, 20>>,
}

#[derive(Deserialize)]
struct Options {
    /// -1 and -2 are as many as fit.
    num_predict: Option<Bounded<-2, { u32::MAX as i64 }>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(untagged, expecting = "true, false, \"low\", \"medium\" or \"high\"")]
enum Think {
    Switch(bool),
    Level(Level),
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Low,
    Medium,
    High,
    Max,
}

#[derive(Deserialize)]
struct ChatFields {
    messages: Option<Vec<ApiMessage>>,
    tools: Option<Tools>,
}

#[derive(Deserialize)]
#[serde(expecting = "a message: an object with role and content")]
struct ApiMessage {
    role: Role,
    content: Option<String>,
    thinking: Option<String>,
    tool_calls: Option<Vec<Call>>,
    #[serde(alias = "name")]
    tool_name: Option<String>,
    tool_call_id: Option<String>,
    images: Option<Vec<Value>>,
}

#[derive(Deserialize)]
#[serde(expecting = "a call: an object with function")]
struct Call {
    id: Option<String>,
    function: Function,
}

#[derive(Deserialize)]
#[serde(expecting = "a function: an object with name and arguments")]
struct Function {
    name: String,
    arguments: Option<Value>,
}

#[derive(Deserialize)]
struct GenerateFields {
    prompt: Option<String>,
    system: Option<String>,
    raw: Option<bool>,
    suffix: Option<String>,
    template: Option<String>,
    context: Option<Vec<Value>>,
    images: Option<Vec<Value>>,
}

/// Whether `keep_alive` is no time: 0, "0" or "0s".
fn is_no_time(keep_alive: &Value) -> bool {
    match keep_alive {
        Value::String(text) => text.trim_end_matches(['s', 'm', 'h']) == "0",
        value => value.as_f64() == Some(0.0),
    }
}

impl FromJson for OllamaChat {
    fn from_json(json: &Value) -> Result<Self, ApiError> {
        let ChatFields { messages, tools } = fields(json)?;
        let messages = messages.unwrap_or_default();
        let read = messages.into_iter().enumerate().map(|(index, message)| {
            message.into_chat().map_err(|reason| {
                let param = format!("messages[{index}]");
                ApiError::invalid(format!("{param}: {reason}")).param(param)
            })
        });
        let messages: Vec<ChatMessage> = read.collect::<Result<_, _>>()?;
        let is_empty = messages.is_empty();
        let mut tools = tools.unwrap_or_default();
        let strict = tools.take_strict();
        let chat = ChatRequest { messages, tools, strict, ..ChatRequest::default() };
        OllamaRequest::new(json, chat, is_empty).map(Self)
    }
}

impl FromJson for OllamaGenerate {
    fn from_json(json: &Value) -> Result<Self, ApiError> {
        let read: GenerateFields = fields(json)?;
        let has_text = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let refused = |field: &str, instead: &str| {
            let message = format!("{field} is not supported: {instead}");
            Err(ApiError::invalid(message).param(field))
        };
        if has_text(&read.suffix) {
            return refused("suffix", "weft continues text and does not fill in");
        }
        if has_text(&read.template) {
            return refused("template", "templates come only from the model's folder");
        }
        if read.context.is_some_and(|context| !context.is_empty()) {
            return refused("context", "send the conversation to /api/chat");
        }
        if read.images.is_some_and(|images| !images.is_empty()) {
            return refused("images", "this model reads text");
        }
        let prompt = read.prompt.unwrap_or_default();
        let is_empty = prompt.is_empty();
        let chat = match read.raw.unwrap_or(false) {
            true => ChatRequest { raw_prompt: Some(prompt), ..ChatRequest::default() },
            false => {
                let system = read.system.filter(|text| !text.is_empty());
                let system = system.map(|text| ChatMessage::text(Role::System, text));
                let user = ChatMessage::text(Role::User, prompt);
                let messages = system.into_iter().chain([user]).collect();
                ChatRequest { messages, ..ChatRequest::default() }
            }
        };
        OllamaRequest::new(json, chat, is_empty).map(Self)
    }
}

impl OllamaRequest {
    /// Adds the fields of both routes to a chat that has its messages.
    fn new(json: &Value, chat: ChatRequest, is_empty: bool) -> Result<Self, ApiError> {
        unsupported::refuse_elsewhere(json)?;
        let read: Common = fields(json)?;
        let mut settings = settings(read.options.as_ref())?;
        settings.model = Some(untagged(&read.model).to_owned());
        settings.set_streams(read.stream.unwrap_or(true));
        let (thinking, needs_thinking) = match read.think {
            None => (None, false),
            Some(Think::Switch(thinking)) => (Some(thinking), thinking),
            Some(Think::Level(Level::Low | Level::Medium | Level::High | Level::Max)) => {
                (Some(true), true)
            }
        };
        let top_logprobs = read.top_logprobs.map_or(0, Bounded::count);
        let chat = ChatRequest {
            settings,
            format: format(json, read.format)?,
            thinking,
            logprobs: read.logprobs.unwrap_or(false).then_some(top_logprobs),
            reuse: fields(json)?,
            ..chat
        };
        let unloads = json.get("keep_alive").is_some_and(is_no_time);
        Ok(Self { chat: chat.checked()?, is_empty, needs_thinking, unloads })
    }
}

/// The settings in `options`. Those that say how a model is loaded have no effect here.
fn settings(options: Option<&Value>) -> Result<Settings, ApiError> {
    let Some(options) = options.filter(|options| !options.is_null()) else {
        return Ok(Settings::default());
    };
    if !options.is_object() {
        return Err(ApiError::invalid("options must be an object").param("options"));
    }
    unsupported::refuse_elsewhere(options)?;
    let mut settings: Settings = fields(options)?;
    settings.check_single()?;
    let Options { num_predict } = fields(options)?;
    if let Some(n) = num_predict {
        match n.get() {
            ..0 => settings.set_unlimited(),
            _ => settings.set_max_tokens(n.count()),
        }
    }
    Ok(settings)
}

/// The rule of `format`: `"json"`, or a schema.
fn format(json: &Value, format: Option<Value>) -> Result<Option<(&'static str, Rule)>, ApiError> {
    match format {
        None | Some(Value::Null) => {}
        Some(Value::String(word)) if word.is_empty() => {}
        Some(Value::String(word)) if word == "json" => {
            return Ok(Some(("format", Rule::Json(json!({"type": "object"})))));
        }
        Some(schema @ Value::Object(_)) => return Ok(Some(("format", Rule::Json(schema)))),
        Some(_) => {
            let message = "format must be \"json\" or a JSON schema, which is an object";
            return Err(ApiError::invalid(message).param("format"));
        }
    }
    OutputFormat::rule_of(json)
}

impl ApiMessage {
    fn into_chat(self) -> Result<ChatMessage, String> {
        if self.images.is_some_and(|images| !images.is_empty()) {
            return Err("images are not supported: this model reads text".to_owned());
        }
        let call = |(index, call): (usize, Call)| {
            let arguments = match call.function.arguments {
                None | Some(Value::Null) => json!({}),
                Some(arguments @ (Value::Object(_) | Value::String(_))) => arguments,
                Some(_) => return Err("the arguments of a call must be an object".to_owned()),
            };
            let id = call.id.unwrap_or_else(|| format!("call_{index}"));
            Ok(tool_call(&id, &call.function.name, arguments))
        };
        let calls = self.tool_calls.unwrap_or_default().into_iter().enumerate().map(call);
        let calls: Vec<Value> = calls.collect::<Result<_, _>>()?;
        // An assistant that only called tools said nothing.
        let content = self.content.filter(|text| calls.is_empty() || !text.is_empty());
        if content.is_none() && calls.is_empty() {
            return Err("a message needs content".to_owned());
        }
        Ok(ChatMessage {
            reasoning_content: self.thinking.filter(|text| !text.is_empty()),
            tool_calls: (!calls.is_empty()).then_some(calls),
            name: self.tool_name,
            tool_call_id: self.tool_call_id,
            ..ChatMessage::new(self.role, content.map(ChatContent::Text))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_to_answer_comes_after_its_system_prompt() {
        let read = |more: Value| {
            let mut body = json!({"model": "m", "prompt": "Why?"});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let OllamaGenerate(request) = OllamaGenerate::from_json(&body).unwrap();
            let messages = request.chat.messages.iter();
            messages.map(|message| (message.role, message.own_text())).collect::<Vec<_>>()
        };
        let user = (Role::User, "Why?".to_owned());
        let system = (Role::System, "Be brief.".to_owned());
        assert_eq!(read(json!({"system": "Be brief."})), [system, user.clone()]);
        for none in [json!({}), json!({"system": ""}), json!({"system": null})] {
            assert_eq!(read(none), std::slice::from_ref(&user));
        }
    }
}
