//! OpenAI's Responses: the same answers in that dialect, whole, streamed and kept.

use std::io::Read;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{ANSWER, JSON, QUESTION, Server, document, merged};

const PATH: &str = "/v1/responses";

fn asked(more: Value) -> Value {
    let input = format!("{}\n\n{QUESTION}", document());
    merged(json!({"model": "weft-tiny", "input": input, "temperature": 0}), more)
}

/// A request for an answer with exactly this text.
fn saying(text: &str, more: Value) -> Value {
    merged(asked(json!({"structured_outputs": {"choice": [text]}})), more)
}

fn weather() -> Value {
    json!({"type": "function", "name": "weather", "description": "The weather.", "strict": true,
        "parameters": {"type": "object", "properties": {"days": {"type": "integer", "minimum": 1,
            "maximum": 9}}, "required": ["days"], "additionalProperties": false}})
}

fn ask(server: &Server, body: &Value) -> Value {
    let (status, answer) = server.post(PATH, body);
    assert_eq!(status, 200, "{answer}");
    answer
}

/// The text of a response, as the client's `output_text`.
pub fn text(response: &Value) -> String {
    let items = response["output"].as_array().unwrap().iter();
    let parts = items.filter(|item| item["type"] == "message").flat_map(|item| {
        item["content"].as_array().unwrap().iter().map(|part| part["text"].as_str().unwrap())
    });
    parts.collect()
}

/// Puts the output of a stream together from its deltas, and checks its events on the way.
fn collected(events: &[Value]) -> Value {
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "{event}");
    }
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[..2], ["response.created", "response.in_progress"]);
    assert_eq!(events[0]["response"]["status"], "in_progress");
    let mut output: Vec<Value> = Vec::new();
    for event in &events[2..events.len() - 1] {
        let kind = event["type"].as_str().unwrap().strip_prefix("response.").unwrap();
        let index = event["output_index"].as_u64().unwrap() as usize;
        if kind == "output_item.added" {
            assert_eq!(index, output.len());
            output.push(event["item"].clone());
            continue;
        }
        assert_eq!(index, output.len() - 1, "items come one after the other: {event}");
        let item = &mut output[index];
        if kind == "output_item.done" {
            item["status"] = event["item"]["status"].clone();
            assert_eq!(*item, event["item"]);
            continue;
        }
        assert_eq!(event["item_id"], item["id"]);
        match kind {
            "content_part.added" => item["content"] = json!([event["part"]]),
            "content_part.done" => assert_eq!(item["content"][0], event["part"]),
            "output_text.delta" | "reasoning_text.delta" => {
                let part = &mut item["content"][event["content_index"].as_u64().unwrap() as usize];
                let more = event["delta"].as_str().unwrap();
                part["text"] = format!("{}{more}", part["text"].as_str().unwrap()).into();
                let entries = event["logprobs"].as_array().into_iter().flatten().cloned();
                if let Some(all) = part.get_mut("logprobs").and_then(Value::as_array_mut) {
                    all.extend(entries);
                }
            }
            "output_text.done" | "reasoning_text.done" => {
                assert_eq!(item["content"][0]["text"], event["text"]);
            }
            "function_call_arguments.delta" => {
                let more = event["delta"].as_str().unwrap();
                item["arguments"] = format!("{}{more}", item["arguments"].as_str().unwrap()).into();
            }
            "function_call_arguments.done" => assert_eq!(item["arguments"], event["arguments"]),
            other => panic!("{other}"),
        }
    }
    let last = events.last().unwrap();
    let response = &last["response"];
    assert_eq!(last["type"], format!("response.{}", response["status"].as_str().unwrap()));
    assert_eq!(response["output"], json!(output), "the last event has it all");
    response.clone()
}

/// The response without what differs from request to request.
fn essence(response: &Value) -> Value {
    let mut output = response["output"].clone();
    for item in output.as_array_mut().unwrap() {
        let item = item.as_object_mut().unwrap();
        assert!(item.remove("id").unwrap().is_string());
        item.remove("call_id");
    }
    let usage = &response["usage"];
    json!({"output": output, "status": response["status"], "details": response["incomplete_details"],
        "input": usage["input_tokens"], "written": usage["output_tokens"],
        "thought": usage["output_tokens_details"]})
}

/// A whole response, which must be the streamed one.
pub fn both(server: &Server, body: &Value) -> Value {
    let whole = ask(server, body);
    let streamed = collected(&server.named_events(PATH, body));
    assert!(whole["id"].as_str().unwrap().starts_with("resp_"), "{whole}");
    assert_eq!((&whole["object"], &whole["error"]), (&json!("response"), &json!(null)));
    assert_eq!(essence(&whole), essence(&streamed));
    whole
}

#[test]
fn a_streamed_response_is_the_whole_one() {
    let server = Server::start(&[]);
    let answer = both(&server, &asked(json!({})));
    assert_eq!((text(&answer).as_str(), &answer["status"]), (ANSWER, &json!("completed")));
    let usage = &answer["usage"];
    let sum = usage["input_tokens"].as_u64().unwrap() + usage["output_tokens"].as_u64().unwrap();
    assert_eq!(usage["total_tokens"], sum);
    let again = ask(&server, &asked(json!({})));
    let cached = again["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached > 100, "{again}");
    let cut = both(&server, &asked(json!({"max_output_tokens": 2})));
    assert_eq!(cut["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!(
        (&cut["status"], &cut["output"][0]["status"]),
        (&json!("incomplete"), &json!("incomplete"))
    );
    assert_eq!(text(&both(&server, &asked(json!({"stop": "osu"})))), "Probr");
    // What clients send that changes nothing, and what a response repeats.
    let more = json!({"metadata": {"a": "b"}, "user": "u", "truncation": "auto", "x": {"y": 1},
        "include": ["reasoning.encrypted_content"], "service_tier": "auto",
        "reasoning": {"effort": "high", "summary": "auto"}, "instructions": "Be brief.",
        "stream_options": {"include_obfuscation": false}, "prompt_cache_key": "k"});
    let echoed = both(&server, &asked(more));
    assert_eq!(echoed["metadata"], json!({"a": "b"}));
    assert_eq!(echoed["instructions"], "Be brief.");
    assert_eq!((&echoed["temperature"], &echoed["truncation"]), (&json!(0.0), &json!("disabled")));
    let logprobs = asked(json!({"include": ["message.output_text.logprobs"], "top_logprobs": 2}));
    let entries = both(&server, &logprobs)["output"][0]["content"][0]["logprobs"].clone();
    let tokens: String =
        entries.as_array().unwrap().iter().map(|e| e["token"].as_str().unwrap()).collect();
    assert_eq!(tokens, ANSWER);
    assert_eq!(entries[0]["top_logprobs"].as_array().unwrap().len(), 2);
    // The address without a version.
    assert_eq!(server.post("/responses", &asked(json!({}))).0, 200);
}

#[test]
fn thoughts_and_calls_are_items() {
    let server = Server::start(&[]);
    let thought = both(&server, &saying("<think>\nA ship.\n</think>\n\nProbrosur", json!({})));
    let reasoning = &thought["output"][0];
    assert_eq!(
        (&reasoning["type"], &reasoning["content"][0]["text"]),
        (&json!("reasoning"), &json!("A ship.\n"))
    );
    assert_eq!(text(&thought), "Probrosur");
    let usage = &thought["usage"];
    let tokens = usage["output_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    let all = usage["output_tokens"].as_u64().unwrap();
    assert!(0 < tokens && tokens < all, "{thought}");

    let said = "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"days\": 2}}\n\
                </tool_call>\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>";
    let calls = both(&server, &saying(said, json!({"tools": [weather()]})));
    let kinds = |response: &Value| -> Vec<String> {
        let items = response["output"].as_array().unwrap().iter();
        items.map(|item| item["type"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(kinds(&calls), ["message", "function_call", "function_call"]);
    assert_eq!(calls["output"][1]["arguments"], "{\"days\":2}");
    assert_ne!(calls["output"][1]["call_id"], calls["output"][2]["call_id"]);
    let once = ask(
        &server,
        &saying(
            said,
            json!({"tools": [weather()],
        "parallel_tool_calls": false}),
        ),
    );
    assert_eq!(kinds(&once), ["message", "function_call"]);
    server.until("the lane is free", || server.is_idle());
    for choice in [json!("required"), json!({"type": "function", "name": "weather"})] {
        let call = both(&server, &asked(json!({"tools": [weather()], "tool_choice": choice})));
        let item = &call["output"][0];
        let arguments: Value = serde_json::from_str(item["arguments"].as_str().unwrap()).unwrap();
        assert!((1..=9).contains(&arguments["days"].as_i64().unwrap()), "{call}");
    }
    let none = both(&server, &asked(json!({"tools": [weather()], "tool_choice": "none"})));
    assert_eq!(kinds(&none), ["message"]);

    // The next turn: with the calls and their results, or with what was kept of them.
    let results: Vec<Value> = calls["output"].as_array().unwrap()[1..].iter().map(|call| {
        json!({"type": "function_call_output", "call_id": call["call_id"], "output": "Rain."})
    }).collect();
    let mut items = vec![json!({"role": "user", "content": asked(json!({}))["input"]})];
    items.extend(calls["output"].as_array().unwrap().iter().cloned());
    items.extend(results.clone());
    let more = json!({"tools": [weather()], "max_output_tokens": 4});
    let whole = both(&server, &asked(merged(more.clone(), json!({"input": items}))));
    let previous = json!({"input": results, "previous_response_id": calls["id"]});
    let kept = both(&server, &asked(merged(more, previous)));
    assert_eq!(essence(&whole), essence(&kept));
    assert_eq!(kept["previous_response_id"], calls["id"]);
}

#[test]
fn references_to_items_that_are_kept_stand_for_them() {
    let server = Server::start(&[]);
    let first = ask(&server, &saying("<think>\nA ship.\n</think>\n\nIt is.", json!({})));
    let items = first["output"].as_array().unwrap();
    assert_eq!(items.len(), 2, "{first}");
    let turns = |said: [Value; 2]| {
        let [thought, text] = said;
        let again = json!({"role": "user", "content": "Who?"});
        asked(json!({"input": [{"role": "user", "content": "Hello"}, thought, text, again],
            "max_output_tokens": 4}))
    };
    let by_id = [0, 1].map(|n| json!({"type": "item_reference", "id": items[n]["id"]}));
    let given = ask(&server, &turns([items[0].clone(), items[1].clone()]));
    let found = ask(&server, &turns(by_id.clone()));
    assert_eq!(found["usage"]["input_tokens"], given["usage"]["input_tokens"]);
    // What a response was made from is kept as the items themselves, so it can be continued.
    assert!(
        server.send("DELETE", &format!("{PATH}/{}", first["id"].as_str().unwrap()), &[], b"").0
            == 200
    );
    let next = json!({"previous_response_id": found["id"], "max_output_tokens": 4});
    assert_eq!(ask(&server, &asked(next))["object"], "response");
    let (status, error) = server.post(PATH, &turns(by_id));
    assert_eq!((status, &error["error"]["param"]), (400, &json!("input[1]")), "{error}");
}

#[test]
fn functions_of_a_namespace_are_called_by_both_names_and_searches_are_left_out() {
    let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/weft-agent");
    let server = Server::start(&[agent.to_str().unwrap()]);
    let team = json!({"type": "namespace", "name": "team", "tools": [weather()]});
    let tools = json!([weather(), team, {"type": "web_search"}]);
    let call = |name: &str| {
        format!(
            "<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {{\"days\": 2}}}}\n</tool_call>"
        )
    };
    let said = format!("{}\n{}", call("team.weather"), call("weather"));
    let response = both(&server, &saying(&said, json!({"tools": tools})));
    let output = response["output"].as_array().unwrap();
    let spaces: Vec<_> = output.iter().map(|item| (&item["namespace"], &item["name"])).collect();
    assert_eq!(spaces, [(&json!("team"), &json!("weather")), (&Value::Null, &json!("weather"))]);
    assert_eq!(response["tools"], json!([weather(), tools[1]]), "what the model was offered");
    // The call comes back as the model wrote it: both ways to continue have the same prompt.
    let result = json!({"type": "function_call_output", "call_id": output[0]["call_id"],
        "output": "Rain."});
    let more = json!({"tools": tools, "max_output_tokens": 4});
    let mut kept = more.clone();
    kept["input"] = json!([result]);
    kept["previous_response_id"] = response["id"].clone();
    let mut sent = more;
    let question = json!({"role": "user", "content": asked(json!({}))["input"]});
    sent["input"] = json!([question, output[0], output[1], result]);
    let tokens = |body: &Value| {
        let (status, response) = server.post("/v1/responses", body);
        assert_eq!(status, 200, "{response}");
        response["usage"]["input_tokens"].clone()
    };
    assert_eq!(tokens(&kept), tokens(&sent));
    sent["input"][1]["namespace"] = Value::Null;
    assert_ne!(tokens(&kept), tokens(&sent), "the namespace is part of the call");
    let choice = json!({"type": "function", "namespace": "team", "name": "weather"});
    let forced = json!({"tools": [weather(), tools[1]], "tool_choice": choice});
    assert_eq!(both(&server, &asked(forced))["output"][0]["namespace"], "team");
}

#[test]
fn a_response_follows_a_schema() {
    let server = Server::start(&[]);
    let schema = json!({"type": "object", "properties": {"ship": {"enum": ["Krogaste", "Nusonix"]}},
        "required": ["ship"], "additionalProperties": false});
    for format in [
        json!({"type": "json_schema", "name": "s", "schema": schema, "strict": true}),
        json!({"type": "json_object"}),
    ] {
        let answer = both(
            &server,
            &asked(json!({"text": {"format": format},
            "max_output_tokens": 200})),
        );
        let is_whole = answer["status"] == "completed";
        assert!(!is_whole || serde_json::from_str::<Value>(&text(&answer)).unwrap().is_object());
        assert!(text(&answer).starts_with('{'), "{answer}");
    }
}

#[test]
fn responses_are_kept_listed_and_deleted() {
    let server = Server::start(&[]);
    let input = json!([{"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUESTION}]}]);
    let response = ask(&server, &asked(json!({"input": input, "max_output_tokens": 3})));
    let path = format!("{PATH}/{}", response["id"].as_str().unwrap());
    assert_eq!(server.get(&path), (200, response.clone()));
    let (status, items) = server.get(&format!("{path}/input_items"));
    assert_eq!((status, items["data"].as_array().unwrap().len()), (200, 2));
    assert_eq!(items["data"][0]["role"], "user", "the newest is first");
    assert_eq!(items["first_id"], items["data"][0]["id"]);
    let first = server.get(&format!("{path}/input_items?order=asc&limit=1")).1;
    assert_eq!(
        (&first["data"][0]["role"], &first["has_more"]),
        (&json!("developer"), &json!(true))
    );
    let after =
        format!("{path}/input_items?order=asc&after={}", first["last_id"].as_str().unwrap());
    assert_eq!(server.get(&after).1["data"][0]["role"], "user");
    for wrong in ["limit=0", "limit=101", "limit=x", "order=up"] {
        let (status, answer) = server.get(&format!("{path}/input_items?{wrong}"));
        assert_eq!(status, 400, "{wrong}");
        server.check_error(&answer);
    }
    // A stream is kept too, and a conversation goes on from it.
    let events = server.named_events(PATH, &asked(json!({})));
    let streamed = events.last().unwrap()["response"].clone();
    let streamed_path = format!("{PATH}/{}", streamed["id"].as_str().unwrap());
    assert_eq!(server.get(&streamed_path), (200, streamed.clone()));
    let next = json!({"input": "What is it?", "previous_response_id": streamed["id"],
        "max_output_tokens": 3});
    let third = ask(&server, &asked(next));
    let tokens = |response: &Value| response["usage"]["input_tokens"].as_u64().unwrap();
    assert!(tokens(&third) > tokens(&streamed), "{third}");
    let cached = third["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached > tokens(&streamed) * 9 / 10, "{third}");
    // What is deleted or was never kept is not found.
    assert_eq!(server.delete(&path).1["deleted"], true);
    let unkept = ask(&server, &asked(json!({"store": false})));
    let unkept = format!("{PATH}/{}", unkept["id"].as_str().unwrap());
    for gone in [&path, &unkept] {
        for path in [gone.clone(), format!("{gone}/input_items")] {
            let (status, answer) = server.get(&path);
            assert_eq!(status, 404, "{answer}");
            server.check_error(&answer);
        }
        assert_eq!(server.delete(gone).0, 404);
    }
    let previous = json!({"previous_response_id": response["id"]});
    let (status, answer) = server.post(PATH, &asked(previous));
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("previous_response_not_found")));
}

#[test]
fn what_a_response_cannot_be_is_refused() {
    let server = Server::start(&["--strict-model"]);
    let user = |content: Value| json!({"input": [{"role": "user", "content": content}]});
    for (more, words) in [
        (json!({"input": null}), "input is missing"),
        (json!({"input": []}), "input is missing"),
        (json!({"input": 1}), "a string or a list"),
        (json!({"input": [1]}), "input[0]"),
        (json!({"input": [{"type": "web_search_call"}]}), "web_search_call"),
        (json!({"input": [{"type": "item_reference", "id": "x"}]}), "send the item"),
        (json!({"input": [{"role": "king", "content": "x"}]}), "king"),
        (json!({"input": [{"type": "reasoning", "summary": []}]}), "no message"),
        (user(json!([{"type": "input_image", "image_url": "http://x"}])), "images"),
        (user(json!([{"type": "input_file", "file_id": "x"}])), "files"),
        (json!({"tools": [{"type": "web_search"}]}), "web_search"),
        (json!({"tools": [weather(), {"type": "file_search"}]}), "file_search"),
        (
            json!({"tools": [weather(), {"type": "web_search"}], "tool_choice": "required"}),
            "web_search",
        ),
        (json!({"tools": [{"type": "namespace", "name": "x"}]}), "list of tools"),
        (json!({"tools": [{"type": "function"}]}), "name"),
        (json!({"tools": [weather()], "tool_choice": {"type": "allowed_tools"}}), "tool_choice"),
        (json!({"tool_choice": "required"}), "no tools"),
        (json!({"text": {"format": {"type": "xml"}}}), "xml"),
        (json!({"max_output_tokens": 0}), "from 1"),
        (json!({"reasoning": {"effort": "huge"}}), "huge"),
        (json!({"truncation": "middle"}), "middle"),
        (json!({"background": true}), "background"),
        (json!({"conversation": "conv_1"}), "previous_response_id"),
        (json!({"prompt": {"id": "p"}}), "prompt"),
        (json!({"metadata": {"a": "x".repeat(1000)}}), "metadata"),
        (json!({"n": 2}), "one answer"),
        (json!({"top_p": 2}), "top_p"),
        (json!({"input": "word ".repeat(20_000)}), "maximum context length"),
    ] {
        for streams in [false, true] {
            let body = asked(merged(more.clone(), json!({"stream": streams})));
            let message = server.refusal(PATH, &body, 400);
            assert!(message.contains(words), "{words}: {message}");
        }
    }
    server.refusal(PATH, &asked(json!({"model": "gpt-5"})), 404);
}

#[test]
fn a_client_that_leaves_a_response_frees_its_lane() {
    let server = Server::start(&[]);
    let endless = asked(json!({"stream": true, "ignore_eos": true}));
    let mut stream = server.open("POST", PATH, &JSON, endless.to_string().as_bytes());
    stream.read_exact(&mut [0; 3000]).unwrap();
    drop(stream);
    server.until("it is cancelled", || server.cancelled() == 1.0 && server.is_idle());
}
