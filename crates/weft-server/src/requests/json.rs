//! From JSON to types, with errors that name the field.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde_json::Value;

use crate::api_error::ApiError;

/// A type that a body can be parsed into.
pub(crate) trait FromJson: Sized + Send + 'static {
    /// Whether an empty body counts as an empty object.
    const EMPTY_IS_FINE: bool = false;

    /// Parses it, or returns an error that names the field.
    fn from_json(json: &Value) -> Result<Self, ApiError>;
}

impl FromJson for Value {
    fn from_json(json: &Value) -> Result<Self, ApiError> {
        Ok(json.clone())
    }
}

/// Reads some of an object's fields and ignores the others.
pub(crate) fn fields<'j, T: Deserialize<'j>>(json: &'j Value) -> Result<T, ApiError> {
    if !json.is_object() {
        return Err(ApiError::invalid("the body must be a JSON object"));
    }
    serde_path_to_error::deserialize(json).map_err(|error| {
        let path = error.path().to_string();
        let path = Some(path).filter(|path| path != ".");
        let inner = in_plain_words(&error.into_inner().to_string());
        if let Some(name) = missing_field(&inner) {
            let name = path.map_or(name.to_owned(), |path| format!("{path}.{name}"));
            return ApiError::invalid(format!("{name} is missing")).param(name);
        }
        match path {
            Some(path) => ApiError::invalid(format!("{path}: {inner}")).param(path),
            None => ApiError::invalid(inner),
        }
    })
}

/// A text, or a list: the content of messages in most dialects.
#[derive(Clone, Debug)]
pub(crate) enum TextOr<T> {
    Text(String),
    List(Vec<T>),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for TextOr<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for TextOrVisitor<T> {
            type Value = TextOr<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(TextOr::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(TextOr::List)
            }
        }

        deserializer.deserialize_any(TextOrVisitor(PhantomData))
    }
}

/// The field that serde did not find.
fn missing_field(message: &str) -> Option<&str> {
    message.strip_prefix("missing field `")?.split('`').next()
}

/// Replaces names of Rust types, which mean little to clients.
fn in_plain_words(message: &str) -> String {
    let words = [
        ("expected f32", "expected a number"),
        ("expected a boolean", "expected true or false"),
        ("expected a sequence", "expected a list"),
        ("expected a map", "expected an object"),
        ("expected string or map", "expected a string"),
    ];
    let mut message = message.to_owned();
    for (from, to) in words {
        message = message.replace(from, to);
    }
    message
}
