//! Small requests whose work would be large: chunks that are named many times, texts with many
//! tokens, what is kept of them, and what others must not wait for. Too much is refused with its
//! limit.

mod harness;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weft_core::prompt::Template;
use weft_server::{Loaded, Options, Server};
use weft_testing::stub::{self, Control};

use self::harness::{get, read, send, serve};

/// A template that takes nearly as long as one may.
const SLOW: &str = "{%- for i in range(999) %}{%- for j in range(900) %}{%- set x = i + j %}\
    {%- endfor %}{%- endfor %}{%- for message in messages %}{{ message.content }}{%- endfor %}";

/// The status and the body of an answer.
fn post(address: SocketAddr, path: &str, body: &Value) -> (u16, Value) {
    let answer = read(send(address, "POST", path, &body.to_string()));
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}")))
}

/// The message of a refusal.
fn refusal(address: SocketAddr, path: &str, body: &Value) -> String {
    let (status, answer) = post(address, path, body);
    assert_eq!(status, 400, "{path}: {answer}");
    answer["error"]["message"].as_str().unwrap().to_owned()
}

/// A chat that names a registered chunk so many times.
fn chat_of(chunk: &Value, times: usize) -> Value {
    let mut parts = vec![json!({"type": "chunk", "id": chunk["id"]}); times];
    parts.push(json!({"type": "text", "text": "why?"}));
    json!({"max_tokens": 1, "messages": [{"role": "user", "content": parts}]})
}

#[test]
fn a_chunk_that_is_named_often_counts_each_time() {
    let (address, _) = serve();
    let (status, chunk) = post(address, "/v1/chunks", &json!({"text": "a b c d ".repeat(300)}));
    assert_eq!(status, 201, "{chunk}");
    let few = chat_of(&chunk, 2);
    let counted = post(address, "/tokenize", &few).1["count"].as_u64().unwrap();
    let own = chunk["tokens"].as_u64().unwrap();
    assert!((2 * own..2 * own + 100).contains(&counted), "{counted} tokens of twice {own}");
    // 39 MB of text.
    let many = chat_of(&chunk, 16_000);
    for path in ["/tokenize", "/apply-template"] {
        let message = refusal(address, path, &many);
        assert!(message.contains("and the limit is 16777216"), "{path}: {message}");
    }
    // 1.4 MB of text, which can be counted. A prompt that is too long is refused before it is made.
    let many = chat_of(&chunk, 600);
    let (status, counted) = post(address, "/tokenize", &many);
    assert_eq!((status, counted["count"].as_u64() > Some(600 * own)), (200, true));
    for path in ["/v1/chat/completions", "/v1/chunks/preview"] {
        let message = refusal(address, path, &many);
        let tokens = format!("the prompt has {} tokens", 600 * own);
        assert!(message.contains(&tokens), "{path}: {message}");
    }
}

#[test]
fn tokens_of_a_request_are_limited() {
    let (address, _) = serve();
    let text = |n: usize| json!({"content": "\u{1}".repeat(n), "with_pieces": true});
    let (status, answer) = post(address, "/tokenize", &text(20));
    assert_eq!((status, &answer["count"]), (200, &json!(20)), "{answer}");
    let most = 1 << 20;
    let message = refusal(address, "/tokenize", &text(most + 1));
    assert!(message.contains("content has 1048577 tokens, and the limit is 1048576"), "{message}");
    let id = answer["tokens"][0]["id"].as_u64().unwrap();
    let message = refusal(address, "/detokenize", &json!({"tokens": vec![id; most + 1]}));
    assert!(message.contains("tokens has 1048577 tokens, and the limit is 1048576"), "{message}");
}

/// Items may have fields that no model reads, so the prompt is short.
#[test]
fn a_conversation_that_is_kept_is_limited() {
    let (address, _) = serve();
    let body = |previous: &Value, store: bool| {
        let item = json!({"role": "user", "content": "x", "pad": "x".repeat(6 << 20)});
        json!({"input": [item], "previous_response_id": previous, "store": store,
            "max_output_tokens": 1})
    };
    let path = "/v1/responses";
    let mut previous = Value::Null;
    for _ in 0..2 {
        let (status, answer) = post(address, path, &body(&previous, true));
        assert_eq!(status, 200, "{answer}");
        previous = answer["id"].clone();
    }
    let message = refusal(address, path, &body(&previous, true));
    assert!(message.contains("with at most 16777216; set store to false"), "{message}");
    assert_eq!(post(address, path, &body(&previous, false)).0, 200);
    assert_eq!(post(address, "/v1/responses/input_tokens", &body(&previous, true)).0, 200);
}

/// A server whose model has the slow template.
fn serve_slow() -> SocketAddr {
    let server = Server::bind(Options::new("127.0.0.1:0".parse().unwrap()), |_| {}).unwrap();
    let address = server.address().unwrap();
    std::thread::spawn(move || {
        server.run(
            "stub",
            Box::new(|| {
                let mut model = stub::model();
                model.template = Some(Arc::new(Template::new(SLOW, None, None)?));
                let engine = stub::engine(&model, "a", &Arc::new(Control::default()));
                Ok(Loaded::new("stub", model, engine))
            }),
        )
    });
    while !get(address, "/health").starts_with("HTTP/1.1 200") {
        std::thread::sleep(Duration::from_millis(5));
    }
    address
}

/// The body of an answer, and how long it took.
fn timed(address: SocketAddr, method: &str, path: &str) -> (Value, Duration) {
    let start = Instant::now();
    let answer = read(send(address, method, path, ""));
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    (serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}")), start.elapsed())
}

#[test]
fn a_chunk_is_composed_beside_the_engine() {
    let address = serve_slow();
    let chunk = post(address, "/v1/chunks", &json!({"text": "a b c d ".repeat(300)})).1;
    let path = format!("/v1/chunks/{}", chunk["id"].as_str().unwrap());
    let warm = format!("{path}/warm");
    let warming = std::thread::spawn(move || timed(address, "POST", &warm));
    let mut slowest = Duration::ZERO;
    while !warming.is_finished() {
        // The engine's thread looks it up.
        slowest = slowest.max(timed(address, "GET", &path).1);
    }
    let (warmed, taken) = warming.join().unwrap();
    assert_eq!(warmed["computed_tokens"], warmed["tokens"], "{warmed}");
    assert!(slowest < taken / 2, "a lookup took {slowest:?} of the {taken:?}");
}

#[test]
fn a_list_says_of_each_chunk_what_its_own_page_says() {
    let (address, _) = serve();
    let register = |text: &str| post(address, "/v1/chunks", &json!({"text": text})).1;
    let chunks = ["a b c", "d e f", "a b c d"].map(register);
    let path = |chunk: &Value| format!("/v1/chunks/{}", chunk["id"].as_str().unwrap());
    timed(address, "POST", &format!("{}/warm", path(&chunks[1])));
    let (list, _) = timed(address, "GET", "/v1/chunks");
    let listed = list["data"].as_array().unwrap();
    let sources: Vec<&Value> = listed.iter().map(|chunk| &chunk["source"]).collect();
    assert_eq!(sources, [&Value::Null, &json!("device"), &Value::Null], "{list}");
    for (chunk, listed) in chunks.iter().zip(listed) {
        let (mut shown, _) = timed(address, "GET", &path(chunk));
        shown.as_object_mut().unwrap().remove("text");
        assert_eq!(&shown, listed);
    }
}
