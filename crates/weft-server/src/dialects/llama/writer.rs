//! The JSON of a completion as llama.cpp writes it, whole and as a stream.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use weft_core::engine::{FinishReason, Finished, Token};
use weft_core::sampling::Sampling;

use super::request::LlamaOptions;
use crate::api_error::ApiError;
use crate::dialects::texts::Continuing;
use crate::model_info::ModelInfo;
use crate::responses::logprobs::{self, Entry, Pending};
use crate::responses::{Framing, ResponseWriter, add_costs, add_progress, response_id};
use crate::worker::Progress;

/// Writes a completion.
pub(crate) struct LlamaWriter {
    model: Arc<ModelInfo>,
    id: String,
    options: LlamaOptions,
    sampling: Sampling,
    streams: bool,
    answers: Vec<Answer>,
    finished: Vec<Option<Finished>>,
}

/// The answer to one prompt.
#[derive(Default)]
struct Answer {
    prompt: String,
    prompt_tokens: usize,
    text: String,
    tokens: Vec<u32>,
    n_tokens: usize,
    has_new_line: bool,
    entries: Vec<Entry>,
    pending: Pending,
}

impl LlamaWriter {
    pub(super) fn new(continuing: &Continuing, options: LlamaOptions) -> Self {
        let Continuing { model, sampling, request, prompts } = continuing;
        let answers: Vec<Answer> = prompts
            .iter()
            .map(|prompt| Answer {
                prompt: model.tokenizer.decode(&prompt.tokens(), false),
                prompt_tokens: prompt.len(),
                ..Answer::default()
            })
            .collect();
        Self {
            model: Arc::clone(model),
            id: response_id("completion"),
            options,
            sampling: sampling.clone(),
            streams: request.settings.streams(),
            finished: vec![None; answers.len()],
            answers,
        }
    }

    /// What an answer has from its first event on.
    fn envelope(&self, index: usize, text: &str, tokens: &[u32], is_over: bool) -> Value {
        let answer = &self.answers[index];
        json!({
            "index": index,
            "content": text,
            "tokens": tokens,
            "stop": is_over,
            "id_slot": index,
            "tokens_predicted": answer.n_tokens,
            "tokens_evaluated": answer.prompt_tokens,
        })
    }

    fn add_entries(&self, json: &mut Value, entries: &[Entry]) {
        if self.sampling.logprobs.is_some() && !(self.streams && entries.is_empty()) {
            json["completion_probabilities"] = logprobs::of_llama(entries);
        }
    }

    /// The last event of a stream, or the whole answer.
    fn last(&self, index: usize, text: &str, tokens: &[u32]) -> Value {
        let answer = &self.answers[index];
        let mut last = self.envelope(index, text, tokens, true);
        let finished = self.finished[index].as_ref();
        let word = finished.and_then(|finished| self.sampling.stop.get(finished.stop?));
        last["model"] = self.model.id.clone().into();
        last["prompt"] = answer.prompt.clone().into();
        last["generation_settings"] = self.settings();
        last["has_new_line"] = answer.has_new_line.into();
        // Prompts are never cut.
        last["truncated"] = false.into();
        last["stop_type"] = match finished.map(|finished| finished.reason) {
            Some(FinishReason::Length) => "limit",
            Some(FinishReason::Stop) if word.is_some() => "word",
            Some(FinishReason::Stop) => "eos",
            Some(FinishReason::Cancelled) | None => "none",
        }
        .into();
        last["stopping_word"] = word.map_or("", String::as_str).into();
        let n_prompt = finished.map_or(0, |finished| finished.stats.prompt_tokens);
        last["tokens_cached"] = (n_prompt + answer.n_tokens).into();
        add_costs(&mut last, &self.finished[index..=index], 1);
        last
    }

    fn settings(&self) -> Value {
        let sampling = &self.sampling;
        // As decimal fractions: 0.6, not the f32 that is nearest to it.
        let number = |value: f32| (f64::from(value) * 1e6).round() / 1e6;
        let limit = sampling.max_tokens.map_or(json!(-1), |n| json!(n));
        let mut biases: Vec<Value> = sampling
            .logit_bias
            .iter()
            .map(|(token, bias)| json!({"token": token, "bias": number(*bias)}))
            .collect();
        if sampling.ignore_eos {
            // None of these can come, which JSON has no number for.
            let end = self.model.end().into_iter();
            biases.extend(end.map(|token| json!({"token": token, "bias": null})));
        }
        json!({
            "n_predict": limit,
            "max_tokens": limit,
            "seed": sampling.seed,
            "temperature": number(sampling.temperature),
            "top_k": sampling.top_k,
            "top_p": number(sampling.top_p),
            "min_p": number(sampling.min_p),
            "repeat_penalty": number(sampling.repetition_penalty),
            "presence_penalty": number(sampling.presence_penalty),
            "frequency_penalty": number(sampling.frequency_penalty),
            "stop": sampling.stop,
            "ignore_eos": sampling.ignore_eos,
            "logit_bias": biases,
            "n_probs": sampling.logprobs.unwrap_or(0),
            "stream": self.streams,
        })
    }

    /// The fields that the client chose, by their paths.
    fn chosen(&self, answer: Value) -> Value {
        if self.options.fields.is_empty() {
            return answer;
        }
        let found = |path: &String| {
            let value = path.split('/').try_fold(&answer, |value, name| value.get(name))?;
            Some((path.clone(), value.clone()))
        };
        Value::Object(self.options.fields.iter().filter_map(found).collect::<Map<_, _>>())
    }
}

impl ResponseWriter for LlamaWriter {
    const FRAMING: Framing = Framing::Plain;

    fn id(&self) -> &str {
        &self.id
    }

    fn start(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn progress(&mut self, choice: usize, progress: &Progress) -> Vec<Value> {
        let mut event = self.envelope(choice, "", &[], false);
        add_progress(&mut event, progress);
        vec![event]
    }

    fn token(&mut self, choice: usize, token: Token, _is_drafted: bool) -> Vec<Value> {
        let answer = &mut self.answers[choice];
        answer.n_tokens += 1;
        answer.has_new_line |= token.text.contains('\n');
        let entries = answer.pending.push(&token, &self.model.tokenizer);
        if !self.streams {
            answer.text.push_str(&token.text);
            answer.tokens.push(token.id);
            answer.entries.extend(entries);
            return Vec::new();
        }
        // Ids come with the text that they complete.
        answer.tokens.push(token.id);
        if token.text.is_empty() && entries.is_empty() {
            return Vec::new();
        }
        let tokens = std::mem::take(&mut answer.tokens);
        let mut event = self.envelope(choice, &token.text, &tokens, false);
        self.add_entries(&mut event, &entries);
        vec![event]
    }

    fn is_over(&self, _: usize) -> bool {
        false
    }

    fn end(&mut self, choice: usize, finished: Finished) -> Vec<Value> {
        self.finished[choice] = Some(finished);
        if !self.streams {
            return Vec::new();
        }
        let tokens = std::mem::take(&mut self.answers[choice].tokens);
        let last = self.last(choice, "", &tokens);
        vec![self.chosen(last)]
    }

    fn close(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Value> {
        Self::refuse(error)
    }

    fn refuse(error: &ApiError) -> Vec<Value> {
        vec![super::error_json(error)]
    }

    fn into_response(self) -> Value {
        let whole = |index: usize| {
            let answer = &self.answers[index];
            let tokens = if self.options.returns_tokens { &answer.tokens[..] } else { &[] };
            let mut whole = self.last(index, &answer.text, tokens);
            self.add_entries(&mut whole, &answer.entries);
            self.chosen(whole)
        };
        match self.options.is_list {
            true => (0..self.answers.len()).map(whole).collect(),
            false => whole(0),
        }
    }
}
