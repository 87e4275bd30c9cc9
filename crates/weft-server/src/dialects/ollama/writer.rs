//! The JSON of Ollama's answers: one object, or one per line.

use std::sync::Arc;

use serde_json::{Value, json};
use weft_core::engine::{Finished, Token};

use crate::api_error::ApiError;
use crate::dialects::answer::Answering;
use crate::model_info::ModelInfo;
use crate::responses::logprobs::{self, Entry};
use crate::responses::{
    CallDelta, Choice, Delta, Framing, ResponseWriter, add_costs, reason, response_id, time,
};
use crate::worker::Progress;

/// How an answer is wrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A message, of `/api/chat`.
    Message,
    /// A text, of `/api/generate`.
    Text,
}

/// Writes an answer.
pub(crate) struct OllamaWriter {
    model: Arc<ModelInfo>,
    id: String,
    form: Form,
    choice: Choice,
    /// Everything so far; of a stream, the calls alone.
    collected: Delta,
    /// Calls that were sent: a stream sends each when it is complete.
    n_sent: usize,
    has_logprobs: bool,
    finished: Option<Finished>,
    streams: bool,
}

impl OllamaWriter {
    pub(super) fn new(answering: Answering, form: Form) -> Self {
        Self {
            id: response_id("ollama"),
            form,
            choice: answering.choice(),
            collected: Delta::default(),
            n_sent: 0,
            has_logprobs: answering.sampling.logprobs.is_some(),
            finished: None,
            streams: answering.streams,
            model: answering.model,
        }
    }

    /// An answer with these parts.
    fn answer(&self, text: &str, thinking: &str, calls: &[CallDelta], logprobs: &[Entry]) -> Value {
        let mut answer = json!({
            "model": self.model.id,
            "created_at": time::now(),
            "done": false,
        });
        let target = match self.form {
            Form::Message => {
                answer["message"] = json!({"role": "assistant", "content": text});
                &mut answer["message"]
            }
            Form::Text => {
                answer["response"] = text.into();
                &mut answer
            }
        };
        if !thinking.is_empty() {
            target["thinking"] = thinking.into();
        }
        if !calls.is_empty() {
            target["tool_calls"] = calls.iter().map(call_json).collect();
        }
        if self.has_logprobs && !logprobs.is_empty() {
            answer["logprobs"] = logprobs::of_chat(logprobs)["content"].take();
        }
        answer
    }

    /// Collects a delta; returns what a stream sends. Calls are sent when they are complete, or
    /// when the answer is over.
    fn write(&mut self, delta: Delta, is_over: bool) -> Vec<Value> {
        let mut delta = delta.joined();
        if !self.streams {
            self.collected.append(delta);
            return Vec::new();
        }
        let calls = std::mem::take(&mut delta.calls);
        self.collected.append(Delta { calls, ..Delta::default() });
        let mut sent = Vec::new();
        if !delta.is_empty() {
            sent.push(self.answer(&delta.content, &delta.reasoning, &[], &delta.logprobs));
        }
        let all = self.collected.calls.len();
        let n = if is_over { all } else { self.choice.n_complete_calls().min(all) };
        if n > self.n_sent {
            sent.push(self.answer("", "", &self.collected.calls[self.n_sent..n], &[]));
            self.n_sent = n;
        }
        sent
    }

    /// Adds why and how the answer ended. Times are in nanoseconds.
    fn add_end(&self, answer: &mut Value) {
        let Some(finished) = &self.finished else { return };
        let stats = &finished.stats;
        let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        answer["done"] = true.into();
        answer["done_reason"] = reason(finished).into();
        answer["total_duration"] = ns(stats.total).into();
        answer["load_duration"] = 0.into();
        answer["prompt_eval_count"] = stats.prompt_tokens.into();
        answer["prompt_eval_duration"] = ns(stats.first_token).into();
        answer["eval_count"] = stats.generated_tokens.into();
        answer["eval_duration"] = ns(stats.total.saturating_sub(stats.first_token)).into();
        add_costs(answer, std::slice::from_ref(&self.finished), 1);
    }
}

/// A call. The arguments of one that was cut off are no object.
fn call_json(call: &CallDelta) -> Value {
    let arguments = serde_json::from_str::<Value>(&call.arguments).ok();
    let arguments = arguments.filter(Value::is_object).unwrap_or(json!({}));
    let (id, name) = call.beginning.as_ref().map(|b| (&*b.id, &*b.name)).unwrap_or_default();
    json!({"id": id, "function": {"index": call.index, "name": name, "arguments": arguments}})
}

impl ResponseWriter for OllamaWriter {
    const FRAMING: Framing = Framing::Lines;

    fn id(&self) -> &str {
        &self.id
    }

    fn start(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn progress(&mut self, _: usize, _: &Progress) -> Vec<Value> {
        Vec::new()
    }

    fn token(&mut self, _: usize, token: Token, _: bool) -> Vec<Value> {
        let delta = self.choice.push(&token, &self.model.tokenizer);
        self.write(delta, false)
    }

    fn is_over(&self, _: usize) -> bool {
        self.choice.is_over()
    }

    fn end(&mut self, _: usize, finished: Finished) -> Vec<Value> {
        let delta = self.choice.finish(&finished);
        self.finished = Some(finished);
        self.write(delta, true)
    }

    fn close(&mut self) -> Vec<Value> {
        let mut last = self.answer("", "", &[], &[]);
        self.add_end(&mut last);
        vec![last]
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Value> {
        Self::refuse(error)
    }

    fn refuse(error: &ApiError) -> Vec<Value> {
        vec![super::error_json(error)]
    }

    fn into_response(self) -> Value {
        let Delta { content, reasoning, calls, logprobs, .. } = &self.collected;
        let mut answer = self.answer(content, reasoning, calls, logprobs);
        self.add_end(&mut answer);
        answer
    }
}
