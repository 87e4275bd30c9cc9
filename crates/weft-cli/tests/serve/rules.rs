//! Answers with constraints: JSON, schemas, tools.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Server, chat_with, joined, merged, text};

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
    assert_eq!(said(json!({"guided_regex": "a{3}b{2}"})), "aaabb");
    assert_eq!(said(json!({"guided_json": {"const": "42"}})), "\"42\"");
    assert_eq!(said(json!({"guided_choice": ["the only one"]})), "the only one");
    let completion = json!({"prompt": "x", "structured_outputs": {"regex": "[0-9]{2}-[0-9]{2}"}});
    let completion = server.post("/v1/completions", &completion).1;
    let digits = completion["choices"][0]["text"].as_str().unwrap();
    assert!(digits.len() == 5 && digits.as_bytes()[2] == b'-', "{digits}");
    for wrong in [
        json!({"structured_outputs": {"regex": "[.*"}}),
        json!({"structured_outputs": {"regex": {"1": "x"}}}),
        json!({"structured_outputs": {"json": {"type": "object", "properties": {"a": "b"}}}}),
        json!({"structured_outputs": {"choice": []}}),
        json!({"grammar": "root ::= x"}),
    ] {
        server.refusal("/v1/chat/completions", &chat_with(wrong), 400);
    }
}

/// The parts of tool calls in a stream, in order.
fn call_deltas(events: &[Value]) -> Vec<&Value> {
    let deltas = events.iter().map(|event| &event["choices"][0]["delta"]["tool_calls"]);
    deltas.filter_map(Value::as_array).flatten().collect()
}

/// The arguments of a stream's one call.
fn streamed_arguments(events: &[Value]) -> String {
    let deltas = call_deltas(events);
    deltas.iter().filter_map(|delta| delta["function"]["arguments"].as_str()).collect()
}

#[test]
fn a_required_call_that_is_cut_off_has_what_there_was() {
    let server = Server::start(&[]);
    let asked = |tools: Value, max_tokens: u64| {
        chat_with(json!({"tools": tools, "tool_choice": "required", "max_tokens": max_tokens,
            "temperature": 0}))
    };
    let whole = server.ask(&asked(json!([weather()]), 400));
    let whole_arguments = &whole["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"];
    let whole_arguments = whole_arguments.as_str().unwrap();
    let n_tokens = whole["usage"]["completion_tokens"].as_u64().unwrap();
    let mut lengths = Vec::new();
    for max_tokens in 1..n_tokens {
        let body = asked(json!([weather()]), max_tokens);
        let answer = server.ask(&body);
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "length");
        assert!(choice["message"]["content"].is_null(), "{answer}");
        let call = &choice["message"]["tool_calls"][0]["function"];
        let arguments = call["arguments"].as_str().unwrap();
        assert_eq!(call["name"], "weather");
        assert!(whole_arguments.starts_with(arguments), "{arguments}");
        lengths.push(arguments.len());
        let events = server.events("/v1/chat/completions", &body);
        assert_eq!((joined(&events).as_str(), &*streamed_arguments(&events)), ("", arguments));
        assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "length");
    }
    lengths.dedup();
    assert!(lengths[0] == 0 && lengths.len() > 4, "{lengths:?}");

    // Which of two tools is meant is open before its name is complete.
    let mut other = weather();
    other["function"]["name"] = json!("news");
    let answer = server.ask(&asked(json!([weather(), other]), 1));
    let message = &answer["choices"][0]["message"];
    assert_eq!((text(&answer), &message["tool_calls"]), ("", &json!(null)));
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
        let deltas = call_deltas(&events);
        assert!(deltas.len() > 4, "arguments are sent as they come: {deltas:?}");
        assert!(deltas.iter().all(|delta| delta["index"] == 0));
        assert_eq!(deltas.iter().filter(|delta| delta["id"].is_string()).count(), 1);
        assert_eq!(deltas.iter().filter(|d| d["function"]["name"].is_string()).count(), 1);
        let streamed: Value = serde_json::from_str(&streamed_arguments(&events)).unwrap();
        assert_eq!(streamed, arguments);
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

/// A request for an answer with exactly this text.
fn saying(text: &str, more: Value) -> Value {
    merged(chat_with(json!({"structured_outputs": {"choice": [text]}})), more)
}

#[test]
fn thoughts_are_separated_from_the_answer() {
    let server = Server::start(&[]);
    let asked = saying("<think>\nA ship.\n</think>\n\nProbrosur", json!({"logprobs": true}));
    let answer = server.ask(&asked);
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], "A ship.\n");
    assert_eq!(text(&answer), "Probrosur");
    let events = server.events("/v1/chat/completions", &asked);
    let thought: String = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["reasoning_content"].as_str())
        .collect();
    assert_eq!((joined(&events).as_str(), thought.as_str()), ("Probrosur", "A ship.\n"));
}

/// The bundled model with Qwen3's template, which can switch thinking on and off.
pub fn thinking_model() -> tempfile::TempDir {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"] {
        let file = root.join("assets/weft-tiny").join(name);
        std::fs::copy(file, folder.path().join(name)).unwrap();
    }
    let template = root.join("crates/weft-core/tests/prompts/qwen3.jinja");
    std::fs::copy(template, folder.path().join("chat_template.jinja")).unwrap();
    folder
}

#[test]
fn thinking_is_switched_off_by_the_request() {
    let folder = thinking_model();
    let server = Server::start(&[folder.path().to_str().unwrap()]);
    let prompt = |thinking: Value| {
        let more = json!({"chat_template_kwargs": {"enable_thinking": thinking}});
        let prompt = server.post("/apply-template", &chat_with(more)).1;
        prompt["prompt"].as_str().unwrap().to_owned()
    };
    let no_thought = "<think>\n\n</think>\n\n";
    assert!(prompt(json!(false)).ends_with(no_thought), "{}", prompt(json!(false)));
    for thinking in [json!(true), json!(null)] {
        assert!(prompt(thinking).ends_with("<|im_start|>assistant\n"));
    }
    // An answer that continues the start of a thought is that thought.
    let mut open = chat_with(json!({"continue_final_message": true, "max_tokens": 4,
        "ignore_eos": true}));
    let turns = open["messages"].as_array_mut().unwrap();
    turns.push(json!({"role": "assistant", "content": "<think>\n"}));
    let message = server.ask(&open)["choices"][0]["message"].clone();
    assert_eq!(message["content"], "");
    assert!(!message["reasoning_content"].as_str().unwrap().is_empty(), "{message}");
    let id = server.get("/v1/models").1["data"][0]["id"].clone();
    assert!(!id.as_str().unwrap().contains('/'), "a path is not revealed: {id}");
}

#[test]
fn characters_of_several_tokens_are_streamed_whole() {
    let server = Server::start(&[]);
    let said = "😀👩‍👩‍👧 你好世界 ñ";
    let events = server.events("/v1/chat/completions", &saying(said, json!({"logprobs": true})));
    assert_eq!(joined(&events), said);
    assert!(!joined(&events).contains('\u{FFFD}'));
    let bytes: Vec<u8> = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .flat_map(|entry| entry["bytes"].as_array().unwrap())
        .map(|byte| u8::try_from(byte.as_u64().unwrap()).unwrap())
        .collect();
    assert_eq!(bytes, said.as_bytes(), "the parts of a character are reported as bytes");
}

#[test]
fn tools_are_called_where_the_model_wants_to() {
    let server = Server::start(&[]);
    let said = "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"days\": 2}}\n\
                </tool_call>\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>";
    let asked = saying(said, json!({"tools": [weather()]}));
    let answer = server.ask(&asked);
    let choice = &answer["choices"][0];
    assert_eq!((text(&answer), &choice["finish_reason"]), ("Let me see.", &json!("tool_calls")));
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    let arguments: Vec<_> = calls.iter().map(|c| c["function"]["arguments"].as_str()).collect();
    assert_eq!(arguments, [Some("{\"days\":2}"), Some("{}")]);
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    let events = server.events("/v1/chat/completions", &asked);
    let mut indices: Vec<u64> =
        call_deltas(&events).iter().map(|delta| delta["index"].as_u64().unwrap()).collect();
    assert!(indices.len() > 4, "arguments are sent as they come: {indices:?}");
    indices.dedup();
    assert_eq!((joined(&events).as_str(), indices), ("Let me see.", vec![0, 1]));
    let unasked = server.ask(&saying(said, json!({})));
    assert_eq!(text(&unasked), said, "without tools it is a text");
}

#[test]
fn what_a_rule_forbids_has_a_log_probability_too() {
    let server = Server::start(&[]);
    let more = json!({"logprobs": true, "top_logprobs": 20});
    let answer = server.ask(&saying("zzz", more));
    let entries = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let all = entries.iter().flat_map(|e| e["top_logprobs"].as_array().unwrap()).chain(entries);
    for entry in all {
        let logprob = entry["logprob"].as_f64().expect("a number, never null");
        assert!((-9999.0..=0.0).contains(&logprob), "{entry}");
    }
}

#[test]
fn grammars_of_llama_cpp_rule_chats_and_completions() {
    let server = Server::start(&[]);
    let grammar = "root ::= answer \".\"\nanswer ::= \"yes\" | \"no\" | \"(\" answer \")\"";
    let more = json!({"grammar": grammar, "max_tokens": 40, "temperature": 0});
    let is_ruled = |text: &str| {
        let inner = text.strip_suffix('.').unwrap_or_else(|| panic!("{text}"));
        matches!(inner.trim_matches(['(', ')']), "yes" | "no")
    };
    assert!(is_ruled(text(&server.ask(&chat_with(more.clone())))));
    let body = merged(json!({"prompt": "Is it?"}), more);
    let (status, answer) = server.post("/v1/completions", &body);
    assert_eq!(status, 200, "{answer}");
    assert!(is_ruled(answer["choices"][0]["text"].as_str().unwrap()), "{answer}");
    for (wrong, reason) in [("root ::= x", "no rule x"), ("root ::= (\"a\"", ") is expected")] {
        let body = chat_with(json!({"grammar": wrong}));
        let refusal = server.refusal("/v1/chat/completions", &body, 400);
        assert!(refusal.contains(reason), "{refusal}");
    }
}

#[test]
fn ids_of_tokens_come_if_they_are_asked_for() {
    let server = Server::start(&[]);
    let more = json!({"return_token_ids": true, "temperature": 0, "max_tokens": 12});
    let texts = merged(json!({"prompt": ["One two", "Three"], "n": 2}), more.clone());
    let bodies = [("/v1/chat/completions", chat_with(more), 1), ("/v1/completions", texts, 4)];
    for (path, body, n) in bodies {
        let whole = server.post(path, &body).1;
        let events = server.events(path, &body);
        let mut prompt = 0;
        for choice in 0..n {
            let written = &whole["choices"][choice];
            let ids = written["token_ids"].as_array().unwrap_or_else(|| panic!("{whole}"));
            let mine = |event: &&Value| event["choices"][0]["index"] == choice;
            let streamed: Vec<Value> = events
                .iter()
                .filter(mine)
                .filter_map(|event| event["choices"][0]["token_ids"].as_array().cloned())
                .flatten()
                .collect();
            assert_eq!(&streamed, ids, "{path}");
            let detokenized = server.post("/detokenize", &json!({"tokens": ids})).1;
            let said = written["text"].as_str().unwrap_or_else(|| text(&whole));
            assert!(detokenized["content"].as_str().unwrap().starts_with(said), "{detokenized}");
            let first = |event: &Value| {
                event["prompt_token_ids"].is_array()
                    || event["choices"][0]["prompt_token_ids"].is_array()
            };
            assert!(first(events.iter().find(mine).unwrap()), "{path}: {events:?}");
            let of_choice = written["prompt_token_ids"].as_array().filter(|_| choice % 2 == 0);
            prompt += of_choice.map_or(0, Vec::len);
        }
        prompt += whole["prompt_token_ids"].as_array().map_or(0, Vec::len);
        assert_eq!(whole["usage"]["prompt_tokens"], prompt, "{path}");
    }
    let unasked = server.ask(&chat_with(json!({"max_tokens": 2})));
    assert!(unasked["choices"][0].get("token_ids").is_none(), "{unasked}");
}
