//! Ollama's routes: the same answers in that dialect, as one object or one per line.

use std::io::Read;

use serde_json::{Value, json};

use crate::harness::{ANSWER, JSON, QUESTION, Server, document, merged};
use crate::rules::thinking_model;

const CHAT: &str = "/api/chat";
const GENERATE: &str = "/api/generate";

fn question() -> String {
    format!("{}\n\n{QUESTION}", document())
}

fn asked(more: Value) -> Value {
    let messages = json!([{"role": "user", "content": question()}]);
    merged(json!({"model": "weft-tiny", "messages": messages, "options": {"temperature": 0}}), more)
}

fn saying(text: &str, more: Value) -> Value {
    merged(asked(json!({"structured_outputs": {"choice": [text]}})), more)
}

fn weather() -> Value {
    json!({"type": "function", "function": {"name": "weather", "description": "The weather.",
        "parameters": {"type": "object", "properties": {"days": {"type": "integer"}},
            "required": ["days"], "additionalProperties": false}}})
}

fn lines(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    let (status, head, bytes) = server.send("POST", path, &JSON, body.to_string().as_bytes());
    let text = String::from_utf8(bytes).unwrap();
    assert_eq!(status, 200, "{text}");
    assert!(head.to_lowercase().contains("content-type: application/x-ndjson"), "{head}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What an answer says: text, thought, calls without their ids, reason and tokens.
fn essence(lines: &[Value]) -> Value {
    let (mut text, mut thought, mut calls) = (String::new(), String::new(), Vec::new());
    for line in lines {
        let said = if line["message"].is_object() { &line["message"] } else { line };
        text += said["content"].as_str().or(line["response"].as_str()).unwrap();
        thought += said["thinking"].as_str().unwrap_or_default();
        let all = said["tool_calls"].as_array().into_iter().flatten();
        calls.extend(all.map(|call| call["function"].clone()));
    }
    let (last, before) = lines.split_last().unwrap();
    assert!(before.iter().all(|line| line["done"] == false && line["done_reason"].is_null()));
    assert_eq!(last["done"], true);
    for field in ["total_duration", "load_duration", "prompt_eval_duration", "eval_duration"] {
        assert!(last[field].is_u64(), "{field} in {last}");
    }
    assert!(last["created_at"].as_str().unwrap().ends_with('Z'));
    json!({"text": text, "thought": thought, "calls": calls, "reason": last["done_reason"],
        "prompt": last["prompt_eval_count"], "answer": last["eval_count"]})
}

/// A whole answer's essence, which must be the streamed one's. Without `stream`, it is streamed.
pub fn both(server: &Server, path: &str, body: &Value) -> Value {
    let (status, whole) = server.post(path, &merged(body.clone(), json!({"stream": false})));
    assert_eq!(status, 200, "{whole}");
    let streamed = essence(&lines(server, path, body));
    assert_eq!(essence(&[whole]), streamed);
    streamed
}

#[test]
fn streamed_lines_are_the_whole_answer() {
    let server = Server::start(&[]);
    let answer = both(&server, CHAT, &asked(json!({"keep_alive": "5m", "x": 1})));
    assert_eq!((&answer["text"], &answer["reason"]), (&json!(ANSWER), &json!("stop")));
    let options = |options: Value| asked(json!({"options": options}));
    let cut = both(&server, CHAT, &options(json!({"num_predict": 2, "temperature": 0})));
    assert_eq!((&cut["reason"], &cut["answer"]), (&json!("length"), &json!(2)));
    let more = json!({"stop": ["osu"], "temperature": 0, "num_predict": -1, "num_ctx": 4096,
        "repeat_last_n": 64, "repeat_penalty": 1.0, "mirostat": 0, "seed": 7});
    assert_eq!(both(&server, CHAT, &options(more))["text"], "Probr");
    // A text, with the template and without.
    let text = json!({"model": "weft-tiny:latest", "prompt": question(),
        "options": {"temperature": 0}});
    assert_eq!(both(&server, GENERATE, &text)["text"], ANSWER);
    let raw = merged(text, json!({"raw": true, "prompt": "x", "options": {"num_predict": 3}}));
    let raw = server.post(GENERATE, &merged(raw, json!({"stream": false}))).1;
    assert_eq!((&raw["prompt_eval_count"], &raw["eval_count"]), (&json!(1), &json!(3)));
    // Without a question the model is only loaded.
    for (path, body) in [(CHAT, json!({"model": "weft-tiny"})), (GENERATE, json!({"model": "m"}))] {
        let (status, answer) = server.post(path, &body);
        assert_eq!((status, &answer["done_reason"]), (200, &json!("load")));
    }
    let logprobs = asked(json!({"logprobs": true, "top_logprobs": 2}));
    let all: String = lines(&server, CHAT, &logprobs)
        .iter()
        .filter_map(|line| line["logprobs"].as_array())
        .flatten()
        .map(|entry| entry["token"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(all, ANSWER);
}

#[test]
fn formats_thoughts_and_calls() {
    let server = Server::start(&[]);
    let schema = json!({"type": "object", "properties": {"ship": {"enum": ["Krogaste"]}},
        "required": ["ship"], "additionalProperties": false});
    let answer = both(&server, CHAT, &asked(json!({"format": schema})));
    assert_eq!(answer["text"], "{\"ship\": \"Krogaste\"}");
    let more = json!({"format": "json", "options": {"num_predict": 200, "temperature": 0}});
    assert!(both(&server, CHAT, &asked(more))["text"].as_str().unwrap().starts_with('{'));

    let thought = both(&server, CHAT, &saying("<think>\nHm.\n</think>\n\nYes", json!({})));
    assert_eq!((&thought["thought"], &thought["text"]), (&json!("Hm.\n"), &json!("Yes")));
    let text =
        json!({"prompt": "x", "structured_outputs": {"choice": ["<think>\nHm.\n</think>\n\nYes"]}});
    let text = both(&server, GENERATE, &merged(json!({"model": "m"}), text));
    assert_eq!((&text["thought"], &text["text"]), (&json!("Hm.\n"), &json!("Yes")));

    let said = "See.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"days\": 2}}\n\
                </tool_call>\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>";
    let body = saying(said, json!({"tools": [weather()]}));
    let calls = both(&server, CHAT, &body)["calls"].clone();
    let wanted = json!([{"index": 0, "name": "weather", "arguments": {"days": 2}},
        {"index": 1, "name": "weather", "arguments": {}}]);
    assert_eq!(calls, wanted);
    let lines = lines(&server, CHAT, &body);
    let call = lines.iter().position(|line| line["message"]["tool_calls"].is_array()).unwrap();
    assert!(call + 2 < lines.len(), "a call is sent when it is complete");
    let mut next = asked(json!({"tools": [weather()], "options": {"num_predict": 3}}));
    let turns = next["messages"].as_array_mut().unwrap();
    turns.push(json!({"role": "assistant", "content": "", "tool_calls": [{"function": calls[0]}]}));
    turns.push(json!({"role": "tool", "content": "Rain.", "tool_name": "weather"}));
    both(&server, CHAT, &next);
}

#[test]
fn thinking_is_switched_and_a_model_says_what_it_can() {
    let folder = thinking_model();
    let server = Server::start(&[folder.path().to_str().unwrap(), "--served-model-name", "a,b"]);
    let tokens = |think: Value| {
        let body = asked(json!({"model": "a", "think": think, "stream": false,
            "options": {"num_predict": 1}}));
        server.post(CHAT, &body).1["prompt_eval_count"].as_u64().unwrap()
    };
    assert!(tokens(json!(false)) > tokens(json!(null)), "an empty thought is written");
    assert_eq!(tokens(json!(null)), tokens(json!(true)));
    assert_eq!(tokens(json!("high")), tokens(json!(true)));

    let (status, tags) = server.get("/api/tags");
    let names: Vec<&Value> =
        tags["models"].as_array().unwrap().iter().map(|model| &model["model"]).collect();
    assert_eq!((status, names), (200, vec![&json!("a"), &json!("b")]));
    assert_eq!(tags["models"][0]["details"]["family"], "qwen3");
    let show = server.post("/api/show", &json!({"model": "b:latest"})).1;
    assert_eq!(show["capabilities"], json!(["completion", "tools", "thinking"]));
    let context = server.get("/v1/models").1["data"][0]["max_model_len"].clone();
    assert_eq!(show["model_info"]["qwen3.context_length"], context);
    assert!(show["template"].as_str().unwrap().contains("im_start"), "{show}");
    let running = server.get("/api/ps").1;
    assert_eq!(
        (&running["models"][0]["name"], &running["models"][0]["context_length"]),
        (&json!("a"), &context)
    );
    assert!(server.get("/api/version").1["version"].is_string());
}

#[test]
fn vectors_are_those_of_openai_s_route() {
    let server = Server::start(&[]);
    let texts = json!(["A ship.", "Its captain."]);
    let body = json!({"model": "weft-tiny:latest", "input": texts, "dimensions": 5});
    let theirs = server.post("/v1/embeddings", &merged(body.clone(), json!({"model": null}))).1;
    let (status, ours) = server.post("/api/embed", &body);
    assert_eq!((status, &ours["model"]), (200, &json!("weft-tiny")), "{ours}");
    assert_eq!(ours["prompt_eval_count"], theirs["usage"]["prompt_tokens"]);
    assert!(ours["total_duration"].is_u64() && ours["load_duration"].is_u64(), "{ours}");
    for (index, vector) in theirs["data"].as_array().unwrap().iter().enumerate() {
        assert_eq!(ours["embeddings"][index], vector["embedding"]);
    }
    // Earlier clients send one text.
    let body = json!({"model": "weft-tiny", "prompt": "A ship.", "dimensions": 5});
    let one = server.post("/api/embeddings", &body).1;
    assert_eq!(one["embedding"], theirs["data"][0]["embedding"]);
    for (path, body) in [
        ("/api/embed", json!({"model": "m"})),
        ("/api/embed", json!({"model": "m", "input": ""})),
        ("/api/embeddings", json!({"model": "m", "input": "x"})),
        ("/api/embeddings", json!({"model": "m", "prompt": ["x"]})),
    ] {
        let (status, answer) = server.post(path, &body);
        assert_eq!(status, 400, "{body}: {answer}");
        assert!(answer["error"].is_string(), "{answer}");
    }
}

#[test]
fn refusals_have_ollama_s_form() {
    let server = Server::start(&["--api-key", "secret", "--strict-model"]);
    let refused = |path: &str, body: &Value, wanted: u16, words: &str| {
        let (status, answer) = server.post(path, body);
        assert_eq!(status, wanted, "{body}: {answer}");
        let message = answer["error"].as_str().unwrap_or_else(|| panic!("{answer}"));
        assert!(message.contains(words), "{words}: {message}");
        server.check_secrets(&answer);
    };
    for (more, words) in [
        (json!({"model": null}), "model"),
        (json!({"messages": 1}), "messages"),
        (json!({"messages": [{"role": "user"}]}), "messages[0]: a message needs content"),
        (json!({"messages": [{"role": "king", "content": "x"}]}), "king"),
        (json!({"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}), "images"),
        (json!({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}), "name"),
        (json!({"tools": [{"type": "function"}]}), "tools"),
        (json!({"format": "xml"}), "format"),
        (json!({"format": 1}), "format"),
        (json!({"think": "hard"}), "think"),
        (json!({"options": 1}), "options must be an object"),
        (json!({"options": {"temperature": -1}}), "temperature"),
        (json!({"options": {"mirostat": 2}}), "mirostat"),
        (json!({"options": {"num_predict": -3}}), "from -2"),
        (json!({"messages": [{"role": "user", "content": "word ".repeat(20_000)}]}), "maximum"),
    ] {
        refused(CHAT, &asked(more.clone()), 400, words);
        refused(CHAT, &asked(merged(more, json!({"stream": false}))), 400, words);
    }
    for (more, words) in [
        (json!({"suffix": "x"}), "suffix"),
        (json!({"template": "x"}), "template"),
        (json!({"context": [1]}), "/api/chat"),
        (json!({"images": ["x"]}), "images"),
        (json!({"prompt": 1}), "prompt"),
    ] {
        let body = merged(json!({"model": "weft-tiny", "prompt": "x"}), more);
        refused(GENERATE, &body, 400, words);
    }
    for path in [CHAT, GENERATE, "/api/show"] {
        refused(path, &json!({"model": "llama3", "prompt": "x"}), 404, "llama3");
    }
    refused("/api/pull", &json!({"model": "llama3"}), 404, "no such route");
    let wrong = [JSON[0], ("Authorization", "Bearer wrong")];
    let (status, _, body) = server.send("POST", CHAT, &wrong, b"{}");
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert!(status == 401 && body["error"].is_string(), "{status} {body}");
}

#[test]
fn a_client_that_leaves_the_lines_frees_its_lane() {
    let server = Server::start(&[]);
    let endless = asked(json!({"options": {"ignore_eos": true}}));
    let mut stream = server.open("POST", CHAT, &JSON, endless.to_string().as_bytes());
    stream.read_exact(&mut [0; 2000]).unwrap();
    drop(stream);
    server.until("it is cancelled", || server.cancelled() == 1.0 && server.is_idle());
}
