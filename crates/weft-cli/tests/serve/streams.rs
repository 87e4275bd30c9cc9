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

/// With `return_progress` a stream says how far its prompt is before its first token, and nobody
/// else is sent an event that clients of OpenAI do not know.
#[test]
fn the_progress_of_a_prompt_comes_first_and_only_when_asked_for() {
    let server = Server::start(&[]);
    let long = "The bells ring at noon. The candles burned until late. ".repeat(100);
    let asked = |more: Value| {
        let mut body = json!({"max_tokens": 2, "messages": [{"role": "user", "content": long}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let plain = server.events(CHAT, &asked(json!({"cache_prompt": false})));
    assert!(plain.iter().all(|event| event.get("prompt_progress").is_none()));
    let events = server.events(CHAT, &asked(json!({"return_progress": true})));
    assert_eq!(joined(&events), joined(&plain));
    let shown: Vec<&Value> =
        events.iter().filter(|event| event.get("prompt_progress").is_some()).collect();
    let processed: Vec<u64> =
        shown.iter().map(|event| event["prompt_progress"]["processed"].as_u64().unwrap()).collect();
    let total = shown[0]["prompt_progress"]["total"].as_u64().unwrap();
    assert!(processed.len() > 2 && processed.is_sorted(), "{processed:?} of {total}");
    assert_eq!((processed[0], processed.last()), (0, Some(&total)));
    assert_eq!(shown[0]["choices"][0]["delta"], json!({}));
    // The pieces are known at once, and are those of the whole report.
    let sizes = |event: &Value| -> Vec<u64> {
        let chunks = event["chunk_report"]["chunks"].as_array().unwrap();
        chunks.iter().map(|chunk| chunk["tokens"].as_u64().unwrap()).collect()
    };
    assert_eq!(sizes(shown[0]), sizes(events.last().unwrap()));
    assert!(!events[0]["choices"][0]["delta"]["role"].is_null(), "the role is first");
    let last = events.iter().rposition(|event| event.get("prompt_progress").is_some());
    let has_text = |event: &Value| event["choices"][0]["delta"]["content"].is_string();
    assert!(last < events.iter().position(has_text));
    // A prompt that is kept is there from the beginning.
    let again = server.events(CHAT, &asked(json!({"return_progress": true})));
    assert_eq!(again[1]["prompt_progress"]["processed"], total);
    let completion = json!({"prompt": long, "max_tokens": 1, "return_progress": true});
    let events = server.events("/v1/completions", &completion);
    assert!(events[0]["prompt_progress"]["total"].is_number(), "{}", events[0]);
}
