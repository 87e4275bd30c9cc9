//! The body of a completion in llama.cpp's words.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::api_error::ApiError;
use crate::dialects::texts::{Prompts, TextsRequest};
use crate::requests::{Bounded, FromJson, OutputFormat, Settings, fields, unsupported};

/// The most fields that a client may choose, and the bytes of one.
const MAX_FIELDS: (usize, usize) = (64, 128);

/// A completion.
pub(crate) struct LlamaCompletion {
    pub(crate) texts: TextsRequest,
    pub(super) options: LlamaOptions,
}

/// How the answer is written.
#[derive(Debug)]
pub(super) struct LlamaOptions {
    /// Whether there is an answer for each prompt of a list.
    pub(super) is_list: bool,
    /// Whether a whole answer has the ids of its tokens.
    pub(super) returns_tokens: bool,
    /// The fields of the answer, as paths; all if there are none.
    pub(super) fields: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Read {
    prompt: Prompts,
    n_probs: Option<Bounded<0, 20>>,
    return_tokens: Option<bool>,
    response_fields: Option<Vec<String>>,
}

/// Fields of llama.cpp that would change the answer, and what to do instead.
const UNSUPPORTED: [(&str, &str); 4] = [
    ("post_sampling_probs", "probabilities are those before sampling"),
    ("image_data", "prompts are text"),
    ("t_max_predict_ms", "limit the tokens with n_predict"),
    ("n_indent", "use a grammar"),
];

impl FromJson for LlamaCompletion {
    fn from_json(json: &Value) -> Result<Self, ApiError> {
        Prompts::check(json)?;
        unsupported::refuse_elsewhere(json)?;
        for (field, instead) in UNSUPPORTED {
            let is_off = |value: &Value| match value {
                Value::Null | Value::Bool(false) => true,
                Value::Number(number) => number.as_f64() == Some(0.0),
                Value::Array(items) => items.is_empty(),
                _ => false,
            };
            if json.get(field).is_some_and(|value| !is_off(value)) {
                let message = format!("{field} is not supported: {instead}");
                return Err(ApiError::invalid(message).param(field));
            }
        }
        let settings: Settings = fields(&with_listed_biases(json))?;
        settings.check_single()?;
        let format = OutputFormat::rule_of(json)?;
        let mut with_texts = json!({});
        for field in ["prompt", "n_probs", "return_tokens", "response_fields"] {
            with_texts[field] = json.get(field).cloned().unwrap_or_default();
        }
        with_texts["prompt"] = texts_of(with_texts["prompt"].take())?;
        if with_texts["prompt"].is_null() {
            return Err(ApiError::invalid("prompt is missing").param("prompt"));
        }
        let read: Read = fields(&with_texts)?;
        let chosen = read.response_fields.unwrap_or_default();
        let (most, most_bytes) = MAX_FIELDS;
        if chosen.len() > most || chosen.iter().any(|field| field.len() > most_bytes) {
            let message = format!("response_fields are at most {most} of {most_bytes} bytes");
            return Err(ApiError::invalid(message).param("response_fields"));
        }
        let options = LlamaOptions {
            is_list: read.prompt.is_list(),
            returns_tokens: read.return_tokens.unwrap_or(false),
            fields: chosen,
        };
        let texts = TextsRequest {
            settings,
            format,
            prompts: read.prompt.into_list(),
            echoes: false,
            logprobs: read.n_probs.map(Bounded::count).filter(|n| *n > 0),
            // The client has applied the template.
            parses_special: true,
        };
        Ok(Self { texts: texts.checked()?, options })
    }
}

/// The settings of a body, with biases as a list: here the keys of an object may be texts, too.
fn with_listed_biases(json: &Value) -> Value {
    let Value::Object(body) = json else { return json.clone() };
    let key = |key: &str| key.parse::<u32>().map_or_else(|_| json!(key), |id| json!(id));
    let settings = body.iter().filter(|(field, _)| *field != "prompt").map(|(field, value)| {
        let value = match value {
            Value::Object(biases) if field == "logit_bias" => {
                biases.iter().map(|(text, bias)| json!([key(text), bias])).collect()
            }
            value => value.clone(),
        };
        (field.clone(), value)
    });
    Value::Object(settings.collect())
}

/// A prompt, or a list of them, with texts instead of objects that hold one.
fn texts_of(prompt: Value) -> Result<Value, ApiError> {
    let text = |prompt: Value| match prompt {
        Value::Object(mut fields) => {
            let data = fields.get("multimodal_data").filter(|data| !data.is_null());
            if data.is_some_and(|data| data.as_array().is_none_or(|items| !items.is_empty())) {
                let message = "multimodal_data is not supported: prompts are text";
                return Err(ApiError::invalid(message).param("prompt"));
            }
            match fields.remove("prompt_string") {
                Some(text @ Value::String(_)) => Ok(text),
                _ => {
                    let message = "an object as prompt needs the string \"prompt_string\"";
                    Err(ApiError::invalid(message).param("prompt"))
                }
            }
        }
        other => Ok(other),
    };
    match prompt {
        Value::Array(prompts) if prompts.iter().any(Value::is_object) => {
            prompts.into_iter().map(text).collect::<Result<_, _>>().map(Value::Array)
        }
        other => text(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &Value) -> Result<LlamaCompletion, Value> {
        LlamaCompletion::from_json(json).map_err(|error| error.json()["error"]["param"].clone())
    }

    #[test]
    fn prompts_are_texts_tokens_or_both() {
        let n = |prompt: Value| {
            let read = read(&json!({"prompt": prompt})).unwrap_or_else(|_| panic!());
            (read.texts.prompts.len(), read.options.is_list)
        };
        assert_eq!(n(json!("a")), (1, false));
        assert_eq!(n(json!([1, 2])), (1, false));
        assert_eq!(n(json!([1, "a", 2])), (1, false));
        assert_eq!(n(json!({"prompt_string": "a"})), (1, false));
        assert_eq!(n(json!(["a", "b"])), (2, true));
        assert_eq!(n(json!([[1, 2], "b", {"prompt_string": "a"}])), (3, true));
    }

    #[test]
    fn what_weft_does_not_do_is_refused_by_its_field() {
        let param = |field: &str, value: Value| {
            read(&json!({"prompt": "a", field: value})).map(|_| ()).unwrap_err()
        };
        assert_eq!(param("post_sampling_probs", json!(true)), "post_sampling_probs");
        assert_eq!(param("image_data", json!([{"data": "", "id": 1}])), "image_data");
        assert_eq!(param("n", json!(2)), "n");
        assert_eq!(param("n_probs", json!(21)), "n_probs");
        assert_eq!(param("prompt", json!({"prompt_string": 1})), "prompt");
        assert_eq!(
            param("prompt", json!({"prompt_string": "a", "multimodal_data": ["x"]})),
            "prompt"
        );
        assert_eq!(param("prompt", json!([{"a": 1}])), "prompt");
        assert_eq!(param("response_fields", json!(vec!["a"; 65])), "response_fields");
        assert_eq!(read(&json!({})).map(|_| ()).unwrap_err(), "prompt");
        let off = json!({"prompt": "a", "post_sampling_probs": false, "image_data": [],
            "t_max_predict_ms": 0, "n_indent": 0, "samplers": ["top_k"], "id_slot": -1});
        assert!(read(&off).is_ok());
    }
}
