//! Messages of Anthropic's dialect and their blocks, and what they are in a chat.

use serde::Deserialize;
use serde_json::Value;

use crate::requests::{ChatContent, ChatMessage, ChatPart, Role, TextOr, tool_call};

/// A message.
#[derive(Deserialize)]
#[serde(expecting = "a message: an object with role and content")]
pub(super) struct ApiMessage {
    role: ApiRole,
    content: TextOr<Block>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ApiRole {
    User,
    Assistant,
    System,
}

/// A block of a system prompt.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", expecting = "a block: an object with type")]
pub(super) enum TextBlock {
    Text { text: String, cache_control: Option<Value> },
}

/// A block of a message. Unknown types are refused by serde, which lists the known ones.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", expecting = "a block: an object with type")]
enum Block {
    Text {
        text: String,
        cache_control: Option<Value>,
    },
    Thinking {
        thinking: String,
    },
    /// A thought that only Anthropic's servers can read.
    RedactedThinking {},
    ToolUse {
        id: String,
        name: String,
        input: Value,
    },
    ToolResult {
        tool_use_id: String,
        content: Option<TextOr<Block>>,
        is_error: Option<bool>,
    },
    Document {
        source: Source,
        title: Option<String>,
        context: Option<String>,
    },
    Image {},
}

/// Where the text of a document comes from.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", expecting = "an object with type")]
enum Source {
    Text { data: String },
    Content { content: TextOr<TextBlock> },
    Base64 {},
    Url {},
    File {},
}

/// Why a block is refused: its path in the message, and the reason.
type Refusal = (String, String);

/// The system prompt; each of its blocks is a piece.
pub(super) fn to_system(system: TextOr<TextBlock>) -> ChatMessage {
    let content = match system {
        TextOr::Text(text) => ChatContent::Text(text),
        TextOr::List(blocks) => ChatContent::Parts(
            blocks
                .into_iter()
                .map(|TextBlock::Text { text, cache_control }| {
                    ChatPart::block(text, cache_control.as_ref())
                })
                .collect(),
        ),
    };
    ChatMessage::new(Role::System, Some(content))
}

/// The messages of a chat that a message becomes: a result of a tool is its own message.
pub(super) fn to_chat(message: ApiMessage) -> Result<Vec<ChatMessage>, Refusal> {
    let role = match message.role {
        ApiRole::User => Role::User,
        ApiRole::Assistant => Role::Assistant,
        ApiRole::System => Role::System,
    };
    let blocks = match message.content {
        TextOr::Text(text) => return Ok(vec![ChatMessage::text(role, text)]),
        TextOr::List(blocks) => blocks,
    };
    let mut turn = Turn { role, parts: Vec::new(), thoughts: String::new(), calls: Vec::new() };
    let mut messages = Vec::new();
    for (index, block) in blocks.into_iter().enumerate() {
        if let Block::ToolResult { tool_use_id, content, is_error } = block {
            messages.extend(turn.take());
            messages.push(result(tool_use_id, content, is_error.unwrap_or(false), index)?);
        } else {
            turn.add(block).map_err(|reason| (format!("content[{index}]"), reason))?;
        }
    }
    messages.extend(turn.take());
    if messages.is_empty() {
        return Err(("content".to_owned(), "a message needs content".to_owned()));
    }
    Ok(messages)
}

/// A message that is being collected from blocks.
struct Turn {
    role: Role,
    parts: Vec<ChatPart>,
    thoughts: String,
    calls: Vec<Value>,
}

impl Turn {
    fn add(&mut self, block: Block) -> Result<(), String> {
        match block {
            Block::Text { text, cache_control } => {
                self.parts.push(ChatPart::block(text, cache_control.as_ref()));
            }
            Block::Document { source, title, context } => {
                let text = document(source, title, context)?;
                self.parts.push(ChatPart::block(text, None));
            }
            Block::Thinking { thinking } => self.thoughts.push_str(&thinking),
            Block::RedactedThinking {} => {}
            Block::ToolUse { id, name, input } if self.role == Role::Assistant => {
                if !input.is_object() {
                    return Err("the input of a tool_use must be an object".to_owned());
                }
                self.calls.push(tool_call(&id, &name, input));
            }
            Block::ToolUse { .. } => {
                return Err("a tool_use belongs to a message of the assistant".to_owned());
            }
            Block::ToolResult { .. } => {
                return Err("a result cannot be inside of another block".to_owned());
            }
            Block::Image {} => {
                return Err("images are not supported: this model reads text".to_owned());
            }
        }
        Ok(())
    }

    /// The message of the blocks so far, if there are any.
    fn take(&mut self) -> Option<ChatMessage> {
        let parts = std::mem::take(&mut self.parts);
        let calls = std::mem::take(&mut self.calls);
        let thoughts = std::mem::take(&mut self.thoughts);
        if parts.is_empty() && calls.is_empty() && thoughts.is_empty() {
            return None;
        }
        let content = match parts.is_empty() && !calls.is_empty() {
            true => None,
            false => Some(ChatContent::Parts(parts)),
        };
        Some(ChatMessage {
            reasoning_content: (!thoughts.is_empty()).then_some(thoughts),
            tool_calls: (!calls.is_empty()).then_some(calls),
            ..ChatMessage::new(self.role, content)
        })
    }
}

/// The message with the result of a tool.
fn result(
    id: String,
    content: Option<TextOr<Block>>,
    is_error: bool,
    index: usize,
) -> Result<ChatMessage, Refusal> {
    let mut turn =
        Turn { role: Role::Tool, parts: Vec::new(), thoughts: String::new(), calls: Vec::new() };
    match content {
        None => {}
        Some(TextOr::Text(text)) => turn.parts.push(ChatPart::text(text)),
        Some(TextOr::List(blocks)) => {
            for (inner, block) in blocks.into_iter().enumerate() {
                let path = || format!("content[{index}].content[{inner}]");
                turn.add(block).map_err(|reason| (path(), reason))?;
            }
        }
    }
    if is_error {
        // Models know no other sign of it.
        turn.parts.insert(0, ChatPart::text("Error:"));
    }
    let empty = || ChatMessage::text(Role::Tool, "");
    let message = turn.take().unwrap_or_else(empty);
    Ok(ChatMessage { tool_call_id: Some(id), ..message })
}

fn document(
    source: Source,
    title: Option<String>,
    context: Option<String>,
) -> Result<String, String> {
    let text = match source {
        Source::Text { data } => data,
        Source::Content { content: TextOr::Text(text) } => text,
        Source::Content { content: TextOr::List(blocks) } => {
            let texts: Vec<String> =
                blocks.into_iter().map(|TextBlock::Text { text, .. }| text).collect();
            texts.join("\n")
        }
        Source::Base64 {} | Source::Url {} | Source::File {} => {
            return Err("a document must be text: this server reads no other files and opens no \
                        address"
                .to_owned());
        }
    };
    let parts = [title, context, Some(text)];
    Ok(parts.into_iter().flatten().collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The texts of the messages that a user's blocks become, which is what the model reads.
    fn read(blocks: &Value) -> Result<Vec<String>, Refusal> {
        let message = json!({"role": "user", "content": blocks});
        let messages = to_chat(serde_json::from_value(message).unwrap())?;
        Ok(messages.iter().map(ChatMessage::own_text).collect())
    }

    #[test]
    fn a_result_that_is_an_error_says_so() {
        let result = |content: Value, is_error: Value| {
            let block = json!({"type": "tool_result", "tool_use_id": "1", "content": content,
                "is_error": is_error});
            read(&json!([block])).unwrap().remove(0)
        };
        let texts = json!([{"type": "text", "text": "no such file"}]);
        for content in [json!("no such file"), texts] {
            assert_eq!(result(content.clone(), json!(true)), "Error:no such file");
            for fine in [json!(false), Value::Null] {
                assert_eq!(result(content.clone(), fine), "no such file");
            }
        }
        assert_eq!(result(Value::Null, json!(true)), "Error:");
    }

    #[test]
    fn a_document_is_its_title_its_context_and_its_text() {
        let document = |source: Value, title: Value, context: Value| {
            let block = json!({"type": "document", "source": source, "title": title,
                "context": context});
            read(&json!([block]))
        };
        let text = json!({"type": "text", "data": "the text"});
        let block = |text: &str| json!({"type": "text", "text": text});
        let list = json!({"type": "content", "content": [block("one"), block("two")]});
        let whole = json!({"type": "content", "content": "the text"});
        let (title, context) = (json!("Title"), json!("from a book"));
        for (source, title, context, wanted) in [
            (&text, &title, &context, "Title\nfrom a book\nthe text"),
            (&text, &Value::Null, &context, "from a book\nthe text"),
            (&whole, &title, &Value::Null, "Title\nthe text"),
            (&list, &Value::Null, &Value::Null, "one\ntwo"),
        ] {
            let read = document(source.clone(), title.clone(), context.clone());
            assert_eq!(read.unwrap(), [wanted]);
        }
        let (place, reason) = document(json!({"type": "url"}), title, context).unwrap_err();
        assert_eq!(place, "content[0]");
        assert!(reason.contains("must be text"), "{reason}");
    }
}
