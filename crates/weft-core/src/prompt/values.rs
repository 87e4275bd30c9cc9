//! A conversation as values of the template language, its strings between marks.
//!
//! It decides which strings are marked, and records the others.

use std::collections::BTreeSet;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{DynObject, Enumerator, Object};
use serde_json::Value as Json;

use super::checks::charge;
use super::marks::{Marks, plain};
use super::message::{Content, Conversation, Message};

/// How one rendering sees the conversation.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    /// The marks; `None` leaves every string unmarked.
    pub(super) marks: Option<Marks>,
    /// Whether words in tools, calls and names are marked too. Some templates compare names of
    /// fields and types.
    pub(super) mark_words: bool,
    /// Whether a missing content becomes an empty string rather than `none`.
    pub(super) fill_content: bool,
}

/// Makes the values of one rendering.
#[derive(Debug)]
pub(super) struct Values {
    view: View,
    /// The strings of the conversation that were left unmarked.
    pub(super) unmarked: BTreeSet<String>,
    /// Bytes of all strings of the conversation.
    pub(super) n_bytes: usize,
}

impl Values {
    pub(super) fn new(view: View) -> Self {
        Self { view, unmarked: BTreeSet::new(), n_bytes: 0 }
    }

    /// The variables of a template.
    pub(super) fn variables(&mut self, conversation: &Conversation) -> Vec<(String, Value)> {
        // transformers passes `none` if there are no documents, and templates compare with it.
        let mut variables = vec![("documents".to_owned(), Value::from(()))];
        let marks = self.view.marks.take();
        for (name, value) in &conversation.extra {
            variables.push((name.clone(), self.json(value)));
        }
        self.view.marks = marks;
        let messages: Vec<Value> = conversation.messages.iter().map(|m| self.message(m)).collect();
        let tools: Vec<Value> = conversation.tools.iter().map(|tool| self.json(tool)).collect();
        let tools = if tools.is_empty() { Value::from(()) } else { Value::from(tools) };
        variables.push(("messages".to_owned(), Value::from(messages)));
        variables.push(("tools".to_owned(), tools));
        let add_generation_prompt = Value::from(conversation.add_generation_prompt);
        variables.push(("add_generation_prompt".to_owned(), add_generation_prompt));
        if let Some(enable) = conversation.enable_thinking {
            variables.push(("enable_thinking".to_owned(), Value::from(enable)));
        }
        variables
    }

    fn message(&mut self, message: &Message) -> Value {
        // Templates compare roles with literals, so roles have no marks.
        self.unmarked.insert(message.role.clone());
        let mut fields = vec![("role", Value::from(&*message.role))];
        fields.push((
            "content",
            match &message.content {
                Some(Content::Pieces(pieces)) => self.pieces(pieces),
                Some(content) => self.text(&content.text()),
                None if self.view.fill_content => Value::from(""),
                None => Value::from(()),
            },
        ));
        if let Some(reasoning) = &message.reasoning_content {
            fields.push(("reasoning_content", self.text(reasoning)));
        }
        if let Some(calls) = &message.tool_calls {
            fields.push(("tool_calls", calls.iter().map(|call| self.json(call)).collect()));
        }
        for (key, value) in [("name", &message.name), ("tool_call_id", &message.tool_call_id)] {
            if let Some(value) = value {
                fields.push((key, self.word(value)));
            }
        }
        Value::from_pairs(fields)
    }

    fn json(&mut self, json: &Json) -> Value {
        match json {
            Json::Null => Value::from(()),
            Json::Bool(value) => Value::from(*value),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => Value::from(number),
                (None, Some(number)) => Value::from(number),
                (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => self.word(text),
            Json::Array(items) => items.iter().map(|item| self.json(item)).collect(),
            Json::Object(map) => {
                let entries = map.iter().map(|(key, value)| (self.word(key), self.json(value)));
                let entries = entries.collect();
                Value::from_object(Dict { entries, marks: self.view.marks })
            }
        }
    }

    /// A string that is either a name or a text.
    fn word(&mut self, text: &str) -> Value {
        let is_word = |char: char| char.is_ascii_alphanumeric() || matches!(char, '_' | '-' | '.');
        if !self.view.mark_words && text.chars().all(is_word) {
            self.n_bytes += text.len();
            self.unmarked.insert(text.to_owned());
            return Value::from(text);
        }
        self.text(text)
    }

    /// Strings one after the other, to be tokenised separately.
    fn pieces(&mut self, pieces: &[String]) -> Value {
        match self.view.marks {
            Some(marks) => {
                self.n_bytes += pieces.iter().map(String::len).sum::<usize>();
                Value::from(marks.wrap_pieces(pieces))
            }
            None => self.text(&pieces.concat()),
        }
    }

    fn text(&mut self, text: &str) -> Value {
        self.n_bytes += text.len();
        if let Some(marks) = self.view.marks {
            return Value::from(marks.wrap(text));
        }
        self.unmarked.insert(text.to_owned());
        Value::from(text)
    }
}

/// A JSON object of the conversation. Its keys are marked when they are listed, because they are
/// content. They are looked up by their plain text, because templates ask for them by name.
#[derive(Debug)]
pub(super) struct Dict {
    entries: Vec<(Value, Value)>,
    marks: Option<Marks>,
}

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        // All keys may be compared.
        charge(self.entries.len() / 8);
        let wanted = plain(self.marks, key);
        let found = |key: &Value| key.as_str().is_some_and(|key| plain(self.marks, key) == wanted);
        self.entries.iter().find(|(key, _)| found(key)).map(|(_, value)| value.clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::KeyValueIter(Box::new(self.entries.clone().into_iter()))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.entries.len())
    }
}

/// Whether `object` is an unchanged object of the conversation.
pub(super) fn is_dict(object: &DynObject) -> bool {
    object.downcast_ref::<Dict>().is_some()
}
