//! Chunks on a device that computes nothing: which are deleted, what they are computed ahead for,
//! and how much of an answer is verified at a time.

mod harness;

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use self::harness::{get, read, send, serve};

/// The JSON of a request's answer, which must be none of an error.
fn ask(address: SocketAddr, method: &str, path: &str, body: &Value) -> Value {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = read(send(address, method, path, &body));
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 20"), "{path}: {answer}");
    serde_json::from_str(body).unwrap()
}

fn register(address: SocketAddr, kind: &str, text: &str) -> String {
    let chunk = ask(address, "POST", "/v1/chunks", &json!({"kind": kind, "text": text}));
    chunk["id"].as_str().unwrap().to_owned()
}

fn warm(address: SocketAddr, id: &str, how: &Value) -> Value {
    ask(address, "POST", &format!("/v1/chunks/{id}/warm"), how)
}

/// A question about chunks, as a chat.
fn about(system: Option<&str>, ids: &[&str]) -> Value {
    let chunk = |id: &str| json!({"type": "chunk", "id": id});
    let mut parts: Vec<Value> = ids.iter().map(|id| chunk(id)).collect();
    parts.push(json!({"type": "text", "text": "Why?"}));
    let system = system.map(|id| json!({"role": "system", "content": [chunk(id)]}));
    let user = json!({"role": "user", "content": parts});
    json!({"messages": system.into_iter().chain([user]).collect::<Vec<_>>()})
}

/// The cached tokens of a chunk in a chat, and all of its tokens.
fn cached(address: SocketAddr, chat: &Value, id: &str) -> (u64, u64) {
    let preview = ask(address, "POST", "/v1/chunks/preview", chat);
    let pieces = preview["chunks"].as_array().unwrap();
    let piece = pieces.iter().find(|piece| piece["id"] == id);
    let piece = piece.unwrap_or_else(|| panic!("{preview}"));
    (piece["cached_tokens"].as_u64().unwrap(), piece["tokens"].as_u64().unwrap())
}

#[test]
fn only_chunks_of_the_kind_that_is_named_are_deleted() {
    let (address, _) = serve();
    for kind in ["system", "context", "output"] {
        register(address, kind, "Some words.");
    }
    let delete = |which: &str| {
        let path = format!("/v1/chunks{which}");
        ask(address, "DELETE", &path, &Value::Null)["deleted"].as_u64().unwrap()
    };
    assert_eq!(delete("?kind=context"), 1);
    let list = ask(address, "GET", "/v1/chunks", &Value::Null);
    let mut kinds: Vec<_> =
        list["data"].as_array().unwrap().iter().map(|chunk| chunk["kind"].as_str()).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, [Some("output"), Some("system")]);
    assert_eq!(delete(""), 2);
}

/// Commands take chunks by their names.
#[test]
fn a_name_is_one_word_of_one_text() {
    let (address, _) = serve();
    let status = |text: &str, name: &str| {
        let body = json!({"text": text, "name": name}).to_string();
        let answer = read(send(address, "POST", "/v1/chunks", &body));
        (answer[9..12].parse::<u16>().unwrap(), answer)
    };
    assert_eq!(status("Some words.", "same").0, 201);
    assert_eq!(status("Some words.", "same").0, 201, "it is the same text");
    for name in ["", "a b", "a b/../c"] {
        let (code, answer) = status("Other words.", name);
        assert_eq!(code, 400, "{name:?}");
        assert!(answer.contains("give one word"), "{answer}");
    }
    let (code, answer) = status("Other words.", "same");
    assert_eq!(code, 409);
    assert!(answer.contains("name_taken") && answer.contains("belongs to chunk"), "{answer}");
    let list = ask(address, "GET", "/v1/chunks", &Value::Null);
    assert_eq!(list["data"].as_array().unwrap().len(), 1, "nothing else was stored");
    assert_eq!(status("Some words.", "renamed").0, 201);
    assert_eq!(status("Other words.", "same").0, 201, "the name is free");
}

#[test]
fn a_chunk_is_computed_for_the_system_prompt_that_is_named() {
    let (address, _) = serve();
    let (system, id) =
        (register(address, "system", "Be brief."), register(address, "context", "Some words."));
    let chat = about(Some(&system), &[&id]);
    assert_eq!(cached(address, &chat, &id).0, 0);
    let warmed = warm(address, &id, &json!({"system": system}));
    for piece in [&system, &id] {
        let (cached, all) = cached(address, &chat, piece);
        assert_eq!(cached, all, "{warmed}");
    }
    // Both are counted.
    let alone = warm(address, &id, &json!({}));
    assert!(warmed["tokens"].as_u64() > alone["tokens"].as_u64(), "{warmed} {alone}");
}

#[test]
fn a_chunk_is_computed_for_the_reuse_that_is_named() {
    let (address, _) = serve();
    let (first, id) =
        (register(address, "context", "First words."), register(address, "context", "More."));
    // In another place than the one it is computed in.
    let mut chat = about(None, &[&first, &id]);
    chat["reuse"] = "isolated".into();
    warm(address, &id, &json!({}));
    assert_eq!(cached(address, &chat, &id).0, 0, "exact rows are of use in their place alone");
    warm(address, &id, &json!({"reuse": "isolated"}));
    let (cached, all) = cached(address, &chat, &id);
    assert_eq!(cached, all);
}

/// The id of an answer of so many tokens.
fn answered(address: SocketAddr, n_tokens: usize) -> Value {
    let messages = json!([{"role": "user", "content": "x"}]);
    let body = json!({"max_tokens": n_tokens, "ignore_eos": true, "messages": messages});
    let answer = ask(address, "POST", "/v1/chat/completions", &body);
    assert_eq!(answer["usage"]["completion_tokens"], n_tokens, "{answer}");
    answer["id"].clone()
}

fn verify(address: SocketAddr, completion: &Value) -> Value {
    ask(address, "POST", "/v1/chunks/verify", &json!({"completion": completion}))
}

#[test]
fn the_beginning_of_a_long_answer_is_verified() {
    let (address, _) = serve();
    let found = verify(address, &answered(address, 300));
    assert_eq!((&found["tokens"], &found["exact"]), (&json!(256), &json!(true)), "{found}");
}

/// Rows of logits are large.
#[test]
fn answers_are_verified_one_at_a_time() {
    let (address, control) = serve();
    let answers = [answered(address, 60), answered(address, 61)];
    control.step_us.store(20_000, Ordering::Relaxed);
    let running = || {
        let metrics = get(address, "/metrics");
        let lanes = metrics.lines().find_map(|line| line.strip_prefix("weft_lanes_running "));
        lanes.unwrap().parse::<usize>().unwrap()
    };
    let most = std::thread::scope(|scope| {
        let verifying: Vec<_> =
            answers.iter().map(|answer| scope.spawn(|| verify(address, answer))).collect();
        let mut most = 0;
        while verifying.iter().any(|one| !one.is_finished()) {
            most = running().max(most);
        }
        most
    });
    assert!(most <= 1, "{most} at a time");
}
