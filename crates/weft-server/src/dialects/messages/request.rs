//! The body of Anthropic's Messages, read into a chat.
//!
//! Each system block is its own piece, and a block with `cache_control` ends one. Fields that the
//! dialect does not have are those of chats (`seed`, `min_p`, `structured_outputs` and others).

use serde::Deserialize;
use serde_json::{Value, json};

use super::blocks::{ApiMessage, TextBlock, to_chat, to_system};
use crate::api_error::ApiError;
use crate::grammars::Rule;
use crate::requests::{
    Bounded, ChatMessage, ChatRequest, Count, FromJson, MAX_LONG_NAME_CHARS, OutputFormat,
    Settings, TextOr, ToolChoice, Tools, fields, strict_names, unsupported,
};

/// The code by which clients know that they must send the whole conversation.
pub(super) const THREAD_NOT_FOUND: &str = "thread_not_found";

/// A request for a message.
pub(crate) struct MessagesRequest {
    pub(crate) chat: ChatRequest,
    /// Whether the client asked for edits of the context, of which none are made.
    pub(crate) asks_for_edits: bool,
}

/// A request for the number of tokens of a prompt, which has no limit on the answer.
pub(crate) struct CountRequest(pub(crate) ChatRequest);

#[derive(Deserialize)]
struct Fields {
    max_tokens: Option<Count>,
    system: Option<TextOr<TextBlock>>,
    messages: Vec<ApiMessage>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<ApiToolChoice>,
    stop_sequences: Option<Vec<String>>,
    thinking: Option<Thinking>,
    output_config: Option<OutputConfig>,
    /// The earlier name of `output_config.format`.
    output_format: Option<Format>,
    context_management: Option<Value>,
    mcp_servers: Option<Vec<Value>>,
    container: Option<Value>,
    thread: Option<Thread>,
}

/// A conversation that Anthropic's servers hold for a while. Theirs may be lost at any time, and
/// clients then send the whole conversation; here it is never held.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", expecting = "an object with type")]
enum Thread {
    Create {},
    Continue { previous_message_id: String },
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", expecting = "an object with type")]
enum ApiToolChoice {
    Auto { disable_parallel_tool_use: Option<bool> },
    Any { disable_parallel_tool_use: Option<bool> },
    Tool { name: String, disable_parallel_tool_use: Option<bool> },
    None {},
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", expecting = "an object with type")]
enum Thinking {
    Enabled {
        budget_tokens: Bounded<1, { u32::MAX as i64 }>,
    },
    /// The model decides how long it thinks.
    Adaptive {},
    BetweenTools {},
    Disabled {},
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct OutputConfig {
    format: Option<Format>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", expecting = "an object with type and schema")]
enum Format {
    JsonSchema { schema: Value },
}

impl FromJson for MessagesRequest {
    fn from_json(json: &Value) -> Result<Self, ApiError> {
        let fields: Fields = fields(json)?;
        let n = fields.max_tokens.ok_or_else(|| {
            let message = "max_tokens is missing: give the most tokens of the answer";
            ApiError::invalid(message).param("max_tokens")
        })?;
        if n.count() == 0 {
            let message = "max_tokens must be at least 1";
            return Err(ApiError::invalid(message).param("max_tokens"));
        }
        if let Some(Thinking::Enabled { budget_tokens }) = &fields.thinking
            && budget_tokens.count() >= n.count()
        {
            let (budget, n) = (budget_tokens.count(), n.count());
            let message = format!(
                "max_tokens is {n} and must be greater than thinking.budget_tokens, which is \
                 {budget}"
            );
            return Err(ApiError::invalid(message).param("thinking.budget_tokens"));
        }
        let asks_for_edits =
            fields.context_management.as_ref().is_some_and(|edits| !edits.is_null());
        let stops = fields.stop_sequences.clone();
        let mut chat = read(json, fields)?;
        stops.into_iter().for_each(|stops| chat.settings.set_stops(stops));
        chat.settings.want_progress();
        Ok(Self { chat, asks_for_edits })
    }
}

impl FromJson for CountRequest {
    fn from_json(json: &Value) -> Result<Self, ApiError> {
        read(json, fields(json)?).map(Self)
    }
}

fn read(json: &Value, fields: Fields) -> Result<ChatRequest, ApiError> {
    unsupported::refuse_elsewhere(json)?;
    refuse_what_runs_elsewhere(&fields)?;
    if fields.messages.is_empty() {
        let message = "messages is empty: at least one message is required";
        return Err(ApiError::invalid(message).param("messages"));
    }
    let settings: Settings = crate::requests::fields(json)?;
    settings.check_single()?;
    let (tool_choice, calls_once) = choice(fields.tool_choice);
    let is_forced = matches!(tool_choice, ToolChoice::Required | ToolChoice::Named(_));
    let (thinking, thinking_tokens) = match &fields.thinking {
        // Unless the client asks, there is no thought before the answer.
        None | Some(Thinking::Disabled {}) => (false, None),
        Some(_) if is_forced => {
            let message = "thinking cannot be combined with a tool_choice that requires a call; \
                           use auto or none, or leave thinking out";
            return Err(ApiError::invalid(message).param("thinking"));
        }
        Some(Thinking::Adaptive {} | Thinking::BetweenTools {}) => (true, None),
        Some(Thinking::Enabled { budget_tokens }) => (true, Some(budget_tokens.count())),
    };
    let mut messages: Vec<_> = fields.system.map(to_system).into_iter().collect();
    let n_system = messages.len();
    for (index, message) in fields.messages.into_iter().enumerate() {
        let refused = |(path, reason): (String, String)| {
            let param = format!("messages[{index}].{path}");
            ApiError::invalid(format!("{param}: {reason}")).param(param)
        };
        messages.extend(to_chat(message).map_err(refused)?);
    }
    let continues = messages[n_system..].last().is_some_and(ChatMessage::is_continuable);
    let format = fields.output_config.and_then(|config| config.format).or(fields.output_format);
    let format = format.map(|Format::JsonSchema { schema }| ("output_config", Rule::Json(schema)));
    let request = ChatRequest {
        messages,
        strict: strict_names(fields.tools.as_deref().unwrap_or_default(), ""),
        tools: Tools(tools(fields.tools.unwrap_or_default())?).limited(MAX_LONG_NAME_CHARS)?,
        tool_choice,
        calls_once,
        format: format.or(OutputFormat::rule_of(json)?),
        thinking: Some(thinking),
        thinking_tokens,
        continues,
        settings,
        reuse: crate::requests::fields(json)?,
        ..ChatRequest::default()
    };
    request.checked()
}

/// Refuses what Anthropic would run on its own machines.
fn refuse_what_runs_elsewhere(fields: &Fields) -> Result<(), ApiError> {
    if let Some(Thread::Continue { previous_message_id: id }) = &fields.thread {
        let message = format!(
            "thread: nothing is held of message {id:?}; replay the full conversation, of which \
             the rows are kept anyway"
        );
        return Err(ApiError::not_found(message).param("thread").code(THREAD_NOT_FOUND));
    }
    let refused = |field: &str| {
        let message = format!("{field} is not supported: this server runs the model alone");
        Err(ApiError::invalid(message).param(field))
    };
    if fields.mcp_servers.as_ref().is_some_and(|servers| !servers.is_empty()) {
        return refused("mcp_servers");
    }
    if fields.container.as_ref().is_some_and(|container| !container.is_null()) {
        return refused("container");
    }
    Ok(())
}

/// Whether the model must call tools, and whether it may call only one.
fn choice(choice: Option<ApiToolChoice>) -> (ToolChoice, bool) {
    let (choice, once) = match choice {
        None => (ToolChoice::Auto, None),
        Some(ApiToolChoice::Auto { disable_parallel_tool_use: once }) => (ToolChoice::Auto, once),
        Some(ApiToolChoice::Any { disable_parallel_tool_use: once }) => {
            (ToolChoice::Required, once)
        }
        Some(ApiToolChoice::Tool { name, disable_parallel_tool_use: once }) => {
            (ToolChoice::Named(name), once)
        }
        Some(ApiToolChoice::None {}) => (ToolChoice::None, None),
    };
    (choice, once.unwrap_or(false))
}

/// The tools as templates take them.
fn tools(tools: Vec<Value>) -> Result<Vec<Value>, ApiError> {
    let read = |(index, tool): (usize, Value)| {
        let refused = |reason: String| {
            let param = format!("tools[{index}]");
            Err(ApiError::invalid(format!("{param}: {reason}")).param(param))
        };
        let text = |field: &str| tool.get(field).and_then(Value::as_str);
        if let Some(kind) = text("type").filter(|kind| *kind != "custom") {
            return refused(format!(
                "tools of type {kind:?} run on Anthropic's machines; only tools with an \
                 input_schema, which the client runs, are supported"
            ));
        }
        let Some(name) = text("name").filter(|name| !name.is_empty()) else {
            return refused("a tool needs a name".to_owned());
        };
        let mut function = json!({"name": name});
        if let Some(description) = tool.get("description").filter(|text| text.is_string()) {
            function["description"] = description.clone();
        }
        match tool.get("input_schema") {
            Some(schema @ Value::Object(_)) => function["parameters"] = schema.clone(),
            _ => return refused("a tool needs an input_schema, which is an object".to_owned()),
        }
        Ok(json!({"type": "function", "function": function}))
    };
    tools.into_iter().enumerate().map(read).collect()
}
