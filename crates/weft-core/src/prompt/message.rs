//! A conversation, in the format of OpenAI's chat completions.
//!
//! This module defines the types and their JSON form.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or another role that the model's template knows.
    pub role: String,
    /// The text; `None` if an assistant only called tools.
    #[serde(default)]
    pub content: Option<Content>,
    /// The assistant's reasoning before the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Tool calls: `{"type": "function", "function": {"name", "arguments"}}`, where `arguments` is
    /// an object, or a string with the JSON of one. Templates that write `arguments | tojson` need
    /// the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<Value>>,
    /// The speaker, if several have the same role, or the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The call that a `tool` message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

impl Message {
    /// A message with the role `system`.
    pub fn system(content: &str) -> Self {
        Self::new("system", content)
    }

    /// A message with the role `user`.
    pub fn user(content: &str) -> Self {
        Self::new("user", content)
    }

    /// A message with the role `assistant`.
    pub fn assistant(content: &str) -> Self {
        Self::new("assistant", content)
    }

    /// A message with the role `user` whose pieces are tokenised separately.
    pub fn user_pieces(pieces: Vec<String>) -> Self {
        Self { content: Some(Content::Pieces(pieces)), ..Self::user("") }
    }

    fn new(role: &str, content: &str) -> Self {
        Self { role: role.to_owned(), content: Some(content.into()), ..Self::default() }
    }
}

/// The content of a message: one text, or several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "content must be a string, null, or a list of {\"type\": \"text\", \"text\": …}"
)]
pub enum Content {
    /// A text.
    Text(String),
    /// Texts that templates see as one, joined by newlines.
    Parts(Vec<Part>),
    /// Texts that templates see as one, joined without a separator, and that are tokenised
    /// separately: documents, then a question. They have no JSON form.
    #[serde(skip)]
    Pieces(Vec<String>),
}

/// A part of a content. Only text is supported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Part {
    /// A text.
    Text {
        /// The text.
        text: String,
    },
}

impl Content {
    /// The text, of all parts if there are several.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => {
                let texts: Vec<&str> = parts.iter().map(|Part::Text { text }| &**text).collect();
                texts.join("\n")
            }
            Self::Pieces(pieces) => pieces.concat(),
        }
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// The input of a template.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// The messages, oldest first.
    pub messages: Vec<Message>,
    /// The tools that the model may call, as JSON schemas.
    pub tools: Vec<Value>,
    /// Whether the prompt ends with the opening of an assistant's turn.
    pub add_generation_prompt: bool,
    /// Whether the prompt ends with the text of the last message, and the answer continues it.
    pub continue_last: bool,
    /// Whether the model should reason first. `None` leaves it to the template.
    pub enable_thinking: Option<bool>,
    /// Further variables for the template. They cannot replace the ones above.
    pub extra: Map<String, Value>,
}

impl Conversation {
    /// A conversation without tools, to be continued by the assistant.
    pub fn new(messages: Vec<Message>, enable_thinking: Option<bool>) -> Self {
        Self { messages, add_generation_prompt: true, enable_thinking, ..Self::default() }
    }
}
