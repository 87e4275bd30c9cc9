//! Whole answers: their shape, their settings, and every way to ask wrongly.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::{ANSWER, QUESTION, Server, chat, chat_with, document, text};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

#[test]
fn answers_have_their_shape_and_say_why_they_ended() {
    let server = Server::start(&[]);
    let answer = server.ask(&chat_with(json!({"model": "weft-tiny", "unknown_field": {"a": 1}})));
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(answer["object"], "chat.completion");
    assert!(answer["created"].as_u64().unwrap() > 1_700_000_000);
    assert_eq!((&answer["model"], text(&answer)), (&json!("weft-tiny"), ANSWER));
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(0), &json!("stop")));
    let usage = &answer["usage"];
    let count = |name: &str| usage[name].as_u64().unwrap();
    assert_eq!(count("total_tokens"), count("prompt_tokens") + count("completion_tokens"));
    assert!(answer["timings"]["predicted_n"].as_u64().unwrap() == count("completion_tokens"));
    let report = &answer["chunk_report"];
    let tokens = report["chunks"].as_array().unwrap().iter().map(|c| c["tokens"].as_u64().unwrap());
    assert_eq!(tokens.sum::<u64>(), count("prompt_tokens"));
    assert!(report["cold_ms_estimate"].is_number() && report["saved_ms"].is_number());

    for limit in ["max_tokens", "max_completion_tokens"] {
        let cut = server.ask(&chat_with(json!({limit: 2})));
        assert_eq!(cut["choices"][0]["finish_reason"], "length");
        assert_eq!(cut["usage"]["completion_tokens"], 2);
    }
    let parts = |texts: &[&str]| -> Value {
        let part = |text: &&str| json!({"type": "text", "text": text});
        json!({"messages": [{"role": "user", "content": texts.iter().map(part).collect::<Vec<_>>()}]})
    };
    let of_parts = server.ask(&parts(&[&document(), "", QUESTION]));
    assert_eq!(text(&of_parts), ANSWER);
    let system = server.ask(&json!({"messages": [
        {"role": "developer", "content": "Answer in one word."},
        {"role": "user", "content": format!("{}\n\n{QUESTION}", document())},
    ]}));
    assert_eq!(system["choices"][0]["finish_reason"], "stop");
}

#[test]
fn what_is_malformed_is_refused_with_the_field() {
    let server = Server::start(&[]);
    for body in [json!(null), json!("text"), json!([1]), json!(7), json!({})] {
        server.refusal(CHAT, &body, 400);
        server.refusal(COMPLETIONS, &body, 400);
        server.refusal("/tokenize", &body, 400);
        server.refusal("/v1/chunks", &body, 400);
    }
    for messages in [
        json!(null),
        json!("text"),
        json!([]),
        json!([123]),
        json!([{}]),
        json!([null]),
        json!([{"role": 123, "content": "x"}]),
        json!([{"role": "user", "content": 123}]),
        json!([{"role": "user"}]),
        json!([{"role": "user", "content": [{"type": "text"}]}]),
        json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
        json!([{"role": "king", "content": "x"}]),
    ] {
        server.refusal(CHAT, &json!({"messages": messages}), 400);
    }
    for (field, value) in [
        ("n", json!(0)),
        ("n", json!(9)),
        ("n", json!(1_000_000_000)),
        ("n", json!("2")),
        ("temperature", json!(-0.1)),
        ("temperature", json!("hot")),
        ("top_p", json!(0)),
        ("top_p", json!(1.5)),
        ("top_k", json!(-2)),
        ("min_p", json!(2)),
        ("presence_penalty", json!(2.1)),
        ("repetition_penalty", json!(0)),
        ("seed", json!("x")),
        ("stop", json!(1)),
        ("stop", json!([""])),
        ("stop", json!(vec!["x"; 17])),
        ("stop", json!("x".repeat(2000))),
        ("max_tokens", json!(-1)),
        ("max_tokens", json!(0)),
        ("logit_bias", json!({"x": 1})),
        ("logit_bias", json!({"1.5": 1})),
        ("logit_bias", json!({"999999": 1})),
        ("logit_bias", json!({"-1": 1})),
        ("logit_bias", json!({"1": 101})),
        ("stream", json!("yes")),
        ("stream_options", json!({"include_usage": true})),
        ("top_logprobs", json!(21)),
        ("top_logprobs", json!(5)),
        ("tools", json!([{"type": "function"}])),
        ("tool_choice", json!("required")),
        ("response_format", json!({"type": "xml"})),
        ("chat_template_kwargs", json!({"enable_thinking": "no"})),
        ("reuse", json!("sometimes")),
        ("repair", json!("link:1000")),
    ] {
        let told = server.refusal(CHAT, &chat_with(json!({field: value})), 400);
        assert!(told.contains(field.split('_').next().unwrap()), "{field}: {told}");
    }
    let huge = server.refusal(CHAT, &json!({"messages": "x".repeat(1 << 20)}), 400);
    assert!(huge.len() < 1000, "a message does not repeat megabytes");
}

#[test]
fn a_prompt_that_is_too_long_is_refused_with_both_numbers() {
    let server = Server::start(&["--ctx-size", "256"]);
    for stream in [false, true] {
        let body = json!({"stream": stream, "messages":
            [{"role": "user", "content": "word ".repeat(1000)}]});
        let told = server.refusal(CHAT, &body, 400);
        let numbers = told.split(' ').filter_map(|word| word.parse::<usize>().ok());
        let numbers: Vec<usize> = numbers.collect();
        assert!(told.contains("256") && numbers.iter().any(|n| *n > 1000), "{told}");
    }
    let (status, long) = server.post(COMPLETIONS, &json!({"prompt": vec![5; 256]}));
    assert_eq!((status, &long["error"]["code"]), (400, &json!("context_length_exceeded")));
    let fits = server.post(COMPLETIONS, &json!({"prompt": vec![5; 255], "ignore_eos": true}));
    assert_eq!((fits.0, &fits.1["usage"]["completion_tokens"]), (200, &json!(1)));
}

#[test]
fn several_choices_differ_and_the_first_is_the_only_one() {
    let server = Server::start(&[]);
    let settings = json!({"n": 3, "temperature": 3.0, "seed": 11, "max_tokens": 8,
        "ignore_eos": true});
    let answer = server.ask(&chat_with(settings.clone()));
    let choices = answer["choices"].as_array().unwrap();
    let texts: BTreeSet<&str> =
        choices.iter().map(|c| c["message"]["content"].as_str().unwrap()).collect();
    assert_eq!((choices.len(), texts.len()), (3, 3));
    assert_eq!(answer["usage"]["completion_tokens"], 24);
    let mut one = settings;
    one["n"] = json!(1);
    assert_eq!(text(&server.ask(&chat_with(one))), text(&answer));
}

#[test]
fn seeds_decide_and_greed_repeats() {
    let server = Server::start(&[]);
    let say = |seed: Value| {
        let more = json!({"seed": seed, "temperature": 3.0, "max_tokens": 12, "ignore_eos": true});
        text(&server.ask(&chat_with(more))).to_owned()
    };
    assert_eq!(say(json!(42)), say(json!(42)));
    assert_ne!(say(json!(42)), say(json!(43)));
    assert_eq!(say(json!(u64::MAX)), say(json!(-1)), "64 bits, of either sign");
    assert_ne!(say(json!(u64::MAX)), say(json!(u64::MAX - 1)));
    let greedy = chat_with(json!({"temperature": 0}));
    let first = server.ask(&greedy);
    for _ in 0..3 {
        assert_eq!(text(&server.ask(&greedy)), text(&first));
    }
    let cold = server.ask(&chat_with(json!({"temperature": 0, "cache_prompt": false})));
    assert_eq!(cold["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(text(&cold), text(&first), "kept rows change nothing");
}

#[test]
fn logprobs_join_to_the_text() {
    let server = Server::start(&[]);
    for top in [0, 5] {
        let answer = server.ask(&chat_with(json!({"logprobs": true, "top_logprobs": top})));
        let entries = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
        let joined: String = entries.iter().map(|e| e["token"].as_str().unwrap()).collect();
        let bytes: Vec<u8> = entries
            .iter()
            .flat_map(|e| e["bytes"].as_array().unwrap())
            .map(|byte| u8::try_from(byte.as_u64().unwrap()).unwrap())
            .collect();
        assert_eq!((joined.as_str(), &bytes[..]), (text(&answer), text(&answer).as_bytes()));
        for entry in entries {
            assert_eq!(entry["top_logprobs"].as_array().unwrap().len(), top);
            assert!(entry["logprob"].as_f64().unwrap() <= 0.0);
            for other in entry["top_logprobs"].as_array().unwrap() {
                assert!(other["logprob"].as_f64().is_some(), "never null: {other}");
            }
        }
    }
    let plain = server.ask(&chat());
    assert!(plain["choices"][0]["logprobs"].is_null());
    let cut = server.ask(&chat_with(json!({"logprobs": true, "stop": "osu"})));
    assert_eq!(text(&cut), "Probr");
    let entries = cut["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(entries.len(), 2, "what was cut has no entry");
}

#[test]
fn stops_biases_and_odd_settings_do_what_they_say() {
    let server = Server::start(&[]);
    let cut = server.ask(&chat_with(json!({"stop": ["zzz", "osu"]})));
    assert_eq!((text(&cut), &cut["choices"][0]["finish_reason"]), ("Probr", &json!("stop")));
    let tokens =
        |text: &str| server.post("/tokenize", &json!({"content": text})).1["tokens"].clone();
    let first = tokens(ANSWER)[0].as_u64().unwrap();
    let biased = server.ask(&chat_with(json!({"logit_bias": {first.to_string(): -100}})));
    assert!(!text(&biased).starts_with("Pro"), "{biased}");
    let stopped = server.ask(&chat_with(json!({"stop_token_ids": [tokens(ANSWER)[1]]})));
    assert_eq!(text(&stopped), "Pro");
    for fine in [
        json!({"stop": null, "seed": null, "n": null, "logit_bias": null, "max_tokens": null}),
        json!({"chat_template_kwargs": {"enable_thinking": false}}),
        json!({"user": "me", "parallel_tool_calls": true, "store": false, "metadata": {}}),
        json!({"max_tokens": 100_000, "top_k": -1, "n": 1.0}),
        json!({"response_format": {"type": "text"}, "tools": [], "tool_choice": "auto"}),
    ] {
        assert_eq!(text(&server.ask(&chat_with(fine))), ANSWER);
    }
}

#[test]
fn special_tokens_in_a_text_stay_text() {
    let server = Server::start(&[]);
    let count = |content: &str| {
        let answer = server.ask(&json!({"max_tokens": 1,
            "messages": [{"role": "user", "content": content}]}));
        answer["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let tokens = |content: &str, parse: bool| {
        let body = json!({"content": content, "parse_special": parse});
        server.post("/tokenize", &body).1["count"].as_u64().unwrap()
    };
    let hostile = "<|im_end|>";
    assert_eq!(tokens(hostile, true), 1);
    assert!(tokens(hostile, false) > 1);
    assert_eq!(count(hostile) - count("x"), tokens(hostile, false) - tokens("x", false));
}

#[test]
fn completions_take_texts_tokens_and_lists() {
    let server = Server::start(&[]);
    let prompt = format!("{}\n\n{QUESTION}", document());
    let ids = server.post("/tokenize", &json!({"content": prompt, "add_special": true})).1;
    let say = |prompt: Value| {
        let body = json!({"prompt": prompt, "max_tokens": 6, "temperature": 0, "logprobs": 1});
        let (status, answer) = server.post(COMPLETIONS, &body);
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let of_text = say(json!(prompt));
    let of_ids = say(ids["tokens"].clone());
    assert_eq!(of_text["choices"][0]["text"], of_ids["choices"][0]["text"]);
    assert_eq!(of_text["object"], "text_completion");
    let both = say(json!([prompt, "Once"]));
    assert_eq!(both["choices"].as_array().unwrap().len(), 2);
    assert_eq!(both["choices"][0]["text"], of_text["choices"][0]["text"]);
    let logprobs = &of_text["choices"][0]["logprobs"];
    let joined: String =
        logprobs["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    assert_eq!(joined, of_text["choices"][0]["text"].as_str().unwrap());
    for wrong in [
        json!([999_999]),
        json!([-1]),
        json!(""),
        json!([]),
        json!([[]]),
        json!([1.5]),
        json!(null),
        json!({"a": 1}),
        json!(["x"].repeat(33)),
    ] {
        server.refusal(COMPLETIONS, &json!({"prompt": wrong}), 400);
    }
    let echo = json!({"prompt": "😀 你好, world", "echo": true, "max_tokens": 1, "logprobs": 0});
    let (_, echo) = server.post(COMPLETIONS, &echo);
    assert!(echo["choices"][0]["text"].as_str().unwrap().starts_with("😀 你好, world"), "{echo}");
    assert!(echo["choices"][0]["logprobs"]["token_logprobs"][0].is_null());
}

#[test]
fn texts_become_tokens_and_come_back() {
    let server = Server::start(&[]);
    let body = json!({"content": "Größe 😀"});
    let tokens = server.post("/tokenize", &body).1;
    let back = server.post("/detokenize", &json!({"tokens": tokens["tokens"]})).1;
    assert_eq!(back["content"], "Größe 😀");
    server.refusal("/detokenize", &json!({"tokens": [999_999]}), 400);
    server.refusal("/detokenize", &json!({"tokens": "x"}), 400);
    let rendered = server.post("/apply-template", &chat()).1;
    let prompt = rendered["prompt"].as_str().unwrap();
    assert!(prompt.starts_with("<|im_start|>user\n") && prompt.contains(QUESTION), "{prompt}");
}
