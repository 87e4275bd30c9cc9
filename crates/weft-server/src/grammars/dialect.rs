//! Schemas as libraries write them, rewritten for llguidance.
//!
//! Objects that list their properties have no others unless the schema says so: a small model else
//! invents names until its answer is cut off. What llguidance does not know and what only describes
//! (`uniqueItems`, most formats) is left out; `propertyNames` become patterns.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::bounds::resolve;

/// Formats that are enforced. All others are annotations.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
/// Keywords whose values hold no schemas.
const NO_SCHEMAS: [&str; 5] = ["const", "enum", "default", "examples", "required"];
/// Keywords whose values are schemas by name.
const BY_NAME: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// The schema for llguidance.
pub(super) fn rewritten(root: &Value) -> Value {
    let mut shared = Shared { root, found: HashSet::new() };
    shared.find(root);
    rewrite(root, &shared.found)
}

fn rewrite(schema: &Value, shared: &HashSet<*const Value>) -> Value {
    let fields = match schema {
        Value::Object(fields) => fields,
        Value::Array(schemas) => {
            return schemas.iter().map(|schema| rewrite(schema, shared)).collect();
        }
        other => return other.clone(),
    };
    let mut written = Map::new();
    for (key, value) in fields {
        let value = match (key.as_str(), value) {
            ("uniqueItems", _) => continue,
            ("format", Value::String(format)) if !FORMATS.contains(&format.as_str()) => continue,
            (key, value) if NO_SCHEMAS.contains(&key) => value.clone(),
            (key, Value::Object(named)) if BY_NAME.contains(&key) => {
                named.iter().map(|(name, value)| (name.clone(), rewrite(value, shared))).collect()
            }
            (_, value) => rewrite(value, shared),
        };
        written.insert(key.clone(), value);
    }
    rewrite_names(&mut written);
    let opens = ["additionalProperties", "patternProperties", "unevaluatedProperties"];
    let is_open = opens.iter().any(|key| written.contains_key(*key));
    if lists_properties(&written) && !is_open && !shared.contains(&std::ptr::from_ref(schema)) {
        written.insert("additionalProperties".to_owned(), json!(false));
    }
    Value::Object(written)
}

fn lists_properties(fields: &Map<String, Value>) -> bool {
    fields.get("properties").is_some_and(Value::is_object)
}

/// Writes what `propertyNames` asks for as a pattern, if it can be. Otherwise llguidance refuses
/// it.
fn rewrite_names(fields: &mut Map<String, Value>) {
    let Some(names) = fields.get("propertyNames") else { return };
    let Some(pattern) = pattern_of_names(names) else { return };
    match pattern {
        None => {}
        Some(_) if fields.contains_key("patternProperties") => return,
        Some(pattern) => {
            let rest = fields.insert("additionalProperties".to_owned(), json!(false));
            let patterns = json!({pattern: rest.unwrap_or(json!(true))});
            fields.insert("patternProperties".to_owned(), patterns);
        }
    }
    fields.shift_remove("propertyNames");
}

/// The pattern of names that follow this schema; `Some(None)` if all do.
fn pattern_of_names(names: &Value) -> Option<Option<String>> {
    let Value::Object(fields) = names else {
        return (names == &json!(true)).then_some(None);
    };
    let is_note = |key: &str| ["type", "title", "description", "$comment"].contains(&key);
    let is_text = fields.get("type").is_none_or(|kind| kind == "string");
    let asks: Vec<&str> = fields.keys().map(String::as_str).filter(|key| !is_note(key)).collect();
    match asks.as_slice() {
        _ if !is_text => None,
        [] => Some(None),
        ["pattern"] => Some(Some(names["pattern"].as_str()?.to_owned())),
        ["enum"] => {
            let texts: Option<Vec<String>> =
                names["enum"].as_array()?.iter().map(|name| name.as_str().map(escaped)).collect();
            Some(Some(format!("^(?:{})$", texts?.join("|"))))
        }
        lengths if lengths.iter().all(|key| ["minLength", "maxLength"].contains(key)) => {
            let length = |key| names.get(key).map(Value::as_u64);
            let min = length("minLength").unwrap_or(Some(0))?;
            let max = length("maxLength").map_or(Some(String::new()), |n| Some(n?.to_string()))?;
            Some(Some(format!("^[\\s\\S]{{{min},{max}}}$")))
        }
        _ => None,
    }
}

/// A text as an expression that matches it alone.
fn escaped(text: &str) -> String {
    let escape = |c: char| match c.is_ascii_punctuation() {
        true => format!("\\{c}"),
        false => c.to_string(),
    };
    text.chars().map(escape).collect()
}

/// Objects whose properties are listed in several schemas that hold at once, as `allOf` does it. If
/// each were closed, none could have the properties of the others.
struct Shared<'v> {
    root: &'v Value,
    found: HashSet<*const Value>,
}

impl<'v> Shared<'v> {
    fn find(&mut self, schema: &'v Value) {
        let fields = match schema {
            Value::Object(fields) => fields,
            Value::Array(schemas) => return schemas.iter().for_each(|schema| self.find(schema)),
            _ => return,
        };
        let list = |key: &str| fields.get(key).and_then(Value::as_array).into_iter().flatten();
        let target = fields.get("$ref").and_then(|path| resolve(self.root, path.as_str()?));
        // The parts that hold at once: of anyOf and oneOf, any option stands for all.
        let parts = list("allOf").chain(target).map(std::slice::from_ref);
        let options = ["anyOf", "oneOf"].into_iter().filter_map(|key| fields.get(key)?.as_array());
        let parts: Vec<&[Value]> = parts.chain(options.map(Vec::as_slice)).collect();
        let own = usize::from(lists_properties(fields));
        let lists = |part: &&[Value]| part.iter().any(|schema| self.lists(schema));
        if parts.len() + own > 1 && parts.into_iter().filter(lists).count() + own > 1 {
            self.mark(schema);
        }
        for (key, value) in fields {
            match value {
                Value::Object(named) if BY_NAME.contains(&key.as_str()) => {
                    named.values().for_each(|schema| self.find(schema));
                }
                _ if NO_SCHEMAS.contains(&key.as_str()) => {}
                value => self.find(value),
            }
        }
    }

    /// Schemas that hold where this one does.
    fn in_place(&self, schema: &'v Value) -> Vec<&'v Value> {
        let lists = ["allOf", "anyOf", "oneOf"].into_iter();
        let lists = lists.filter_map(|key| schema.get(key)?.as_array()).flatten();
        let target = schema.get("$ref").and_then(|path| resolve(self.root, path.as_str()?));
        lists.chain(target).collect()
    }

    /// Whether a schema, or one in its place, lists properties.
    fn lists(&self, schema: &'v Value) -> bool {
        let (mut seen, mut left) = (HashSet::new(), vec![schema]);
        while let Some(schema) = left.pop() {
            if schema.as_object().is_some_and(lists_properties) {
                return true;
            }
            if seen.insert(std::ptr::from_ref(schema)) {
                left.extend(self.in_place(schema));
            }
        }
        false
    }

    fn mark(&mut self, schema: &'v Value) {
        let mut left = vec![schema];
        while let Some(schema) = left.pop() {
            if self.found.insert(std::ptr::from_ref(schema)) {
                left.extend(self.in_place(schema));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_closed_unless_the_schema_opens_them() {
        let listed = json!({"properties": {"a": {"properties": {}}}});
        let closed = json!({"properties": {"a": {"properties": {}, "additionalProperties": false}},
            "additionalProperties": false});
        assert_eq!(rewritten(&listed), closed);
        for open in [
            json!({"type": "object"}),
            json!({"properties": {}, "additionalProperties": true}),
            json!({"properties": {}, "patternProperties": {"^x": {}}}),
            json!({"const": {"properties": {}}, "default": {"properties": {}}}),
            json!({"properties": {"properties": true}, "additionalProperties": {}}),
            json!({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}),
            json!({"properties": {"a": {}}, "anyOf": [{"$ref": "#/$defs/b"}, {"type": "object"}],
                "$defs": {"b": {"properties": {"b": {}}}}}),
        ] {
            assert_eq!(rewritten(&open), open);
        }
        let one =
            json!({"type": "object", "oneOf": [{"properties": {}}], "allOf": [{"required": []}]});
        assert_eq!(rewritten(&one)["oneOf"][0]["additionalProperties"], false);
    }

    #[test]
    fn what_only_describes_is_left_out() {
        let set = json!({"type": "array", "uniqueItems": true, "items": {"format": "password"}});
        assert_eq!(rewritten(&set), json!({"type": "array", "items": {}}));
        let known = json!({"type": "string", "format": "date"});
        assert_eq!(rewritten(&known), known);
        let named = json!({"properties": {"format": {"type": "null"}, "uniqueItems": true}});
        assert_eq!(rewritten(&named)["properties"], named["properties"]);
    }

    #[test]
    fn names_of_properties_become_patterns() {
        let record = |names: Value| {
            rewritten(&json!({"type": "object", "propertyNames": names,
                "additionalProperties": {"type": "null"}}))
        };
        let plain = json!({"type": "object", "additionalProperties": {"type": "null"}});
        assert_eq!(record(json!({"type": "string"})), plain);
        for (names, pattern) in [
            (json!({"pattern": "^a"}), "^a"),
            (json!({"enum": ["a.b", "c"]}), r"^(?:a\.b|c)$"),
            (json!({"type": "string", "minLength": 2}), r"^[\s\S]{2,}$"),
        ] {
            let expected = json!({"type": "object", "additionalProperties": false,
                "patternProperties": {pattern: {"type": "null"}}});
            assert_eq!(record(names), expected);
        }
        let unknown = json!({"not": {"const": "a"}});
        assert_eq!(record(unknown.clone())["propertyNames"], unknown);
    }
}
