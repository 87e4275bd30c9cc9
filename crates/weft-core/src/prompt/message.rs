//! A conversation as clients write it, in the shape of OpenAI's chat completions.
//!
//! Owns the types and their JSON form, nothing of how they are rendered.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or what else the model's template knows.
    pub role: String,
    /// What was said; `None` where an assistant only called tools.
    #[serde(default)]
    pub content: Option<Content>,
    /// What the assistant thought before it answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Calls of tools: `{"type": "function", "function": {"name", "arguments"}}`, where
    /// `arguments` is an object, or a string with the JSON of one. Templates that write
    /// `arguments | tojson` want the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<Value>>,
    /// Who of several speakers with the same role, or which tool, speaks.
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

    /// A message with the role `user` whose pieces are tokenised apart.
    pub fn user_pieces(pieces: Vec<String>) -> Self {
        Self { content: Some(Content::Pieces(pieces)), ..Self::user("") }
    }

    /// Whether the role is `system`.
    pub fn is_system(&self) -> bool {
        self.role == "system"
    }

    fn new(role: &str, content: &str) -> Self {
        Self { role: role.to_owned(), content: Some(content.into()), ..Self::default() }
    }
}

/// What a message says: a text, or a list of texts.
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
    /// Texts that templates see as one, with nothing between them, and that are tokenised each
    /// apart: documents, then a question. Has no JSON form.
    #[serde(skip)]
    Pieces(Vec<String>),
}

/// One of several parts of a content. Text only.
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
    /// The text, of all parts where there are several.
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

/// All that a template renders.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// The messages, oldest first.
    pub messages: Vec<Message>,
    /// The tools that the model may call, as JSON schemas.
    pub tools: Vec<Value>,
    /// Whether the prompt ends with the opening of an assistant's turn.
    pub add_generation_prompt: bool,
    /// Whether the prompt ends with the text of the last message, which the answer goes on with.
    pub continue_last: bool,
    /// Whether the model should think first; `None` leaves it to the template.
    pub enable_thinking: Option<bool>,
    /// Further variables for the template. They cannot replace those above.
    pub extra: Map<String, Value>,
}

impl Conversation {
    /// A conversation without tools that the assistant is to continue.
    pub fn new(messages: Vec<Message>, enable_thinking: Option<bool>) -> Self {
        Self { messages, add_generation_prompt: true, enable_thinking, ..Self::default() }
    }
}
