//! The body of OpenAI's Responses, read into a chat.
//!
//! Fields that the dialect does not have are those of chats (`seed`, `stop`, `min_p`,
//! `structured_outputs` and others).

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::items::{self, Item};
use super::offered;
use crate::api_error::ApiError;
use crate::grammars::Rule;
use crate::requests::{
    Bounded, ChatRequest, FromJson, OutputFormat, Settings, TextOr, ToolChoice, Tools, fields,
    strict_names, unsupported,
};

/// The most keys of `metadata`, and the most bytes of a key and a value, as OpenAI has them.
const MAX_METADATA: (usize, usize, usize) = (16, 64, 512);

/// A request for a response. The items of an earlier response are still missing.
pub(crate) struct ResponsesRequest {
    /// Everything but the messages.
    pub(super) chat: ChatRequest,
    pub(super) instructions: Option<String>,
    /// The input as it is kept.
    pub(super) input: Vec<Value>,
    pub(super) previous: Option<String>,
    /// Whether the response is kept.
    pub(super) store: bool,
    /// The fields of the request that the response repeats.
    pub(super) echo: Value,
}

#[derive(Deserialize)]
struct Fields {
    input: Option<TextOr<Value>>,
    instructions: Option<String>,
    previous_response_id: Option<String>,
    store: Option<bool>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    text: Option<TextConfig>,
    max_output_tokens: Option<Bounded<1, { u32::MAX as i64 }>>,
    reasoning: Option<Reasoning>,
    include: Option<Vec<String>>,
    top_logprobs: Option<Bounded<0, 20>>,
    metadata: Option<Map<String, Value>>,
    #[expect(dead_code, reason = "it is read to be checked")]
    truncation: Option<Truncation>,
    background: Option<bool>,
    conversation: Option<Value>,
    prompt: Option<Value>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct TextConfig {
    format: Option<Format>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", expecting = "an object with type")]
enum Format {
    Text {},
    JsonObject {},
    JsonSchema { schema: Value },
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Reasoning {
    effort: Option<Effort>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Effort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
    Max,
}

/// Prompts are never cut, whatever is asked: one that is too long is refused.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Truncation {
    Auto,
    Disabled,
}

impl FromJson for ResponsesRequest {
    fn from_json(json: &Value) -> Result<Self, ApiError> {
        unsupported::refuse_elsewhere(json)?;
        let mut settings: Settings = fields(json)?;
        settings.check_single()?;
        let read: Fields = fields(json)?;
        refuse_what_is_kept_elsewhere(&read)?;
        check_metadata(read.metadata.as_ref())?;
        let input = items::with_ids(read.input.unwrap_or(TextOr::List(Vec::new())));
        if input.is_empty() && read.previous_response_id.is_none() {
            let message = "input is missing: give a text or a list of items";
            return Err(ApiError::invalid(message).param("input"));
        }
        items::check(&input)?;
        if let Some(n) = read.max_output_tokens {
            settings.set_max_tokens(n.count());
        }
        let wants = |what: &str| read.include.iter().flatten().any(|included| included == what);
        let top_logprobs = read.top_logprobs.map(Bounded::count);
        let has_logprobs =
            wants("message.output_text.logprobs") || top_logprobs.is_some_and(|n| n > 0);
        let format = match read.text.as_ref().and_then(|text| text.format.as_ref()) {
            None | Some(Format::Text {}) => OutputFormat::rule_of(json)?,
            Some(Format::JsonObject {}) => Some(in_text(Rule::Json(json!({"type": "object"})))),
            Some(Format::JsonSchema { schema }) => Some(in_text(Rule::Json(schema.clone()))),
        };
        let store = read.store.unwrap_or(true);
        let tool_choice = tool_choice(read.tool_choice.as_ref())?;
        let is_free = matches!(tool_choice, ToolChoice::Auto | ToolChoice::None);
        let offered = offered::functions(read.tools.unwrap_or_default(), is_free)?;
        let chat = ChatRequest {
            settings,
            strict: strict_names(&offered, ""),
            tools: Tools(tools(offered)?).limited(offered::MAX_FLAT_CHARS)?,
            tool_choice,
            calls_once: read.parallel_tool_calls == Some(false),
            format,
            thinking: read.reasoning.and_then(|reasoning| reasoning.effort).map(Effort::thinks),
            logprobs: has_logprobs.then_some(top_logprobs.unwrap_or(0)),
            reuse: fields(json)?,
            ..ChatRequest::default()
        };
        // Without the messages, which are limited when they are complete.
        let chat = chat.checked()?;
        Ok(Self {
            chat,
            instructions: read.instructions,
            input,
            previous: read.previous_response_id,
            store,
            echo: echo(json, store),
        })
    }
}

impl ResponsesRequest {
    /// The chat, after the items of an earlier response.
    pub(crate) fn chat(self, earlier: &[Value]) -> Result<ChatRequest, ApiError> {
        let mut all: Vec<Item> = items::read(earlier)?;
        all.extend(items::read(&self.input)?);
        let messages = items::to_chat(self.instructions.as_deref(), all)?;
        if messages.is_empty() {
            let message = "input has no message: give at least one";
            return Err(ApiError::invalid(message).param("input"));
        }
        ChatRequest { messages, ..self.chat }.checked()
    }
}

impl Effort {
    /// Models think or do not: there is no finer switch.
    fn thinks(self) -> bool {
        !matches!(self, Self::None | Self::Minimal)
    }
}

fn in_text(rule: Rule) -> (&'static str, Rule) {
    ("text.format", rule)
}

fn refuse_what_is_kept_elsewhere(read: &Fields) -> Result<(), ApiError> {
    let is_given = |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null());
    let (field, instead) = if read.background == Some(true) {
        ("background", "wait for the response, or stream it")
    } else if is_given(&read.conversation) {
        ("conversation", "use previous_response_id")
    } else if is_given(&read.prompt) {
        ("prompt", "prompts are not kept here; send instructions and input")
    } else {
        return Ok(());
    };
    Err(ApiError::invalid(format!("{field} is not supported: {instead}")).param(field))
}

/// What is kept with a response is limited.
fn check_metadata(metadata: Option<&Map<String, Value>>) -> Result<(), ApiError> {
    let (keys, key_bytes, value_bytes) = MAX_METADATA;
    let fits = |(key, value): (&String, &Value)| {
        key.len() <= key_bytes && value.as_str().is_some_and(|text| text.len() <= value_bytes)
    };
    if metadata.is_none_or(|metadata| metadata.len() <= keys && metadata.iter().all(fits)) {
        return Ok(());
    }
    let message = format!(
        "metadata has at most {keys} keys of {key_bytes} bytes, with texts of {value_bytes} bytes"
    );
    Err(ApiError::invalid(message).param("metadata"))
}

fn tool_choice(choice: Option<&Value>) -> Result<ToolChoice, ApiError> {
    let word = choice.and_then(Value::as_str);
    let name =
        choice.filter(|choice| choice.get("type").is_some_and(|kind| kind == "function")).and_then(
            |choice| Some(offered::flat(choice.get("namespace"), choice.get("name")?.as_str()?)),
        );
    match (choice, word, name) {
        (None | Some(Value::Null), ..) | (_, Some("auto"), _) => Ok(ToolChoice::Auto),
        (_, Some("none"), _) => Ok(ToolChoice::None),
        (_, Some("required"), _) => Ok(ToolChoice::Required),
        (.., Some(name)) => Ok(ToolChoice::Named(name)),
        _ => {
            let message = "tool_choice must be \"none\", \"auto\", \"required\" or \
                           {\"type\": \"function\", \"name\": …}";
            Err(ApiError::invalid(message).param("tool_choice"))
        }
    }
}

/// The tools as templates take them.
fn tools(tools: Vec<Value>) -> Result<Vec<Value>, ApiError> {
    let read = |(index, mut tool): (usize, Value)| {
        let param = format!("tools[{index}]");
        let refused = |reason: String| {
            Err(ApiError::invalid(format!("{param}: {reason}")).param(param.clone()))
        };
        match tool.get("type").and_then(Value::as_str) {
            Some("function") => {}
            kind => {
                let kind = kind.unwrap_or("null").to_owned();
                return refused(format!(
                    "tools of type {kind:?} are not supported, only functions, which the client \
                     runs"
                ));
            }
        }
        if tool.get("name").and_then(Value::as_str).is_none_or(str::is_empty) {
            return refused("a function needs a name".to_owned());
        }
        let mut function = Map::new();
        for field in ["name", "description", "parameters"] {
            match tool.get_mut(field).map(Value::take) {
                None | Some(Value::Null) => {}
                Some(value) => drop(function.insert(field.to_owned(), value)),
            }
        }
        Ok(json!({"type": "function", "function": function}))
    };
    tools.into_iter().enumerate().map(read).collect()
}

/// The fields that a response repeats, as they were given or as they are without being given.
fn echo(json: &Value, store: bool) -> Value {
    let given = |field: &str, default: Value| match json.get(field) {
        None | Some(Value::Null) => default,
        Some(value) => value.clone(),
    };
    let null = || Value::Null;
    json!({
        "background": false,
        "instructions": given("instructions", null()),
        "max_output_tokens": given("max_output_tokens", null()),
        "metadata": given("metadata", json!({})),
        "parallel_tool_calls": given("parallel_tool_calls", true.into()),
        "previous_response_id": given("previous_response_id", null()),
        "reasoning": given("reasoning", json!({"effort": null, "summary": null})),
        "service_tier": "default",
        "store": store,
        "text": given("text", json!({"format": {"type": "text"}})),
        "tool_choice": given("tool_choice", "auto".into()),
        "tools": offered::shown(given("tools", json!([]))),
        "top_logprobs": given("top_logprobs", 0.into()),
        "truncation": "disabled",
    })
}
