//! What form an answer is to have.

use serde::Deserialize;
use serde::de::{self, Deserializer};
use serde_json::{Value, json};

/// The form of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum ResponseFormat {
    #[default]
    Text,
    /// JSON of this schema.
    Json(Value),
}

impl<'de> Deserialize<'de> for ResponseFormat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let format = Value::deserialize(deserializer)?;
        let schema = || {
            let schema = format.pointer("/json_schema/schema").or_else(|| format.get("schema"));
            schema.filter(|schema| schema.is_object() || schema.is_boolean()).cloned()
        };
        match format.get("type").and_then(Value::as_str) {
            Some("text") => Ok(Self::Text),
            // llama.cpp takes a schema here too.
            Some("json_object") => Ok(Self::Json(schema().unwrap_or(json!({"type": "object"})))),
            Some("json_schema") => schema().map(Self::Json).ok_or_else(|| {
                de::Error::custom("json_schema needs {\"name\": …, \"schema\": {…}}")
            }),
            _ => Err(de::Error::custom(
                "must be {\"type\": \"text\"}, \"json_object\" or \"json_schema\"",
            )),
        }
    }
}
