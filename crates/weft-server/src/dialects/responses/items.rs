//! Items of OpenAI's Responses, and what they are in a chat.

use std::collections::HashSet;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::offered;
use super::store::{self, Stored};
use crate::api_error::ApiError;
use crate::requests::{ChatContent, ChatMessage, ChatPart, Role, TextOr, tool_call};
use crate::responses::response_id;

/// An item of the input. Unknown types are refused by serde, which lists the known ones.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", expecting = "an item: an object with type")]
pub(super) enum Item {
    Message { role: ItemRole, content: TextOr<ContentPart> },
    FunctionCall { call_id: String, namespace: Option<Value>, name: String, arguments: String },
    FunctionCallOutput { call_id: String, output: TextOr<ContentPart> },
    Reasoning { content: Option<Vec<ReasoningPart>>, summary: Option<Vec<ReasoningPart>> },
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ItemRole {
    System,
    Developer,
    User,
    Assistant,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", expecting = "a part: an object with type")]
pub(super) enum ContentPart {
    #[serde(alias = "output_text", alias = "text", alias = "summary_text")]
    InputText {
        text: String,
    },
    Refusal {
        refusal: String,
    },
    InputImage {},
    InputFile {},
}

#[derive(Deserialize)]
#[serde(expecting = "a part: an object with text")]
pub(super) struct ReasoningPart {
    text: String,
}

/// The items of an input as they are kept: each has a type and an id.
pub(super) fn with_ids(input: TextOr<Value>) -> Vec<Value> {
    let items = match input {
        TextOr::Text(text) => vec![serde_json::json!({"role": "user", "content": [
            {"type": "input_text", "text": text}]})],
        TextOr::List(items) => items,
    };
    items.into_iter().map(with_id).collect()
}

fn with_id(mut item: Value) -> Value {
    if let Some(fields) = item.as_object_mut() {
        // Clients leave out the type of a message.
        if !fields.contains_key("type") && fields.contains_key("role") {
            fields.insert("type".to_owned(), "message".into());
        }
        if !fields.get("id").is_some_and(Value::is_string) {
            fields.insert("id".to_owned(), new_id("item").into());
        }
    }
    item
}

/// An id in OpenAI's form.
pub(super) fn new_id(prefix: &str) -> String {
    response_id(prefix).replace('-', "_")
}

/// The id of the item that a reference stands for; None if the item is no reference.
fn referenced(item: &Value) -> Option<&str> {
    let is_reference = item.get("type").is_some_and(|kind| kind == "item_reference");
    is_reference.then(|| item.get("id").and_then(Value::as_str).unwrap_or_default())
}

/// The ids of the items that references stand for.
pub(super) fn all_referenced(items: &[Value]) -> HashSet<&str> {
    items.iter().filter_map(referenced).collect()
}

/// Puts the items of these responses in the place of references to them.
pub(super) fn resolve(items: &mut [Value], kept: &[Arc<Stored>]) -> Result<(), ApiError> {
    let mut found = store::items(kept, &all_referenced(items));
    for (index, item) in items.iter_mut().enumerate() {
        let Some(id) = referenced(item) else { continue };
        // Each at most once: many references to a long item would take memory without bound.
        let Some(kept) = found.remove(id) else {
            let message = format!(
                "Item with id {id:?} not found, or referred to twice: items of responses with store \
                 are held in memory for an hour, as long as there is room; send the item itself"
            );
            return Err(ApiError::invalid(message).param(format!("input[{index}]")));
        };
        *item = kept;
    }
    Ok(())
}

/// Checks items before references among them are resolved.
pub(super) fn check(items: &[Value]) -> Result<(), ApiError> {
    let read = |(index, item): (usize, &Value)| match referenced(item) {
        Some(_) => Ok(()),
        None => read_one(index, item).map(drop),
    };
    items.iter().enumerate().try_for_each(read)
}

/// Reads items; a refusal names the item by its place in `input`.
pub(super) fn read(items: &[Value]) -> Result<Vec<Item>, ApiError> {
    items.iter().enumerate().map(|(index, item)| read_one(index, item)).collect()
}

fn read_one(index: usize, item: &Value) -> Result<Item, ApiError> {
    Item::deserialize(item).map_err(|error| {
        let param = format!("input[{index}]");
        ApiError::invalid(format!("{param}: {error}")).param(param)
    })
}

/// The messages of a conversation. What an assistant thought, said and called in a row is one
/// message, and so are all instructions at the beginning, each of which is a piece.
pub(super) fn to_chat(
    instructions: Option<&str>,
    items: Vec<Item>,
) -> Result<Vec<ChatMessage>, ApiError> {
    let mut chat = Chat::default();
    if let Some(text) = instructions.filter(|text| !text.is_empty()) {
        chat.system.push(ChatPart::block(text, None));
    }
    for (index, item) in items.into_iter().enumerate() {
        chat.add(item).map_err(|reason| {
            let param = format!("input[{index}]");
            ApiError::invalid(format!("{param}: {reason}")).param(param)
        })?;
    }
    chat.end_turn();
    let content = Some(ChatContent::Parts(chat.system)).filter(|content| match content {
        ChatContent::Parts(parts) => !parts.is_empty(),
        ChatContent::Text(_) => true,
    });
    let system = content.map(|content| ChatMessage::new(Role::System, Some(content)));
    Ok(system.into_iter().chain(chat.messages).collect())
}

#[derive(Default)]
struct Chat {
    /// Instructions before the first turn.
    system: Vec<ChatPart>,
    messages: Vec<ChatMessage>,
    /// What the assistant has thought, said and called since the last other message.
    thoughts: String,
    said: Vec<ChatPart>,
    calls: Vec<Value>,
}

impl Chat {
    fn add(&mut self, item: Item) -> Result<(), String> {
        match item {
            Item::Message { role: ItemRole::Assistant, content } => {
                // What is said after a call belongs to the next turn.
                if !self.calls.is_empty() {
                    self.end_turn();
                }
                self.said.extend(parts(content)?);
            }
            Item::Message { role: ItemRole::User, content } => {
                self.end_turn();
                let content = Some(ChatContent::Parts(parts(content)?));
                self.messages.push(ChatMessage::new(Role::User, content));
            }
            Item::Message { role: ItemRole::System | ItemRole::Developer, content } => {
                self.end_turn();
                let mut parts = parts(content)?;
                if self.messages.is_empty() {
                    for part in &mut parts {
                        if let ChatPart::Text(part) = part {
                            part.ends_piece = true;
                        }
                    }
                    self.system.extend(parts);
                } else {
                    let content = Some(ChatContent::Parts(parts));
                    self.messages.push(ChatMessage::new(Role::System, content));
                }
            }
            Item::FunctionCall { call_id, namespace, name, arguments } => {
                let name = offered::flat(namespace.as_ref(), &name);
                self.calls.push(tool_call(&call_id, &name, arguments.into()));
            }
            Item::FunctionCallOutput { call_id, output } => {
                self.end_turn();
                let content = Some(ChatContent::Parts(parts(output)?));
                let message = ChatMessage::new(Role::Tool, content);
                self.messages.push(ChatMessage { tool_call_id: Some(call_id), ..message });
            }
            Item::Reasoning { content, summary } => {
                if !self.said.is_empty() || !self.calls.is_empty() {
                    self.end_turn();
                }
                let parts = content.filter(|parts| !parts.is_empty()).or(summary);
                for part in parts.unwrap_or_default() {
                    self.thoughts.push_str(&part.text);
                }
            }
        }
        Ok(())
    }

    /// Makes a message of what the assistant did.
    fn end_turn(&mut self) {
        let thoughts = std::mem::take(&mut self.thoughts);
        let (said, calls) = (std::mem::take(&mut self.said), std::mem::take(&mut self.calls));
        // A thought without an answer was cut off, and says nothing.
        if said.is_empty() && calls.is_empty() {
            return;
        }
        let content = (!said.is_empty()).then_some(ChatContent::Parts(said));
        self.messages.push(ChatMessage {
            reasoning_content: (!thoughts.is_empty()).then_some(thoughts),
            tool_calls: (!calls.is_empty()).then_some(calls),
            ..ChatMessage::new(Role::Assistant, content)
        });
    }
}

fn parts(content: TextOr<ContentPart>) -> Result<Vec<ChatPart>, String> {
    let plain = |text: String| ChatPart::text(text);
    let parts = match content {
        TextOr::Text(text) => return Ok(vec![plain(text)]),
        TextOr::List(parts) => parts,
    };
    let read = |part| match part {
        ContentPart::InputText { text } | ContentPart::Refusal { refusal: text } => Ok(plain(text)),
        ContentPart::InputImage {} => {
            Err("images are not supported: this model reads text".to_owned())
        }
        ContentPart::InputFile {} => {
            Err("files are not supported: send their text, or register it as a chunk".to_owned())
        }
    };
    parts.into_iter().map(read).collect()
}
