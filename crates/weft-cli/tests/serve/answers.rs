//! Whole answers: their shape, their settings, and all invalid requests.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::{ANSWER, QUESTION, Server, chat, chat_with, document, merged, text};

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

    assert!(answer["system_fingerprint"].is_string());

    for limit in ["max_tokens", "max_completion_tokens", "n_predict"] {
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
        ("top_p", json!(-0.1)),
        ("top_p", json!(1.5)),
        ("top_k", json!(-2)),
        ("min_p", json!(2)),
        ("presence_penalty", json!(2.1)),
        ("repetition_penalty", json!(0)),
        ("repetition_penalty", json!(1e-45)),
        ("stop_token_ids", json!([4_294_967_295_u32])),
        ("stream_options", json!([])),
        ("seed", json!("x")),
        ("stop", json!(1)),
        ("stop", json!([""])),
        ("stop", json!(vec!["x"; 17])),
        ("stop", json!("x".repeat(2000))),
        ("max_tokens", json!(-2)),
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
        let message = server.refusal(CHAT, &chat_with(json!({field: value})), 400);
        assert!(message.contains(field.split('_').next().unwrap()), "{field}: {message}");
    }
    let huge = server.refusal(CHAT, &json!({"messages": "x".repeat(1 << 20)}), 400);
    assert!(huge.len() < 1000, "a message does not repeat megabytes");
}

#[test]
fn fields_that_would_change_the_answer_are_refused_by_name() {
    let server = Server::start(&[]);
    for (field, value) in [
        ("functions", json!([{"name": "f"}])),
        ("function_call", json!({"name": "f"})),
        ("prompt_logprobs", json!(21)),
        ("allowed_token_ids", json!([1, 2])),
        ("bad_words", json!(["x"])),
        ("use_beam_search", json!(true)),
        ("truncate_prompt_tokens", json!(8)),
        ("chat_template", json!("{{ 'say something else' }}")),
    ] {
        for (path, body) in [(CHAT, chat()), (COMPLETIONS, json!({"prompt": "x"}))] {
            let (status, answer) = server.post(path, &merged(body, json!({field: value})));
            assert_eq!((status, &answer["error"]["param"]), (400, &json!(field)), "{answer}");
        }
    }
}

#[test]
fn a_prompt_that_is_too_long_is_refused_with_both_numbers() {
    let server = Server::start(&["--ctx-size", "256"]);
    for stream in [false, true] {
        let body = json!({"stream": stream, "messages":
            [{"role": "user", "content": "word ".repeat(1000)}]});
        let message = server.refusal(CHAT, &body, 400);
        let numbers = message.split(' ').filter_map(|word| word.parse::<usize>().ok());
        let numbers: Vec<usize> = numbers.collect();
        // litellm looks for these words.
        assert!(message.starts_with("This model's maximum context length is 256 tokens"));
        assert!(message.contains("256") && numbers.iter().any(|n| *n > 1000), "{message}");
    }
    let (status, long) = server.post(COMPLETIONS, &json!({"prompt": vec![5; 256]}));
    assert_eq!((status, &long["error"]["code"]), (400, &json!("context_length_exceeded")));
    let numbers = (&long["error"]["n_prompt_tokens"], &long["error"]["n_ctx"]);
    assert_eq!(numbers, (&json!(256), &json!(256)), "for programs too");
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
    assert_eq!(answer["timings"]["predicted_n"], 24, "of all choices");
    let streamed = merged(settings.clone(), json!({"stream_options": {"include_usage": true}}));
    let events = server.events(CHAT, &chat_with(streamed));
    assert_eq!(events.last().unwrap()["timings"]["predicted_n"], 24);
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
    assert_eq!(say(json!(u64::MAX - 1)), say(json!(-2)), "64 bits, of either sign");
    assert_ne!(say(json!(u64::MAX - 1)), say(json!(u64::MAX - 2)));
    assert_ne!(say(json!(-1)), say(json!(-1)), "no seed");
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
        json!({"max_tokens": -1}),
        json!({"max_completion_tokens": -1, "temperature": 2.0, "top_p": 0}),
        json!({"functions": [], "function_call": "none", "bad_words": [], "mirostat": 0}),
        json!({"n_predict": -1, "grammar": "", "continue_final_message": false}),
        json!({"response_format": {"type": "text"}, "tools": [], "tool_choice": "auto"}),
        json!({"chat_template_kwargs": {"messages": [], "chat_template": "x"}}),
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
}

/// vLLM's form: an object by token ids for each token of the prompt, the first is null.
#[test]
fn prompts_have_log_probabilities() {
    let server = Server::start(&[]);
    let prompt = "The ship sails at noon.";
    let body = json!({"prompt": prompt, "max_tokens": 2, "temperature": 0, "n": 2});
    let echo = merged(body.clone(), json!({"echo": true, "logprobs": 2, "n": 1}));
    let echoed = server.post(COMPLETIONS, &echo).1["choices"][0]["logprobs"].clone();
    let plain = server.post(COMPLETIONS, &body).1;
    let asked = merged(body, json!({"prompt_logprobs": 2, "return_token_ids": true}));
    // The rows of the prompt are cached by now, and have no logits.
    let answer = server.post(COMPLETIONS, &asked).1;
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "{answer}");
    for (choice, plain) in [0, 1].map(|n| (&answer["choices"][n], &plain["choices"][n])) {
        assert_eq!(choice["text"], plain["text"]);
        assert!(plain.get("prompt_logprobs").is_none());
        let ids = choice["prompt_token_ids"].as_array().unwrap();
        let tokens = choice["prompt_logprobs"].as_array().unwrap();
        assert_eq!((tokens.len(), &tokens[0]), (ids.len(), &Value::Null));
        for (n, (id, token)) in ids.iter().zip(tokens).enumerate().skip(1) {
            let own = &token[id.to_string()];
            assert_eq!(own["logprob"], echoed["token_logprobs"][n], "{token}");
            assert_eq!(own["decoded_token"], echoed["tokens"][n]);
            let entries = token.as_object().unwrap();
            let rank = |entry: &Value| entry["rank"].as_u64().unwrap();
            assert!(entries.len() == if rank(own) <= 2 { 2 } else { 3 }, "{token}");
            let ranks: BTreeSet<u64> = entries.values().map(rank).collect();
            assert!(ranks.is_superset(&BTreeSet::from([1, 2])), "{token}");
        }
    }
    let chat = server.ask(&chat_with(json!({"prompt_logprobs": 0})));
    let tokens = chat["prompt_logprobs"].as_array().unwrap();
    assert_eq!(tokens.len() as u64, chat["usage"]["prompt_tokens"].as_u64().unwrap());
    assert!(tokens[1..].iter().all(|token| token.as_object().unwrap().len() == 1));
    assert_eq!(text(&chat), ANSWER);
    let streamed = chat_with(json!({"prompt_logprobs": 1, "stream": true}));
    assert!(server.refusal(CHAT, &streamed, 400).contains("not sent in a stream"));
    // More than a response may have.
    let long = vec![7; 1000];
    let asked = |more: Value| merged(json!({"prompt": long, "max_tokens": 1}), more);
    let refused = server.refusal(COMPLETIONS, &asked(json!({"prompt_logprobs": 20, "n": 8})), 400);
    assert!(refused.contains("168000 entries") && refused.contains("131072"), "{refused}");
    let echo = asked(json!({"echo": true, "logprobs": 20, "n": 8}));
    assert!(server.refusal(COMPLETIONS, &echo, 400).contains("or stream"));
    let streamed = asked(json!({"echo": true, "logprobs": 20}));
    assert!(server.events(COMPLETIONS, &streamed).len() > 1000);
    let elsewhere = json!({"input": "a", "prompt_logprobs": 1});
    assert!(server.refusal("/v1/responses", &elsewhere, 400).contains("/v1/completions"));
}

#[test]
fn logprobs_of_completions_hold_the_chosen_token_and_count_characters() {
    let server = Server::start(&[]);
    let prompt = "😀 你好, world";
    for top in [0, 1, 5] {
        let body = json!({"prompt": prompt, "echo": true, "max_tokens": 3, "logprobs": top,
            "temperature": 2.0, "seed": 3, "ignore_eos": true});
        let choice = &server.post(COMPLETIONS, &body).1["choices"][0];
        let text = choice["text"].as_str().unwrap();
        assert!(text.starts_with(prompt), "{choice}");
        let logprobs = &choice["logprobs"];
        let list = |name: &str| logprobs[name].as_array().unwrap().clone();
        let (tokens, tops) = (list("tokens"), list("top_logprobs"));
        assert!(list("token_logprobs")[0].is_null() && tops[0].is_null(), "nothing predicts it");
        for (token, (all, logprob)) in
            tokens.iter().zip(tops.iter().zip(list("token_logprobs"))).skip(1)
        {
            let all = all.as_object().unwrap();
            assert!((top.max(1)..=top + 1).contains(&all.len()), "{all:?}");
            // Two tokens that are each a part of a character may have the same text.
            assert_eq!(all[token.as_str().unwrap()], logprob, "{token}: {all:?}");
        }
        let world = tokens.iter().position(|t| t.as_str().unwrap().starts_with(" w"));
        let characters = prompt.chars().count() - " world".len();
        assert_eq!(list("text_offset")[world.unwrap()], characters, "{logprobs}");
    }
}

#[test]
fn special_tokens_of_a_completion_are_read_where_that_is_asked_for() {
    let server = Server::start(&[]);
    let count = |more: Value| {
        let body = merged(json!({"prompt": "x<|im_end|>", "max_tokens": 1}), more);
        server.post(COMPLETIONS, &body).1["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    assert_eq!(count(json!({"parse_special": true})), 2);
    assert!(count(json!({})) > 2, "a text is a text");
}

#[test]
fn an_answer_goes_on_where_the_last_message_ends() {
    let server = Server::start(&[]);
    let begun = |more: Value| {
        let mut body = merged(chat(), more);
        let turns = body["messages"].as_array_mut().unwrap();
        turns.push(json!({"role": "assistant", "content": "Pro"}));
        body
    };
    let goes_on = begun(json!({"continue_final_message": true, "temperature": 0}));
    let rendered = server.post("/apply-template", &goes_on).1;
    assert!(rendered["prompt"].as_str().unwrap().ends_with("Pro"), "{rendered}");
    let answer = server.ask(&goes_on);
    assert_eq!(format!("Pro{}", text(&answer)), ANSWER);
    let ended = server.post("/apply-template", &begun(json!({"add_generation_prompt": false}))).1;
    assert!(ended["prompt"].as_str().unwrap().ends_with("Pro<|im_end|>\n"), "{ended}");
    let both = json!({"continue_final_message": true, "add_generation_prompt": true});
    server.refusal(CHAT, &begun(both), 400);
}

#[test]
fn routes_are_found_without_their_version() {
    let server = Server::start(&["--api-key", "secret"]);
    assert_eq!(server.get("/models").1["data"][0]["id"], "weft-tiny");
    assert_eq!(server.get("/models/weft-tiny").0, 200);
    assert_eq!(server.post("/chat/completions", &chat()).1["object"], "chat.completion");
    let body = json!({"prompt": "x", "max_tokens": 1});
    assert_eq!(server.post("/completions", &body).1["object"], "text_completion");
    let no_key = [("X-Api-Key", "wrong")];
    assert_eq!(server.send("GET", "/models", &no_key, b"").0, 401);
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
    let pieces = server.post("/tokenize", &json!({"content": "Größe 😀", "with_pieces": true})).1;
    let bytes = |piece: &Value| match piece {
        Value::String(text) => text.as_bytes().to_vec(),
        bytes => serde_json::from_value(bytes.clone()).unwrap(),
    };
    let pieces = pieces["tokens"].as_array().unwrap().clone();
    let joined: Vec<u8> = pieces.iter().flat_map(|token| bytes(&token["piece"])).collect();
    let ids: Vec<&Value> = pieces.iter().map(|token| &token["id"]).collect();
    assert_eq!((joined, json!(ids)), ("Größe 😀".into(), tokens["tokens"].clone()));
    assert!(tokens["token_strs"].is_null());
    let texts = server.post("/tokenize", &json!({"prompt": "a ship", "return_token_strs": true})).1;
    let texts = texts["token_strs"].as_array().unwrap().clone();
    assert_eq!(texts.iter().filter_map(Value::as_str).collect::<String>(), "a ship");
    let of_chat = server.post("/tokenize", &chat()).1;
    assert_eq!(of_chat["count"], server.ask(&chat())["usage"]["prompt_tokens"]);
    let rendered = server.post("/apply-template", &chat()).1;
    let prompt = rendered["prompt"].as_str().unwrap();
    assert!(prompt.starts_with("<|im_start|>user\n") && prompt.contains(QUESTION), "{prompt}");
}
