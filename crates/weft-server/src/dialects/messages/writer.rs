//! The JSON of a message, complete and as a stream of named events.

use std::sync::Arc;

use serde_json::{Value, json};
use weft_core::engine::{FinishReason, Finished, Token};

use crate::api_error::ApiError;
use crate::dialects::answer::Answering;
use crate::model_info::ModelInfo;
use crate::responses::{
    Choice, Framing, Part, PartEvent, PartStream, ResponseWriter, add_costs, response_id,
};
use crate::worker::Progress;

/// What clients must send back with a thought. They drop thoughts that have no signature.
const SIGNATURE: &str = "weft";

/// Writes a message.
pub(crate) struct MessageWriter {
    model: Arc<ModelInfo>,
    id: String,
    choice: Choice,
    parts: PartStream,
    /// The blocks so far.
    content: Vec<Block>,
    stops: Vec<String>,
    prompt_tokens: usize,
    cached_tokens: usize,
    finished: Option<Finished>,
    streams: bool,
    /// Whether a stream has begun.
    has_begun: bool,
    asks_for_edits: bool,
}

struct Block {
    part: Part,
    text: String,
}

impl Block {
    fn json(&self) -> Value {
        match &self.part {
            Part::Text => json!({"type": "text", "text": self.text}),
            Part::Thinking => {
                json!({"type": "thinking", "thinking": self.text, "signature": SIGNATURE})
            }
            Part::Call { id, name } => {
                // The arguments of a call that was cut off are no object.
                let input = serde_json::from_str::<Value>(&self.text).ok();
                let input = input.filter(Value::is_object).unwrap_or(json!({}));
                json!({"type": "tool_use", "id": id, "name": name, "input": input})
            }
        }
    }
}

impl MessageWriter {
    pub(super) fn new(answering: Answering, asks_for_edits: bool) -> Self {
        Self {
            id: response_id("msg").replace('-', "_"),
            choice: answering.choice(),
            parts: PartStream::default(),
            content: Vec::new(),
            prompt_tokens: answering.prompt_tokens,
            cached_tokens: 0,
            finished: None,
            streams: answering.streams,
            has_begun: false,
            asks_for_edits,
            stops: answering.sampling.stop,
            model: answering.model,
        }
    }

    /// Tokens that were read from the cache do not count as input.
    fn usage(&self) -> Value {
        let stats = self.finished.as_ref().map(|finished| finished.stats);
        let cached = stats.map_or(self.cached_tokens, |stats| stats.cached_tokens);
        json!({
            "input_tokens": self.prompt_tokens.saturating_sub(cached),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": stats.map_or(0, |stats| stats.generated_tokens),
            "output_tokens_details": {"thinking_tokens": self.choice.n_thought_tokens()},
        })
    }

    /// Why the message ended, and the text that it ended at.
    fn ending(&self) -> (Option<&'static str>, Option<&str>) {
        let Some(finished) = &self.finished else { return (None, None) };
        if finished.reason == FinishReason::Length {
            return (Some("max_tokens"), None);
        }
        if self.choice.has_complete_calls() {
            return (Some("tool_use"), None);
        }
        match finished.stop.and_then(|index| self.stops.get(index)) {
            Some(stop) => (Some("stop_sequence"), Some(stop)),
            None => (Some("end_turn"), None),
        }
    }

    fn message(&self) -> Value {
        let (reason, stop) = self.ending();
        let mut message = json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model.id,
            "content": self.content.iter().map(Block::json).collect::<Vec<_>>(),
            "stop_reason": reason,
            "stop_sequence": stop,
        });
        message["usage"] = self.usage();
        message
    }

    /// The first event, if it was not sent.
    fn begin(&mut self) -> Option<Value> {
        if std::mem::replace(&mut self.has_begun, true) {
            return None;
        }
        let mut event = json!({"type": "message_start"});
        event["message"] = self.message();
        Some(event)
    }

    /// Adds events to the blocks; returns what a stream sends.
    fn write(&mut self, events: Vec<PartEvent>) -> Vec<Value> {
        let mut sent = Vec::new();
        if self.streams && !events.is_empty() {
            sent.extend(self.begin());
        }
        for event in events {
            sent.extend(self.write_one(event));
        }
        if self.streams { sent } else { Vec::new() }
    }

    fn write_one(&mut self, event: PartEvent) -> Vec<Value> {
        let next = self.content.len();
        let last = next.saturating_sub(1);
        let delta =
            |delta: Value| json!({"type": "content_block_delta", "index": last, "delta": delta});
        match event {
            PartEvent::Begun(part) => {
                let block = match &part {
                    Part::Thinking => json!({"type": "thinking", "thinking": "", "signature": ""}),
                    _ => Block { part: part.clone(), text: String::new() }.json(),
                };
                self.content.push(Block { part, text: String::new() });
                vec![json!({"type": "content_block_start", "index": next, "content_block": block})]
            }
            PartEvent::More(text) => {
                let Some(block) = self.content.last_mut() else { return Vec::new() };
                block.text.push_str(&text);
                vec![delta(match block.part {
                    Part::Thinking => json!({"type": "thinking_delta", "thinking": text}),
                    Part::Text => json!({"type": "text_delta", "text": text}),
                    Part::Call { .. } => json!({"type": "input_json_delta", "partial_json": text}),
                })]
            }
            PartEvent::Ended => {
                let is_thought = self.content.last().is_some_and(|b| b.part == Part::Thinking);
                let signature = json!({"type": "signature_delta", "signature": SIGNATURE});
                let mut events: Vec<Value> =
                    is_thought.then(|| delta(signature)).into_iter().collect();
                events.push(json!({"type": "content_block_stop", "index": last}));
                events
            }
        }
    }

    /// Adds what Anthropic's clients ignore: timings, and where the context came from.
    fn add_costs(&self, json: &mut Value) {
        add_costs(json, std::slice::from_ref(&self.finished), 1);
        if self.asks_for_edits {
            json["context_management"] = json!({"applied_edits": []});
        }
    }
}

impl ResponseWriter for MessageWriter {
    const FRAMING: Framing = Framing::Named;

    fn id(&self) -> &str {
        &self.id
    }

    /// The first event has the number of cached tokens, which is not known yet.
    fn start(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn progress(&mut self, _: usize, progress: &Progress) -> Vec<Value> {
        self.cached_tokens = progress.report.cached_tokens();
        self.begin().into_iter().collect()
    }

    fn waiting(&mut self) -> Vec<Value> {
        self.begin().into_iter().chain([json!({"type": "ping"})]).collect()
    }

    fn token(&mut self, _: usize, token: Token, _: bool) -> Vec<Value> {
        let delta = self.choice.push(&token, &self.model.tokenizer);
        let events = self.parts.push(delta);
        self.write(events)
    }

    fn is_over(&self, _: usize) -> bool {
        self.choice.is_over()
    }

    fn end(&mut self, _: usize, finished: Finished) -> Vec<Value> {
        let events = self.parts.push_last(self.choice.finish(&finished));
        let mut sent: Vec<Value> =
            if self.streams { self.begin() } else { None }.into_iter().collect();
        sent.extend(self.write(events));
        self.finished = Some(finished);
        sent
    }

    fn close(&mut self) -> Vec<Value> {
        let (reason, stop) = self.ending();
        let delta = json!({"stop_reason": reason, "stop_sequence": stop});
        let mut end = json!({"type": "message_delta", "delta": delta});
        end["usage"] = self.usage();
        self.add_costs(&mut end);
        vec![end, json!({"type": "message_stop"})]
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Value> {
        Self::refuse(error)
    }

    fn refuse(error: &ApiError) -> Vec<Value> {
        vec![super::error_json(error)]
    }

    fn into_response(self) -> Value {
        let mut message = self.message();
        self.add_costs(&mut message);
        message
    }
}
