//! Texts that are continued without a template: what the dialects that can ask for it share, from a
//! request that was read to its answer.

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde::de::{self, Deserializer};
use serde_json::Value;
use weft_core::chunk::Composition;
use weft_core::engine::Request;
use weft_core::sampling::Sampling;

use super::answer::{answer_jobs, compile_rule};
use crate::api_error::ApiError;
use crate::app::{App, off_thread};
use crate::grammars::Rule;
use crate::http::Body;
use crate::model_info::ModelInfo;
use crate::registry::Lease;
use crate::requests::{Settings, TokenId};
use crate::responses::{Recorder, ResponseWriter, complete, stream, when_loaded};

/// The most answers of one request, over all its prompts.
const MAX_ANSWERS: usize = 32;

/// More tokens than any context holds: a longer prompt is refused before it is read.
const MAX_PROMPT_TOKENS: usize = 1 << 20;

/// Texts to continue.
pub(crate) struct TextsRequest {
    pub(crate) settings: Settings,
    /// The rule of the answers' format, and the field that it comes from.
    pub(crate) format: Option<(&'static str, Rule)>,
    pub(crate) prompts: Vec<Prompt>,
    /// Whether answers begin with their prompts.
    pub(crate) echoes: bool,
    /// Log-probabilities of each token and of this many others.
    pub(crate) logprobs: Option<usize>,
    /// Whether special tokens such as `<|im_end|>` in a text are read as tokens.
    pub(crate) parses_special: bool,
}

/// One prompt.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<TokenId>),
    /// Tokens and texts in a row, as llama.cpp takes them.
    Mixed(Mixed),
}

/// Tokens and texts in a row: at least one of each, or else it is a list of prompts.
#[derive(Clone, Debug)]
pub(crate) struct Mixed(Vec<Part>);

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Part {
    Text(String),
    Token(TokenId),
}

impl<'de> Deserialize<'de> for Mixed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parts = Vec::<Part>::deserialize(deserializer)?;
        let n_texts = parts.iter().filter(|part| matches!(part, Part::Text(_))).count();
        match (1..parts.len()).contains(&n_texts) {
            true => Ok(Self(parts)),
            false => Err(de::Error::custom("these are several prompts")),
        }
    }
}

/// One prompt or several.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "a string, a list of token ids (whole numbers from 0), or a list of either"
)]
pub(crate) enum Prompts {
    One(Prompt),
    Many(Vec<Prompt>),
}

impl Prompts {
    /// Refuses a field that has more entries than any prompt, before it is read.
    pub(crate) fn check(json: &Value) -> Result<(), ApiError> {
        let n = json.get("prompt").and_then(Value::as_array).map_or(0, Vec::len);
        if n > MAX_PROMPT_TOKENS {
            let message = format!("the prompt has {n} entries, more than any context holds");
            return Err(ApiError::invalid(message).param("prompt"));
        }
        Ok(())
    }

    pub(crate) fn is_list(&self) -> bool {
        matches!(self, Self::Many(_))
    }

    pub(crate) fn into_list(self) -> Vec<Prompt> {
        match self {
            Self::One(prompt) => vec![prompt],
            Self::Many(prompts) => prompts,
        }
    }
}

impl TextsRequest {
    /// Checks the parts against one another. Every reader calls it last.
    pub(crate) fn checked(self) -> Result<Self, ApiError> {
        self.settings.check()?;
        self.settings.check_rule(self.format.is_some())?;
        let answers = self.prompts.len() * self.settings.choices();
        if answers > MAX_ANSWERS {
            let message = format!("that is {answers} answers, and the limit is {MAX_ANSWERS}");
            return Err(ApiError::invalid(message).param("prompt"));
        }
        Ok(self)
    }

    /// The prompts as the engine runs them.
    pub(crate) fn compose(&self, model: &ModelInfo) -> Result<Vec<Composition>, ApiError> {
        let empty = || ApiError::invalid("the prompt is empty; give some text").param("prompt");
        if self.prompts.is_empty() {
            return Err(empty());
        }
        let compose = |prompt: &Prompt| {
            let tokens = prompt.tokens(model, self.parses_special)?;
            if tokens.is_empty() {
                return Err(empty());
            }
            model.check_length(tokens.len())?;
            Ok(tokens.into())
        };
        self.prompts.iter().map(compose).collect()
    }

    /// How the answers are sampled; checked.
    pub(crate) fn sampling(&self, model: &ModelInfo) -> Result<Sampling, ApiError> {
        self.settings.sampling(model, Some(false), self.logprobs, self.echoes)
    }

    /// The rule that the answers must follow, and the field that it comes from.
    pub(crate) fn rule(&self) -> (Option<Rule>, &'static str) {
        match &self.format {
            Some((param, rule)) => (Some(rule.clone()), param),
            None => (None, "response_format"),
        }
    }
}

impl Prompt {
    fn tokens(&self, model: &ModelInfo, parses_special: bool) -> Result<Vec<u32>, ApiError> {
        let encode = |text: &str| match parses_special {
            true => model.tokenizer.encode_markup(text),
            false => model.tokenizer.encode_text(text),
        };
        match self {
            Self::Text(text) if parses_special => {
                Ok([model.tokenizer.bos(), &encode(text)?].concat())
            }
            Self::Text(text) => Ok(model.tokenizer.encode_with_bos(text)?),
            Self::Tokens(ids) => ids.iter().map(|id| checked_id(*id, model)).collect(),
            Self::Mixed(Mixed(parts)) => {
                let mut tokens = Vec::new();
                for part in parts {
                    match part {
                        Part::Token(id) => tokens.push(checked_id(*id, model)?),
                        Part::Text(text) => {
                            if tokens.is_empty() {
                                tokens.extend(model.tokenizer.bos());
                            }
                            tokens.extend(encode(text)?);
                        }
                    }
                }
                Ok(tokens)
            }
        }
    }
}

fn checked_id(id: TokenId, model: &ModelInfo) -> Result<u32, ApiError> {
    let vocab = model.vocab();
    if id.count() >= vocab {
        let message = format!(
            "token {} is not in the vocabulary: ids go from 0 to {}",
            id.get(),
            vocab.saturating_sub(1)
        );
        return Err(ApiError::invalid(message).param("prompt"));
    }
    Ok(id.get() as u32)
}

/// What a writer needs to know about the answers that it writes.
pub(crate) struct Continuing {
    pub(crate) model: Arc<ModelInfo>,
    pub(crate) sampling: Sampling,
    pub(crate) request: TextsRequest,
    pub(crate) prompts: Vec<Composition>,
}

/// Continues texts, whole or streamed, with the writer that is made for it, when the model is
/// loaded.
pub(crate) async fn continue_texts<W: ResponseWriter>(
    app: &Arc<App>,
    body: Body<TextsRequest>,
    writer: impl FnOnce(&Continuing) -> W + Send + 'static,
) -> Result<Response, ApiError> {
    let settings = &body.value.settings;
    let found = app.models.find(settings.model.as_deref()).await?;
    let streams = settings.streams();
    let later = Arc::clone(app);
    let answer = async move |lease| continue_by(&later, lease, body, writer).await;
    when_loaded::<W, _>(app, found, streams, answer).await
}

/// Continues texts by a model.
async fn continue_by<W: ResponseWriter>(
    app: &Arc<App>,
    lease: Lease,
    body: Body<TextsRequest>,
    writer: impl FnOnce(&Continuing) -> W,
) -> Result<Response, ApiError> {
    let model = Arc::clone(lease.info());
    let Body { value: request, bytes, share } = body;
    let sampling = request.sampling(&model)?;
    let compose = {
        let model = Arc::clone(&model);
        move || {
            let prediction = request.settings.prediction(&model)?;
            Ok((request.compose(&model)?, prediction, request))
        }
    };
    let (prompts, prediction, request) = off_thread(bytes, compose).await?;
    drop(share);
    let (rule, param) = request.rule();
    let constraint = compile_rule(&model, rule, param).await?;
    let n_tokens = prompts.iter().map(Composition::len).sum();
    let echoed = sampling.logprobs.filter(|_| request.echoes);
    request.settings.check_entries(n_tokens, echoed)?;
    let continuing = Continuing { model, sampling, request, prompts };
    let writer = writer(&continuing);
    let Continuing { sampling, request, prompts, .. } = continuing;
    let settings = &request.settings;
    let recorder = Recorder::new(app, &lease, writer.id(), prompts[0].clone());
    let jobs = prompts
        .iter()
        .flat_map(|prompt| {
            let request = Request {
                use_cache: settings.uses_cache(),
                constraint: constraint.clone(),
                speculate: settings.speculate(),
                prediction: prediction.clone(),
                ..Request::new(prompt.clone(), sampling.clone())
            };
            answer_jobs(request, settings.choices(), settings.sends_progress())
        })
        .collect();
    let handle = lease.submit(jobs).await?;
    Ok(lease.mark(match settings.streams() {
        true => stream(handle, writer, recorder).await?,
        false => Json(complete(handle, writer, recorder).await?).into_response(),
    }))
}
