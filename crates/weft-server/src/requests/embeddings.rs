//! The body of a request for embeddings: texts or tokens, and the form of the vectors.

use serde::Deserialize;
use serde_json::Value;
use weft_core::chunk::Composition;
use weft_core::retrieval::{Passage, compose};

use super::json::{FromJson, fields};
use super::numbers::{Bounded, TokenId};
use crate::api_error::ApiError;
use crate::model_info::ModelInfo;

/// The most texts of one request, as with OpenAI.
const MAX_TEXTS: usize = 2048;
/// The most tokens of one request, over all its texts.
const MAX_TOKENS: usize = 1 << 20;

/// Texts to embed.
#[derive(Debug, Deserialize)]
pub(crate) struct EmbeddingsRequest {
    pub(crate) model: Option<String>,
    input: Input,
    dimensions: Option<Bounded<1, { u32::MAX as i64 }>>,
    encoding_format: Option<EncodingFormat>,
}

#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "a string, a list of token ids (whole numbers from 0), or a list of either"
)]
enum Input {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<TokenId>),
    Many(Vec<One>),
}

/// A text of a list that has token lists too.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum One {
    Tokens(Vec<TokenId>),
    Text(String),
}

/// How a vector is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EncodingFormat {
    /// As a list of numbers.
    #[default]
    Float,
    /// As the bytes of f32 numbers, little endian, in base64.
    Base64,
}

/// Fields of other servers that would change the vectors, their values that change nothing, and
/// how it is here.
const UNSUPPORTED: [(&str, &[&str], &str); 3] = [
    ("truncate_prompt_tokens", &[], "texts are never cut"),
    ("embed_dtype", &["float32"], "vectors are of 32-bit numbers"),
    ("endianness", &["native", "little"], "bytes are little endian"),
];

/// Fields that switch off the last step of a vector, by their values.
const NORMALIZED: [&str; 2] = ["normalize", "use_activation"];

impl FromJson for EmbeddingsRequest {
    fn from_json(json: &Value) -> Result<Self, ApiError> {
        let n = json.get("input").and_then(Value::as_array).map_or(0, Vec::len);
        if n > MAX_TOKENS {
            return Err(too_many_tokens(n));
        }
        for (field, fine, instead) in UNSUPPORTED {
            let value = json.get(field).filter(|value| !value.is_null());
            if value.is_some_and(|value| !fine.iter().any(|fine| value == fine)) {
                let message = format!("{field} is not supported: {instead}");
                return Err(ApiError::invalid(message).param(field));
            }
        }
        for field in NORMALIZED {
            if json.get(field).is_some_and(|value| *value == false) {
                let message = format!("{field} cannot be false: vectors have the length 1");
                return Err(ApiError::invalid(message).param(field));
            }
        }
        let request: Self = fields(json)?;
        let n = match &request.input {
            Input::Text(_) | Input::Tokens(_) => 1,
            Input::Texts(texts) => texts.len(),
            Input::Many(texts) => texts.len(),
        };
        if n > MAX_TEXTS {
            let message = format!("input has {n} texts, and the limit is {MAX_TEXTS}; send fewer");
            return Err(ApiError::invalid(message).param("input"));
        }
        Ok(request)
    }
}

fn too_many_tokens(n: usize) -> ApiError {
    let message = format!("input has {n} tokens, and the limit is {MAX_TOKENS}; send fewer texts");
    ApiError::invalid(message).param("input")
}

impl EmbeddingsRequest {
    pub(crate) fn encoding_format(&self) -> EncodingFormat {
        self.encoding_format.unwrap_or_default()
    }

    /// The number of values of a vector; all of the model's if it is `None`.
    pub(crate) fn dimensions(&self, model: &ModelInfo) -> Result<Option<usize>, ApiError> {
        let dimensions = self.dimensions.map(Bounded::count);
        match dimensions.filter(|n| *n > model.hidden) {
            Some(n) => {
                let most = model.hidden;
                let message = format!("dimensions is {n}, and this model's vectors have {most}");
                Err(ApiError::invalid(message).param("dimensions"))
            }
            None => Ok(dimensions),
        }
    }

    /// The prompts whose last tokens are read.
    pub(crate) fn compose(&self, model: &ModelInfo) -> Result<Vec<Composition>, ApiError> {
        let text = |text: &String| Ok(Passage::of_text(&model.tokenizer, text)?);
        let passages: Vec<Passage> = match &self.input {
            Input::Text(one) => vec![text(one)?],
            Input::Tokens(ids) => vec![tokens(ids, model)?],
            Input::Texts(texts) => texts.iter().map(text).collect::<Result<_, ApiError>>()?,
            Input::Many(texts) => {
                let one = |one: &One| match one {
                    One::Tokens(ids) => tokens(ids, model),
                    One::Text(words) => text(words),
                };
                texts.iter().map(one).collect::<Result<_, _>>()?
            }
        };
        if passages.is_empty() {
            return Err(ApiError::invalid("input is empty; give some text").param("input"));
        }
        if let Some(index) = passages.iter().position(Passage::is_empty) {
            let message = format!("text {index} of input is empty; leave it out");
            return Err(ApiError::invalid(message).param("input"));
        }
        passages.iter().try_for_each(|passage| model.check_length(passage.len()))?;
        let n_tokens: usize = passages.iter().map(Passage::len).sum();
        if n_tokens > MAX_TOKENS {
            return Err(too_many_tokens(n_tokens));
        }
        Ok(compose(passages))
    }
}

fn tokens(ids: &[TokenId], model: &ModelInfo) -> Result<Passage, ApiError> {
    let vocab = model.vocab();
    if let Some(id) = ids.iter().find(|id| id.count() >= vocab) {
        let message = format!(
            "token {} is not in the vocabulary: ids go from 0 to {}; give texts if the ids are \
             another model's",
            id.get(),
            vocab.saturating_sub(1)
        );
        return Err(ApiError::invalid(message).param("input"));
    }
    Ok(Passage::of_tokens(ids.iter().map(|id| id.get() as u32).collect()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(json: &Value) -> (Value, String) {
        let error = EmbeddingsRequest::from_json(json).unwrap_err().json();
        (error["error"]["param"].clone(), error["error"]["message"].to_string())
    }

    #[test]
    fn bodies_that_are_no_texts_are_refused_by_their_field() {
        for input in [
            json!("a"),
            json!(["a"]),
            json!([1, 2.0]),
            json!([[1], [2]]),
            json!([[1], "b"]),
            json!([]),
        ] {
            assert!(EmbeddingsRequest::from_json(&json!({"input": input})).is_ok(), "{input}");
        }
        for input in
            [json!(1), json!({}), json!([-1]), json!([[1.5]]), json!(["a", 1]), json!(null)]
        {
            assert_eq!(refusal(&json!({"input": input})).0, "input", "{input}");
        }
        assert_eq!(refusal(&json!({})).0, "input");
        assert!(refusal(&json!({"input": vec!["a"; 2049]})).1.contains("limit is 2048"));
        assert!(refusal(&json!({"input": vec![1; (1 << 20) + 1]})).1.contains("1048576"));
        for (field, value) in [
            ("dimensions", json!(0)),
            ("dimensions", json!("4")),
            ("encoding_format", json!("int8")),
            ("truncate_prompt_tokens", json!(5)),
            ("embed_dtype", json!("float16")),
            ("endianness", json!("big")),
            ("normalize", json!(false)),
            ("use_activation", json!(false)),
        ] {
            assert_eq!(refusal(&json!({"input": "a", field: value})).0, field);
        }
    }
}
