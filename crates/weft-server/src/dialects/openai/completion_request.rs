//! The body of a plain completion in OpenAI's words: prompts as texts or tokens.

use serde::Deserialize;
use serde_json::Value;

use crate::api_error::ApiError;
use crate::dialects::texts::{Prompts, TextsRequest};
use crate::requests::{Bounded, Count, FromJson, OutputFormat, fields, unsupported};

/// A completion.
pub(crate) struct CompletionRequest(pub(crate) TextsRequest);

#[derive(Debug, Deserialize)]
struct Completion {
    prompt: Prompts,
    echo: Option<bool>,
    logprobs: Option<Bounded<0, 20>>,
    best_of: Option<Count>,
    suffix: Option<String>,
    parse_special: Option<bool>,
}

impl FromJson for CompletionRequest {
    fn from_json(json: &Value) -> Result<Self, ApiError> {
        Prompts::check(json)?;
        unsupported::refuse(json)?;
        let (settings, format) = (fields(json)?, OutputFormat::rule_of(json)?);
        let completion: Completion = fields(json)?;
        let texts = TextsRequest {
            settings,
            format,
            prompts: completion.prompt.into_list(),
            echoes: completion.echo.unwrap_or(false),
            logprobs: completion.logprobs.map(Bounded::count),
            parses_special: completion.parse_special.unwrap_or(false),
        };
        let texts = texts.checked()?;
        if completion.best_of.is_some_and(|best| best.count() != texts.settings.choices()) {
            let message = "best_of must equal n: weft does not choose among more answers";
            return Err(ApiError::invalid(message).param("best_of"));
        }
        if completion.suffix.is_some_and(|suffix| !suffix.is_empty()) {
            let message = "suffix is not supported: weft continues text and does not fill in";
            return Err(ApiError::invalid(message).param("suffix"));
        }
        Ok(Self(texts))
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
