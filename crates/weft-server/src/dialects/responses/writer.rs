//! The JSON of a response, complete and as a stream of numbered events.

use std::sync::Arc;

use serde_json::{Value, json};
use weft_core::engine::{FinishReason, Finished, Token};

use super::items::new_id;
use super::offered;
use super::store::{Store, Stored};
use crate::api_error::ApiError;
use crate::dialects::answer::Answering;
use crate::model_info::ModelInfo;
use crate::responses::logprobs::{self, Entry};
use crate::responses::{
    Choice, Framing, Part, PartEvent, PartStream, ResponseWriter, add_costs, seconds_now,
};
use crate::worker::Progress;

/// What becomes of a response beside its JSON.
pub(super) struct Keeping {
    pub(super) store: Arc<Store>,
    /// What led to the response, as JSON lists; None if it is not kept.
    pub(super) items: Option<(String, String)>,
    /// The fields of the request that the response repeats.
    pub(super) echo: Value,
}

/// Writes a response.
pub(crate) struct ResponsesWriter {
    model: Arc<ModelInfo>,
    id: String,
    created: u64,
    choice: Choice,
    parts: PartStream,
    output: Vec<OutputItem>,
    /// Log-probabilities of tokens whose text has not begun.
    entries: Vec<Entry>,
    has_logprobs: bool,
    finished: Option<Finished>,
    streams: bool,
    n_events: u64,
    keeping: Keeping,
}

/// An item of the output.
struct OutputItem {
    id: String,
    part: Part,
    /// The namespace of the function that is called.
    namespace: Option<String>,
    text: String,
    entries: Vec<Entry>,
    status: &'static str,
}

impl OutputItem {
    /// The part of its content.
    fn content(&self) -> Value {
        match self.part {
            Part::Thinking => json!({"type": "reasoning_text", "text": self.text}),
            _ => json!({"type": "output_text", "text": self.text, "annotations": [],
                "logprobs": entries_json(&self.entries)}),
        }
    }

    /// The item, with its content or (when it has just begun) without.
    fn json(&self, has_content: bool) -> Value {
        let content = || if has_content { json!([self.content()]) } else { json!([]) };
        match &self.part {
            Part::Thinking => json!({"id": self.id, "type": "reasoning", "summary": [],
                "content": content(), "status": self.status}),
            Part::Text => json!({"id": self.id, "type": "message", "role": "assistant",
                "content": content(), "status": self.status}),
            Part::Call { id, name } => {
                let mut item = json!({"id": self.id, "type": "function_call", "call_id": id,
                    "name": name, "arguments": self.text, "status": self.status});
                if let Some(namespace) = &self.namespace {
                    item["namespace"] = namespace.as_str().into();
                }
                item
            }
        }
    }
}

fn entries_json(entries: &[Entry]) -> Value {
    logprobs::of_chat(entries)["content"].take()
}

impl ResponsesWriter {
    pub(super) fn new(answering: Answering, mut keeping: Keeping) -> Self {
        // As decimal fractions: 0.6, not the f32 that is nearest to it.
        let number = |value: f32| (f64::from(value) * 1e6).round() / 1e6;
        keeping.echo["temperature"] = number(answering.sampling.temperature).into();
        keeping.echo["top_p"] = number(answering.sampling.top_p).into();
        Self {
            id: new_id("resp"),
            created: seconds_now(),
            choice: answering.choice(),
            parts: PartStream::default(),
            output: Vec::new(),
            entries: Vec::new(),
            has_logprobs: answering.sampling.logprobs.is_some(),
            finished: None,
            streams: answering.streams,
            n_events: 0,
            keeping,
            model: answering.model,
        }
    }

    fn is_cut_off(&self) -> bool {
        self.finished.as_ref().is_some_and(|finished| finished.reason == FinishReason::Length)
    }

    fn status(&self) -> &'static str {
        match &self.finished {
            None => "in_progress",
            Some(_) if self.is_cut_off() => "incomplete",
            Some(_) => "completed",
        }
    }

    fn response(&self) -> Value {
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "model": self.model.id,
            "status": self.status(),
            "error": null,
            "incomplete_details": null,
            "output": self.output.iter().map(|item| item.json(true)).collect::<Vec<_>>(),
            "usage": null,
        });
        for (field, value) in self.keeping.echo.as_object().into_iter().flatten() {
            response[field] = value.clone();
        }
        if self.is_cut_off() {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        if let Some(finished) = &self.finished {
            let stats = &finished.stats;
            response["completed_at"] = seconds_now().into();
            response["usage"] = json!({
                "input_tokens": stats.prompt_tokens,
                "input_tokens_details":
                    {"cached_tokens": stats.cached_tokens, "cache_write_tokens": 0},
                "output_tokens": stats.generated_tokens,
                "output_tokens_details": {"reasoning_tokens": self.choice.n_thought_tokens()},
                "total_tokens": stats.prompt_tokens + stats.generated_tokens,
            });
            add_costs(&mut response, std::slice::from_ref(&self.finished), 1);
        }
        response
    }

    /// An event with its number.
    fn event(&mut self, kind: &str, mut fields: Value) -> Value {
        fields["type"] = format!("response.{kind}").into();
        fields["sequence_number"] = self.n_events.into();
        self.n_events += 1;
        fields
    }

    /// An event of the last item.
    fn item_event(&mut self, kind: &str, mut fields: Value) -> Value {
        fields["output_index"] = self.output.len().saturating_sub(1).into();
        if let Some(item) = self.output.last() {
            fields["item_id"] = item.id.as_str().into();
            if !matches!(item.part, Part::Call { .. }) {
                fields["content_index"] = 0.into();
            }
        }
        self.event(kind, fields)
    }

    /// An event that has the last item itself.
    fn whole_item_event(&mut self, kind: &str, has_content: bool) -> Value {
        let index = self.output.len().saturating_sub(1);
        let item = self.output.last().map(|item| item.json(has_content));
        self.event(kind, json!({"output_index": index, "item": item}))
    }

    /// Adds events to the items; returns what a stream sends.
    fn write(&mut self, events: Vec<PartEvent>) -> Vec<Value> {
        let mut sent = Vec::new();
        for event in events {
            match event {
                PartEvent::Begun(part) => self.begin(part, &mut sent),
                PartEvent::More(text) => sent.extend(self.extend(&text)),
                PartEvent::Ended => self.end_item(&mut sent),
            }
        }
        if self.streams { sent } else { Vec::new() }
    }

    fn begin(&mut self, mut part: Part, sent: &mut Vec<Value>) {
        let mut namespace = None;
        if let Part::Call { name, .. } = &mut part
            && let Some((space, function)) = offered::split(&self.keeping.echo["tools"], name)
        {
            (namespace, *name) = (Some(space.to_owned()), function.to_owned());
        }
        let prefix = match part {
            Part::Thinking => "rs",
            Part::Text => "msg",
            Part::Call { .. } => "fc",
        };
        let has_content = !matches!(part, Part::Call { .. });
        let (text, entries) = (String::new(), Vec::new());
        self.output.push(OutputItem {
            id: new_id(prefix),
            part,
            namespace,
            text,
            entries,
            status: "in_progress",
        });
        if self.streams {
            sent.push(self.whole_item_event("output_item.added", false));
            if has_content {
                let part = self.output.last().map(OutputItem::content);
                sent.push(self.item_event("content_part.added", json!({"part": part})));
            }
        }
    }

    fn extend(&mut self, text: &str) -> Option<Value> {
        let item = self.output.last_mut()?;
        item.text.push_str(text);
        let kind = match item.part {
            Part::Thinking => "reasoning_text.delta",
            Part::Text => "output_text.delta",
            Part::Call { .. } => "function_call_arguments.delta",
        };
        let mut fields = json!({"delta": text});
        if item.part == Part::Text {
            let entries = std::mem::take(&mut self.entries);
            if self.streams {
                fields["logprobs"] = entries_json(&entries);
            }
            item.entries.extend(entries);
        }
        self.streams.then(|| self.item_event(kind, fields))
    }

    fn end_item(&mut self, sent: &mut Vec<Value>) {
        // The last item of an answer that was cut off is incomplete.
        let status = if self.is_cut_off() { "incomplete" } else { "completed" };
        let Some(item) = self.output.last_mut() else { return };
        item.status = status;
        if !self.streams {
            return;
        }
        let (text, content) = (item.text.clone(), item.content());
        let (kind, fields, has_content) = match &item.part {
            Part::Thinking => ("reasoning_text.done", json!({"text": text}), true),
            Part::Text => {
                let logprobs = entries_json(&item.entries);
                ("output_text.done", json!({"text": text, "logprobs": logprobs}), true)
            }
            Part::Call { name, .. } => {
                ("function_call_arguments.done", json!({"arguments": text, "name": name}), false)
            }
        };
        sent.push(self.item_event(kind, fields));
        if has_content {
            sent.push(self.item_event("content_part.done", json!({"part": content})));
        }
        sent.push(self.whole_item_event("output_item.done", true));
    }

    /// Keeps the response for those who ask for it again.
    fn keep(&mut self, response: &Value) {
        if let Some((earlier, input)) = self.keeping.items.take() {
            let response = response.to_string();
            let output_ids = self.output.iter().map(|item| item.id.clone()).collect();
            let stored = Stored { id: self.id.clone(), earlier, input, response, output_ids };
            self.keeping.store.keep(stored);
        }
    }
}

impl ResponseWriter for ResponsesWriter {
    const FRAMING: Framing = Framing::Named;

    fn id(&self) -> &str {
        &self.id
    }

    fn start(&mut self) -> Vec<Value> {
        let response = self.response();
        ["created", "in_progress"]
            .map(|kind| self.event(kind, json!({"response": response})))
            .into()
    }

    fn progress(&mut self, _: usize, _: &Progress) -> Vec<Value> {
        Vec::new()
    }

    fn token(&mut self, _: usize, token: Token, _: bool) -> Vec<Value> {
        let mut delta = self.choice.push(&token, &self.model.tokenizer);
        if self.has_logprobs {
            self.entries.append(&mut delta.logprobs);
        }
        if !delta.reasoning.is_empty() {
            self.entries.clear();
        }
        let events = self.parts.push(delta);
        self.write(events)
    }

    fn is_over(&self, _: usize) -> bool {
        self.choice.is_over()
    }

    fn end(&mut self, _: usize, finished: Finished) -> Vec<Value> {
        let events = self.parts.push_last(self.choice.finish(&finished));
        self.finished = Some(finished);
        self.write(events)
    }

    fn close(&mut self) -> Vec<Value> {
        let response = self.response();
        self.keep(&response);
        let kind = if self.is_cut_off() { "incomplete" } else { "completed" };
        vec![self.event(kind, json!({"response": response}))]
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Value> {
        let mut response = self.response();
        response["status"] = "failed".into();
        response["error"] = json!({"code": "server_error", "message": error.message()});
        vec![self.event("failed", json!({"response": response}))]
    }

    /// Without a response there is the event of its own kind.
    fn refuse(error: &ApiError) -> Vec<Value> {
        let mut event = error.json()["error"].take();
        event["type"] = "error".into();
        event["sequence_number"] = 0.into();
        vec![event]
    }

    fn into_response(mut self) -> Value {
        let response = self.response();
        self.keep(&response);
        response
    }
}
