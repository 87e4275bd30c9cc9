//! Anthropic's Messages: the same answers in that dialect, whole and streamed.

use std::io::{BufRead, BufReader, Read};

use serde_json::{Value, json};

use crate::harness::{ANSWER, JSON, QUESTION, Server, chat_with, document, merged};
use crate::rules::thinking_model;

const PATH: &str = "/v1/messages";

fn asked(more: Value) -> Value {
    merged(chat_with(json!({"model": "weft-tiny", "max_tokens": 300, "temperature": 0})), more)
}

/// A request for an answer with exactly this text.
fn saying(text: &str, more: Value) -> Value {
    merged(asked(json!({"structured_outputs": {"choice": [text]}})), more)
}

fn weather() -> Value {
    json!({"name": "weather", "description": "The weather.", "input_schema": {"type": "object",
        "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["days"], "additionalProperties": false}})
}

fn ask(server: &Server, body: &Value) -> Value {
    let (status, answer) = server.post(PATH, body);
    assert_eq!(status, 200, "{answer}");
    answer
}

/// Puts a stream together as Anthropic's clients do, and checks the order of its events.
fn collected(events: &[Value]) -> Value {
    let (first, rest) = events.split_first().unwrap();
    assert_eq!(first["type"], "message_start");
    let mut message = first["message"].clone();
    let mut open: Option<(u64, String)> = None;
    let mut is_over = false;
    for event in rest {
        let index = event["index"].as_u64();
        assert!(!is_over, "{event}");
        match event["type"].as_str().unwrap() {
            "ping" => {}
            "content_block_start" => {
                assert!(open.is_none(), "{event}");
                let content = message["content"].as_array_mut().unwrap();
                assert_eq!(index, Some(content.len() as u64));
                content.push(event["content_block"].clone());
                open = Some((index.unwrap(), String::new()));
            }
            "content_block_delta" => {
                let (at, json) = open.as_mut().unwrap();
                assert_eq!(Some(*at), index);
                let block = &mut message["content"][*at as usize];
                let delta = &event["delta"];
                let mut add = |field: &str| {
                    let more = delta[field].as_str().unwrap();
                    block[field] = format!("{}{more}", block[field].as_str().unwrap()).into();
                };
                match delta["type"].as_str().unwrap() {
                    "text_delta" => add("text"),
                    "thinking_delta" => add("thinking"),
                    "signature_delta" => add("signature"),
                    "input_json_delta" => json.push_str(delta["partial_json"].as_str().unwrap()),
                    other => panic!("{other}"),
                }
            }
            "content_block_stop" => {
                let (at, json) = open.take().unwrap();
                assert_eq!(Some(at), index);
                let block = &mut message["content"][at as usize];
                if block["type"] == "tool_use" {
                    block["input"] = serde_json::from_str(&json).unwrap_or(json!({}));
                }
            }
            "message_delta" => {
                assert!(open.is_none(), "{event}");
                message["usage"] = event["usage"].clone();
                for field in ["stop_reason", "stop_sequence"] {
                    message[field] = event["delta"][field].clone();
                }
            }
            "message_stop" => is_over = true,
            other => panic!("{other}"),
        }
    }
    assert!(is_over);
    message
}

/// The answer without what differs from request to request.
fn essence(mut answer: Value) -> Value {
    for block in answer["content"].as_array_mut().unwrap() {
        let id = block.as_object_mut().unwrap().remove("id");
        assert_eq!(id.is_some(), block["type"] == "tool_use", "{block}");
    }
    let usage = &answer["usage"];
    let [input, read, output] = ["input_tokens", "cache_read_input_tokens", "output_tokens"]
        .map(|field| usage[field].as_u64().unwrap());
    json!({"content": answer["content"], "stop_reason": answer["stop_reason"], "output": output,
        "stop_sequence": answer["stop_sequence"], "input": input + read, "role": answer["role"]})
}

/// A whole answer, which must be the streamed one.
pub fn both(server: &Server, body: &Value) -> Value {
    let whole = ask(server, body);
    let streamed = collected(&server.named_events(PATH, body));
    assert!(whole["id"].as_str().unwrap().starts_with("msg_"), "{whole}");
    assert_eq!(
        (&whole["type"], &whole["model"], &streamed["model"]),
        (&json!("message"), &body["model"], &body["model"])
    );
    assert_eq!(essence(whole.clone()), essence(streamed));
    whole
}

#[test]
fn a_streamed_message_is_the_whole_one() {
    let server = Server::start(&[]);
    let answer = both(&server, &asked(json!({})));
    assert_eq!(answer["content"], json!([{"type": "text", "text": ANSWER}]));
    assert_eq!(
        (&answer["stop_reason"], &answer["stop_sequence"]),
        (&json!("end_turn"), &json!(null))
    );
    let cut = both(&server, &asked(json!({"max_tokens": 2})));
    assert_eq!(cut["stop_reason"], "max_tokens");
    let stopped = both(&server, &asked(json!({"stop_sequences": ["nowhere", "osu"]})));
    assert_eq!(stopped["content"][0]["text"], "Probr");
    let ending = (&stopped["stop_reason"], &stopped["stop_sequence"]);
    assert_eq!(ending, (&json!("stop_sequence"), &json!("osu")));
    // Fields that nobody knows, and those of clients that weft has no use for.
    both(
        &server,
        &asked(json!({"metadata": {"user_id": "u"}, "service_tier": "auto", "x": [1],
        "betas": ["y"], "system": "Be brief.", "top_k": 5, "top_p": 0.9})),
    );
    let edits = json!({"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]});
    let edited = ask(&server, &asked(json!({"context_management": edits})));
    assert_eq!(edited["context_management"], json!({"applied_edits": []}), "none were made");
}

#[test]
fn thoughts_and_calls_are_blocks() {
    let server = Server::start(&[]);
    let thought = both(&server, &saying("<think>\nA ship.\n</think>\n\nProbrosur", json!({})));
    assert_eq!(thought["content"][0]["thinking"], "A ship.\n");
    assert!(!thought["content"][0]["signature"].as_str().unwrap().is_empty());
    assert_eq!(thought["content"][1], json!({"type": "text", "text": "Probrosur"}));

    let said = "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"days\": 2}}\n\
                </tool_call>\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>";
    let more = json!({"tools": [weather()]});
    let calls = both(&server, &saying(said, more.clone()));
    let content = calls["content"].as_array().unwrap();
    assert_eq!((content.len(), &calls["stop_reason"]), (3, &json!("tool_use")));
    assert_eq!(
        (&content[0]["text"], &content[1]["name"]),
        (&json!("Let me see."), &json!("weather"))
    );
    assert_eq!((&content[1]["input"], &content[2]["input"]), (&json!({"days": 2}), &json!({})));
    assert_ne!(content[1]["id"], content[2]["id"]);
    // One call at most: the answer ends with it, and its lane is free.
    let once = json!({"tool_choice": {"type": "auto", "disable_parallel_tool_use": true}});
    let once = saying(said, merged(more, once));
    let answer = ask(&server, &once);
    assert_eq!(
        (answer["content"].as_array().unwrap().len(), &answer["stop_reason"]),
        (2, &json!("tool_use"))
    );
    let streamed = collected(&server.named_events(PATH, &once));
    assert_eq!(streamed["content"][1]["input"], json!({"days": 2}));
    assert_eq!(streamed["content"].as_array().unwrap().len(), 2);
    server.until("the lane is free", || server.is_idle());

    for choice in [json!({"type": "any"}), json!({"type": "tool", "name": "weather"})] {
        let more = json!({"tools": [weather()], "tool_choice": choice});
        let call = both(&server, &asked(more.clone()));
        assert_eq!(call["stop_reason"], "tool_use");
        let days = call["content"][0]["input"]["days"].as_i64().unwrap();
        assert!((1..=9).contains(&days), "{call}");
        let cut = ask(&server, &asked(merged(more, json!({"max_tokens": 3}))));
        assert_eq!(
            (&cut["stop_reason"], &cut["content"][0]["input"]),
            (&json!("max_tokens"), &json!({}))
        );
    }
    let none = json!({"tools": [weather()], "tool_choice": {"type": "none"}});
    assert_eq!(both(&server, &asked(none))["stop_reason"], "end_turn");

    // The next turn brings the call back with its result.
    let mut next = asked(json!({"tools": [weather()], "max_tokens": 4}));
    let turns = next["messages"].as_array_mut().unwrap();
    turns.push(json!({"role": "assistant", "content": content}));
    let results = ["Rain.".into(), json!([{"type": "text", "text": "Snow."}])];
    let results: Vec<Value> = content[1..].iter().zip(results).map(|(call, result)| {
        json!({"type": "tool_result", "tool_use_id": call["id"], "content": result})
    }).collect();
    turns.push(json!({"role": "user", "content": results}));
    both(&server, &next);
}

#[test]
fn a_message_follows_a_schema() {
    let server = Server::start(&[]);
    let schema = json!({"type": "object", "properties": {"ship": {"enum": ["Krogaste", "Nusonix"]}},
        "required": ["ship"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "schema": schema});
    for more in [json!({"output_config": {"format": format}}), json!({"output_format": format})] {
        let answer = both(&server, &asked(more));
        let said: Value =
            serde_json::from_str(answer["content"][0]["text"].as_str().unwrap()).unwrap();
        assert!(said["ship"].is_string(), "{said}");
    }
}

#[test]
fn cached_tokens_are_no_input_and_every_system_block_is_a_piece() {
    let server = Server::start(&[]);
    let blocks = |first: &str| {
        json!([{"type": "text", "text": first}, {"type": "text", "text": document(),
            "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "Be brief."}])
    };
    let body = |first: &str| {
        json!({"model": "weft-tiny", "max_tokens": 20, "temperature": 0, "system": blocks(first),
            "messages": [{"role": "user", "content": QUESTION}]})
    };
    let counted = server.post("/v1/messages/count_tokens", &body("One.")).1;
    let total = counted["input_tokens"].as_u64().unwrap();
    let usage = |answer: &Value| {
        ["input_tokens", "cache_read_input_tokens"].map(|f| answer["usage"][f].as_u64().unwrap())
    };
    let first = ask(&server, &body("One."));
    assert_eq!(usage(&first), [total, 0]);
    // System blocks, and the question.
    let pieces = first["chunk_report"]["chunks"].as_array().unwrap();
    let kinds: Vec<&str> = pieces.iter().map(|piece| piece["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["system", "system", "system", "query"], "{pieces:?}");
    let again = ask(&server, &body("One."));
    let [input, read] = usage(&again);
    assert_eq!((input + read, again["content"] == first["content"]), (total, true));
    assert!(read > total * 9 / 10, "{input} {read}");
    // A stream knows it from its first event on.
    let events = server.named_events(PATH, &body("One."));
    assert_eq!(usage(&events[0]["message"]), usage(&collected(&events)));
    // What follows a changed block is computed again: reuse is exact.
    let [_, read] = usage(&ask(&server, &body("Two.")));
    assert!(read < total / 10, "{read}");
    let too_long = json!({"model": "m", "messages": [
        {"role": "user", "content": "word ".repeat(20_000)}]});
    let counted = server.post("/v1/messages/count_tokens", &too_long).1;
    assert!(counted["input_tokens"].as_u64().unwrap() > 19_000, "{counted}");
}

#[test]
fn a_thought_ends_with_its_budget() {
    let folder = thinking_model();
    let server = Server::start(&[folder.path().to_str().unwrap()]);
    let body = |budget: u64| {
        let mut body = asked(json!({"max_tokens": 30, "ignore_eos": true,
            "thinking": {"type": "enabled", "budget_tokens": budget}}));
        let turns = body["messages"].as_array_mut().unwrap();
        turns.push(json!({"role": "assistant", "content": "<think>\n"}));
        body
    };
    let short = ask(&server, &body(5));
    assert_eq!(short["content"][0]["type"], "thinking", "{short}");
    assert_eq!(short["content"][1]["type"], "text", "the answer follows: {short}");
    let long = ask(&server, &body(29));
    let thought = |answer: &Value| answer["content"][0]["thinking"].as_str().unwrap().to_owned();
    assert!(thought(&long).starts_with(thought(&short).trim_end()), "{short} {long}");
    assert!(thought(&long).len() > thought(&short).len(), "{short} {long}");
    let prompt = |more: Value| {
        let body = merged(asked(json!({})), more);
        server.post("/v1/messages/count_tokens", &body).1["input_tokens"].as_u64().unwrap()
    };
    let thinks = json!({"thinking": {"type": "adaptive"}});
    assert!(prompt(json!({})) > prompt(thinks), "without thinking, an empty thought is written");
}

/// Fields that make a request wrong, each with words of its refusal.
fn wrong_fields() -> Vec<(Value, &'static str)> {
    let image = json!([{"type": "image", "source": {"type": "base64", "data": "x"}}]);
    let turn = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let used = json!([{"type": "tool_use", "id": "a", "name": "f", "input": {}}]);
    vec![
        (json!({"max_tokens": null}), "max_tokens is missing"),
        (json!({"max_tokens": 0}), "at least 1"),
        (json!({"messages": []}), "at least one message"),
        (json!({"messages": 1}), "messages"),
        (json!({"n": 2}), "one answer"),
        (turn(json!(1)), "a string or a list"),
        (turn(json!([{"type": "video"}])), "video"),
        (turn(json!([1])), "messages[0].content[0]"),
        (turn(json!([])), "needs content"),
        (turn(image.clone()), "messages[0].content[0]: images"),
        (turn(used), "assistant"),
        (
            turn(json!([{"type": "tool_result", "tool_use_id": "a", "content": image}])),
            "messages[0].content[0].content[0]",
        ),
        (turn(json!([{"type": "document", "source": {"type": "url", "url": "http://x"}}])), "text"),
        (json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}), "tools[0]"),
        (json!({"tools": [{"name": "f"}]}), "input_schema"),
        (json!({"tools": [{"name": "f", "input_schema": {"type": "string"}}]}), "object"),
        (json!({"tool_choice": {"type": "any"}}), "no tools"),
        (json!({"tool_choice": {"type": "tool", "name": "g"}}), "\"g\""),
        (json!({"tool_choice": "auto"}), "tool_choice"),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 300}}), "budget_tokens"),
        (
            json!({"tools": [weather()], "tool_choice": {"type": "any"},
            "thinking": {"type": "adaptive"}}),
            "thinking cannot",
        ),
        (json!({"mcp_servers": [{"url": "http://x"}]}), "mcp_servers"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"stop_sequences": [""]}), "stop"),
        (json!({"output_config": {"format": {"type": "json_schema", "schema": {"type": 1}}}}), ""),
        (turn(json!("word ".repeat(20_000))), "prompt is too long: "),
    ]
}

#[test]
fn refusals_have_anthropic_s_form() {
    let server = Server::start(&["--api-key", "secret", "--strict-model"]);
    let refused = |body: &Value, status: u16, kind: &str, words: &str| {
        let (given, answer) = server.post(PATH, body);
        assert_eq!((given, &answer["type"]), (status, &json!("error")), "{body}: {answer}");
        assert_eq!(answer["error"]["type"], kind, "{answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{words}: {message}");
        server.check_secrets(&answer);
    };
    let invalid = "invalid_request_error";
    for (more, words) in wrong_fields() {
        refused(&asked(more.clone()), 400, invalid, words);
        let streamed = merged(asked(more), json!({"stream": true}));
        refused(&streamed, 400, invalid, words);
    }
    refused(&asked(json!({"model": "claude"})), 404, "not_found_error", "claude");
}

#[test]
fn a_thread_begins_like_any_conversation_and_is_continued_by_sending_all_of_it() {
    let server = Server::start(&[]);
    let create = asked(json!({"thread": {"type": "create"}, "max_tokens": 4}));
    let id = ask(&server, &create)["id"].clone();
    let thread = json!({"type": "continue", "previous_message_id": id});
    let (status, error) = server.post("/v1/messages", &merged(create, json!({"thread": thread})));
    assert_eq!((status, &error["error"]["type"]), (404, &json!("not_found_error")), "{error}");
    assert_eq!(error["error"]["details"], json!({"error_code": "thread_not_found"}));
}

#[test]
fn what_does_not_get_in_has_anthropic_s_form_too() {
    let server = Server::start(&["--api-key", "secret"]);
    let invalid = "invalid_request_error";
    let error = |method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]| {
        let (status, head, body) = server.send(method, path, headers, body);
        assert!(head.to_lowercase().contains("x-request-id: "), "{head}");
        (status, serde_json::from_slice::<Value>(&body).unwrap()["error"]["type"].clone())
    };
    let authentication = json!("authentication_error");
    for wrong in [("x-api-key", "wrong"), ("Authorization", "Bearer wrong")] {
        assert_eq!(error("POST", PATH, &[JSON[0], wrong], b"{}"), (401, authentication.clone()));
    }
    let headers = [
        JSON[0],
        ("x-api-key", "secret"),
        ("anthropic-version", "2023-06-01"),
        ("anthropic-beta", "a,b"),
    ];
    let body = asked(json!({})).to_string();
    assert_eq!(server.send("POST", "/v1/messages?beta=true", &headers, body.as_bytes()).0, 200);
    assert_eq!(error("GET", PATH, &[], b""), (405, json!(invalid)));
    assert_eq!(
        error("POST", "/v1/messages/batches", &JSON, b"{}"),
        (404, json!("not_found_error"))
    );
    assert_eq!(error("POST", PATH, &JSON, b"{"), (400, json!(invalid)));
    let large = vec![b' '; 17 << 20];
    assert_eq!(error("POST", PATH, &JSON, &large), (413, json!("request_too_large")));
}

#[test]
fn a_client_that_leaves_frees_its_lane_and_a_long_prompt_is_accompanied_by_pings() {
    let server = Server::start(&["--kernels", "reference"]);
    let body = json!({"stream": true, "max_tokens": 1, "model": "m",
        "messages": [{"role": "user", "content": "word ".repeat(1500)}]});
    let stream = server.open("POST", PATH, &JSON, body.to_string().as_bytes());
    let lines: Vec<String> = BufReader::new(stream).lines().map(Result::unwrap).collect();
    let at = |event: &str| lines.iter().position(|line| *line == format!("event: {event}"));
    let order = [at("message_start"), at("ping"), at("message_delta"), at("message_stop")];
    assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{lines:?}");

    let endless = asked(json!({"stream": true, "ignore_eos": true, "max_tokens": 100_000}));
    let mut stream = server.open("POST", PATH, &JSON, endless.to_string().as_bytes());
    stream.read_exact(&mut [0; 600]).unwrap();
    drop(stream);
    server.until("it is cancelled", || server.cancelled() == 1.0 && server.is_idle());
}
