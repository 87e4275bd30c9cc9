//! Answers that follow a rule: JSON, schemas, tools.

use serde_json::{Value, json};

use crate::harness::{Server, chat_with, joined, text};

fn weather() -> Value {
    json!({"type": "function", "function": {"name": "weather", "description": "The weather.",
        "parameters": {"type": "object", "properties": {"days": {"type": "integer",
            "minimum": 1, "maximum": 9}, "unit": {"enum": ["C", "F"]}},
            "required": ["days", "unit"], "additionalProperties": false}}})
}

#[test]
fn answers_are_json_of_the_schema() {
    let server = Server::start(&[]);
    let schema = json!({"type": "object", "properties": {
        "ship": {"enum": ["Krogaste", "Nusonix"]}, "is_large": {"type": "boolean"}},
        "required": ["ship", "is_large"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": schema}});
    for temperature in [0.0, 2.0] {
        let more = json!({"response_format": format, "temperature": temperature});
        let answer = server.ask(&chat_with(more));
        let said: Value = serde_json::from_str(text(&answer)).unwrap();
        assert!(said["ship"].is_string() && said["is_large"].is_boolean(), "{said}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
    let more = json!({"response_format": {"type": "json_object"}, "max_tokens": 400, "n": 2,
        "logit_bias": {}});
    let answer = server.ask(&chat_with(more));
    for choice in answer["choices"].as_array().unwrap() {
        let said = choice["message"]["content"].as_str().unwrap();
        let is_whole = choice["finish_reason"] == "stop";
        assert!(said.starts_with('{'), "{said}");
        assert!(!is_whole || serde_json::from_str::<Value>(said).unwrap().is_object(), "{said}");
    }
    for wrong in [
        json!({"type": "json_schema"}),
        json!({"type": "json_object", "schema": 123}),
        json!({"type": "json_object", "schema": {"type": 123}}),
        json!({"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "king"}}}),
        json!({"type": "json_schema", "json_schema": {"schema": {"$ref": "http://evil.com/s"}}}),
        json!({"type": "json_schema", "json_schema": {"schema": {"const": "x".repeat(300_000)}}}),
    ] {
        server.refusal("/v1/chat/completions", &chat_with(json!({"response_format": wrong})), 400);
    }
}

#[test]
fn forms_are_asked_for_in_the_words_of_other_servers_too() {
    let server = Server::start(&[]);
    let said = |more: Value| text(&server.ask(&chat_with(more))).to_owned();
    assert_eq!(said(json!({"json_schema": {"const": "42"}})), "\"42\"");
    let choices = ["the first", "a \"second\" | third"];
    let choice = said(json!({"structured_outputs": {"choice": choices}, "temperature": 2.0}));
    assert!(choices.contains(&&*choice), "{choice}");
    assert_eq!(said(json!({"structured_outputs": {"regex": "a{3}b{2}"}})), "aaabb");
    let completion = json!({"prompt": "x", "structured_outputs": {"regex": "[0-9]{2}-[0-9]{2}"}});
    let completion = server.post("/v1/completions", &completion).1;
    let digits = completion["choices"][0]["text"].as_str().unwrap();
    assert!(digits.len() == 5 && digits.as_bytes()[2] == b'-', "{digits}");
    for wrong in [
        json!({"structured_outputs": {"regex": "[.*"}}),
        json!({"structured_outputs": {"regex": {"1": "x"}}}),
        json!({"structured_outputs": {"json": {"type": "object", "properties": {"a": "b"}}}}),
        json!({"structured_outputs": {"choice": []}}),
        json!({"grammar": "root ::= \"a\""}),
    ] {
        server.refusal("/v1/chat/completions", &chat_with(wrong), 400);
    }
}

#[test]
fn a_required_call_that_is_cut_off_is_no_text() {
    let server = Server::start(&[]);
    for max_tokens in [1, 3, 9] {
        let more =
            json!({"tools": [weather()], "tool_choice": "required", "max_tokens": max_tokens});
        let answer = server.ask(&chat_with(more.clone()));
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "length");
        assert_eq!((text(&answer), &choice["message"]["tool_calls"]), ("", &json!(null)));
        let events = server.events("/v1/chat/completions", &chat_with(more));
        assert_eq!(joined(&events), "");
    }
}

#[test]
fn required_tools_are_called() {
    let server = Server::start(&[]);
    let named = json!({"type": "function", "function": {"name": "weather"}});
    for choice in [json!("required"), named] {
        let more = json!({"tools": [weather()], "tool_choice": choice});
        let answer = server.ask(&chat_with(more.clone()));
        let message = &answer["choices"][0]["message"];
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
        assert!(message["content"].is_null());
        let call = &message["tool_calls"][0];
        assert_eq!(
            (&call["type"], &call["function"]["name"]),
            (&json!("function"), &json!("weather"))
        );
        let arguments = call["function"]["arguments"].as_str().unwrap();
        let arguments: Value = serde_json::from_str(arguments).unwrap();
        assert!((1..=9).contains(&arguments["days"].as_i64().unwrap()), "{arguments}");

        let events = server.events("/v1/chat/completions", &chat_with(more));
        let deltas: Vec<&Value> = events
            .iter()
            .filter_map(|event| event["choices"][0]["delta"]["tool_calls"].as_array())
            .flatten()
            .collect();
        assert!(deltas.iter().all(|delta| delta["index"] == 0));
        assert_eq!(deltas.iter().filter(|delta| delta["id"].is_string()).count(), 1);
        assert_eq!(deltas.iter().filter(|d| d["function"]["name"].is_string()).count(), 1);
        let streamed: String =
            deltas.iter().filter_map(|d| d["function"]["arguments"].as_str()).collect();
        assert_eq!(serde_json::from_str::<Value>(&streamed).unwrap(), arguments);
        assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
    }
    let none = server.ask(&chat_with(json!({"tools": [weather()], "tool_choice": "none"})));
    assert!(none["choices"][0]["message"]["tool_calls"].is_null());
    let unknown = json!({"type": "function", "function": {"name": "news"}});
    let more = json!({"tools": [weather()], "tool_choice": unknown});
    server.refusal("/v1/chat/completions", &chat_with(more), 400);
}

#[test]
fn calls_and_their_results_are_part_of_a_conversation() {
    let server = Server::start(&[]);
    let call = json!({"id": "call-1", "type": "function",
        "function": {"name": "weather", "arguments": "{\"days\": 2}"}});
    let answer = server.ask(&json!({"max_tokens": 4, "tools": [weather()], "messages": [
        {"role": "user", "content": "How is the weather?"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call-1", "content": "Rain."},
    ]}));
    assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() > 0);
}
