//! Fields of other servers that would change the answer and are not supported. They are refused,
//! unless their value changes nothing: an answer that silently ignores them would be worse.

use serde_json::Value;

use crate::api_error::ApiError;

/// A field, the values of it that change nothing (beside null), and what to do instead.
type Field = (&'static str, fn(&Value) -> bool, &'static str);

const FIELDS: [Field; 21] = [
    ("functions", is_empty, "use tools"),
    ("function_call", |value| value == "none" || value == "auto", "use tool_choice"),
    ("return_tokens_as_token_ids", is_false, "use return_token_ids"),
    ("guided_whitespace_pattern", is_empty, "such answers are written on one line"),
    ("allowed_token_ids", is_empty, "use structured_outputs with a choice or a regex"),
    ("bad_words", is_empty, "use logit_bias for tokens, or stop to end the answer"),
    ("logits_processors", is_empty, "use logit_bias"),
    ("use_beam_search", is_false, "answers are sampled; n gives several"),
    ("truncate_prompt_tokens", |_| false, "prompts are never cut; shorten this one"),
    ("include_stop_str_in_output", is_false, "answers end before a stop string"),
    ("chat_template", is_empty, "templates come only from the model's folder"),
    ("documents", is_empty, "put them into a message, or register them as chunks"),
    ("lora", is_empty, "start a server with the model that you want"),
    ("mirostat", |value| is_number(value, 0.0), SAMPLERS),
    ("typical_p", |value| is_number(value, 1.0), SAMPLERS),
    ("tfs_z", |value| is_number(value, 1.0), SAMPLERS),
    ("xtc_probability", |value| is_number(value, 0.0), SAMPLERS),
    ("dry_multiplier", |value| is_number(value, 0.0), SAMPLERS),
    ("dynatemp_range", |value| is_number(value, 0.0), SAMPLERS),
    ("modalities", |value| *value == serde_json::json!(["text"]), "answers are text"),
    ("web_search_options", |_| false, "the server never uses the network"),
];

const SAMPLERS: &str = "use temperature, top_k, top_p, min_p and the penalties";

/// The field that chats and completions have and other dialects do not.
const PROMPT_LOGPROBS: Field =
    ("prompt_logprobs", |_| false, "use /v1/chat/completions or /v1/completions");

/// Refuses a body of another dialect than OpenAI's chats and completions.
pub(crate) fn refuse_elsewhere(body: &Value) -> Result<(), ApiError> {
    refuse_field(body, PROMPT_LOGPROBS)?;
    refuse(body)
}

/// Refuses a body with a field that would change the answer and is not supported.
pub(crate) fn refuse(body: &Value) -> Result<(), ApiError> {
    FIELDS.into_iter().try_for_each(|field| refuse_field(body, field))
}

fn refuse_field(body: &Value, (field, changes_nothing, instead): Field) -> Result<(), ApiError> {
    let value = body.get(field).filter(|value| !value.is_null());
    if value.is_some_and(|value| !changes_nothing(value)) {
        let message = format!("{field} is not supported: {instead}");
        return Err(ApiError::invalid(message).param(field));
    }
    Ok(())
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

fn is_false(value: &Value) -> bool {
    *value == Value::Bool(false)
}

fn is_number(value: &Value, number: f64) -> bool {
    value.as_f64() == Some(number)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_that_would_change_the_answer_are_refused_by_name() {
        for (field, ..) in FIELDS {
            let error = refuse(&json!({field: {"a": [1]}})).unwrap_err().json();
            assert_eq!(error["error"]["param"], field);
        }
        let harmless = json!({"functions": [], "function_call": "auto",
            "bad_words": [], "use_beam_search": false, "truncate_prompt_tokens": null,
            "mirostat": 0, "typical_p": 1.0, "modalities": ["text"], "unknown": 1});
        assert!(refuse(&harmless).is_ok());
    }
}
