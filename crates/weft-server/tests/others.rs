//! What clients of other servers find, on a device that computes nothing: llama.cpp's completion,
//! fields of vLLM, and what Anthropic's and OpenAI's clients ask beside answers.

mod harness;

use std::net::SocketAddr;

use serde_json::{Value, json};

use self::harness::{read, send, serve};

/// The status and the body of an answer.
fn ask(address: SocketAddr, method: &str, path: &str, body: &Value) -> (u16, String) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = read(send(address, method, path, &body));
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn post(address: SocketAddr, path: &str, body: &Value) -> (u16, Value) {
    let (status, answer) = ask(address, "POST", path, body);
    (status, serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{answer}")))
}

fn answered(address: SocketAddr, path: &str, body: &Value) -> Value {
    let (status, answer) = post(address, path, body);
    assert_eq!(status, 200, "{answer}");
    answer
}

/// The events of a stream, and whether a mark ends it.
fn events(address: SocketAddr, path: &str, body: &Value) -> (Vec<Value>, bool) {
    let (status, answer) = ask(address, "POST", path, body);
    assert_eq!(status, 200, "{answer}");
    let data: Vec<&str> = answer.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    let has_mark = data.last() == Some(&"[DONE]");
    let read = |text: &&str| serde_json::from_str(text).unwrap_or_else(|_| panic!("{text}"));
    (data.iter().filter(|text| **text != "[DONE]").map(read).collect(), has_mark)
}

#[test]
fn a_completion_in_the_words_of_llama_cpp() {
    let (address, _) = serve();
    let body = json!({"prompt": "x", "n_predict": 3, "seed": 7, "temperature": 0.0,
        "return_tokens": true, "n_probs": 2});
    let whole = answered(address, "/completion", &body);
    assert_eq!((&whole["stop"], &whole["stop_type"]), (&json!(true), &json!("limit")), "{whole}");
    assert_eq!((&whole["truncated"], &whole["stopping_word"]), (&json!(false), &json!("")));
    assert_eq!((&whole["tokens_predicted"], &whole["prompt"]), (&json!(3), &json!("x")));
    assert_eq!(whole["tokens"].as_array().unwrap().len(), 3);
    assert_eq!(whole["timings"]["predicted_n"], 3);
    let settings = &whole["generation_settings"];
    assert_eq!((&settings["n_predict"], &settings["seed"]), (&json!(3), &json!(7)), "{settings}");
    assert_eq!(settings["logit_bias"], json!([]));
    let probabilities = whole["completion_probabilities"].as_array().unwrap();
    assert_eq!(probabilities.len(), 3, "{whole}");
    for (entry, id) in probabilities.iter().zip(whole["tokens"].as_array().unwrap()) {
        assert_eq!((&entry["id"], entry["top_logprobs"].as_array().unwrap().len()), (id, 2));
        assert!(entry["logprob"].as_f64().unwrap() <= 0.0 && entry["bytes"].is_array(), "{entry}");
    }

    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let (parts, has_mark) = events(address, "/completion", &streamed);
    assert!(!has_mark, "the last event says that it is the last");
    let text: String = parts.iter().map(|part| part["content"].as_str().unwrap()).collect();
    assert_eq!(text, whole["content"].as_str().unwrap());
    let ids: Vec<Value> =
        parts.iter().flat_map(|part| part["tokens"].as_array().unwrap().clone()).collect();
    assert_eq!(&ids, whole["tokens"].as_array().unwrap());
    let (last, others) = parts.split_last().unwrap();
    assert!(others.iter().all(|part| part["stop"] == false), "{parts:?}");
    assert_eq!((&last["stop"], &last["stop_type"]), (&json!(true), &json!("limit")));

    let chosen = json!({"prompt": "x", "n_predict": 2, "ignore_eos": true,
        "response_fields": ["content", "generation_settings/n_predict", "nothing/here"]});
    let chosen = answered(address, "/completion", &chosen);
    assert_eq!(chosen.as_object().unwrap().len(), 2, "{chosen}");
    assert_eq!(chosen["generation_settings/n_predict"], 2);
}

#[test]
fn prompts_of_llama_cpp_are_texts_tokens_or_both() {
    let (address, _) = serve();
    let tokens = answered(address, "/tokenize", &json!({"content": "x"}))["tokens"].clone();
    let ask = |prompt: Value| {
        answered(
            address,
            "/completion",
            &json!({"prompt": prompt,
        "n_predict": 2}),
        )
    };
    let of_text = ask(json!("x"));
    assert_eq!(ask(tokens.clone())["content"], of_text["content"]);
    assert_eq!(ask(json!({"prompt_string": "x"}))["content"], of_text["content"]);
    let several = ask(json!([tokens, "x", {"prompt_string": "x"}]));
    let several = several.as_array().unwrap();
    assert_eq!(several.len(), 3);
    for (index, answer) in several.iter().enumerate() {
        assert_eq!((&answer["index"], &answer["content"]), (&json!(index), &of_text["content"]));
    }
    let mixed = ask(json!([1, "xx", 2]));
    assert_eq!(mixed["tokens_evaluated"], 4, "{mixed}");
}

#[test]
fn biases_are_pairs_or_an_object() {
    let (address, _) = serve();
    let ask = |path: &str, biases: Value| {
        post(address, path, &json!({"prompt": "x", "n_predict": 2, "logit_bias": biases}))
    };
    for biases in [json!([["a", -50], [7, false]]), json!({"a": -50, "7": -100})] {
        let (status, answer) = ask("/completion", biases);
        assert_eq!(status, 200, "{answer}");
        let told = answer["generation_settings"]["logit_bias"].as_array().unwrap().clone();
        let is_never = |told: &Value| told["token"] == 7 && told["bias"] == -100.0;
        assert!(told.len() == 2 && told.iter().any(is_never), "{told:?}");
    }
    let (status, answer) = ask("/completion", json!([[1_000_000, 1]]));
    assert_eq!((status, &answer["error"]["code"]), (400, &json!(400)), "{answer}");
    assert_eq!(ask("/v1/completions", json!({"a": 1})).0, 400, "OpenAI's keys are ids");
}

#[test]
fn refusals_have_the_form_of_llama_cpp() {
    let (address, _) = serve();
    let (status, answer) = post(address, "/completion", &json!({"prompt": "x ".repeat(9000)}));
    assert_eq!(status, 400);
    let error = &answer["error"];
    assert_eq!(
        (&error["type"], &error["code"]),
        (&json!("exceed_context_size_error"), &json!(400))
    );
    assert!(error["n_prompt_tokens"].as_u64() > error["n_ctx"].as_u64(), "{error}");
    let (status, answer) = post(address, "/completion", &json!({"n_predict": 3}));
    assert_eq!((status, &answer["error"]["type"]), (400, &json!("invalid_request_error")));
}

#[test]
fn tokens_are_counted_without_an_answer() {
    let (address, _) = serve();
    let messages = json!([{"role": "user", "content": "x"}]);
    let prompt = answered(address, "/tokenize", &json!({"messages": messages}))["count"].clone();
    let counted = json!({"object": "response.input_tokens", "input_tokens": prompt});
    let chat = json!({"model": "m", "messages": messages});
    assert_eq!(answered(address, "/v1/chat/completions/input_tokens", &chat), counted);
    let response = json!({"model": "m", "input": "x"});
    assert_eq!(answered(address, "/v1/responses/input_tokens", &response), counted);
    let kept = answered(address, "/v1/responses", &response);
    let next = json!({"input": "y", "previous_response_id": kept["id"]});
    let longer = answered(address, "/v1/responses/input_tokens", &next);
    assert!(longer["input_tokens"].as_u64() > counted["input_tokens"].as_u64(), "{longer}");
}

/// Nothing runs in the background, so a response that is known has ended.
#[test]
fn a_response_that_has_ended_cannot_be_cancelled() {
    let (address, _) = serve();
    let kept = answered(address, "/v1/responses", &json!({"input": "x", "max_output_tokens": 2}));
    let path = |id: &str| format!("/v1/responses/{id}/cancel");
    let (status, answer) = post(address, &path(kept["id"].as_str().unwrap()), &json!({}));
    assert_eq!(status, 400);
    assert!(answer["error"]["message"].as_str().unwrap().contains("Cannot cancel"), "{answer}");
    assert_eq!(post(address, &path("resp_none"), &json!({})).0, 404);
}

#[test]
fn models_are_listed_for_both_kinds_of_clients() {
    let (address, _) = serve();
    let list: Value =
        serde_json::from_str(&ask(address, "GET", "/v1/models", &Value::Null).1).unwrap();
    assert_eq!((&list["object"], &list["has_more"]), (&json!("list"), &json!(false)));
    assert_eq!((&list["first_id"], &list["last_id"]), (&json!("stub"), &json!("stub")));
    let model = &list["data"][0];
    assert_eq!((&model["object"], &model["type"]), (&json!("model"), &json!("model")));
    assert_eq!((&model["display_name"], &model["lifecycle"]), (&json!("stub"), &json!("active")));
    let created = model["created_at"].as_str().unwrap();
    assert!(
        created.len() == 27 && created.starts_with("20") && created.ends_with('Z'),
        "{created}"
    );
    // Anthropic's clients say who they are, and errors have their form.
    let request = "GET /v1/models/none HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    let error_of = |header: &str| {
        use std::io::Write;
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(format!("{request}{header}\r\n").as_bytes()).unwrap();
        let answer = read(stream);
        serde_json::from_str::<Value>(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    };
    let theirs = error_of("anthropic-version: 2023-06-01\r\n");
    assert_eq!(
        (&theirs["type"], &theirs["error"]["type"]),
        (&json!("error"), &json!("not_found_error"))
    );
    assert_eq!(error_of("")["error"]["code"], "model_not_found");
}

#[test]
fn each_event_may_have_the_usage_so_far() {
    let (address, _) = serve();
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let messages = json!([{"role": "user", "content": "x"}]);
    for (path, mut body) in [
        ("/v1/chat/completions", json!({"messages": messages})),
        ("/v1/completions", json!({"prompt": "x"})),
        ("/v1/completions", json!({"prompt": "x", "echo": true})),
    ] {
        body["max_tokens"] = 4.into();
        body["stream"] = true.into();
        body["stream_options"] = options.clone();
        let (parts, has_mark) = events(address, path, &body);
        assert!(has_mark && parts.len() > 2, "{parts:?}");
        let mut before = 0;
        for part in &parts {
            let n = |field: &str| part["usage"][field].as_u64().unwrap_or_else(|| panic!("{part}"));
            assert_eq!(n("total_tokens"), n("prompt_tokens") + n("completion_tokens"));
            assert!(n("prompt_tokens") > 0 && n("completion_tokens") >= before, "{part}");
            before = n("completion_tokens");
        }
        assert_eq!(before, 4);
        body["stream_options"] = json!({"include_usage": true});
        let (parts, _) = events(address, path, &body);
        let told = parts.iter().filter(|part| !part["usage"].is_null()).count();
        assert_eq!(told, 1, "only the last: {parts:?}");
    }
}

#[test]
fn a_chat_may_begin_with_the_message_that_it_continues() {
    let (address, _) = serve();
    let mut body = json!({"max_tokens": 3, "continue_final_message": true, "echo": true,
        "messages": [{"role": "user", "content": "x"},
            {"role": "assistant", "content": [{"type": "text", "text": "So "},
                {"type": "text", "text": "far"}]}]});
    let content = |answer: &Value| {
        answer["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()
    };
    let echoed = content(&answered(address, "/v1/chat/completions", &body));
    body["stream"] = true.into();
    let (parts, _) = events(address, "/v1/chat/completions", &body);
    let text = |part: &Value| part["choices"][0]["delta"]["content"].as_str().map(str::to_owned);
    assert_eq!(parts.iter().filter_map(text).collect::<String>(), echoed);
    body["stream"] = false.into();
    body["echo"] = false.into();
    let plain = content(&answered(address, "/v1/chat/completions", &body));
    assert_eq!(echoed, format!("So far{plain}"));
}
