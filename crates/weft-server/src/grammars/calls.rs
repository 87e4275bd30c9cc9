//! The grammars of tool calls: of one that is required, as a schema, and of those that a model
//! begins by itself, from their opening on.

use serde_json::{Map, Value, json};

use super::checked_schema;
use crate::responses::{CallStyle, is_text_parameter};

/// Keywords that say no more of a text than that it is one.
const NOTES: [&str; 6] = ["type", "title", "description", "default", "examples", "$comment"];

const WHITE_SPACE: &str = "WS: /[ \\t\\r\\n]{1,8}/\n";
/// What ends with its tag and contains anything else.
const TEXTS: &str = "text[lazy]: /(.|\\n)*/ \"</parameter>\"\n\
    any[lazy]: /(.|\\n)*/ \"</function>\"\n";

/// The schema of a call of one of these tools.
pub(super) fn schema(tools: &[Value], style: CallStyle) -> Result<Value, String> {
    let call = |(index, tool)| call_schema(index, tool, arguments_name(style));
    let calls: Vec<Value> = tools.iter().enumerate().map(call).collect();
    checked_schema(&json!({"anyOf": calls}))
}

/// The field of a call's arguments.
const fn arguments_name(style: CallStyle) -> &'static str {
    match style {
        CallStyle::Bare => "parameters",
        CallStyle::Hermes | CallStyle::Tags => "arguments",
    }
}

/// The schema of a call of tool number `index`. `arguments` is the field of its arguments.
fn call_schema(index: usize, tool: &Value, arguments: &str) -> Value {
    let mut parameters = parameters(tool);
    move_references(&mut parameters, &format!("#/anyOf/{index}/properties/{arguments}"));
    json!({
        "type": "object",
        "properties": {"name": {"const": name(tool)}, arguments: parameters},
        "required": ["name", arguments],
        "additionalProperties": false,
    })
}

pub(super) fn name(tool: &Value) -> &Value {
    tool.pointer("/function/name").unwrap_or(&Value::Null)
}

/// The schema of a tool's arguments.
fn parameters(tool: &Value) -> Value {
    let parameters = tool.pointer("/function/parameters").filter(|schema| schema.is_object());
    let mut parameters = parameters.cloned().unwrap_or(json!({"properties": {}, "type": "object"}));
    // Arguments are an object, also if the schema leaves that open. Schemas that are made of others
    // stay as they are: what stands beside those must hold too.
    let decided = ["type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"];
    if decided.iter().all(|key| parameters.get(key).is_none()) {
        parameters["type"] = "object".into();
    }
    parameters
}

/// Rewrites references to the root of a schema so that they point to where that root is now.
fn move_references(schema: &mut Value, root: &str) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(|item| move_references(item, root)),
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(path) if key == "$ref" && path.starts_with('#') => {
                        path.replace_range(..1, root);
                    }
                    value => move_references(value, root),
                }
            }
        }
        _ => {}
    }
}

/// What a call begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// `<tool_call>`
    Tag,
    /// `<|python_tag|>`
    Python,
    /// `<function=`
    Function,
    /// `{"name": ` and the name of a tool; the grammar begins with the name.
    Name,
}

impl Opening {
    /// Those that calls of a style have.
    pub(super) const fn of(style: CallStyle) -> &'static [Self] {
        match style {
            CallStyle::Hermes => &[Self::Tag],
            CallStyle::Tags => &[Self::Tag, Self::Function],
            CallStyle::Bare => &[Self::Python, Self::Function, Self::Name],
        }
    }

    /// Its text, if that is always the same.
    pub(super) const fn text(self) -> Option<&'static [u8]> {
        match self {
            Self::Tag => Some(b"<tool_call>"),
            Self::Python => Some(b"<|python_tag|>"),
            Self::Function => Some(b"<function="),
            Self::Name => None,
        }
    }

    /// The byte that it ends with.
    pub(super) const fn last_byte(self) -> u8 {
        match self {
            Self::Tag | Self::Python => b'>',
            Self::Function => b'=',
            Self::Name => b'"',
        }
    }
}

/// A tool whose calls are written.
struct Tool<'t> {
    value: &'t Value,
    is_strict: bool,
}

/// The grammar of a call from its opening on, in llguidance's language. The arguments of tools that
/// are not strict are any object. Empty if no tool can be called so.
pub(super) fn after_opening(
    opening: Opening,
    style: CallStyle,
    tools: &[Value],
    is_strict: &(dyn Fn(&str) -> bool + Sync),
) -> Result<String, String> {
    let mut grammar = Grammar::default();
    let tool = |value| {
        let is_strict = name(value).as_str().is_some_and(is_strict);
        Tool { value, is_strict }
    };
    let tools: Vec<Tool<'_>> = tools.iter().map(tool).collect();
    let mut calls = Vec::new();
    for (index, tool) in tools.iter().enumerate() {
        let json = json!(name(tool.value).to_string());
        let arguments = json!(format!(", \"{}\": ", arguments_name(style)));
        match opening {
            Opening::Tag | Opening::Python => {
                let rule = grammar.arguments(index, tool)?;
                calls.push(format!("\"{{\\\"name\\\": \" {json} {arguments} {rule} \"}}\""));
                if style == CallStyle::Tags
                    && let Some(call) = grammar.function(index, tool)?
                {
                    calls.push(format!("\"<function=\" {call}"));
                }
            }
            Opening::Name => {
                let rule = grammar.arguments(index, tool)?;
                calls.push(format!("{json} {arguments} {rule} \"}}\""));
            }
            Opening::Function if style == CallStyle::Tags => {
                calls.extend(grammar.function(index, tool)?);
            }
            Opening::Function => {
                let start = json!(format!("{}>", name(tool.value).as_str().unwrap_or_default()));
                let rule = grammar.arguments(index, tool)?;
                calls.push(format!("{start} WS? {rule} WS? \"</function>\""));
            }
        }
    }
    if calls.is_empty() {
        return Ok(String::new());
    }
    let end = if opening == Opening::Tag { " WS? \"</tool_call>\"" } else { "" };
    let calls = calls.join("\n    | ");
    let rules = grammar.rules.join("\n");
    let texts = match style {
        CallStyle::Tags => TEXTS,
        CallStyle::Hermes | CallStyle::Bare => "",
    };
    Ok(format!("start: WS? call{end}\ncall: {calls}\n{rules}\n{WHITE_SPACE}{texts}"))
}

/// The rules of arguments, each written once.
#[derive(Default)]
struct Grammar {
    rules: Vec<String>,
}

impl Grammar {
    fn add(&mut self, rule: String, body: &str) -> String {
        let line = format!("{rule}: {body}");
        if !self.rules.contains(&line) {
            self.rules.push(line);
        }
        rule
    }

    fn json(&mut self, rule: String, schema: &Value) -> Result<String, String> {
        let schema = checked_schema(schema)?;
        Ok(self.add(rule, &format!("%json {schema}")))
    }

    /// The rule of a tool's arguments as JSON.
    fn arguments(&mut self, index: usize, tool: &Tool<'_>) -> Result<String, String> {
        match tool.is_strict {
            true => self.json(format!("a{index}"), &parameters(tool.value)),
            false => self.json("object".to_owned(), &json!({"type": "object"})),
        }
    }

    /// A call in tags, after `<function=`; none if its schema says what only JSON can.
    fn function(&mut self, index: usize, tool: &Tool<'_>) -> Result<Option<String>, String> {
        let start = json!(format!("{}>", name(tool.value).as_str().unwrap_or_default()));
        if !tool.is_strict {
            return Ok(Some(format!("{start} any")));
        }
        let schema = parameters(tool.value);
        let Some(properties) = plain_properties(&schema) else { return Ok(None) };
        let required = schema.get("required").and_then(Value::as_array);
        let is_required = |key: &str| required.is_some_and(|all| all.iter().any(|one| one == key));
        let mut parts = vec![start.to_string(), "WS?".to_owned()];
        for (place, (key, schema)) in properties.iter().enumerate() {
            let value = match value_of(schema) {
                TagValue::Json => {
                    let rule = self.json(format!("v{index}_{place}"), schema)?;
                    format!("WS? {rule} WS? \"</parameter>\"")
                }
                TagValue::Text => "text".to_owned(),
                TagValue::Choice(texts) => {
                    let texts: Vec<String> = texts.iter().map(ToString::to_string).collect();
                    format!("\"\\n\"? ({}) \"\\n\"? \"</parameter>\"", texts.join(" | "))
                }
                TagValue::Unwritable => return Ok(None),
            };
            let tag = json!(format!("<parameter={key}>"));
            let rule = self.add(format!("p{index}_{place}"), &format!("{tag} {value} WS?"));
            parts.push(if is_required(key) { rule } else { format!("{rule}?") });
        }
        parts.push("\"</function>\"".to_owned());
        Ok(Some(parts.join(" ")))
    }
}

/// How a parameter is written in tags.
enum TagValue<'s> {
    Json,
    /// As it is, to the end of its tag.
    Text,
    Choice(Vec<&'s Value>),
    /// A text with conditions: as JSON alone can they be followed.
    Unwritable,
}

fn value_of(schema: &Value) -> TagValue<'_> {
    let is_text = schema.get("type").is_some_and(|kind| kind == "string");
    let options: Vec<&Value> = match (schema.get("enum"), schema.get("const")) {
        (Some(Value::Array(all)), None) => all.iter().collect(),
        (None, Some(one)) => vec![one],
        _ => Vec::new(),
    };
    // What is not known to be a text is read as JSON first: "12" would become a number.
    let are_texts = is_text_parameter(schema) && options.iter().all(|option| option.is_string());
    if !options.is_empty() && are_texts {
        let is_other =
            |key: &String| !NOTES.contains(&key.as_str()) && key != "enum" && key != "const";
        let has_conditions = schema.as_object().is_some_and(|all| all.keys().any(is_other));
        return if has_conditions { TagValue::Unwritable } else { TagValue::Choice(options) };
    }
    let is_plain = |all: &Map<String, Value>| all.keys().all(|key| NOTES.contains(&key.as_str()));
    match is_text {
        false => TagValue::Json,
        true if schema.as_object().is_some_and(is_plain) => TagValue::Text,
        true => TagValue::Unwritable,
    }
}

/// The properties of an object that says nothing else and refers to nothing.
fn plain_properties(schema: &Value) -> Option<&Map<String, Value>> {
    let known = ["type", "properties", "required", "additionalProperties"];
    let is_known = |key: &String| known.contains(&key.as_str()) || NOTES.contains(&key.as_str());
    let is_closed = schema.get("additionalProperties").is_none_or(|more| more == false);
    let is_plain = schema.as_object()?.keys().all(is_known) && is_closed;
    let refers = schema.to_string().contains("\"$ref\"");
    let properties = schema.get("properties")?.as_object()?;
    let has_odd_names = properties.keys().any(|key| key.contains(['<', '>', '\n']));
    (is_plain && !refers && !has_odd_names).then_some(properties)
}
