//! Biases of tokens, in OpenAI's form (an object by ids) and in llama.cpp's (a list of pairs).

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use weft_core::sampling::Sampling;
use weft_core::tokenizer::Tokenizer;

use super::numbers::TokenId;
use crate::api_error::ApiError;

/// What llama.cpp calls `false`: the token never comes.
const NEVER: f32 = -100.0;

/// The most bytes of a text, as of one that ends an answer.
const MAX_TEXT_BYTES: usize = Sampling::MAX_STOP_BYTES;

/// Biases by token.
#[derive(Debug)]
pub(super) struct LogitBias(Vec<(Biased, f32)>);

/// What a bias is for. A text stands for each of its tokens.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a token id (a whole number from 0) or a text")]
enum Biased {
    Token(TokenId),
    Text(String),
}

impl Biased {
    fn is_long(&self) -> bool {
        matches!(self, Self::Text(text) if text.len() > MAX_TEXT_BYTES)
    }
}

/// Refuses more entries than an answer may have, before their texts become tokens.
fn check_count<E: de::Error>(n: usize) -> Result<(), E> {
    let most = Sampling::MAX_LOGIT_BIASES;
    if n <= most {
        return Ok(());
    }
    Err(E::custom(format!("there are {n} entries, and the limit is {most}; give fewer")))
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a number, or false for a token that never comes")]
enum Bias {
    Number(f32),
    Never(bool),
}

impl LogitBias {
    /// The same with texts as their tokens.
    pub(super) fn by_token(&self, tokenizer: &Tokenizer) -> Result<Vec<(u32, f32)>, ApiError> {
        let Self(entries) = self;
        let mut biases = Vec::new();
        for (biased, bias) in entries {
            // Larger ids are outside the vocabulary like any other id beyond its end.
            match biased {
                Biased::Token(id) => biases.push((id.get() as u32, *bias)),
                Biased::Text(text) => {
                    let ids = tokenizer.encode_text(text)?;
                    biases.extend(ids.into_iter().map(|id| (id, *bias)));
                }
            }
            // `Sampling` refuses them.
            if biases.len() > Sampling::MAX_LOGIT_BIASES {
                break;
            }
        }
        Ok(biases)
    }
}

impl<'de> Deserialize<'de> for LogitBias {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BiasVisitor;

        impl<'de> Visitor<'de> for BiasVisitor {
            type Value = LogitBias;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of token ids and biases, or a list of pairs of them")
            }

            /// Keys are ids, written as strings because JSON keys are strings.
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<LogitBias, A::Error> {
                let entries =
                    BTreeMap::<String, f32>::deserialize(MapAccessDeserializer::new(map))?;
                check_count(entries.len())?;
                let entry = |(key, bias): (String, f32)| {
                    let id: u32 = key.parse().map_err(|_| {
                        de::Error::custom(format!(
                            "{key:?} is not a token id: ids are whole numbers from 0"
                        ))
                    })?;
                    Ok((Biased::Token(TokenId::nearest(id as usize)), bias))
                };
                entries.into_iter().map(entry).collect::<Result<_, _>>().map(LogitBias)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<LogitBias, A::Error> {
                let entries = Vec::<(Biased, Bias)>::deserialize(SeqAccessDeserializer::new(list))?;
                check_count(entries.len())?;
                let entry = |(biased, bias): (Biased, Bias)| match bias {
                    _ if biased.is_long() => Err(de::Error::custom(format!(
                        "a text has more than {MAX_TEXT_BYTES} bytes, which is the limit; give a \
                         shorter one"
                    ))),
                    Bias::Number(bias) => Ok((biased, bias)),
                    Bias::Never(false) => Ok((biased, NEVER)),
                    Bias::Never(true) => {
                        Err(de::Error::custom("a bias is a number, or false, and not true"))
                    }
                };
                entries.into_iter().map(entry).collect::<Result<_, _>>().map(LogitBias)
            }
        }

        deserializer.deserialize_any(BiasVisitor)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use weft_testing::stub;

    use super::*;

    fn biases(json: Value) -> Result<Vec<(u32, f32)>, String> {
        let biases: LogitBias = serde_json::from_value(json).map_err(|error| error.to_string())?;
        Ok(biases.by_token(&stub::model().tokenizer).unwrap())
    }

    #[test]
    fn both_forms_name_tokens() {
        assert_eq!(biases(json!({"7": 1.5, "12": -2})).unwrap(), [(12, -2.0), (7, 1.5)]);
        assert_eq!(biases(json!([[7, 1.5], [12, false]])).unwrap(), [(7, 1.5), (12, -100.0)]);
        let ids = stub::model().tokenizer.encode_text("ab").unwrap();
        let each: Vec<(u32, f32)> = ids.into_iter().map(|id| (id, -1.0)).collect();
        assert_eq!(biases(json!([["ab", -1]])).unwrap(), each);
        assert_eq!(biases(json!([])).unwrap(), []);
    }

    /// They become tokens while other requests wait.
    #[test]
    fn texts_are_limited() {
        let (most, long) = ("x ".repeat(512), "x".repeat(1025));
        assert!(biases(json!([[most, 1]])).is_ok());
        let refusal = biases(json!([[long, 1]])).unwrap_err();
        assert!(refusal.contains("more than 1024 bytes, which is the limit"), "{refusal}");
        let ids: serde_json::Map<_, _> = (0..1025).map(|id| (id.to_string(), json!(1))).collect();
        for many in [json!(ids), json!(vec![json!(["", 1]); 1025])] {
            let refusal = biases(many).unwrap_err();
            assert!(refusal.contains("there are 1025 entries, and the limit is 1024"), "{refusal}");
        }
    }

    #[test]
    fn other_forms_are_refused() {
        for json in [json!({"a": 1}), json!({"-1": 1}), json!([[1]]), json!([[1, true]]), json!(1)]
        {
            assert!(biases(json.clone()).is_err(), "{json}");
        }
    }
}
