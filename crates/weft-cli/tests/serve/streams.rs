//! Streams: the same answer in pieces.

use std::io::BufRead;

use serde_json::{Value, json};

use crate::harness::{ANSWER, Server, chat, chat_with, joined, text};

const CHAT: &str = "/v1/chat/completions";

#[test]
fn a_stream_is_the_answer_in_pieces() {
    let server = Server::start(&[]);
    for more in [
        json!({}),
        json!({"max_tokens": 3}),
        json!({"stop": "osu"}),
        json!({"temperature": 2.0, "seed": 5, "max_tokens": 30, "ignore_eos": true}),
    ] {
        let whole = server.ask(&chat_with(more.clone()));
        let events = server.events(CHAT, &chat_with(more));
        assert_eq!(joined(&events), text(&whole));
        let reasons: Vec<_> =
            events.iter().map(|event| &event["choices"][0]["finish_reason"]).collect();
        let (last, before) = reasons.split_last().unwrap();
        assert_eq!(*last, &whole["choices"][0]["finish_reason"]);
        assert!(before.iter().all(|reason| reason.is_null()));
        assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": null}));
        assert!(events[1..].iter().all(|event| event["choices"][0]["delta"]["role"].is_null()));
        assert!(events.iter().all(|event| event["id"] == events[0]["id"]));
        assert!(events.iter().all(|event| event["object"] == "chat.completion.chunk"));
        assert!(events.iter().all(|event| event["usage"].is_null()), "nobody asked for it");
        let last = events.last().unwrap();
        assert!(last["timings"].is_object() && last["chunk_report"].is_object(), "{last}");
    }
}

#[test]
fn the_usage_comes_last_and_only_when_asked_for() {
    let server = Server::start(&[]);
    let events =
        server.events(CHAT, &chat_with(json!({"stream_options": {"include_usage": true}})));
    let (usage, before) = events.split_last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    let whole = server.ask(&chat());
    assert_eq!(usage["usage"]["total_tokens"], whole["usage"]["total_tokens"]);
    assert!(before.iter().all(|event| !event["choices"].as_array().unwrap().is_empty()));
    let is_null = |event: &Value| event.get("usage").is_some_and(Value::is_null);
    assert!(before.iter().all(is_null), "until then it is null, and is there");
    assert!(usage["timings"]["predicted_n"].is_number());
    let completion = json!({"prompt": "x", "max_tokens": 2,
        "stream_options": {"include_usage": true}});
    let events = server.events("/v1/completions", &completion);
    let (usage, before) = events.split_last().unwrap();
    assert!(before.iter().all(is_null) && usage["usage"]["prompt_tokens"] == 1, "{usage}");
    let not = server.events(CHAT, &chat_with(json!({"stream_options": {"include_usage": false}})));
    assert!(not.iter().all(|event| event["usage"].is_null()));
}

#[test]
fn choices_and_logprobs_stream_too() {
    let server = Server::start(&[]);
    let more = json!({"n": 2, "logprobs": true, "top_logprobs": 2});
    let events = server.events(CHAT, &chat_with(more));
    for index in 0..2 {
        let of_it = || events.iter().map(|e| &e["choices"][0]).filter(move |c| c["index"] == index);
        let said: String = of_it().filter_map(|c| c["delta"]["content"].as_str()).collect();
        let tokens: String = of_it()
            .filter_map(|c| c["logprobs"]["content"].as_array())
            .flatten()
            .map(|entry| entry["token"].as_str().unwrap())
            .collect();
        assert_eq!((said.as_str(), tokens.as_str()), (ANSWER, ANSWER));
        assert_eq!(of_it().filter(|c| !c["finish_reason"].is_null()).count(), 1);
    }
}

#[test]
fn characters_come_whole() {
    let server = Server::start(&[]);
    let prompt = "emoji 😀👩‍👩‍👧 and 你好世界 and ñ";
    let body = json!({"prompt": prompt, "echo": true, "max_tokens": 1});
    let events = server.events("/v1/completions", &body);
    let texts: Vec<&str> =
        events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert!(texts.len() > 10, "{texts:?}");
    assert!(texts.concat().starts_with(prompt) && !texts.concat().contains('\u{FFFD}'));
}

#[test]
fn a_long_prompt_is_accompanied_by_comments() {
    // The reference kernels take seconds for a long prompt.
    let server = Server::start(&["--kernels", "reference"]);
    let body = json!({"stream": true, "max_tokens": 1,
        "messages": [{"role": "user", "content": "word ".repeat(1500)}]});
    let lines: Vec<String> = server.open_stream(&body).lines().map(Result::unwrap).collect();
    let first_word = lines.iter().position(|line| line.contains("finish_reason\":\"length"));
    let comment = lines.iter().position(|line| line.starts_with(": "));
    assert!(comment.is_some() && comment < first_word, "{lines:?}");
}
