//! The JSON of a plain completion, complete and as a stream.

use std::sync::Arc;

use serde_json::{Value, json};
use weft_core::chunk::Composition;
use weft_core::engine::{Finished, PromptToken, Token};

use crate::api_error::ApiError;
use crate::dialects::texts::Continuing;
use crate::model_info::ModelInfo;
use crate::responses::logprobs::{self, Entry, Pending};
use crate::responses::{
    Accepted, FINGERPRINT, Framing, ResponseWriter, TokenIds, add_costs, add_progress, add_usage,
    reason, response_id, running_usage, seconds_now, usage,
};
use crate::worker::Progress;

/// Writes a completion.
pub(crate) struct CompletionWriter {
    model: Arc<ModelInfo>,
    id: String,
    created: u64,
    choices: Vec<ChoiceText>,
    finished: Vec<Option<Finished>>,
    choices_per_prompt: usize,
    has_logprobs: bool,
    echoes: bool,
    streams: bool,
    includes_usage: bool,
    includes_running_usage: bool,
    /// Tokens of each prompt.
    prompt_tokens: Vec<usize>,
    accepted: Accepted,
    token_ids: TokenIds,
    /// The ids of each prompt's tokens, if they are wanted; sent with the first event of a choice.
    prompt_ids: Option<Vec<Vec<u32>>>,
    /// The tokens of each prompt with their log-probabilities, if they are wanted.
    prompt_logprobs: Option<Vec<Vec<PromptToken>>>,
}

#[derive(Default)]
struct ChoiceText {
    text: String,
    entries: Vec<Entry>,
    pending: Pending,
    has_begun: bool,
    n_tokens: usize,
    /// Whether an event was sent.
    has_sent: bool,
}

impl CompletionWriter {
    pub(crate) fn new(continuing: &Continuing) -> Self {
        let Continuing { model, sampling, request, prompts } = continuing;
        let settings = &request.settings;
        let choices_per_prompt = settings.choices();
        let n = prompts.len() * choices_per_prompt;
        let ids = || prompts.iter().map(Composition::tokens).collect();
        let prompt_ids: Option<Vec<Vec<u32>>> = settings.returns_ids().then(ids);
        Self {
            model: Arc::clone(model),
            id: response_id("cmpl"),
            created: seconds_now(),
            choices: (0..n).map(|_| ChoiceText::default()).collect(),
            finished: vec![None; n],
            choices_per_prompt,
            has_logprobs: sampling.logprobs.is_some(),
            echoes: request.echoes,
            streams: settings.streams(),
            includes_usage: settings.includes_usage(),
            includes_running_usage: settings.includes_running_usage(),
            prompt_tokens: prompts.iter().map(Composition::len).collect(),
            accepted: Accepted::new(n, settings.sends_accepted()),
            token_ids: TokenIds::new(n, prompt_ids.is_some()),
            prompt_ids,
            prompt_logprobs: sampling.prompt_logprobs.map(|_| vec![Vec::new(); prompts.len()]),
        }
    }

    fn envelope(&self, choices: Value) -> Value {
        let mut envelope = json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model.id,
            "system_fingerprint": FINGERPRINT,
        });
        envelope["choices"] = choices;
        envelope
    }

    fn event(&self, index: usize, choice: Value) -> Value {
        let mut event = self.envelope(Value::Array(vec![choice]));
        if self.includes_usage {
            let prompt_tokens = self.prompt_tokens[index / self.choices_per_prompt];
            let echoed = if self.echoes { prompt_tokens } else { 0 };
            let n = self.choices[index].n_tokens.saturating_sub(echoed);
            let so_far = || running_usage(prompt_tokens, n);
            event["usage"] = self.includes_running_usage.then(so_far).unwrap_or_default();
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

impl CompletionWriter {
    /// Adds the ids of a choice's prompt, if they are wanted.
    fn add_prompt_ids(&self, index: usize, choice: &mut Value) {
        if let Some(ids) = &self.prompt_ids {
            choice["prompt_token_ids"] = ids[index / self.choices_per_prompt].clone().into();
        }
    }

    /// The same for the first event of a stream.
    fn add_prompt_ids_once(&mut self, index: usize, choice: &mut Value) {
        if !std::mem::replace(&mut self.choices[index].has_sent, true) {
            self.add_prompt_ids(index, choice);
        }
    }
}

impl ResponseWriter for CompletionWriter {
    const FRAMING: Framing = Framing::Data;

    fn id(&self) -> &str {
        &self.id
    }

    fn start(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn progress(&mut self, choice: usize, progress: &Progress) -> Vec<Value> {
        let mut event = self.event(choice, self.choice(choice, "", &[], None));
        add_progress(&mut event, progress);
        vec![event]
    }

    /// The choices of a prompt share it, and the first one reports it.
    fn prompt(&mut self, choice: usize, tokens: Vec<PromptToken>) {
        if let Some(prompts) = &mut self.prompt_logprobs {
            prompts[choice / self.choices_per_prompt].extend(tokens);
        }
    }

    fn token(&mut self, choice: usize, token: Token, is_drafted: bool) -> Vec<Value> {
        self.accepted.count(choice, is_drafted);
        self.token_ids.push(choice, token.id);
        let choice_text = &mut self.choices[choice];
        choice_text.n_tokens += 1;
        let is_first = !std::mem::replace(&mut choice_text.has_begun, true);
        let entries = match is_first && self.echoes && self.has_logprobs {
            true => choice_text.pending.push_unpredicted(&token, &self.model.tokenizer),
            false => choice_text.pending.push(&token, &self.model.tokenizer),
        };
        if !self.streams {
            choice_text.text.push_str(&token.text);
            choice_text.entries.extend(entries);
            return Vec::new();
        }
        if token.text.is_empty() && entries.is_empty() {
            return Vec::new();
        }
        let mut event = self.event(choice, self.choice(choice, &token.text, &entries, None));
        self.accepted.add_to(choice, &mut event);
        self.token_ids.add_to(choice, &mut event["choices"][0]);
        self.add_prompt_ids_once(choice, &mut event["choices"][0]);
        vec![event]
    }

    fn is_over(&self, _: usize) -> bool {
        false
    }

    fn end(&mut self, choice: usize, finished: Finished) -> Vec<Value> {
        let mut events = Vec::new();
        let reason = reason(&finished);
        self.finished[choice] = Some(finished);
        if self.streams {
            let last = self.choice(choice, "", &[], Some(reason));
            let mut last = self.event(choice, last);
            add_costs(&mut last, &self.finished[choice..=choice], 1);
            self.token_ids.add_to(choice, &mut last["choices"][0]);
            self.add_prompt_ids_once(choice, &mut last["choices"][0]);
            events.push(last);
        }
        events
    }

    fn close(&mut self) -> Vec<Value> {
        if !self.includes_usage {
            return Vec::new();
        }
        let mut event = self.envelope(json!([]));
        add_usage(&mut event, &self.finished, self.choices_per_prompt);
        vec![event]
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Value> {
        vec![error.json()]
    }

    fn into_response(mut self) -> Value {
        let mut token_ids = std::mem::replace(&mut self.token_ids, TokenIds::new(0, false));
        let choices = self.choices.iter().zip(&self.finished).enumerate();
        let choices = choices.map(|(index, (choice_text, finished))| {
            let reason = finished.as_ref().map(reason);
            let mut choice = self.choice(index, &choice_text.text, &choice_text.entries, reason);
            token_ids.add_to(index, &mut choice);
            self.add_prompt_ids(index, &mut choice);
            if let Some(prompts) = &self.prompt_logprobs {
                let tokens = &prompts[index / self.choices_per_prompt];
                choice["prompt_logprobs"] = logprobs::of_prompt(tokens, &self.model.tokenizer);
            }
            choice
        });
        let mut answer = self.envelope(choices.collect());
        answer["usage"] = usage(&self.finished, self.choices_per_prompt);
        add_costs(&mut answer, &self.finished, self.choices_per_prompt);
        answer
    }
}
