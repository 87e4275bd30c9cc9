//! Embeddings and rankings over HTTP, on a device whose states are known: their order and forms,
//! every refusal, and what many texts leave to others.

mod harness;

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::harness::{get, read, send, serve};

/// The status and the body of an answer.
fn post(address: SocketAddr, path: &str, body: &Value) -> (u16, Value) {
    let answer = read(send(address, "POST", path, &body.to_string()));
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}")))
}

fn embed(address: SocketAddr, body: &Value) -> Value {
    let (status, answer) = post(address, "/v1/embeddings", body);
    assert_eq!(status, 200, "{answer}");
    answer
}

/// The field that a refusal names.
fn refusal(address: SocketAddr, path: &str, body: &Value) -> Value {
    let (status, answer) = post(address, path, body);
    assert_eq!(status, 400, "{body}: {answer}");
    assert_eq!(answer["error"]["type"], "invalid_request_error", "{answer}");
    assert!(!answer["error"]["message"].as_str().unwrap().is_empty());
    answer["error"]["param"].clone()
}

fn numbers(embedding: &Value) -> Vec<f64> {
    embedding.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

fn metric(address: SocketAddr, name: &str) -> u64 {
    let text = get(address, "/metrics");
    let line = text.lines().find(|line| line.split(' ').next() == Some(name));
    line.unwrap().split(' ').nth(1).unwrap().parse().unwrap()
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(20), "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Seven lanes read at a time, and all of them from the first step on.
#[test]
fn texts_of_a_request_share_steps() {
    let (address, control) = serve();
    let lists: Vec<Vec<u32>> = (0..64).map(|n| vec![n, 7]).collect();
    let before = control.steps.load(Ordering::Relaxed);
    embed(address, &json!({"input": lists}));
    assert_eq!(control.steps.load(Ordering::Relaxed) - before, 64_u64.div_ceil(7));
}

#[test]
fn the_same_text_is_read_once() {
    let (address, control) = serve();
    let lists: Vec<[u32; 2]> = (0..64).map(|n| [n % 3, 7]).collect();
    let before = control.steps.load(Ordering::Relaxed);
    let answer = embed(address, &json!({"input": lists}));
    assert_eq!(control.steps.load(Ordering::Relaxed) - before, 1);
    let data = answer["data"].as_array().unwrap();
    for (index, item) in data.iter().enumerate() {
        assert_eq!(item["index"], index);
        assert_eq!(item["embedding"], data[index % 3]["embedding"]);
    }
    let usage = &answer["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["total_tokens"]), (&json!(128), &json!(128)));
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 128 - 6, "{usage}");
}

#[test]
fn embeddings_come_in_the_order_of_their_texts() {
    let (address, _) = serve();
    // The device's states are the last token, then ones.
    let lists: Vec<Vec<u32>> =
        (0..100).map(|n| vec![7; n % 5].into_iter().chain([n as u32]).collect()).collect();
    let answer = embed(address, &json!({"model": "stub", "input": lists}));
    assert_eq!((&answer["object"], &answer["model"]), (&json!("list"), &json!("stub")));
    let n_tokens: usize = lists.iter().map(Vec::len).sum();
    assert_eq!(answer["usage"]["prompt_tokens"], n_tokens);
    assert_eq!(answer["usage"]["total_tokens"], n_tokens);
    for (index, item) in answer["data"].as_array().unwrap().iter().enumerate() {
        assert_eq!((&item["object"], &item["index"]), (&json!("embedding"), &json!(index)));
        let values = numbers(&item["embedding"]);
        let norm: f64 = values.iter().map(|value| value * value).sum();
        assert!((norm - 1.0).abs() < 1e-5, "{norm}");
        assert!((values[0] / values[1] - index as f64).abs() < 1e-3, "{index}: {values:?}");
    }
    // Fewer dimensions, in base64: 3 and 1, divided by their norm.
    let more = json!({"input": [3], "dimensions": 2, "encoding_format": "base64"});
    let answer = embed(address, &more);
    assert_eq!(answer["data"][0]["embedding"], "6dxyP5vooT4=");
    assert_eq!(answer["data"].as_array().unwrap().len(), 1, "a list of numbers is one text");
    // A text, alone and in a list, with and without the version in the path.
    let one = embed(address, &json!({"input": "a text"}))["data"].clone();
    assert_eq!(
        embed(address, &json!({"input": ["a text"], "encoding_format": "float"}))["data"],
        one
    );
    assert_eq!(post(address, "/embeddings", &json!({"input": "a text"})).1["data"], one);
}

#[test]
fn what_cannot_be_embedded_is_refused_by_its_field() {
    let (address, _) = serve();
    let refusal = |body: Value| refusal(address, "/v1/embeddings", &body);
    for input in [
        json!(""),
        json!([]),
        json!([""]),
        json!(["a", ""]),
        json!([[]]),
        json!([[1], []]),
        json!([1_000_000]),
        json!([[1], [-1]]),
        json!(5),
        json!({"text": "a"}),
        json!(vec!["a"; 2049]),
        json!(vec![vec![1; 600]; 2048]),
    ] {
        assert_eq!(refusal(json!({"input": input})), "input");
    }
    assert_eq!(refusal(json!({})), "input");
    assert_eq!(refusal(json!({"input": "a", "dimensions": 0})), "dimensions");
    assert_eq!(refusal(json!({"input": "a", "dimensions": 257})), "dimensions");
    assert_eq!(refusal(json!({"input": "a", "encoding_format": "hex"})), "encoding_format");
    let (status, answer) = post(address, "/v1/embeddings", &json!({"input": "a ".repeat(9000)}));
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("context_length_exceeded")));
}

#[test]
fn documents_are_ranked_in_the_forms_of_others() {
    let (address, _) = serve();
    let body = json!({"model": "stub", "query": "q", "documents": ["a", {"text": "b"}, "c"]});
    for path in ["/v1/rerank", "/v2/rerank", "/rerank"] {
        let (status, answer) = post(address, path, &body);
        assert_eq!(status, 200, "{answer}");
        let results = answer["results"].as_array().unwrap();
        // The device prefers neither word: equal documents keep their order.
        let even = |index| json!({"index": index, "relevance_score": 0.5});
        assert_eq!(results[..], [even(0), even(1), even(2)]);
        assert!(answer["usage"]["total_tokens"].as_u64() > Some(100), "{answer}");
    }
    let mut few = body.clone();
    few["top_n"] = 2.into();
    few["return_documents"] = true.into();
    few["query"] = json!({"text": "q"});
    let results = post(address, "/v1/rerank", &few).1["results"].clone();
    let with_text =
        |index, text| json!({"index": index, "relevance_score": 0.5, "document": {"text": text}});
    assert_eq!(results, json!([with_text(0, "a"), with_text(1, "b")]));
    few["top_n"] = 0.into();
    assert_eq!(post(address, "/v1/rerank", &few).1["results"], json!([]));

    // As text-embeddings-inference has it.
    let texts = json!({"query": "q", "texts": ["a", "b"], "top_n": 9, "return_text": true,
        "raw_scores": false, "truncate": false});
    let (status, answer) = post(address, "/rerank", &texts);
    let scored = |index, text| json!({"index": index, "score": 0.5, "text": text});
    assert_eq!((status, answer), (200, json!([scored(0, "a"), scored(1, "b")])));

    let refusal = |field: &str, value: Value| {
        let mut body = body.clone();
        body[field] = value;
        refusal(address, "/v1/rerank", &body)
    };
    assert_eq!(refusal("query", json!("")), "query");
    assert_eq!(refusal("documents", json!([])), "documents");
    assert_eq!(refusal("documents", json!([1])), "documents[0]");
    assert_eq!(refusal("documents", json!(vec!["a"; 1025])), "documents");
    assert_eq!(refusal("documents", json!(vec!["a b c d".repeat(300); 1024])), "documents");
    assert_eq!(refusal("top_n", json!(-1)), "top_n");
    assert_eq!(refusal("max_tokens_per_doc", json!(100)), "max_tokens_per_doc");
    assert_eq!(refusal("raw_scores", json!(true)), "raw_scores");
}

#[test]
fn many_texts_leave_room_for_a_chat_and_end_with_their_client() {
    let (address, control) = serve();
    control.step_us.store(20_000, Ordering::Relaxed);
    let lists: Vec<[u32; 2]> = (0..2048).map(|n| [n % 64, n / 64]).collect();
    let many = send(address, "POST", "/v1/embeddings", &json!({"input": lists}).to_string());
    until("texts are read", || metric(address, "weft_readings_total") > 0);
    let body = json!({"max_tokens": 2, "messages": [{"role": "user", "content": "x"}]});
    assert_eq!(post(address, "/v1/chat/completions", &body).0, 200);
    assert!(metric(address, "weft_readings_total") < 2048, "the chat did not wait for all");
    drop(many);
    // While the request runs, texts run or wait at any time.
    until("no text is left", || {
        let text = get(address, "/metrics");
        text.contains("\nweft_lanes_running 0\n") && text.contains("\nweft_requests_waiting 0\n")
    });
    assert!(metric(address, "weft_readings_total") < 2048, "nobody waits for the rest");
}

#[test]
fn a_state_that_is_no_number_is_a_fault_of_the_server() {
    let (address, control) = serve();
    control.says_nan.store(true, Ordering::Relaxed);
    let (status, answer) = post(address, "/v1/embeddings", &json!({"input": ["a", "b"]}));
    assert_eq!((status, &answer["error"]["type"]), (500, &json!("server_error")), "{answer}");
    control.says_nan.store(false, Ordering::Relaxed);
    embed(address, &json!({"input": "a"}));
}
