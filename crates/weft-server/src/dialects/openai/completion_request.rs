//! The body of a plain completion: prompts as texts or tokens.

use serde::Deserialize;
use serde_json::Value;
use weft_core::chunk::Composition;
use weft_core::sampling::Sampling;

use crate::api_error::ApiError;
use crate::grammars::Rule;
use crate::model_info::ModelInfo;
use crate::requests::{
    Bounded, Count, FromJson, OutputFormat, Settings, TokenId, fields, unsupported,
};

/// The most answers of one request, over all its prompts.
const MAX_ANSWERS: usize = 32;

/// More tokens than any context holds: a longer prompt is refused before it is read.
const MAX_PROMPT_TOKENS: usize = 1 << 20;

/// A completion.
pub(crate) struct CompletionRequest {
    pub(crate) settings: Settings,
    format: OutputFormat,
    completion: Completion,
}

#[derive(Debug, Deserialize)]
struct Completion {
    prompt: Prompts,
    echo: Option<bool>,
    logprobs: Option<Bounded<0, 20>>,
    best_of: Option<Count>,
    suffix: Option<String>,
    /// Whether special tokens such as `<|im_end|>` in a text are read as tokens.
    parse_special: Option<bool>,
}

/// One prompt.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<TokenId>),
}

#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "a string, a list of token ids (whole numbers from 0), or a list of either"
)]
enum Prompts {
    One(Prompt),
    Many(Vec<Prompt>),
}

impl FromJson for CompletionRequest {
    fn from_json(json: &Value) -> Result<Self, ApiError> {
        let n = json.get("prompt").and_then(Value::as_array).map_or(0, Vec::len);
        if n > MAX_PROMPT_TOKENS {
            let message = format!("the prompt has {n} entries, more than any context holds");
            return Err(ApiError::invalid(message).param("prompt"));
        }
        unsupported::refuse(json)?;
        let (settings, format) = (fields(json)?, fields(json)?);
        let request = Self { settings, format, completion: fields(json)? };
        request.check()?;
        Ok(request)
    }
}

impl CompletionRequest {
    fn check(&self) -> Result<(), ApiError> {
        self.settings.check()?;
        self.format.check()?;
        self.settings.check_rule(self.rule().is_some())?;
        let n = self.settings.choices();
        let answers = self.prompts().len() * n;
        if answers > MAX_ANSWERS {
            let message = format!("that is {answers} answers, and the limit is {MAX_ANSWERS}");
            return Err(ApiError::invalid(message).param("prompt"));
        }
        if self.completion.best_of.is_some_and(|best| best.count() != n) {
            let message = "best_of must equal n: weft does not choose among more answers";
            return Err(ApiError::invalid(message).param("best_of"));
        }
        if self.completion.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
            let message = "suffix is not supported: weft continues text and does not fill in";
            return Err(ApiError::invalid(message).param("suffix"));
        }
        Ok(())
    }

    /// The prompts, at least one.
    pub(crate) fn prompts(&self) -> &[Prompt] {
        match &self.completion.prompt {
            Prompts::One(prompt) => std::slice::from_ref(prompt),
            Prompts::Many(prompts) => prompts,
        }
    }

    /// The rule that the answer must follow, if there is one.
    pub(crate) fn rule(&self) -> Option<Rule> {
        self.format.rule()
    }

    /// The field that the rule comes from.
    pub(crate) fn rule_param(&self) -> &'static str {
        self.format.param()
    }

    /// Whether the answer begins with the prompt.
    pub(crate) fn echoes(&self) -> bool {
        self.completion.echo.unwrap_or(false)
    }

    /// The prompts as the engine runs them.
    pub(crate) fn compose(&self, model: &ModelInfo) -> Result<Vec<Composition>, ApiError> {
        let empty = || ApiError::invalid("the prompt is empty; give some text").param("prompt");
        if self.prompts().is_empty() {
            return Err(empty());
        }
        let compose = |prompt: &Prompt| {
            let tokens = prompt.tokens(model, self.completion.parse_special.unwrap_or(false))?;
            if tokens.is_empty() {
                return Err(empty());
            }
            model.check_length(tokens.len())?;
            Ok(tokens.into())
        };
        self.prompts().iter().map(compose).collect()
    }

    /// How the answers are sampled; checked.
    pub(crate) fn sampling(&self, model: &ModelInfo) -> Result<Sampling, ApiError> {
        let logprobs = self.completion.logprobs.map(Bounded::count);
        self.settings.sampling(model, Some(false), logprobs, self.echoes())
    }
}

impl Prompt {
    fn tokens(&self, model: &ModelInfo, parse_special: bool) -> Result<Vec<u32>, ApiError> {
        match self {
            Self::Text(text) if parse_special => {
                let tokenizer = &model.tokenizer;
                Ok([tokenizer.bos(), &tokenizer.encode_markup(text)?].concat())
            }
            Self::Text(text) => Ok(model.tokenizer.encode_with_bos(text)?),
            Self::Tokens(ids) => {
                let vocab = model.vocab();
                if let Some(id) = ids.iter().find(|id| id.count() >= vocab) {
                    let message = format!(
                        "token {} is not in the vocabulary: ids go from 0 to {}",
                        id.get(),
                        vocab.saturating_sub(1)
                    );
                    return Err(ApiError::invalid(message).param("prompt"));
                }
                Ok(ids.iter().map(|id| id.get() as u32).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_weft_does_not_do_is_refused_by_its_field() {
        let param = |json: Value| match CompletionRequest::from_json(&json) {
            Ok(_) => Value::Null,
            Err(error) => error.json()["error"]["param"].clone(),
        };
        assert_eq!(param(json!({"prompt": "a", "n": 2, "best_of": 2, "suffix": ""})), Value::Null);
        assert_eq!(param(json!({"prompt": "a", "n": 2, "best_of": 3})), "best_of");
        assert_eq!(param(json!({"prompt": "a", "best_of": 2})), "best_of");
        assert_eq!(param(json!({"prompt": "a", "suffix": "b"})), "suffix");
        let prompts = |n: usize| json!({"prompt": vec!["a"; n], "n": 8});
        assert_eq!(param(prompts(4)), Value::Null);
        assert_eq!(param(prompts(5)), "prompt");
    }
}
