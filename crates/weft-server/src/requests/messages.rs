//! Messages as clients write them, converted to what templates take.
//!
//! Content is text, or a list of parts: texts, and chunks by their ids. A part that a client marks
//! with `cache_control` ends a piece, and so does each chunk and each part of a system prompt.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{self, Deserializer};
use serde_json::{Value, json};
use weft_core::chunk::{Chunk, ChunkId, Kind};
use weft_core::prompt::{Content, Message, Part};

use crate::api_error::ApiError;

/// Registered chunks that messages name.
pub(crate) type ChunksById = BTreeMap<ChunkId, Arc<Chunk>>;

/// Who wrote a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// A developer's message is a system message: models do not know the difference.
    #[serde(alias = "developer")]
    System,
    User,
    Assistant,
    #[serde(alias = "function")]
    Tool,
}

impl Role {
    const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// A message.
#[derive(Clone, Debug, Deserialize)]
#[serde(expecting = "a message: an object with role and content")]
pub(crate) struct ChatMessage {
    pub(crate) role: Role,
    pub(crate) content: Option<ChatContent>,
    pub(crate) reasoning_content: Option<String>,
    /// Calls in OpenAI's form; [`tool_call`] makes one.
    pub(crate) tool_calls: Option<Vec<Value>>,
    pub(crate) name: Option<String>,
    pub(crate) tool_call_id: Option<String>,
}

/// The content of a message.
#[derive(Clone, Debug)]
pub(crate) enum ChatContent {
    Text(String),
    Parts(Vec<ChatPart>),
}

/// A part of a content.
#[derive(Clone, Debug)]
pub(crate) enum ChatPart {
    Text(TextPart),
    Chunk(ChunkId),
}

/// A text among the parts of a content.
#[derive(Clone, Debug)]
pub(crate) struct TextPart {
    pub(crate) text: String,
    /// Whether the next part begins another piece.
    pub(crate) ends_piece: bool,
    /// Whether the client says that everything up to here stays as it is (`cache_control`).
    pub(crate) is_marked: bool,
}

impl ChatPart {
    /// A text that the next text continues.
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(TextPart { text: text.into(), ends_piece: false, is_marked: false })
    }

    /// A text that is its own piece.
    pub(crate) fn block(text: impl Into<String>, mark: Option<&Value>) -> Self {
        let is_marked = mark.is_some_and(|mark| !mark.is_null());
        Self::Text(TextPart { text: text.into(), ends_piece: true, is_marked })
    }
}

/// A call of a tool. The arguments are an object, or the JSON of one.
pub(crate) fn tool_call(id: &str, name: &str, arguments: Value) -> Value {
    let mut call = json!({"id": id, "type": "function", "function": {"name": name}});
    call["function"]["arguments"] = arguments;
    call
}

impl<'de> Deserialize<'de> for ChatContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => Ok(Self::Text(text)),
            Value::Array(parts) => {
                let parts = parts.iter().map(|part| read_part(part).map_err(de::Error::custom));
                parts.collect::<Result<_, _>>().map(Self::Parts)
            }
            _ => Err(de::Error::custom("must be a string, null or a list of parts")),
        }
    }
}

fn read_part(part: &Value) -> Result<ChatPart, String> {
    let kind = part.get("type").and_then(Value::as_str);
    let field = |name: &str| {
        let text = part.get(name).and_then(Value::as_str);
        text.ok_or_else(|| format!("a part of this type needs the string {name:?}"))
    };
    match kind {
        Some("text") => {
            let text = field("text")?;
            let mark = part.get("cache_control").filter(|mark| !mark.is_null());
            Ok(mark.map_or_else(|| ChatPart::text(text), |mark| ChatPart::block(text, Some(mark))))
        }
        Some("chunk") => {
            field("id")?.parse().map(ChatPart::Chunk).map_err(|error| error.to_string())
        }
        Some(other) => {
            Err(format!("parts of type {other:?} are not supported, only text and chunk"))
        }
        None => Err("a part needs a type: \"text\" or \"chunk\"".to_owned()),
    }
}

impl ChatMessage {
    /// Parts of its content, and its calls.
    pub(crate) fn n_parts(&self) -> usize {
        let n_calls = self.tool_calls.as_ref().map_or(0, Vec::len);
        match &self.content {
            Some(ChatContent::Parts(parts)) => parts.len() + n_calls,
            _ => n_calls,
        }
    }

    /// A message with this content and nothing else.
    pub(crate) fn new(role: Role, content: Option<ChatContent>) -> Self {
        Self {
            role,
            content,
            reasoning_content: None,
            tool_calls: None,
            name: None,
            tool_call_id: None,
        }
    }

    /// A message of one text.
    pub(crate) fn text(role: Role, text: impl Into<String>) -> Self {
        Self::new(role, Some(ChatContent::Text(text.into())))
    }

    /// Whether an answer can continue this message: the assistant wrote text, and called nothing.
    pub(crate) fn is_continuable(&self) -> bool {
        self.role == Role::Assistant && self.content.is_some() && self.tool_calls.is_none()
    }

    /// Its texts in a row, without its chunks.
    pub(crate) fn own_text(&self) -> String {
        match &self.content {
            None => String::new(),
            Some(ChatContent::Text(text)) => text.clone(),
            Some(ChatContent::Parts(parts)) => {
                let text = |part: &ChatPart| match part {
                    ChatPart::Text(part) => part.text.clone(),
                    ChatPart::Chunk(_) => String::new(),
                };
                parts.iter().map(text).collect()
            }
        }
    }

    /// The chunks in this message.
    pub(crate) fn chunk_ids(&self) -> impl Iterator<Item = ChunkId> {
        let parts = match &self.content {
            Some(ChatContent::Parts(parts)) => &parts[..],
            _ => &[],
        };
        parts.iter().filter_map(|part| match part {
            ChatPart::Chunk(id) => Some(*id),
            ChatPart::Text(_) => None,
        })
    }

    /// The last text of this message that the client marked as one that stays as it is.
    pub(crate) fn marked(&self) -> Option<&str> {
        let Some(ChatContent::Parts(parts)) = &self.content else { return None };
        let marked = |part: &ChatPart| matches!(part, ChatPart::Text(text) if text.is_marked);
        match parts.iter().rfind(|part| marked(part))? {
            ChatPart::Text(part) => Some(&part.text),
            ChatPart::Chunk(_) => None,
        }
    }

    fn to_message(&self, chunks: &ChunksById) -> Result<Message, String> {
        let content = match &self.content {
            None => None,
            Some(ChatContent::Text(text)) => Some(Content::Text(text.clone())),
            Some(ChatContent::Parts(parts)) => Some(self.content(parts, chunks)?),
        };
        let speaks = content.is_some() || self.tool_calls.as_ref().is_some_and(|c| !c.is_empty());
        if !speaks {
            return Err(format!("a message of the {} needs content", self.role.name()));
        }
        Ok(Message {
            role: self.role.name().to_owned(),
            content,
            reasoning_content: self.reasoning_content.clone(),
            tool_calls: self.tool_calls.as_ref().map(|calls| calls.iter().map(opened).collect()),
            name: self.name.clone(),
            tool_call_id: self.tool_call_id.clone(),
        })
    }

    fn content(&self, parts: &[ChatPart], chunks: &ChunksById) -> Result<Content, String> {
        let plain = |part: &ChatPart| match part {
            ChatPart::Text(part) if !part.ends_piece => {
                Some(Part::Text { text: part.text.clone() })
            }
            _ => None,
        };
        let plain: Option<Vec<Part>> = parts.iter().map(plain).collect();
        if let Some(texts) = plain.filter(|_| !self.has_blocks(parts)) {
            return Ok(Content::Parts(texts));
        }
        let pieces = self.pieces(parts, chunks)?;
        Ok(match (&pieces[..], self.role) {
            // If a system prompt is a single chunk, its text is the chunk's text.
            ([text], Role::System) => Content::Text(text.clone()),
            _ => Content::Pieces(pieces),
        })
    }

    /// Whether each part is a piece: the blocks of a system prompt change one by one.
    fn has_blocks(&self, parts: &[ChatPart]) -> bool {
        self.role == Role::System && parts.len() > 1
    }

    /// The texts that are cached separately. A line feed separates the texts of a message, as in
    /// templates that join parts themselves.
    fn pieces(&self, parts: &[ChatPart], chunks: &ChunksById) -> Result<Vec<String>, String> {
        let mut pieces: Vec<String> = Vec::new();
        let mut open = false;
        let mut after_text = false;
        for part in parts {
            match part {
                ChatPart::Chunk(id) => {
                    let chunk = chunks.get(id).ok_or_else(|| format!("there is no chunk {id}"))?;
                    self.check_place(chunk, parts.len())?;
                    pieces.push(chunk.in_prompt());
                    (open, after_text) = (false, false);
                }
                ChatPart::Text(TextPart { text, ends_piece, .. }) => {
                    if after_text && let Some(last) = pieces.last_mut() {
                        last.push('\n');
                    }
                    match pieces.last_mut().filter(|_| open) {
                        Some(last) => last.push_str(text),
                        None => pieces.push(text.clone()),
                    }
                    (open, after_text) = (!ends_piece && !self.has_blocks(parts), true);
                }
            }
        }
        Ok(pieces)
    }

    /// Checks that a chunk is in a message where its kind belongs: a system chunk alone in the
    /// system message, documents in the user's messages.
    fn check_place(&self, chunk: &Chunk, n_parts: usize) -> Result<(), String> {
        let (id, kind, role) = (chunk.id, chunk.kind, self.role.name());
        match (self.role, kind) {
            (Role::User, Kind::Context | Kind::Output) => Ok(()),
            (Role::System, Kind::System) if n_parts == 1 => Ok(()),
            (Role::System, Kind::System) => {
                Err(format!("chunk {id} must be the only content of the system message"))
            }
            _ => Err(format!(
                "chunk {id} is a {kind} chunk and cannot be in a message of the {role}: context \
                 and output chunks belong to the user's messages, system chunks to the system's"
            )),
        }
    }
}

/// A tool call with its arguments as an object, as templates expect; clients send JSON text.
fn opened(call: &Value) -> Value {
    let mut call = call.clone();
    if let Some(arguments) = call.pointer_mut("/function/arguments")
        && let Some(object) = arguments.as_str().and_then(|text| serde_json::from_str(text).ok())
    {
        let object: Value = object;
        if object.is_object() {
            *arguments = object;
        }
    }
    call
}

/// All messages, with their chunks' texts put in.
pub(crate) fn to_messages(
    messages: &[ChatMessage],
    chunks: &ChunksById,
) -> Result<Vec<Message>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::invalid("messages is empty; give at least one").param("messages"));
    }
    let asks_nothing = |message: &ChatMessage| {
        matches!(&message.content, Some(ChatContent::Parts(parts))
            if matches!(parts.last(), Some(ChatPart::Chunk(_))))
    };
    if messages.last().is_some_and(asks_nothing) {
        let message = "the last message ends with a chunk; add the question as text after it";
        return Err(ApiError::invalid(message).param("messages"));
    }
    let place = |index: usize, reason: String| {
        let param = format!("messages[{index}]");
        ApiError::invalid(format!("{param}: {reason}")).param(param)
    };
    let messages = messages.iter().enumerate();
    messages
        .map(|(index, message)| message.to_message(chunks).map_err(|reason| place(index, reason)))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(message: Value) -> Message {
        let message: ChatMessage = serde_json::from_value(message).unwrap();
        message.to_message(&BTreeMap::new()).unwrap()
    }

    fn refusal(message: Value) -> String {
        match serde_json::from_value::<ChatMessage>(message) {
            Err(error) => error.to_string(),
            Ok(message) => message.to_message(&BTreeMap::new()).unwrap_err(),
        }
    }

    #[test]
    fn parts_are_one_text_and_cache_marks_cut_it() {
        let text = |text: &str| json!({"type": "text", "text": text});
        let marked = json!({"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}});
        let plain = read(json!({"role": "user", "content": [text("a"), text("b"), text("c")]}));
        let cut = read(json!({"role": "user", "content": [text("a"), marked, text("c")]}));
        assert_eq!(plain.content.unwrap().text(), "a\nb\nc");
        assert_eq!(cut.content, Some(Content::Pieces(vec!["a\nb\n".into(), "c".into()])));
        let system = read(json!({"role": "system", "content": [text("a"), text("b")]}));
        assert_eq!(system.content, Some(Content::Pieces(vec!["a\n".into(), "b".into()])));
    }

    #[test]
    fn arguments_of_calls_become_objects() {
        let call = |arguments: Value| json!({"function": {"name": "f", "arguments": arguments}});
        let message = read(json!({"role": "assistant", "content": null,
            "tool_calls": [call(json!("{\"a\": 1}")), call(json!("no json"))]}));
        let calls = message.tool_calls.unwrap();
        assert_eq!(calls[0], call(json!({"a": 1})));
        assert_eq!(calls[1], call(json!("no json")));
    }

    #[test]
    fn chunks_stand_only_in_messages_of_their_kind() {
        let chunk = |kind: Kind| Chunk::of_tokens(kind, "a text", vec![1]);
        let kinds = [Kind::System, Kind::Context, Kind::Output];
        let chunks: ChunksById =
            kinds.map(chunk).into_iter().map(|chunk| (chunk.id, Arc::new(chunk))).collect();
        let read = |role: &str, kind: Kind, beside: &str| {
            let id = ChunkId::of(kind, &[1]).to_string();
            let mut parts = vec![json!({"type": "chunk", "id": id})];
            parts.extend((!beside.is_empty()).then(|| json!({"type": "text", "text": beside})));
            let message = json!({"role": role, "content": parts});
            serde_json::from_value::<ChatMessage>(message).unwrap().to_message(&chunks)
        };
        for kind in [Kind::Context, Kind::Output] {
            assert!(read("user", kind, "why?").is_ok());
            assert!(read("system", kind, "").unwrap_err().contains("belong to the user's"));
            assert!(read("assistant", kind, "").is_err());
        }
        assert_eq!(read("system", Kind::System, "").unwrap().content.unwrap().text(), "a text");
        let beside = read("system", Kind::System, "and more").unwrap_err();
        assert!(beside.contains("must be the only content"), "{beside}");
        assert!(read("user", Kind::System, "why?").unwrap_err().contains("system chunks to"));
    }

    #[test]
    fn what_is_no_message_is_refused_with_what_would_do() {
        for (message, reason) in [
            (json!({}), "role"),
            (json!({"role": 1}), "expected string"),
            (json!({"role": "king", "content": "x"}), "king"),
            (json!({"role": "user"}), "needs content"),
            (json!({"role": "user", "content": 1}), "a string, null or a list"),
            (json!({"role": "user", "content": [1]}), "needs a type"),
            (json!({"role": "user", "content": [{"type": "image_url"}]}), "image_url"),
            (json!({"role": "user", "content": [{"type": "chunk", "id": "x"}]}), "not a chunk id"),
        ] {
            let refusal = refusal(message);
            assert!(refusal.contains(reason), "{refusal}");
        }
    }
}
