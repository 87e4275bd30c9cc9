//! Reads a call in Qwen3-Coder's form, parameter by parameter:
//! `<function=name><parameter=key>value</parameter></function>`, after the first tag.

use std::sync::Arc;

use super::form::{CLOSE, END_FUNCTION, ToolForm};

const PARAMETER: &str = "<parameter=";
const END_PARAMETER: &str = "</parameter>";

/// A call that is being read.
#[derive(Debug)]
pub(super) struct TagCall {
    form: Arc<ToolForm>,
    tool: String,
    n_parameters: usize,
}

impl TagCall {
    pub(super) fn new(form: Arc<ToolForm>, tool: String) -> Self {
        Self { form, tool, n_parameters: 0 }
    }

    /// Reads what is complete of `held`. Returns more of the arguments' JSON, what is still held,
    /// and whether the call has ended: the tags that end it are left. Nothing more comes if
    /// `is_last`.
    pub(super) fn advance(&mut self, held: &str, is_last: bool) -> (String, String, bool) {
        let mut json = String::new();
        let mut rest = held;
        loop {
            rest = rest.trim_start();
            if let Some(after) = rest.strip_prefix(PARAMETER) {
                let Some((key, value, after)) = parameter(after, is_last) else { break };
                self.add(key, value, &mut json);
                rest = after;
            } else if rest.starts_with(END_FUNCTION) || rest.starts_with(CLOSE) {
                self.end(&mut json);
                return (json, rest.to_owned(), true);
            } else if [PARAMETER, END_FUNCTION, CLOSE].iter().any(|tag| tag.starts_with(rest)) {
                break;
            } else {
                // Anything else is no part of a call.
                let mut characters = rest.char_indices().skip(1);
                rest = characters.find(|(_, c)| *c == '<').map_or("", |(at, _)| &rest[at..]);
            }
        }
        if is_last {
            self.end(&mut json);
            return (json, String::new(), true);
        }
        (json, rest.to_owned(), false)
    }

    fn add(&mut self, key: &str, value: &str, json: &mut String) {
        json.push(if self.n_parameters == 0 { '{' } else { ',' });
        json.push_str(&serde_json::Value::from(key).to_string());
        json.push(':');
        json.push_str(&self.form.parameter(&self.tool, key, value));
        self.n_parameters += 1;
    }

    fn end(&mut self, json: &mut String) {
        json.push_str(if self.n_parameters == 0 { "{}" } else { "}" });
    }
}

/// The name and the value of a parameter, and what follows it. Its value is on its own lines.
fn parameter(text: &str, is_last: bool) -> Option<(&str, &str, &str)> {
    let (key, text) = text.split_once('>')?;
    let (value, after) = match text.split_once(END_PARAMETER) {
        Some(found) => found,
        None if is_last => {
            let tags = [PARAMETER, END_FUNCTION, CLOSE].iter().filter_map(|tag| text.find(tag));
            text.split_at(tags.min().unwrap_or(text.len()))
        }
        None => return None,
    };
    let value = value.strip_prefix('\n').unwrap_or(value);
    Some((key.trim(), value.strip_suffix('\n').unwrap_or(value), after))
}
