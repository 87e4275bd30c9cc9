//! The forms in which models write calls of tools, and which of them a model uses.
//!
//! A model writes the form that its template shows it. Hermes and Qwen: JSON between `<tool_call>`
//! tags. Qwen3-Coder: `<function=name>` with a tag for each parameter, between the same tags.
//! Llama 3: the bare JSON of a call, or the same after `<|python_tag|>`.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::mender::{MAX_DEPTH, arguments_json, depth, mended};

pub(super) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";
pub(super) const PYTHON: &str = "<|python_tag|>";
pub(super) const FUNCTION: &str = "<function=";
pub(super) const END_FUNCTION: &str = "</function>";

/// Bytes of a bare call before its arguments, at most: what is longer is text.
pub(crate) const MAX_BARE_OPENING: usize = 256;

/// How a model writes a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CallStyle {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`
    #[default]
    Hermes,
    /// `<tool_call><function=…><parameter=…>…</parameter></function></tool_call>`
    Tags,
    /// `{"name": …, "parameters": {…}}`
    Bare,
}

impl CallStyle {
    /// The style that a template teaches its model.
    pub(crate) fn of_template(source: &str) -> Self {
        let shows = |text: &str| source.contains(text);
        if shows(FUNCTION) && shows("<parameter=") {
            Self::Tags
        } else if shows(OPEN) {
            Self::Hermes
        } else if shows(PYTHON) || shows("\"parameters\": dictionary") {
            Self::Bare
        } else {
            Self::Hermes
        }
    }

    /// The texts with which a call begins, beside the bare JSON of one.
    pub(super) fn openers(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &[OPEN],
            Self::Tags => &[OPEN, FUNCTION],
            Self::Bare => &[PYTHON, FUNCTION],
        }
    }
}

/// What is known about the calls of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ToolForm {
    pub(super) style: CallStyle,
    /// The parameters of each tool that are texts, by the tool's name.
    texts: BTreeMap<String, Vec<String>>,
}

impl ToolForm {
    /// For these tools, in OpenAI's form.
    pub(crate) fn new(style: CallStyle, tools: &[Value]) -> Self {
        let read = |tool: &Value| {
            let name = tool.pointer("/function/name")?.as_str()?.to_owned();
            let properties = tool.pointer("/function/parameters/properties");
            let properties = properties.and_then(Value::as_object).into_iter().flatten();
            let texts = properties.filter(|(_, schema)| is_text_parameter(schema));
            Some((name, texts.map(|(name, _)| name.clone()).collect()))
        };
        Self { style, texts: tools.iter().filter_map(read).collect() }
    }

    /// Whether there is a tool of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.texts.contains_key(name)
    }

    /// The JSON of a parameter that was written as plain text. JSON that is nested too deep for
    /// arguments is a text, like JSON that cannot be read.
    pub(super) fn parameter(&self, tool: &str, parameter: &str, text: &str) -> String {
        let is_text =
            self.texts.get(tool).is_some_and(|texts| texts.iter().any(|t| t == parameter));
        let json = serde_json::from_str::<Value>(text.trim()).ok();
        let json = json.filter(|value| !is_text && depth(value) < MAX_DEPTH);
        let literal = match text.trim() {
            "True" if !is_text => Some(Value::Bool(true)),
            "False" if !is_text => Some(Value::Bool(false)),
            "None" if !is_text => Some(Value::Null),
            _ => json,
        };
        literal.unwrap_or_else(|| text.into()).to_string()
    }
}

/// Whether a parameter can only be a text.
pub(crate) fn is_text_parameter(schema: &Value) -> bool {
    match schema.get("type") {
        Some(Value::String(kind)) => kind == "string",
        Some(_) => false,
        None => {
            let options = schema.get("enum").and_then(Value::as_array);
            options.is_some_and(|options| options.iter().all(Value::is_string))
        }
    }
}

/// How the JSON of a call begins.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Opening<'t> {
    /// Not with the name of a tool and the object of its arguments.
    No,
    /// More text will show it.
    Open,
    /// With the name, and this text from the object of the arguments on.
    Call(String, &'t str),
}

/// Reads how a call begins.
pub(super) fn opening(call: &str) -> Opening<'_> {
    let mut reader = Reader { rest: call, is_over: false };
    match reader.call() {
        Some(name) => Opening::Call(name, reader.rest),
        None if reader.is_over => Opening::Open,
        None => Opening::No,
    }
}

/// Whether what stands before the arguments of a bare call is as short and plain as strict tools
/// know it. `call` is the text from its brace on, and `rest` what follows.
pub(super) fn is_plain(call: &str, rest: &str) -> bool {
    let before = &call[..call.len() - rest.len()];
    before.len() <= MAX_BARE_OPENING && !before.contains('\\')
}

/// Whether the text has the whole name of a call.
pub(super) fn is_named(call: &str) -> bool {
    Reader { rest: call, is_over: false }.named().is_some()
}

/// Whether the tag that ends a call is in the text before its rest.
pub(super) fn is_closed(text: &str, rest: &str) -> bool {
    text[..text.len() - rest.len()].contains(CLOSE)
}

/// Reads tokens of JSON from the start of a text.
struct Reader<'t> {
    rest: &'t str,
    /// Whether the text ended where a token was expected.
    is_over: bool,
}

impl Reader<'_> {
    /// Reads up to the arguments of a call.
    fn call(&mut self) -> Option<String> {
        let name = self.named()?;
        self.token(",")?;
        let key = self.string()?;
        self.token(":")?;
        if !matches!(&*key, "arguments" | "parameters") {
            return None;
        }
        self.rest = self.rest.trim_ascii_start();
        self.is_over = self.rest.is_empty();
        self.rest.starts_with('{').then_some(name)
    }

    /// Reads up to the end of a call's name.
    fn named(&mut self) -> Option<String> {
        self.token("{")?;
        let mut key = self.string()?;
        self.token(":")?;
        if key == "type" {
            self.string().filter(|kind| kind == "function")?;
            self.token(",")?;
            key = self.string()?;
            self.token(":")?;
        }
        if key != "name" {
            return None;
        }
        self.string().filter(|name| !name.is_empty())
    }

    fn token(&mut self, token: &str) -> Option<()> {
        let rest = self.rest.trim_ascii_start();
        self.is_over = rest.is_empty();
        self.rest = rest.strip_prefix(token)?;
        Some(())
    }

    fn string(&mut self) -> Option<String> {
        let rest = self.rest.trim_ascii_start();
        self.is_over = rest.is_empty();
        let inner = rest.strip_prefix('"')?;
        let mut is_escaped = false;
        let is_end = |character: char| {
            let is_end = character == '"' && !is_escaped;
            is_escaped = character == '\\' && !is_escaped;
            is_end
        };
        let Some(end) = inner.find(is_end) else {
            self.is_over = true;
            return None;
        };
        self.rest = &inner[end + 1..];
        serde_json::from_str(&rest[..end + 2]).ok()
    }
}

/// The calls that a whole text is meant to be: one object, or a list of them.
pub(super) fn read_calls(text: &str) -> Option<Vec<(String, String)>> {
    match mended(text)? {
        Value::Array(calls) if !calls.is_empty() => calls.iter().map(read_call).collect(),
        call => read_call(&call).map(|call| vec![call]),
    }
}

/// A call: its name, and the JSON of its arguments, which may be an object or its text.
fn read_call(call: &Value) -> Option<(String, String)> {
    let call = call.get("function").filter(|inner| inner.is_object()).unwrap_or(call);
    let name = call.get("name").or_else(|| call.get("function"))?.as_str()?;
    if name.is_empty() {
        return None;
    }
    let arguments = call.get("arguments").or_else(|| call.get("parameters"));
    let arguments = match arguments {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(Value::String(text)) if text.trim().is_empty() => Value::Object(Map::new()),
        Some(Value::String(text)) => mended(text)?,
        Some(value) => value.clone(),
    };
    // What has other arguments stays a text.
    arguments.is_object().then(|| (name.to_owned(), arguments_json(&arguments)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_template_shows_the_form_of_its_calls() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../weft-core/tests/prompts/");
        let style = |file: &str| {
            let source = std::fs::read_to_string(format!("{folder}{file}")).unwrap();
            CallStyle::of_template(&source)
        };
        assert_eq!(style("qwen3.jinja"), CallStyle::Hermes);
        assert_eq!(style("chatml.jinja"), CallStyle::Hermes);
        let llama =
            "in the format {\"name\": function name, \"parameters\": dictionary of argument";
        assert_eq!(CallStyle::of_template(llama), CallStyle::Bare);
        assert_eq!(CallStyle::of_template("{{- '<|python_tag|>' + x }}"), CallStyle::Bare);
        let coder = "<tool_call>\n<function=example>\n<parameter=a>\n1\n</parameter>";
        assert_eq!(CallStyle::of_template(coder), CallStyle::Tags);
    }

    #[test]
    fn a_call_is_recognised_as_soon_as_its_arguments_begin() {
        let call = "{\"name\": \"f\\\"\", \"parameters\" : {\"a\"";
        for end in 0..=call.len() {
            let found = opening(&call[..end]);
            let wanted = match call.len() - end {
                0..4 => Opening::Call("f\"".to_owned(), &call[call.len() - 4..end]),
                _ => Opening::Open,
            };
            assert_eq!(found, wanted, "{}", &call[..end]);
        }
        let typed = opening("{\"type\": \"function\", \"name\": \"f\", \"arguments\": {}");
        assert_eq!(typed, Opening::Call("f".to_owned(), "{}"));
        let person = "{\"type\": \"person\", \"name\": \"f\", \"arguments\": {}";
        for other in ["[", "{\"title\": ", "{\"name\": 1", "{\"name\": \"f\"}", "{}", person] {
            assert_eq!(opening(other), Opening::No, "{other}");
        }
    }

    #[test]
    fn parameters_have_the_types_of_their_schema() {
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": {
            "type": "object", "properties": {"id": {"type": "string"},
            "n": {"type": "integer"}, "kind": {"enum": ["1", "2"]}}}}});
        let form = ToolForm::new(CallStyle::Tags, &[tool]);
        assert!(form.has("f") && !form.has("g"));
        for (name, text, wanted) in [
            ("id", "12", "\"12\""),
            ("n", "12", "12"),
            ("n", "twelve", "\"twelve\""),
            ("kind", "1", "\"1\""),
            ("other", "{\"a\": [1]}", "{\"a\":[1]}"),
            ("other", "True", "true"),
            ("id", "None", "\"None\""),
        ] {
            assert_eq!(form.parameter("f", name, text), wanted, "{name} {text}");
        }
    }

    #[test]
    fn whole_calls_are_read_in_any_order_and_mended() {
        let one = |name: &str, arguments: &str| Some(vec![(name.to_owned(), arguments.to_owned())]);
        for (text, wanted) in [
            ("{\"arguments\": {\"a\": 1}, \"name\": \"f\"}", one("f", "{\"a\":1}")),
            ("{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1\"}", one("f", "{\"a\":1}")),
            ("{\"function\": {\"name\": \"f\"}}", one("f", "{}")),
            ("{'function': 'f', 'parameters': {}", one("f", "{}")),
            ("```json\n{\"name\": \"f\",}\n```", one("f", "{}")),
            ("{\"title\": 1}", None),
            ("not json", None),
        ] {
            assert_eq!(read_calls(text), wanted, "{text}");
        }
        let two = read_calls("[{\"name\": \"f\"}, {\"name\": \"g\"}]").unwrap();
        assert_eq!(two.len(), 2);
    }
}
