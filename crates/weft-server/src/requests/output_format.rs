//! The format of an answer, in the fields of OpenAI (`response_format`), vLLM
//! (`structured_outputs`, and `guided_*` of its earlier versions) and llama.cpp (`json_schema`,
//! `grammar`).

use serde::Deserialize;
use serde::de::{self, Deserializer};
use serde_json::{Value, json};

use super::json::fields;
use crate::api_error::ApiError;
use crate::grammars::Rule;

/// The fields that set the format of an answer. At most one of them may set one.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct OutputFormat {
    response_format: Option<ResponseFormat>,
    structured_outputs: Option<StructuredOutputs>,
    json_schema: Option<Schema>,
    guided_json: Option<Schema>,
    guided_regex: Option<String>,
    guided_choice: Option<Choices>,
    /// llama.cpp's name.
    grammar: Option<String>,
    guided_grammar: Option<String>,
}

impl OutputFormat {
    /// The rule that the fields of a body set, and the field that it comes from.
    pub(crate) fn rule_of(json: &Value) -> Result<Option<(&'static str, Rule)>, ApiError> {
        let format: Self = fields(json)?;
        format.check()?;
        Ok(format.rule().map(|rule| (format.param(), rule)))
    }

    pub(crate) fn check(&self) -> Result<(), ApiError> {
        let mut fields = self.rules().map(|(field, _)| field);
        match (fields.next(), fields.next()) {
            (Some(first), Some(second)) => {
                let message = format!("{first} and {second} cannot be combined; give one");
                Err(ApiError::invalid(message).param(second))
            }
            _ => Ok(()),
        }
    }

    /// The rule that the answer must follow, if there is one.
    pub(crate) fn rule(&self) -> Option<Rule> {
        self.rules().next().map(|(_, rule)| rule)
    }

    /// The field that the rule comes from.
    pub(crate) fn param(&self) -> &'static str {
        self.rules().next().map_or("response_format", |(field, _)| field)
    }

    /// The rules that are given, each with its field.
    fn rules(&self) -> impl Iterator<Item = (&'static str, Rule)> {
        let json = |Schema(schema): &Schema| Rule::Json(schema.clone());
        let format = match &self.response_format {
            Some(ResponseFormat::Json(schema)) => Some(Rule::Json(schema.clone())),
            Some(ResponseFormat::Text) | None => None,
        };
        let outputs = self.structured_outputs.as_ref().map(|StructuredOutputs(rule)| rule.clone());
        let grammar = |text: Option<&String>| {
            text.filter(|text| !text.trim().is_empty()).cloned().map(Rule::Grammar)
        };
        let choice = self.guided_choice.as_ref().map(|Choices(texts)| Rule::Choice(texts.clone()));
        let rules = [
            ("response_format", format),
            ("structured_outputs", outputs),
            ("json_schema", self.json_schema.as_ref().map(json)),
            ("guided_json", self.guided_json.as_ref().map(json)),
            ("guided_regex", self.guided_regex.clone().map(Rule::Regex)),
            ("guided_choice", choice),
            ("grammar", grammar(self.grammar.as_ref())),
            ("guided_grammar", grammar(self.guided_grammar.as_ref())),
        ];
        rules.into_iter().filter_map(|(field, rule)| Some((field, rule?)))
    }
}

/// A schema. Only its type is checked here; the grammar compiler checks the rest.
#[derive(Clone, Debug)]
struct Schema(Value);

impl<'de> Deserialize<'de> for Schema {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let schema = Value::deserialize(deserializer)?;
        match schema {
            Value::Object(_) | Value::Bool(_) => Ok(Self(schema)),
            // vLLM's users send the schema as text.
            Value::String(text) => match serde_json::from_str(&text) {
                Ok(schema @ Value::Object(_)) => Ok(Self(schema)),
                _ => Err(de::Error::custom("must be a JSON schema, and the text is not one")),
            },
            _ => Err(de::Error::custom("must be a JSON schema, which is an object")),
        }
    }
}

/// The texts that an answer may be.
#[derive(Clone, Debug)]
struct Choices(Vec<String>);

impl<'de> Deserialize<'de> for Choices {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        if texts.is_empty() || texts.iter().any(String::is_empty) {
            return Err(de::Error::custom("choice needs at least one text, and none may be empty"));
        }
        Ok(Self(texts))
    }
}

/// OpenAI's `response_format`.
#[derive(Clone, Debug)]
enum ResponseFormat {
    Text,
    /// JSON that matches this schema.
    Json(Value),
}

impl<'de> Deserialize<'de> for ResponseFormat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let format = Value::deserialize(deserializer)?;
        let given = format.pointer("/json_schema/schema").or_else(|| format.get("schema"));
        let schema = || match given.filter(|schema| !schema.is_null()) {
            Some(schema) => Schema::deserialize(schema).map(|schema| Some(schema.0)),
            None => Ok(None),
        };
        let schema = || schema().map_err(|error| de::Error::custom(format!("the schema {error}")));
        match format.get("type").and_then(Value::as_str) {
            Some("text") => Ok(Self::Text),
            // llama.cpp accepts a schema here too.
            Some("json_object") => Ok(Self::Json(schema()?.unwrap_or(json!({"type": "object"})))),
            Some("json_schema") => schema()?.map(Self::Json).ok_or_else(|| {
                de::Error::custom("json_schema needs {\"name\": …, \"schema\": {…}}")
            }),
            _ => Err(de::Error::custom(
                "must be {\"type\": \"text\"}, \"json_object\" or \"json_schema\"",
            )),
        }
    }
}

/// vLLM's `structured_outputs`.
#[derive(Clone, Debug)]
struct StructuredOutputs(Rule);

impl<'de> Deserialize<'de> for StructuredOutputs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Fields {
            json: Option<Schema>,
            json_object: Option<bool>,
            regex: Option<String>,
            choice: Option<Choices>,
        }
        let Fields { json, json_object, regex, choice } = Fields::deserialize(deserializer)?;
        let object = json_object.unwrap_or(false).then(|| Rule::Json(json!({"type": "object"})));
        let json = json.map(|Schema(schema)| Rule::Json(schema));
        let choice = choice.map(|Choices(texts)| Rule::Choice(texts));
        let mut rules = [json, object, regex.map(Rule::Regex), choice];
        let mut rules = rules.iter_mut().filter_map(Option::take);
        match (rules.next(), rules.next()) {
            (Some(rule), None) => Ok(Self(rule)),
            _ => Err(de::Error::custom("needs one of json, json_object, regex and choice")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(form: Value) -> Result<Option<Rule>, String> {
        let form: OutputFormat = serde_json::from_value(form).map_err(|error| error.to_string())?;
        form.check().map_err(|error| error.json().to_string())?;
        Ok(form.rule())
    }

    #[test]
    fn all_three_ways_say_the_same() {
        let schema = json!({"type": "integer"});
        for form in [
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}),
            json!({"response_format": {"type": "json_object", "schema": schema}}),
            json!({"structured_outputs": {"json": schema}}),
            json!({"structured_outputs": {"json": schema.to_string()}}),
            json!({"json_schema": schema, "response_format": null}),
            json!({"guided_json": schema, "guided_regex": null}),
            json!({"json_schema": schema, "response_format": {"type": "text"}}),
        ] {
            assert_eq!(rule(form.clone()), Ok(Some(Rule::Json(schema.clone()))), "{form}");
        }
        let choice = json!({"structured_outputs": {"choice": ["a", "b"]}});
        for choice in [choice, json!({"guided_choice": ["a", "b"]})] {
            assert_eq!(rule(choice), Ok(Some(Rule::Choice(vec!["a".into(), "b".into()]))));
        }
        for regex in [json!({"structured_outputs": {"regex": "a+"}}), json!({"guided_regex": "a+"})]
        {
            assert_eq!(rule(regex), Ok(Some(Rule::Regex("a+".into()))));
        }
        assert_eq!(rule(json!({"response_format": {"type": "text"}})), Ok(None));
        for grammar in ["grammar", "guided_grammar"] {
            let text = "root ::= \"a\"";
            assert_eq!(rule(json!({grammar: text})), Ok(Some(Rule::Grammar(text.into()))));
            assert_eq!(rule(json!({grammar: " "})), Ok(None));
        }
    }

    #[test]
    fn what_asks_for_no_form_or_for_two_is_refused() {
        for (form, reason) in [
            (json!({"response_format": {"type": "sound"}}), "json_object"),
            (json!({"response_format": {"type": "json_object", "schema": 123}}), "JSON schema"),
            (json!({"response_format": {"type": "json_schema"}}), "needs"),
            (json!({"structured_outputs": {}}), "needs one of"),
            (json!({"structured_outputs": {"regex": "a", "choice": ["a"]}}), "needs one of"),
            (json!({"structured_outputs": {"regex": {"1": "a"}}}), "expected a string"),
            (json!({"structured_outputs": {"choice": []}}), "at least one text"),
            (json!({"structured_outputs": {"choice": ["a", ""]}}), "at least one text"),
            (json!({"structured_outputs": {"json": "no schema"}}), "JSON schema"),
            (json!({"guided_choice": [""]}), "at least one text"),
            (
                json!({"json_schema": {}, "structured_outputs": {"regex": "a"}}),
                "cannot be combined",
            ),
            (json!({"guided_regex": "a", "guided_choice": ["a"]}), "cannot be combined"),
        ] {
            let refusal = rule(form.clone()).unwrap_err();
            assert!(refusal.contains(reason), "{form}: {refusal}");
        }
    }
}
