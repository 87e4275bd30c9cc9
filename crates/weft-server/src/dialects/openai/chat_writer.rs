//! The JSON of a chat's answer, complete and as a stream.

use std::sync::Arc;

use serde_json::{Value, json};
use weft_core::engine::{Finished, PromptToken, Token};

use crate::api_error::ApiError;
use crate::dialects::answer::Answering;
use crate::model_info::ModelInfo;
use crate::responses::{
    Accepted, Beginning, CallDelta, Choice, Delta, FINGERPRINT, Framing, ResponseWriter, TokenIds,
    add_costs, add_progress, add_thought, add_usage, logprobs, reason, response_id, running_usage,
    seconds_now, usage,
};
use crate::worker::Progress;

/// Writes the answer to a chat.
pub(crate) struct ChatWriter {
    model: Arc<ModelInfo>,
    id: String,
    created: u64,
    choices: Vec<ChoiceState>,
    finished: Vec<Option<Finished>>,
    has_logprobs: bool,
    streams: bool,
    options: ChatOptions,
    /// Tokens of the prompt.
    prompt_tokens: usize,
    accepted: Accepted,
    token_ids: TokenIds,
    /// The ids of the prompt's tokens, if they are wanted; sent with the first event.
    prompt_ids: Option<Vec<u32>>,
    /// The prompt with its log-probabilities, if they are wanted.
    prompt_logprobs: Option<Vec<PromptToken>>,
}

struct ChoiceState {
    choice: Choice,
    /// Everything so far, for a complete response.
    collected: Delta,
    n_tokens: usize,
}

/// How a chat's answer is written.
#[derive(Clone, Debug)]
pub(crate) struct ChatOptions {
    /// Whether a stream ends with its usage.
    pub(crate) includes_usage: bool,
    /// Whether each event has the usage so far.
    pub(crate) includes_running_usage: bool,
    /// Whether thoughts are part of the answer.
    pub(crate) includes_reasoning: bool,
    /// Whether events say how many of their tokens were drafted.
    pub(crate) sends_accepted: bool,
    /// The text that the answer continues, if it begins with it.
    pub(crate) echoed: String,
}

impl ChatWriter {
    pub(crate) fn new(answering: Answering, options: ChatOptions) -> Self {
        let state = || ChoiceState {
            choice: answering.choice(),
            collected: Delta { content: options.echoed.clone(), ..Delta::default() },
            n_tokens: 0,
        };
        let n = answering.choices;
        Self {
            id: response_id("chatcmpl"),
            created: seconds_now(),
            choices: (0..n).map(|_| state()).collect(),
            finished: vec![None; n],
            has_logprobs: answering.sampling.logprobs.is_some(),
            streams: answering.streams,
            accepted: Accepted::new(n, options.sends_accepted),
            options,
            prompt_tokens: answering.prompt_tokens,
            token_ids: TokenIds::new(n, answering.prompt_ids.is_some()),
            prompt_ids: answering.prompt_ids,
            prompt_logprobs: answering.sampling.prompt_logprobs.map(|_| Vec::new()),
            model: answering.model,
        }
    }

    fn envelope(&self, object: &str, choices: Value) -> Value {
        let mut envelope = json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model.id,
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
        if self.options.includes_usage {
            let n = self.choices[index].n_tokens;
            let so_far = || running_usage(self.prompt_tokens, n);
            event["usage"] = self.options.includes_running_usage.then(so_far).unwrap_or_default();
        }
        event
    }

    /// Returns a delta as an event, or collects it for a complete response.
    fn write(&mut self, index: usize, delta: Delta) -> Option<Value> {
        let mut delta = delta.joined();
        if !self.options.includes_reasoning {
            delta.reasoning.clear();
        }
        if !self.streams {
            self.choices[index].collected.append(delta);
            return None;
        }
        if delta.is_empty() {
            return None;
        }
        let entries = match self.has_logprobs && !delta.logprobs.is_empty() {
            true => logprobs::of_chat(&delta.logprobs),
            false => Value::Null,
        };
        let mut event = self.event(index, delta_json(delta), entries, None);
        self.accepted.add_to(index, &mut event);
        self.token_ids.add_to(index, &mut event["choices"][0]);
        Some(event)
    }

    fn message(&self, index: usize, collected: Delta) -> Value {
        let has_calls = !collected.calls.is_empty();
        let only_calls = collected.content.is_empty() && has_calls;
        let content = if only_calls { Value::Null } else { collected.content.into() };
        let mut message = json!({"role": "assistant", "content": content});
        if !collected.reasoning.is_empty() {
            message["reasoning_content"] = collected.reasoning.into();
        }
        if has_calls {
            message["tool_calls"] = collected.calls.iter().map(call_json).collect();
        }
        let entries = match self.has_logprobs {
            true => logprobs::of_chat(&collected.logprobs),
            false => Value::Null,
        };
        json!({"index": index, "message": message, "logprobs": entries})
    }
}

/// Why a choice ended. One that was cut off keeps its reason: a call may be incomplete, or more
/// calls might have followed.
fn finish_reason(choice: &Choice, finished: &Finished) -> &'static str {
    match reason(finished) {
        "stop" if choice.has_complete_calls() => "tool_calls",
        reason => reason,
    }
}

fn call_json(call: &CallDelta) -> Value {
    let mut json = json!({"function": {"arguments": call.arguments}});
    if let Some(Beginning { id, name }) = &call.beginning {
        json["id"] = id.as_str().into();
        json["type"] = "function".into();
        json["function"]["name"] = name.as_str().into();
    }
    json
}

fn delta_json(delta: Delta) -> Value {
    let mut json = json!({});
    if !delta.reasoning.is_empty() {
        json["reasoning_content"] = delta.reasoning.into();
    }
    if !delta.content.is_empty() {
        json["content"] = delta.content.into();
    }
    if !delta.calls.is_empty() {
        let calls = delta.calls.iter().map(|call| {
            let mut json = call_json(call);
            json["index"] = call.index.into();
            json
        });
        json["tool_calls"] = calls.collect();
    }
    json
}

impl ResponseWriter for ChatWriter {
    const FRAMING: Framing = Framing::Data;

    fn id(&self) -> &str {
        &self.id
    }

    fn start(&mut self) -> Vec<Value> {
        let echoed = Some(&self.options.echoed).filter(|text| !text.is_empty());
        let delta = || json!({"role": "assistant", "content": echoed});
        let event = |index| self.event(index, delta(), Value::Null, None);
        let mut events: Vec<Value> = (0..self.choices.len()).map(event).collect();
        if let Some(ids) = self.prompt_ids.take() {
            events[0]["prompt_token_ids"] = ids.into();
        }
        events
    }

    fn progress(&mut self, choice: usize, progress: &Progress) -> Vec<Value> {
        let mut event = self.event(choice, json!({}), Value::Null, None);
        add_progress(&mut event, progress);
        vec![event]
    }

    /// The choices share the prompt, and the first one reports it.
    fn prompt(&mut self, _: usize, tokens: Vec<PromptToken>) {
        self.prompt_logprobs.iter_mut().for_each(|all| all.extend_from_slice(&tokens));
    }

    fn token(&mut self, choice: usize, token: Token, is_drafted: bool) -> Vec<Value> {
        self.accepted.count(choice, is_drafted);
        self.token_ids.push(choice, token.id);
        self.choices[choice].n_tokens += 1;
        let delta = self.choices[choice].choice.push(&token, &self.model.tokenizer);
        self.write(choice, delta).into_iter().collect()
    }

    fn is_over(&self, choice: usize) -> bool {
        self.choices[choice].choice.is_over()
    }

    fn end(&mut self, choice: usize, finished: Finished) -> Vec<Value> {
        let delta = self.choices[choice].choice.finish(&finished);
        let mut events: Vec<Value> = self.write(choice, delta).into_iter().collect();
        let reason = finish_reason(&self.choices[choice].choice, &finished);
        self.finished[choice] = Some(finished);
        if self.streams {
            let mut last = self.event(choice, json!({}), Value::Null, Some(reason));
            add_costs(&mut last, &self.finished[choice..=choice], 1);
            self.token_ids.add_to(choice, &mut last["choices"][0]);
            events.push(last);
        }
        events
    }

    fn close(&mut self) -> Vec<Value> {
        if !self.options.includes_usage {
            return Vec::new();
        }
        let mut event = self.envelope("chat.completion.chunk", json!([]));
        add_usage(&mut event, &self.finished, self.choices.len());
        let thought = self.choices.iter().map(|state| state.choice.n_thought_tokens()).sum();
        add_thought(&mut event, thought);
        vec![event]
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Value> {
        vec![error.json()]
    }

    fn into_response(mut self) -> Value {
        let states: Vec<ChoiceState> = std::mem::take(&mut self.choices);
        let n = states.len();
        let mut choices = Vec::new();
        let mut thought = 0;
        for (index, state) in states.into_iter().enumerate() {
            let finished = self.finished[index].as_ref();
            let reason = finished.map(|finished| finish_reason(&state.choice, finished));
            thought += state.choice.n_thought_tokens();
            let mut choice = self.message(index, state.collected);
            choice["finish_reason"] = reason.into();
            self.token_ids.add_to(index, &mut choice);
            choices.push(choice);
        }
        let mut answer = self.envelope("chat.completion", choices.into());
        if let Some(ids) = self.prompt_ids.take() {
            answer["prompt_token_ids"] = ids.into();
        }
        if let Some(tokens) = &self.prompt_logprobs {
            answer["prompt_logprobs"] = logprobs::of_prompt(tokens, &self.model.tokenizer);
        }
        answer["usage"] = usage(&self.finished, n);
        add_thought(&mut answer, thought);
        add_costs(&mut answer, &self.finished, n);
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
    use crate::model_info::Loaded;
    use crate::responses::ToolMode;

    /// The events of a stream, or the whole answer, of a model that writes some texts and ends.
    fn answered(texts: &[&str], tools: &ToolMode, streams: bool) -> (Vec<Value>, Value) {
        answered_with(texts, tools, streams, true)
    }

    fn answered_with(
        texts: &[&str],
        tools: &ToolMode,
        streams: bool,
        includes_reasoning: bool,
    ) -> (Vec<Value>, Value) {
        let model = stub::model();
        let engine = stub::engine(&model, "a", &Arc::default());
        let info = ModelInfo::new(&Loaded::new("stub", model, engine));
        let options = ChatOptions {
            includes_usage: false,
            includes_running_usage: false,
            includes_reasoning,
            sends_accepted: false,
            echoed: String::new(),
        };
        let answering = Answering::of_test(Arc::new(info), tools.clone(), streams);
        let mut writer = ChatWriter::new(answering, options);
        let mut events = Vec::new();
        for text in texts {
            let token = Token { id: 1, text: (*text).to_owned(), logprobs: None };
            events.extend(writer.token(0, token, false));
        }
        let stats = Stats {
            prompt_tokens: 1,
            cached_tokens: 0,
            generated_tokens: texts.len(),
            first_token: Duration::ZERO,
            total: Duration::ZERO,
            ..Stats::default()
        };
        let finished =
            Finished { reason: FinishReason::Length, stats, report: Report::default(), stop: None };
        events.extend(writer.end(0, finished));
        (events, writer.into_response())
    }

    /// Text that may begin a tag is held back until that is certain, at the latest until the answer
    /// ends.
    #[test]
    fn text_that_was_held_back_is_sent_at_the_end() {
        let cases = [
            (&["<thi"][..], ToolMode::None, "<thi"),
            (&["Yes", " <tool_c"][..], ToolMode::Auto(Arc::default()), "Yes <tool_c"),
            (
                &["Yes <tool_call>\n{\"name\":"][..],
                ToolMode::Auto(Arc::default()),
                "Yes <tool_call>\n{\"name\":",
            ),
        ];
        for (texts, tools, said) in cases {
            let (events, _) = answered(texts, &tools, true);
            let content = |event: &Value| {
                event["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned()
            };
            assert_eq!(events.iter().map(content).collect::<String>(), said);
            let last = &events.last().unwrap()["choices"][0];
            assert_eq!(last["finish_reason"], "length", "the reason comes after the text");
            let (_, whole) = answered(texts, &tools, false);
            assert_eq!(whole["choices"][0]["message"]["content"], said);
        }
        let (events, _) = answered(&["<think>\nhm </thi"], &ToolMode::None, true);
        let thought = |event: &Value| {
            event["choices"][0]["delta"]["reasoning_content"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        assert_eq!(events.iter().map(thought).collect::<String>(), "hm </thi");
    }

    #[test]
    fn thoughts_may_be_left_out() {
        let texts = ["<think>", "hm", "</think>", "\n\n", "so"];
        let (events, _) = answered_with(&texts, &ToolMode::None, true, false);
        let (_, whole) = answered_with(&texts, &ToolMode::None, false, false);
        let told = format!("{events:?} {whole}");
        assert!(told.contains("so") && !told.contains("hm"), "{told}");
        assert!(!told.contains("reasoning_content"), "{told}");
        let details = &whole["usage"]["completion_tokens_details"];
        assert_eq!(details["reasoning_tokens"], 3, "they were written");
        let (events, _) = answered(&texts, &ToolMode::None, true);
        assert!(format!("{events:?}").contains("hm"));
    }

    /// Thoughts are counted with their tags, as Anthropic does, whatever becomes of the answer.
    #[test]
    fn tokens_of_thoughts_are_counted() {
        let thought = |texts: &[&str]| {
            let (_, whole) = answered(texts, &ToolMode::None, false);
            whole["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap()
        };
        assert_eq!(thought(&["<think>", "\n", "hm", ".", "</think>", "\n\n", "so"]), 5);
        assert_eq!(thought(&["<th", "ink>", "hm", "</th", "ink>", "so"]), 5, "tags of two tokens");
        assert_eq!(thought(&["<think>", "hm", ""]), 3, "it was cut off");
        assert_eq!(thought(&["so", "<think>", "hm", "</think>"]), 0, "a tag in an answer is text");
    }
}
