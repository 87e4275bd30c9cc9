//! Tools that a model may call, and whether it must.

use serde::Deserialize;
use serde::de::{self, Deserializer};
use serde_json::Value;

use crate::api_error::ApiError;

/// The most tools of one request.
const MAX_TOOLS: usize = 128;
/// The most characters of a tool's name: OpenAI's limit.
pub(crate) const MAX_NAME_CHARS: usize = 64;
/// The same for the dialects whose names may be longer: Anthropic's limit.
pub(crate) const MAX_LONG_NAME_CHARS: usize = 128;

/// Descriptions of functions, passed to the template as they are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tools(pub(crate) Vec<Value>);

impl<'de> Deserialize<'de> for Tools {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let tools = Vec::<Value>::deserialize(deserializer)?;
        check_limits(&tools, MAX_NAME_CHARS).map_err(de::Error::custom)?;
        for tool in &tools {
            if name_of(tool).is_none_or(str::is_empty) {
                let message =
                    "a tool must be {\"type\": \"function\", \"function\": {\"name\": …}}";
                return Err(de::Error::custom(message));
            }
        }
        Ok(Self(tools))
    }
}

fn check_limits(tools: &[Value], name_chars: usize) -> Result<(), String> {
    if tools.len() > MAX_TOOLS {
        return Err(format!("there are {} tools, and the limit is {MAX_TOOLS}", tools.len()));
    }
    for name in tools.iter().filter_map(name_of) {
        let n = name.chars().count();
        if n > name_chars {
            let start: String = name.chars().take(name_chars).collect();
            return Err(format!(
                "the name {start:?}… of a tool has {n} characters, and the limit is {name_chars}"
            ));
        }
    }
    Ok(())
}

fn name_of(tool: &Value) -> Option<&str> {
    let is_function = tool.get("type").and_then(Value::as_str) == Some("function");
    tool.pointer("/function/name").filter(|_| is_function)?.as_str()
}

/// The names of the tools that are strict, which say so at `place`.
pub(crate) fn strict_names(tools: &[Value], place: &str) -> Vec<String> {
    let name = |tool: &Value| {
        let tool = tool.pointer(place)?;
        let is_strict = tool.get("strict") == Some(&Value::Bool(true));
        tool.get("name").and_then(Value::as_str).filter(|_| is_strict).map(str::to_owned)
    };
    tools.iter().filter_map(name).collect()
}

impl Tools {
    /// Refuses parameters that are not those of an object: a call's arguments always are one.
    pub(super) fn check(&self) -> Result<(), ApiError> {
        for (index, tool) in self.0.iter().enumerate() {
            let parameters = tool.pointer("/function/parameters").unwrap_or(&Value::Null);
            let is_fine = match parameters {
                Value::Null => true,
                Value::Object(schema) => schema.get("type").is_none_or(|kind| kind == "object"),
                _ => false,
            };
            if !is_fine {
                let param = format!("tools[{index}].function.parameters");
                let message = format!(
                    "{param} must be a JSON schema of {{\"type\": \"object\"}}: the arguments of a \
                     call are an object"
                );
                return Err(ApiError::invalid(message).param(param));
            }
        }
        Ok(())
    }

    /// The same tools, if there are not too many and no name has more than these characters.
    pub(crate) fn limited(self, name_chars: usize) -> Result<Self, ApiError> {
        check_limits(&self.0, name_chars)
            .map_err(|error| ApiError::invalid(error).param("tools"))?;
        Ok(self)
    }

    /// The names of those that are strict. Templates need not show it to the model.
    pub(crate) fn take_strict(&mut self) -> Vec<String> {
        let names = strict_names(&self.0, "/function");
        let functions = self.0.iter_mut().filter_map(|tool| tool.get_mut("function"));
        let functions = functions.filter_map(Value::as_object_mut);
        functions.for_each(|function| drop(function.shift_remove("strict")));
        names
    }

    /// The tool of this name.
    pub(crate) fn find(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|tool| name_of(tool) == Some(name))
    }

    /// The name of the only tool.
    pub(super) fn only_name(&self) -> Option<String> {
        match &self.0[..] {
            [tool] => name_of(tool).map(str::to_owned),
            _ => None,
        }
    }
}

/// Whether the model calls tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    None,
    #[default]
    Auto,
    Required,
    /// The model must call this one.
    Named(String),
}

impl<'de> Deserialize<'de> for ToolChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let choice = Value::deserialize(deserializer)?;
        match choice.as_str() {
            Some("none") => return Ok(Self::None),
            Some("auto") => return Ok(Self::Auto),
            Some("required") => return Ok(Self::Required),
            _ => {}
        }
        let name = name_of(&choice).map(|name| Self::Named(name.to_owned()));
        name.ok_or_else(|| {
            de::Error::custom(
                "must be \"none\", \"auto\", \"required\" or \
                 {\"type\": \"function\", \"function\": {\"name\": …}}",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tools_are_as_many_as_the_limit_allows() {
        let tools = |n: usize| vec![json!({"type": "function", "function": {"name": "f"}}); n];
        let read = |n| serde_json::from_value::<Tools>(json!(tools(n))).map_err(|e| e.to_string());
        assert_eq!(read(128).unwrap().0.len(), 128);
        assert_eq!(read(129).unwrap_err(), "there are 129 tools, and the limit is 128");
        // Other dialects have their own form of a tool, and the same limit.
        assert!(Tools(tools(128)).limited(MAX_LONG_NAME_CHARS).is_ok());
        assert!(Tools(tools(129)).limited(MAX_LONG_NAME_CHARS).is_err());
    }
}
