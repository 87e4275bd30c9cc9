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
                let entry = |(biased, bias)| match bias {
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

    #[test]
    fn other_forms_are_refused() {
        for json in [json!({"a": 1}), json!({"-1": 1}), json!([[1]]), json!([[1, true]]), json!(1)]
        {
            assert!(biases(json.clone()).is_err(), "{json}");
        }
    }
}
