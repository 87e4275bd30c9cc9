//! The shape of a chat's answer, whole and in pieces.

use std::sync::Arc;

use serde_json::{Value, json};
use weft_core::engine::{Finished, Token};

use super::choice::{Calls, Choice, Delta};
use super::figures::{add_figures, add_timings, reason, usage};
use super::tool_calls::Call;
use super::{FINGERPRINT, Script, answer_id, logprobs, seconds_now};
use crate::served::Served;

/// A chat while it is answered.
pub(crate) struct ChatScript {
    served: Arc<Served>,
    id: String,
    created: u64,
    choices: Vec<Writing>,
    finished: Vec<Option<Finished>>,
    has_logprobs: bool,
    streams: bool,
    includes_usage: bool,
}

struct Writing {
    choice: Choice,
    /// What was written, where the answer is told as a whole.
    said: Delta,
    n_calls: usize,
}

/// What a chat's answer depends on beside what the engine tells.
pub(crate) struct ChatShape<'a> {
    pub(crate) choices: usize,
    pub(crate) prompt_end: &'a str,
    pub(crate) calls: Calls,
    pub(crate) has_logprobs: bool,
    pub(crate) streams: bool,
    /// Whether a stream ends with its usage.
    pub(crate) includes_usage: bool,
}

impl ChatScript {
    pub(crate) fn new(served: Arc<Served>, shape: &ChatShape<'_>) -> Self {
        let writing = || Writing {
            choice: Choice::new(shape.prompt_end, shape.calls),
            said: Delta::default(),
            n_calls: 0,
        };
        Self {
            served,
            id: answer_id("chatcmpl"),
            created: seconds_now(),
            choices: (0..shape.choices).map(|_| writing()).collect(),
            finished: vec![None; shape.choices],
            has_logprobs: shape.has_logprobs,
            streams: shape.streams,
            includes_usage: shape.includes_usage,
        }
    }

    /// The answer's name.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    fn envelope(&self, object: &str, choices: Value) -> Value {
        let mut envelope = json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.served.id,
            "system_fingerprint": FINGERPRINT,
        });
        envelope["choices"] = choices;
        envelope
    }

    fn event(&self, index: usize, delta: Value, entries: Value, reason: Option<&str>) -> Value {
        let mut choice = json!({"index": index});
        choice["delta"] = delta;
        choice["logprobs"] = entries;
        choice["finish_reason"] = reason.into();
        let mut event = self.envelope("chat.completion.chunk", Value::Array(vec![choice]));
        if self.includes_usage {
            event["usage"] = Value::Null;
        }
        event
    }

    /// Tells a delta, or keeps it for the whole.
    fn write(&mut self, index: usize, delta: Delta) -> Option<Value> {
        let writing = &mut self.choices[index];
        let first_call = writing.n_calls;
        writing.n_calls += delta.calls.len();
        if !self.streams {
            writing.said.append(delta);
            return None;
        }
        if delta.is_empty() {
            return None;
        }
        let entries = match self.has_logprobs && !delta.logprobs.is_empty() {
            true => logprobs::of_chat(&delta.logprobs),
            false => Value::Null,
        };
        Some(self.event(index, delta_json(delta, first_call), entries, None))
    }

    fn message(&self, index: usize, writing: Writing) -> Value {
        let Writing { said, n_calls, .. } = writing;
        let is_silent = said.content.is_empty() && n_calls > 0;
        let content = if is_silent { Value::Null } else { said.content.into() };
        let mut message = json!({"role": "assistant", "content": content});
        if !said.reasoning.is_empty() {
            message["reasoning_content"] = said.reasoning.into();
        }
        if n_calls > 0 {
            message["tool_calls"] = said.calls.iter().map(call_json).collect();
        }
        let entries = match self.has_logprobs {
            true => logprobs::of_chat(&said.logprobs),
            false => Value::Null,
        };
        json!({"index": index, "message": message, "logprobs": entries})
    }
}

/// Why a choice ended. One that was cut off may have had more to call.
fn reason_of(n_calls: usize, finished: &Finished) -> &'static str {
    match (n_calls, reason(finished)) {
        (0, reason) | (_, reason @ "length") => reason,
        _ => "tool_calls",
    }
}

fn call_json(call: &Call) -> Value {
    let function = json!({"name": call.name, "arguments": call.arguments});
    json!({"id": call.id, "type": "function", "function": function})
}

fn delta_json(delta: Delta, first_call: usize) -> Value {
    let mut json = json!({});
    if !delta.reasoning.is_empty() {
        json["reasoning_content"] = delta.reasoning.into();
    }
    if !delta.content.is_empty() {
        json["content"] = delta.content.into();
    }
    if !delta.calls.is_empty() {
        let calls = delta.calls.iter().enumerate().map(|(n, call)| {
            let mut json = call_json(call);
            json["index"] = (first_call + n).into();
            json
        });
        json["tool_calls"] = calls.collect();
    }
    json
}

impl Script for ChatScript {
    fn opening(&mut self) -> Vec<Value> {
        let delta = || json!({"role": "assistant", "content": null});
        (0..self.choices.len()).map(|index| self.event(index, delta(), Value::Null, None)).collect()
    }

    fn token(&mut self, choice: usize, token: Token) -> Option<Value> {
        let delta = self.choices[choice].choice.push(&token, &self.served.tokenizer);
        self.write(choice, delta)
    }

    fn ending(&mut self, choice: usize, finished: Finished) -> Vec<Value> {
        let delta = self.choices[choice].choice.finish();
        let mut events: Vec<Value> = self.write(choice, delta).into_iter().collect();
        if self.streams {
            let reason = reason_of(self.choices[choice].n_calls, &finished);
            let mut last = self.event(choice, json!({}), Value::Null, Some(reason));
            add_figures(&mut last, &finished);
            events.push(last);
        }
        self.finished[choice] = Some(finished);
        events
    }

    fn usage(&self) -> Value {
        let mut event = self.envelope("chat.completion.chunk", json!([]));
        event["usage"] = usage(&self.finished, self.choices.len());
        add_timings(&mut event, &self.finished);
        event
    }

    fn whole(mut self) -> Value {
        let writings: Vec<Writing> = std::mem::take(&mut self.choices);
        let n = writings.len();
        let mut choices = Vec::new();
        for (index, writing) in writings.into_iter().enumerate() {
            let n_calls = writing.n_calls;
            let mut choice = self.message(index, writing);
            let finished = self.finished[index].as_ref();
            choice["finish_reason"] = finished.map(|f| reason_of(n_calls, f)).into();
            choices.push(choice);
        }
        let mut answer = self.envelope("chat.completion", choices.into());
        answer["usage"] = usage(&self.finished, n);
        if let Some(Some(first)) = self.finished.first() {
            add_figures(&mut answer, first);
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weft_core::chunk::Report;
    use weft_core::engine::{FinishReason, Stats};
    use weft_testing::stub;

    use super::*;
    use crate::served::Loaded;

    /// The events of a stream, or the whole answer, of a model that says some texts and ends.
    fn answered(texts: &[&str], calls: Calls, streams: bool) -> (Vec<Value>, Value) {
        let model = stub::model();
        let engine = stub::engine(&model, "a", &Arc::default());
        let served = Served::of(&Loaded { id: "stub".to_owned(), model, engine, shelf: None });
        let shape = ChatShape {
            choices: 1,
            prompt_end: "",
            calls,
            has_logprobs: false,
            streams,
            includes_usage: false,
        };
        let mut script = ChatScript::new(Arc::new(served), &shape);
        let mut events = Vec::new();
        for text in texts {
            let token = Token { id: 1, text: (*text).to_owned(), logprobs: None };
            events.extend(script.token(0, token));
        }
        let stats = Stats {
            prompt_tokens: 1,
            cached_tokens: 0,
            generated_tokens: texts.len(),
            first_token: Duration::ZERO,
            total: Duration::ZERO,
        };
        let finished = Finished { reason: FinishReason::Length, stats, report: Report::default() };
        events.extend(script.ending(0, finished));
        (events, script.whole())
    }

    /// What looks like the beginning of a tag is held back until it is none, at the latest when the
    /// answer ends.
    #[test]
    fn text_that_was_held_back_is_told_at_the_end() {
        let cases = [
            (&["<thi"][..], Calls::None, "<thi"),
            (&["Yes", " <tool_c"][..], Calls::Some, "Yes <tool_c"),
            (&["Yes <tool_call>\n{\"name\":"][..], Calls::Some, "Yes <tool_call>\n{\"name\":"),
        ];
        for (texts, calls, said) in cases {
            let (events, _) = answered(texts, calls, true);
            let content = |event: &Value| {
                event["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned()
            };
            assert_eq!(events.iter().map(content).collect::<String>(), said);
            let last = &events.last().unwrap()["choices"][0];
            assert_eq!(last["finish_reason"], "length", "the reason comes after the text");
            let (_, whole) = answered(texts, calls, false);
            assert_eq!(whole["choices"][0]["message"]["content"], said);
        }
        let (events, _) = answered(&["<think>\nhm </thi"], Calls::None, true);
        let thought = |event: &Value| {
            event["choices"][0]["delta"]["reasoning_content"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        assert_eq!(events.iter().map(thought).collect::<String>(), "hm </thi");
    }
}
