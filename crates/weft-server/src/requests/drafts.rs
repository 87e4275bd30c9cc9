//! The fields about drafts: how much an answer is drafted, and the client's own draft. They change
//! the speed of an answer and nothing else.

use serde::Deserialize;
use serde::de::{self, Deserializer};
use serde_json::Value;
use weft_core::engine::Speculate;

/// `"auto"`, `"off"`, or a number of tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct ApiSpeculate(pub(super) Speculate);

impl<'de> Deserialize<'de> for ApiSpeculate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = match Value::deserialize(deserializer)? {
            Value::String(word) => word,
            // `2.0` is 2: JSON does not distinguish them.
            Value::Number(number) => match number.as_f64() {
                Some(n) if n.fract() == 0.0 && n.abs() < 1e9 => format!("{n:.0}"),
                _ => number.to_string(),
            },
            other => other.to_string(),
        };
        word.parse().map(Self).map_err(de::Error::custom)
    }
}

/// OpenAI's `prediction`: a text that the answer may repeat in large parts.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", expecting = "an object with type and content")]
pub(super) enum Prediction {
    Content { content: PredictedText },
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a string or a list of text parts")]
pub(super) enum PredictedText {
    Text(String),
    Parts(Vec<TextPart>),
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(super) enum TextPart {
    Text { text: String },
}

impl Prediction {
    /// The whole text.
    pub(super) fn text(&self) -> String {
        let Self::Content { content } = self;
        match content {
            PredictedText::Text(text) => text.clone(),
            PredictedText::Parts(parts) => {
                parts.iter().map(|TextPart::Text { text }| text.as_str()).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ways_to_speculate_are_words_or_numbers() {
        let read = |json: Value| serde_json::from_value::<ApiSpeculate>(json).map(|read| read.0);
        for (json, wanted) in [
            (json!("auto"), Speculate::Auto),
            (json!("off"), Speculate::Off),
            (json!(0), Speculate::Off),
            (json!(4), Speculate::Fixed(4)),
            (json!(4.0), Speculate::Fixed(4)),
            (json!("7"), Speculate::Fixed(7)),
        ] {
            assert_eq!(read(json).unwrap(), wanted);
        }
        for wrong in [json!(8), json!(-1), json!(1.5), json!("on"), json!(true), json!([1])] {
            let error = read(wrong.clone()).unwrap_err().to_string();
            assert!(error.contains("auto, off, or 1 to 7"), "{wrong}: {error}");
        }
        assert!(read(json!(8)).unwrap_err().to_string().contains("\"8\""));
    }

    #[test]
    fn a_prediction_is_a_text_or_its_parts() {
        let read = |content: Value| {
            let json = json!({"type": "content", "content": content});
            serde_json::from_value::<Prediction>(json).map(|prediction| prediction.text())
        };
        assert_eq!(read(json!("a b")).unwrap(), "a b");
        let parts = json!([{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]);
        assert_eq!(read(parts).unwrap(), "a b");
        for wrong in [json!(1), json!(null), json!([1]), json!([{"type": "image", "text": "a"}])] {
            let error = read(wrong.clone()).unwrap_err().to_string();
            assert!(error.contains("a string or a list of text parts"), "{wrong}: {error}");
        }
        let other = json!({"type": "other", "content": "a"});
        assert!(serde_json::from_value::<Prediction>(other).is_err());
    }
}
