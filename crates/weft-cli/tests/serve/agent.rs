//! Reasoning and automatic tool calls with real tokens: weft-agent, a test model that thinks and
//! calls tools of its own accord, in every dialect. Its names are those that training never drew.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::Server;
use crate::talk::{Dialect, Said, Talk, Tool};

const HOME: Tool = Tool("find_home", "The town where a person lives.", "person");
const WEATHER: Tool = Tool("get_weather", "The weather in a town.", "city");
const CAPTAIN: Tool = Tool("captain_of", "Find the captain.", "ship");

fn server() -> Server {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/weft-agent");
    Server::start(&[folder.to_str().unwrap()])
}

/// An answer must be a call, after a thought about it or after none.
#[track_caller]
fn check_calls(said: &Said, thinks: bool, calls: &[(&str, Value)]) {
    let wanted: Vec<(String, Value)> =
        calls.iter().map(|(name, arguments)| ((*name).to_owned(), arguments.clone())).collect();
    assert_eq!((&said.calls, said.waits, said.text.as_str()), (&wanted, true, ""), "{said:?}");
    assert_eq!(!said.thought.is_empty(), thinks, "{said:?}");
    let names_all = calls.iter().all(|(name, _)| said.thought.contains(name));
    assert!(!thinks || names_all, "{said:?}");
}

/// An answer must be this text, after a thought or after none.
#[track_caller]
fn check_text(said: &Said, thinks: bool, text: &str) {
    assert_eq!((said.text.as_str(), said.calls.len(), said.waits), (text, 0, false), "{said:?}");
    assert_eq!(!said.thought.trim().is_empty(), thinks, "{said:?}");
    assert!(!said.thought.contains("<think>") && !said.thought.contains("</think>"), "{said:?}");
}

/// Every dialect, with thinking and without.
fn everywhere(check: impl Fn(Dialect, bool)) {
    for dialect in Dialect::ALL {
        for thinks in [true, false] {
            check(dialect, thinks);
        }
    }
}

#[test]
fn a_tool_s_result_leads_to_the_next_call_and_then_to_the_answer() {
    let server = server();
    everywhere(|dialect, thinks| {
        let mut talk = Talk::new(&server, dialect, &[HOME, WEATHER], thinks);
        let first = talk.ask("How is the weather where Kadet lives?");
        check_calls(&first, thinks, &[("find_home", json!({"person": "Kadet"}))]);
        let second = talk.give(&["Pumit"]);
        check_calls(&second, thinks, &[("get_weather", json!({"city": "Pumit"}))]);
        assert!(!thinks || second.thought.contains("Pumit"), "{second:?}");
        let last = talk.give(&[r#"{"result": "rainy"}"#]);
        check_text(&last, thinks, "The weather in Pumit is rainy.");
        // The next question is answered by its own call, whatever was called before.
        let next = talk.ask("Where does Rozus live?");
        check_calls(&next, thinks, &[("find_home", json!({"person": "Rozus"}))]);
        check_text(&talk.give(&["Rozus lives in Laga."]), thinks, "Rozus lives in Laga.");
    });
}

#[test]
fn two_calls_are_made_at_once() {
    let server = server();
    everywhere(|dialect, thinks| {
        let mut talk = Talk::new(&server, dialect, &[WEATHER, CAPTAIN], thinks);
        let said = talk.ask("What is the weather in Fori? Who commands the Koda?");
        let calls =
            [("get_weather", json!({"city": "Fori"})), ("captain_of", json!({"ship": "Koda"}))];
        check_calls(&said, thinks, &calls);
        let answer = "The weather in Fori is mild. The captain of the Koda is Tuka.";
        check_text(&talk.give(&["mild", "Tuka"]), thinks, answer);
    });
}

#[test]
fn a_question_that_needs_no_tool_is_answered_plainly() {
    let server = server();
    everywhere(|dialect, thinks| {
        for tools in [&[][..], &[HOME, WEATHER]] {
            let mut talk = Talk::new(&server, dialect, tools, thinks);
            let said =
                talk.ask("Kosan lives in Tane. Kosan works as a baker. Where does Kosan live?");
            check_text(&said, thinks, "Kosan lives in Tane.");
        }
        let mut talk = Talk::new(&server, dialect, &[WEATHER], thinks);
        check_text(&talk.ask("Who commands the Lokel?"), thinks, "I do not know.");
    });
}

#[test]
fn thoughts_count_as_reasoning_and_end_before_the_answer() {
    let server = server();
    let question = "Pizel lives in Kugu. Where does Pizel live?";
    let input = json!([{"role": "user", "content": question}]);
    let response = server.post("/v1/responses", &json!({"input": input})).1;
    let usage = &response["usage"];
    let reasoning = usage["output_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    let all = usage["output_tokens"].as_u64().unwrap();
    assert!(0 < reasoning && reasoning < all, "{response}");
    let whole = server.ask(&json!({"messages": input}));
    assert_eq!(whole["usage"]["completion_tokens_details"]["reasoning_tokens"], reasoning);
    let options = json!({"include_usage": true});
    let asked = json!({"messages": input, "stream_options": options});
    let events = server.events("/v1/chat/completions", &asked);
    let usage = &events.last().unwrap()["usage"];
    assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], reasoning, "{usage}");
    let asked = json!({"messages": input, "max_tokens": 200, "thinking":
        {"type": "enabled", "budget_tokens": 100}});
    let usage = server.post("/v1/messages", &asked).1["usage"].clone();
    assert_eq!(usage["output_tokens_details"]["thinking_tokens"], reasoning, "{usage}");
    let has = |event: &Value, field: &str| {
        event["choices"][0]["delta"][field].as_str().is_some_and(|text| !text.is_empty())
    };
    let last_thought = events.iter().rposition(|event| has(event, "reasoning_content"));
    let first_text = events.iter().position(|event| has(event, "content"));
    assert!(last_thought.is_some() && last_thought < first_text, "{events:?}");
}

#[test]
fn a_required_call_and_a_forbidden_one_are_what_the_model_is_held_to() {
    let server = server();
    let tool = json!({"type": "function", "function": {"name": "get_weather",
        "description": "The weather in a town.", "parameters": {"type": "object",
        "properties": {"city": {"type": "string"}}, "required": ["city"]}}});
    let ask = |question: &str, choice: &str| {
        let turns = json!([{"role": "user", "content": question}]);
        let body = json!({"messages": turns, "tools": [tool], "tool_choice": choice,
            "chat_template_kwargs": {"enable_thinking": false}, "max_tokens": 60});
        server.ask(&body)["choices"][0].clone()
    };
    let question = "What is the weather in Lokel?";
    for choice in ["auto", "required"] {
        let said = ask(question, choice);
        let function = &said["message"]["tool_calls"][0]["function"];
        let arguments: Value =
            serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
        assert_eq!(
            (&function["name"], arguments),
            (&json!("get_weather"), json!({"city": "Lokel"}))
        );
    }
    assert!(ask(question, "none")["message"]["tool_calls"].is_null());
    // Without a reason of its own it calls only because it must.
    let stated = "Kosan lives in Tane. Where does Kosan live?";
    assert!(ask(stated, "auto")["message"]["tool_calls"].is_null());
    assert_eq!(ask(stated, "required")["finish_reason"], "tool_calls");
}

/// The model wants to name the town of the question, which the schema does not have.
#[test]
fn calls_of_strict_tools_fit_their_schemas_in_every_dialect() {
    let server = server();
    let towns = ["Tane", "Pumit"];
    let schema = json!({"type": "object", "properties": {"city": {"enum": towns}},
        "required": ["city"]});
    let about = json!({"name": "get_weather", "description": "The weather in a town."});
    let turns = json!([{"role": "user", "content": "What is the weather in Lokel?"}]);
    let city = |path: &str, strict: bool, thinks: bool| {
        let with = |more: Value| crate::harness::merged(about.clone(), more);
        let flat = with(json!({"type": "function", "parameters": schema, "strict": strict}));
        let body = match path {
            "/v1/messages" => {
                let tool = with(json!({"input_schema": schema, "strict": strict}));
                let kind = if thinks { "adaptive" } else { "disabled" };
                json!({"messages": turns, "tools": [tool], "thinking": {"type": kind},
                    "max_tokens": 200})
            }
            "/v1/responses" => {
                let effort = if thinks { "high" } else { "none" };
                json!({"input": turns, "tools": [flat], "reasoning": {"effort": effort}})
            }
            "/api/chat" => json!({"model": "m", "messages": turns, "think": thinks,
                "stream": false, "tools": [{"type": "function", "function": flat}]}),
            _ => json!({"messages": turns, "tools": [{"type": "function", "function": flat}],
                "chat_template_kwargs": {"enable_thinking": thinks}}),
        };
        let (status, answer) = server.post(path, &body);
        assert_eq!(status, 200, "{path}: {answer}");
        let found = |place: &str| answer.pointer(place).filter(|value| !value.is_null()).cloned();
        let text = |value: Value| serde_json::from_str::<Value>(value.as_str().unwrap()).unwrap();
        let last = |list: &str, field: &str| {
            let last = found(list).and_then(|list| list.as_array().unwrap().last().cloned());
            last.map(|item| item[field].clone())
        };
        let arguments = match path {
            "/v1/messages" => last("/content", "input"),
            "/v1/responses" => last("/output", "arguments").map(text),
            "/api/chat" => found("/message/tool_calls/0/function/arguments"),
            _ => found("/choices/0/message/tool_calls/0/function/arguments").map(text),
        };
        arguments.unwrap_or_else(|| panic!("{path}: {answer}"))["city"].clone()
    };
    for path in ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"] {
        for thinks in [false, true] {
            assert_eq!(city(path, false, thinks), "Lokel", "{path}");
            let strict = city(path, true, thinks);
            assert!(towns.iter().any(|town| strict == *town), "{path}: {strict}");
        }
    }
}
