//! The shape of a plain completion, whole and in pieces.

use std::sync::Arc;

use serde_json::{Value, json};
use weft_core::engine::{Finished, Token};

use super::figures::{add_figures, add_timings, reason, usage};
use super::logprobs::{Entry, Pending};
use super::{FINGERPRINT, Script, answer_id, logprobs, seconds_now};
use crate::served::Served;

/// A completion while it is written.
pub(crate) struct CompletionScript {
    served: Arc<Served>,
    id: String,
    created: u64,
    choices: Vec<Writing>,
    finished: Vec<Option<Finished>>,
    choices_per_prompt: usize,
    has_logprobs: bool,
    echoes: bool,
    streams: bool,
    includes_usage: bool,
}

#[derive(Default)]
struct Writing {
    text: String,
    entries: Vec<Entry>,
    pending: Pending,
    has_begun: bool,
}

/// What a completion depends on beside what the engine tells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompletionShape {
    pub(crate) choices: usize,
    pub(crate) choices_per_prompt: usize,
    pub(crate) has_logprobs: bool,
    pub(crate) echoes: bool,
    pub(crate) streams: bool,
    /// Whether a stream ends with its usage.
    pub(crate) includes_usage: bool,
}

impl CompletionScript {
    pub(crate) fn new(served: Arc<Served>, shape: CompletionShape) -> Self {
        Self {
            served,
            id: answer_id("cmpl"),
            created: seconds_now(),
            choices: (0..shape.choices).map(|_| Writing::default()).collect(),
            finished: vec![None; shape.choices],
            choices_per_prompt: shape.choices_per_prompt,
            has_logprobs: shape.has_logprobs,
            echoes: shape.echoes,
            streams: shape.streams,
            includes_usage: shape.includes_usage,
        }
    }

    /// The answer's name.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    fn envelope(&self, choices: Value) -> Value {
        let mut envelope = json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.served.id,
            "system_fingerprint": FINGERPRINT,
        });
        envelope["choices"] = choices;
        envelope
    }

    fn event(&self, choice: Value) -> Value {
        let mut event = self.envelope(Value::Array(vec![choice]));
        if self.includes_usage {
            event["usage"] = Value::Null;
        }
        event
    }

    fn choice(&self, index: usize, text: &str, entries: &[Entry], reason: Option<&str>) -> Value {
        let entries = match self.has_logprobs && !(self.streams && entries.is_empty()) {
            true => logprobs::of_completion(entries),
            false => Value::Null,
        };
        let mut choice = json!({"index": index, "text": text});
        choice["logprobs"] = entries;
        choice["finish_reason"] = reason.into();
        choice
    }
}

impl Script for CompletionScript {
    fn opening(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn token(&mut self, choice: usize, token: Token) -> Option<Value> {
        let writing = &mut self.choices[choice];
        let is_first = !std::mem::replace(&mut writing.has_begun, true);
        let entries = match is_first && self.echoes && self.has_logprobs {
            true => writing.pending.push_unpredicted(&token, &self.served.tokenizer),
            false => writing.pending.push(&token, &self.served.tokenizer),
        };
        if !self.streams {
            writing.text.push_str(&token.text);
            writing.entries.extend(entries);
            return None;
        }
        if token.text.is_empty() && entries.is_empty() {
            return None;
        }
        Some(self.event(self.choice(choice, &token.text, &entries, None)))
    }

    fn ending(&mut self, choice: usize, finished: Finished) -> Vec<Value> {
        let mut events = Vec::new();
        if self.streams {
            let last = self.choice(choice, "", &[], Some(reason(&finished)));
            let mut last = self.event(last);
            add_figures(&mut last, &finished);
            events.push(last);
        }
        self.finished[choice] = Some(finished);
        events
    }

    fn usage(&self) -> Value {
        let mut event = self.envelope(json!([]));
        event["usage"] = usage(&self.finished, self.choices_per_prompt);
        add_timings(&mut event, &self.finished);
        event
    }

    fn whole(self) -> Value {
        let choices = self.choices.iter().zip(&self.finished).enumerate();
        let choices = choices.map(|(index, (writing, finished))| {
            let reason = finished.as_ref().map(reason);
            self.choice(index, &writing.text, &writing.entries, reason)
        });
        let mut answer = self.envelope(choices.collect());
        answer["usage"] = usage(&self.finished, self.choices_per_prompt);
        if let Some(Some(first)) = self.finished.first() {
            add_figures(&mut answer, first);
        }
        answer
    }
}
