//! The dialects on a device that computes nothing: what hostile bodies get, and what a stream says
//! when the engine fails under it.

mod harness;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use self::harness::{read, send, serve};

/// How long a refusal may take, with room for a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// A dialect's route with a request for a few tokens.
fn dialects() -> Vec<(&'static str, Value)> {
    let messages = json!([{"role": "user", "content": "x"}]);
    vec![
        ("/v1/messages", json!({"model": "m", "max_tokens": 3, "messages": messages})),
        ("/v1/responses", json!({"model": "m", "max_output_tokens": 3, "input": "x"})),
        ("/api/chat", json!({"model": "m", "messages": messages, "options": {"num_predict": 3}})),
        ("/api/generate", json!({"model": "m", "prompt": "x", "options": {"num_predict": 3}})),
    ]
}

/// The same, and all other routes that take a text.
fn routes() -> Vec<(&'static str, Value)> {
    let messages = json!([{"role": "user", "content": "x"}]);
    let chat = json!({"max_tokens": 3, "messages": messages});
    let text = json!({"max_tokens": 3, "prompt": "x"});
    let more = [
        ("/v1/chat/completions", chat.clone()),
        ("/v1/chat/completions/input_tokens", chat.clone()),
        ("/v1/completions", text),
        ("/completion", json!({"n_predict": 3, "prompt": "x"})),
        ("/v1/messages/count_tokens", json!({"messages": messages})),
        ("/v1/responses/input_tokens", json!({"input": "x"})),
        ("/v1/embeddings", json!({"input": "x"})),
        ("/api/embed", json!({"input": "x"})),
        ("/api/embeddings", json!({"prompt": "x"})),
        ("/api/show", json!({"model": "stub"})),
        ("/v1/rerank", json!({"query": "x", "documents": ["x"]})),
        ("/tokenize", json!({"content": "x"})),
        ("/detokenize", json!({"tokens": [1]})),
        ("/apply-template", chat),
        ("/models/load", json!({"model": "stub"})),
        ("/v1/chunks/preview", json!({"messages": messages})),
    ];
    dialects().into_iter().chain(more).collect()
}

fn merged(mut body: Value, more: &Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn post(address: SocketAddr, path: &str, body: &str) -> (u16, String) {
    let start = Instant::now();
    let answer = read(send(address, "POST", path, body));
    assert!(start.elapsed() < SOON, "{path}: {:?}", start.elapsed());
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.expect("an answer"), answer)
}

/// A value that is nested `n` deep.
fn deep(n: usize) -> String {
    format!("{}1{}", "[".repeat(n), "]".repeat(n))
}

#[test]
fn hostile_bodies_are_refused_in_every_dialect() {
    let (address, _) = serve();
    let properties: Map<String, Value> =
        (0..5000).map(|i| (format!("p{i}"), json!({"type": "null"}))).collect();
    let schema = json!({"type": "object", "properties": properties});
    let long = "x".repeat(200_000);
    for (path, body) in routes() {
        let hostile = [
            json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}}),
            json!({"text": {"format": {"type": "json_schema", "name": "s", "schema": schema}}}),
            json!({"format": schema}),
            json!({"structured_outputs": {"regex": "a*b*".repeat(40_000)}}),
            json!({"guided_json": {"const": long}}),
            json!({"messages": vec![json!({"role": "user", "content": "x"}); 5000]}),
            json!({"input": vec![json!({"role": "user", "content": "x"}); 5000]}),
            json!({"tools": vec![json!({"type": "function", "name": "f", "input_schema": {},
                "function": {"name": "f"}}); 200]}),
            json!({"tools": 1}),
            json!({"tools": [[]]}),
            json!({"tool_choice": {"type": []}}),
            json!({"stop_sequences": vec!["x"; 100]}),
            json!({"options": {"stop": vec!["x"; 100]}}),
            json!({"temperature": 1e300}),
            json!({"options": {"temperature": "hot"}}),
            json!({"model": [1]}),
            json!({"stream": "yes"}),
            json!({"thinking": 1}),
            json!({"think": []}),
            json!({"reasoning": []}),
            json!({"messages": [{"role": "user", "content": [{"type": long}]}]}),
            json!({"input": [{"type": long}]}),
            json!({"system": [{"type": "text"}]}),
            json!({"previous_response_id": long}),
            json!({"prompt": {"a": 1}}),
            json!({"prompt": [1, "x", {"prompt_string": "x"}]}),
            json!({"input": [[1], {"a": 1}]}),
            json!({"logit_bias": [["x", 1, 2]]}),
            json!({"logit_bias": [[long, 1]]}),
            json!({"response_fields": vec![long.clone(); 70]}),
            json!({"n_probs": -1, "logprobs": -1, "top_logprobs": -1}),
            json!({"tokens": [1e300]}),
            json!({"dimensions": 1e300}),
            json!({"top_n": "all", "texts": {}, "query": []}),
            json!({"stream_options": {"continuous_usage_stats": 1}}),
            json!({"include_reasoning": "no", "echo": "no"}),
        ];
        for more in hostile {
            let (status, answer) = post(address, path, &merged(body.clone(), &more).to_string());
            // Some fields belong to other dialects and mean nothing here.
            let words = more.to_string();
            let words = &words[..words.len().min(80)];
            // A long name of a model is none that is here.
            assert!([400, 200, 404].contains(&status), "{path} {words}: {answer}");
            let is_long = status == 200 && !dialects().iter().any(|(known, _)| *known == path);
            assert!(is_long || answer.len() < 4000, "{path} {words}: {} bytes", answer.len());
        }
        for text in ["", "null", "1", "[]", "{", "{\"model\":", "\u{0}", &deep(200), &deep(100_000)]
        {
            let (status, answer) = post(address, path, text);
            assert_eq!(status, 400, "{path}: {answer}");
        }
        let nested = body.to_string().replacen('{', &format!("{{\"x\": {}, ", deep(100)), 1);
        assert_eq!(post(address, path, &nested).0, 200, "{path}");
        let (status, answer) = post(address, path, &body.to_string());
        assert_eq!(status, 200, "{path} answers others: {answer}");
    }
}

/// A schema that is too large gets the dialect's own refusal, which is tested with its words.
#[test]
fn rules_are_refused_with_their_field() {
    let (address, _) = serve();
    let huge = json!({"const": "x".repeat(200_000)});
    let format = json!({"type": "json_schema", "name": "s", "schema": huge});
    for (path, more, form) in [
        ("/v1/messages", json!({"output_config": {"format": format}}), "\"type\":\"error\""),
        ("/v1/responses", json!({"text": {"format": format}}), "\"param\":\"text.format\""),
        ("/api/chat", json!({"format": huge}), "{\"error\":\""),
    ] {
        let (_, body) = dialects().into_iter().find(|(name, _)| *name == path).unwrap();
        let (status, answer) = post(address, path, &merged(body, &more).to_string());
        assert_eq!(status, 400, "{answer}");
        assert!(answer.contains(form) && answer.contains("the limit is"), "{form}: {answer}");
    }
}

/// OpenAI's names of tools have 64 characters, Anthropic's 128.
#[test]
fn the_names_of_tools_are_limited() {
    let (address, _) = serve();
    let messages = json!([{"role": "user", "content": "x"}]);
    let chat = ("/v1/chat/completions", json!({"max_tokens": 3, "messages": messages}));
    for (path, body) in dialects().into_iter().chain([chat]) {
        let limit = if path == "/v1/messages" { 128 } else { 64 };
        let asked = |n: usize| {
            let name = "ä".repeat(n);
            let kind = if path == "/v1/messages" { "custom" } else { "function" };
            let tool = json!({"type": kind, "name": name, "input_schema": {},
                "function": {"name": name}});
            post(address, path, &merged(body.clone(), &json!({"tools": [tool]})).to_string())
        };
        let (status, answer) = asked(limit);
        assert_eq!(status, 200, "{path}: {answer}");
        if path != "/api/generate" {
            let (status, answer) = asked(limit + 1);
            assert_eq!(status, 400, "{path}: {answer}");
            let numbers = format!("{} characters, and the limit is {limit}", limit + 1);
            assert!(answer.contains(&numbers), "{path}: {answer}");
        }
    }
}

/// What is counted is what the model reads.
#[test]
fn what_a_message_says_of_its_blocks_is_part_of_the_prompt() {
    let (address, _) = serve();
    let count = |block: &Value| {
        let content = json!([block, {"type": "text", "text": "x"}]);
        let body = json!({"messages": [{"role": "user", "content": content}]}).to_string();
        let (status, answer) = post(address, "/v1/messages/count_tokens", &body);
        assert_eq!(status, 200, "{answer}");
        let (_, json) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str::<Value>(json).unwrap()["input_tokens"].as_u64().unwrap()
    };
    let document = json!({"type": "document", "source": {"type": "text", "data": "a b c"}});
    let result = json!({"type": "tool_result", "tool_use_id": "1", "content": "a b c"});
    for (block, more) in [
        (&document, json!({"title": "a title"})),
        (&document, json!({"context": "a book"})),
        (&result, json!({"is_error": true})),
    ] {
        assert!(count(&merged(block.clone(), &more)) > count(block), "{more}");
    }
}

#[test]
fn a_failure_in_mid_stream_has_the_form_of_its_dialect() {
    let (address, control) = serve();
    for (path, body) in dialects() {
        let more = json!({"stream": true, "max_tokens": 4000, "max_output_tokens": 4000,
            "options": {"num_predict": 4000}});
        let body = merged(body, &more).to_string();
        let mut stream = BufReader::new(send(address, "POST", path, &body));
        let mut until = |what: &str| loop {
            let mut line = String::new();
            assert!(stream.read_line(&mut line).unwrap() > 0, "{path} never: {what}");
            if line.contains(what) {
                return line;
            }
        };
        until("\"a\"");
        control.says_nan.store(true, Ordering::Relaxed);
        let (event, message) = match path {
            "/v1/messages" => (Some("error"), "/error/message"),
            "/v1/responses" => (Some("response.failed"), "/response/error/message"),
            _ => (None, "/error"),
        };
        event.map(|event| until(&format!("event: {event}")));
        let last = until("cannot be sampled");
        control.says_nan.store(false, Ordering::Relaxed);
        let json = last.strip_prefix("data: ").unwrap_or(&last);
        let json: Value = serde_json::from_str(json).unwrap();
        let message = json.pointer(message).and_then(Value::as_str).unwrap_or_default();
        assert!(message.contains("cannot be sampled"), "{path}: {json}");
        if path == "/v1/responses" {
            assert_eq!(json["response"]["status"], "failed");
        }
    }
}
