//! The fields that chats and completions share: how to sample, when to stop, how to answer.

use serde::Deserialize;
use weft_core::engine::Speculate;
use weft_core::sampling::{Sampling, random_seed};

use super::biases::LogitBias;
use super::drafts::{ApiSpeculate, Prediction};
use super::numbers::{Bounded, Count, Limit, Seed, TokenId};
use crate::api_error::ApiError;
use crate::model_info::ModelInfo;

/// Answers to one prompt: as many as there are lanes.
pub(crate) type Choices = Bounded<1, 8>;

/// Log-probabilities of prompts' tokens in one response: about 50 MB while it is written.
const MAX_ENTRIES: usize = 1 << 17;

/// Only the most likely token has this share of the probability for certain, in any vocabulary.
const SMALLEST_TOP_P: f32 = 1e-6;

/// The settings of an answer.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Settings {
    pub(crate) model: Option<String>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    n: Option<Choices>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    /// -1 means off, as in vLLM, and so does 0.
    top_k: Option<Bounded<-1, { u32::MAX as i64 }>>,
    min_p: Option<f32>,
    #[serde(alias = "repeat_penalty")]
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    seed: Option<Seed>,
    stop: Option<Stops>,
    stop_token_ids: Option<Vec<TokenId>>,
    /// LM Studio's clients send -1.
    max_tokens: Option<Limit>,
    max_completion_tokens: Option<Limit>,
    /// llama.cpp's name.
    n_predict: Option<Limit>,
    min_tokens: Option<Count>,
    ignore_eos: Option<bool>,
    logit_bias: Option<LogitBias>,
    /// Whether cached rows are used and new rows are cached.
    cache_prompt: Option<bool>,
    /// Whether a stream says how far its prompt is; llama.cpp's name.
    return_progress: Option<bool>,
    /// How much is drafted.
    speculate: Option<ApiSpeculate>,
    prediction: Option<Prediction>,
    /// Whether events of a stream say how many of their tokens were drafted.
    return_accepted: Option<bool>,
    /// Whether an answer has the ids of its tokens; vLLM's name.
    return_token_ids: Option<bool>,
    /// Whether a chat's answer has the model's thoughts; vLLM's name.
    include_reasoning: Option<bool>,
    /// Log-probabilities of each token of the prompt and of this many others; vLLM's name.
    prompt_logprobs: Option<Bounded<0, 20>>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(expecting = "an object with include_usage")]
struct StreamOptions {
    include_usage: Option<bool>,
    /// Whether each event has the usage so far; vLLM's name.
    continuous_usage_stats: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a string or a list of strings")]
enum Stops {
    One(String),
    Many(Vec<String>),
}

impl Settings {
    /// Whether the answer is streamed.
    pub(crate) fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// Whether a stream ends with its usage.
    pub(crate) fn includes_usage(&self) -> bool {
        self.stream_options.and_then(|options| options.include_usage).unwrap_or(false)
    }

    /// Whether each event of a stream has the usage so far.
    pub(crate) fn includes_running_usage(&self) -> bool {
        let asks = |options: StreamOptions| options.continuous_usage_stats;
        self.includes_usage() && self.stream_options.and_then(asks).unwrap_or(false)
    }

    /// Whether thoughts are part of the answer.
    pub(crate) fn includes_reasoning(&self) -> bool {
        self.include_reasoning.unwrap_or(true)
    }

    /// Sets whether the answer is streamed.
    pub(crate) fn set_streams(&mut self, streams: bool) {
        self.stream = Some(streams);
    }

    /// Sets the most tokens of the answer; other names of the limit have no effect then.
    pub(crate) fn set_max_tokens(&mut self, n: usize) {
        self.max_completion_tokens = Some(Limit::nearest(n));
    }

    /// Lets the answer have as many tokens as fit.
    pub(crate) fn set_unlimited(&mut self) {
        self.max_completion_tokens = Some(Limit::UNLIMITED);
    }

    /// Sets the texts that end the answer.
    pub(crate) fn set_stops(&mut self, stops: Vec<String>) {
        self.stop = Some(Stops::Many(stops));
    }

    /// Makes a stream report how far its prompt is, which its writer needs.
    pub(crate) fn want_progress(&mut self) {
        self.return_progress = Some(true);
    }

    /// Refuses several answers, for dialects that have room for one.
    pub(crate) fn check_single(&self) -> Result<(), ApiError> {
        if self.choices() > 1 {
            let message = "this route gives one answer, so n must be 1; send several requests";
            return Err(ApiError::invalid(message).param("n"));
        }
        Ok(())
    }

    /// Answers to one prompt.
    pub(crate) fn choices(&self) -> usize {
        self.n.map_or(1, Bounded::count)
    }

    /// Whether events with the progress of the prompt come before the first token.
    pub(crate) fn sends_progress(&self) -> bool {
        self.streams() && self.return_progress.unwrap_or(false)
    }

    /// How much is drafted; as the server is set if it is `None`.
    pub(crate) fn speculate(&self) -> Option<Speculate> {
        self.speculate.map(|speculate| speculate.0)
    }

    /// The tokens of the client's draft. More than the context holds cannot be of use.
    pub(crate) fn prediction(&self, model: &ModelInfo) -> Result<Option<Vec<u32>>, ApiError> {
        let Some(prediction) = &self.prediction else { return Ok(None) };
        let mut tokens = model.tokenizer.encode_text(&prediction.text())?;
        tokens.truncate(model.context);
        Ok(Some(tokens))
    }

    /// Whether events of a stream say how many of their tokens were drafted.
    pub(crate) fn sends_accepted(&self) -> bool {
        self.return_accepted.unwrap_or(false)
    }

    /// Whether an answer has the ids of its tokens and of its prompt's.
    pub(crate) fn returns_ids(&self) -> bool {
        self.return_token_ids.unwrap_or(false)
    }

    pub(crate) fn uses_cache(&self) -> bool {
        self.cache_prompt.unwrap_or(true)
    }

    /// Log-probabilities of each token of the prompt and of this many others, if they are wanted.
    pub(crate) fn prompt_logprobs(&self) -> Option<usize> {
        self.prompt_logprobs.map(Bounded::count)
    }

    /// Refuses more log-probabilities of prompts than a complete response may have. `n_tokens` are
    /// those of all prompts, and `top` of each an echo reports, if it does.
    pub(crate) fn check_entries(
        &self,
        n_tokens: usize,
        echoed: Option<usize>,
    ) -> Result<(), ApiError> {
        // Those of an echo are sent as they come if the answer is streamed.
        let echoed = echoed.filter(|_| !self.streams()).map_or(0, |top| top + 1);
        let own = self.prompt_logprobs().map_or(0, |top| top + 1);
        let n = n_tokens.saturating_mul(self.choices()).saturating_mul(own + echoed);
        if n <= MAX_ENTRIES {
            return Ok(());
        }
        let (param, instead) = match self.prompt_logprobs {
            Some(_) => ("prompt_logprobs", "ask for fewer of each token, or send shorter prompts"),
            None => ("logprobs", "ask for fewer of each token, send fewer prompts, or stream"),
        };
        let message = format!(
            "the log-probabilities of {n_tokens} tokens of prompts would be {n} entries, and the \
             limit is {MAX_ENTRIES}; {instead}"
        );
        Err(ApiError::invalid(message).param(param))
    }

    /// Checks fields against one another.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        if self.prompt_logprobs.is_some() && self.streams() {
            let message = "prompt_logprobs are not sent in a stream; set stream to false";
            return Err(ApiError::invalid(message).param("prompt_logprobs"));
        }
        if self.stream_options.is_some() && !self.streams() {
            let message = "stream_options is for streams only; set stream to true, or leave it out";
            return Err(ApiError::invalid(message).param("stream_options"));
        }
        Ok(())
    }

    /// Refuses settings that conflict with a rule for the answer.
    pub(crate) fn check_rule(&self, has_rule: bool) -> Result<(), ApiError> {
        let forbids_the_end =
            self.ignore_eos.unwrap_or(false) || self.min_tokens.is_some_and(|n| n.count() > 0);
        if has_rule && forbids_the_end {
            let message = "ignore_eos and min_tokens cannot be combined with response_format or a \
                           required tool: the answer ends where its rule ends";
            return Err(ApiError::invalid(message).param("response_format"));
        }
        Ok(())
    }

    /// The request's sampling settings over the model's own; checked.
    pub(crate) fn sampling(
        &self,
        model: &ModelInfo,
        thinking: Option<bool>,
        logprobs: Option<usize>,
        echo: bool,
    ) -> Result<Sampling, ApiError> {
        let mut sampling = model.sampling(thinking);
        self.set_numbers(&mut sampling);
        self.set_ends(&mut sampling);
        if let Some(biases) = &self.logit_bias {
            sampling.logit_bias = biases.by_token(&model.tokenizer)?;
        }
        sampling.logprobs = logprobs;
        sampling.echo = echo;
        sampling.prompt_logprobs = self.prompt_logprobs();
        // Ids too large for the type are outside the vocabulary like any other id beyond its end.
        sampling.check(model.vocab())?;
        Ok(sampling)
    }

    fn set_numbers(&self, sampling: &mut Sampling) {
        let set = |to: &mut f32, wanted: Option<f32>| *to = wanted.unwrap_or(*to);
        set(&mut sampling.temperature, self.temperature);
        // OpenAI's clients send 0 for the most likely token alone.
        set(&mut sampling.top_p, self.top_p.map(|p| if p == 0.0 { SMALLEST_TOP_P } else { p }));
        set(&mut sampling.min_p, self.min_p);
        set(&mut sampling.repetition_penalty, self.repetition_penalty);
        set(&mut sampling.presence_penalty, self.presence_penalty);
        set(&mut sampling.frequency_penalty, self.frequency_penalty);
        sampling.top_k = self.top_k.map_or(sampling.top_k, Bounded::count);
        sampling.seed = match self.seed {
            Some(Seed::Fixed(seed)) => seed,
            Some(Seed::Random) | None => random_seed(),
        };
    }

    fn set_ends(&self, sampling: &mut Sampling) {
        if let Some(limit) = self.max_completion_tokens.or(self.max_tokens).or(self.n_predict) {
            sampling.max_tokens = (limit.get() >= 0).then(|| limit.count());
        }
        sampling.min_tokens = self.min_tokens.map_or(sampling.min_tokens, Bounded::count);
        sampling.ignore_eos = self.ignore_eos.unwrap_or(false);
        sampling.stop = match &self.stop {
            None => Vec::new(),
            Some(Stops::One(stop)) => vec![stop.clone()],
            Some(Stops::Many(stops)) => stops.clone(),
        };
        let ids = self.stop_token_ids.iter().flatten();
        sampling.stop_ids = ids.map(|id| id.get() as u32).collect();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use weft_testing::stub;

    use super::*;
    use crate::model_info::Loaded;
    use crate::requests::fields;

    fn settings(json: &Value) -> Settings {
        fields(json).unwrap()
    }

    #[test]
    fn the_newest_name_of_a_limit_wins() {
        let limit = |json: Value| {
            let mut sampling = Sampling { max_tokens: Some(77), ..Sampling::default() };
            settings(&json).set_ends(&mut sampling);
            sampling.max_tokens
        };
        assert_eq!(limit(json!({})), Some(77), "the model's own");
        assert_eq!(limit(json!({"n_predict": 3})), Some(3));
        assert_eq!(limit(json!({"n_predict": 3, "max_tokens": 2})), Some(2));
        let all = json!({"n_predict": 3, "max_tokens": 2, "max_completion_tokens": 1});
        assert_eq!(limit(all), Some(1));
        assert_eq!(limit(json!({"max_tokens": -1})), None, "as many as fit");
    }

    /// A response has the entries of all its choices, its own and those of an echo.
    #[test]
    fn entries_of_prompts_are_bounded_together() {
        let fits =
            |json: Value, n_tokens, echoed| settings(&json).check_entries(n_tokens, echoed).is_ok();
        let most = MAX_ENTRIES / 4;
        assert!(fits(json!({"prompt_logprobs": 3}), most, None));
        assert!(!fits(json!({"prompt_logprobs": 3}), most + 1, None));
        assert!(fits(json!({"prompt_logprobs": 3, "n": 2}), most / 2, None));
        assert!(!fits(json!({"prompt_logprobs": 3, "n": 2}), most / 2 + 1, None));
        assert!(fits(json!({"prompt_logprobs": 1}), most, Some(1)));
        assert!(!fits(json!({"prompt_logprobs": 1}), most + 1, Some(1)));
        assert!(fits(json!({"stream": true}), usize::MAX, Some(20)), "sent as they come");
        assert!(fits(json!({}), usize::MAX, None));
    }

    /// As in vLLM.
    #[test]
    fn usage_in_each_event_is_part_of_usage_at_the_end() {
        let asks = |options: Value| settings(&json!({"stream_options": options}));
        let both = asks(json!({"include_usage": true, "continuous_usage_stats": true}));
        assert!(both.includes_running_usage());
        for options in [
            json!({"continuous_usage_stats": true}),
            json!({"include_usage": false, "continuous_usage_stats": true}),
            json!({"include_usage": true}),
        ] {
            assert!(!asks(options.clone()).includes_running_usage(), "{options}");
        }
    }

    #[test]
    fn a_share_of_nothing_still_has_the_most_likely_token() {
        let top_p = |json: Value| {
            let mut sampling = Sampling { top_p: 0.75, ..Sampling::default() };
            settings(&json).set_numbers(&mut sampling);
            sampling.top_p
        };
        assert_eq!(top_p(json!({})), 0.75);
        assert_eq!(top_p(json!({"top_p": 0.5})), 0.5);
        let smallest = top_p(json!({"top_p": 0}));
        assert!(smallest > 0.0 && smallest < 1e-5, "{smallest}");
    }

    #[test]
    fn a_seed_of_minus_one_is_a_new_one_for_each_answer() {
        let seed = |json: Value| {
            let mut sampling = Sampling::default();
            settings(&json).set_numbers(&mut sampling);
            sampling.seed
        };
        assert_eq!(seed(json!({"seed": 7})), 7);
        assert_ne!(seed(json!({"seed": -1})), seed(json!({"seed": -1})));
    }

    /// No field has its default, so none can be missed.
    #[test]
    fn every_field_reaches_the_sampler() {
        let model = stub::model();
        let engine = stub::engine(&model, "a", &Arc::default());
        let info = ModelInfo::new(&Loaded::new("stub", model, engine));
        let body = json!({"temperature": 0.25, "top_k": 7, "top_p": 0.75, "min_p": 0.125,
            "repetition_penalty": 1.25, "presence_penalty": 0.5, "frequency_penalty": -0.5,
            "logit_bias": {"5": 1.5}, "seed": 9, "stop": ["x", "y"], "stop_token_ids": [3, 4],
            "max_tokens": 11, "min_tokens": 2, "ignore_eos": true, "prompt_logprobs": 2});
        let wanted = Sampling {
            temperature: 0.25,
            top_k: 7,
            top_p: 0.75,
            min_p: 0.125,
            repetition_penalty: 1.25,
            presence_penalty: 0.5,
            frequency_penalty: -0.5,
            logit_bias: vec![(5, 1.5)],
            seed: 9,
            stop: vec!["x".to_owned(), "y".to_owned()],
            stop_ids: vec![3, 4],
            max_tokens: Some(11),
            min_tokens: 2,
            ignore_eos: true,
            logprobs: Some(3),
            echo: true,
            prompt_logprobs: Some(2),
        };
        assert_eq!(settings(&body).sampling(&info, None, Some(3), true).unwrap(), wanted);
    }

    #[test]
    fn an_answer_with_a_rule_ends_where_the_rule_ends() {
        for forbidden in [json!({"ignore_eos": true}), json!({"min_tokens": 1})] {
            let settings = settings(&forbidden);
            assert!(settings.check_rule(false).is_ok());
            assert!(settings.check_rule(true).is_err(), "{forbidden}");
        }
        let harmless = settings(&json!({"ignore_eos": false, "min_tokens": 0}));
        assert!(harmless.check_rule(true).is_ok());
    }
}
