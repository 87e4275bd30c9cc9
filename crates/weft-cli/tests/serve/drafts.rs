//! Drafts: requests say how much is drafted and what the client predicts, responses say what came
//! of it, and the answer is the same.

use serde_json::{Value, json};

use crate::harness::{Server, chat_with, document, joined, merged, text};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const SENTENCE: &str = "The captain of the Krogaste is Probrosur.";

/// A question that is answered by a sentence of the document.
fn quoting(more: Value) -> Value {
    let question = format!("{}\n\nWho is the captain of the Krogaste?", document());
    let system = json!({"role": "system", "content": "Answer in a full sentence."});
    let messages = json!([system, {"role": "user", "content": question}]);
    merged(chat_with(json!({"messages": messages, "temperature": 0})), more)
}

fn drafted(answer: &Value) -> (u64, u64) {
    let count = |name: &str| answer["timings"][name].as_u64().unwrap_or_default();
    (count("draft_n"), count("draft_n_accepted"))
}

#[test]
fn drafts_are_reported_and_change_nothing_else() {
    let server = Server::start(&[]);
    let plain = server.ask(&quoting(json!({"speculate": "off"})));
    assert_eq!(text(&plain), SENTENCE);
    assert_eq!(plain["timings"].get("draft_n"), None, "as in llama.cpp");
    let details = |answer: &Value| {
        let details = &answer["usage"]["completion_tokens_details"];
        let count = |name: &str| details[name].as_u64().unwrap();
        (count("accepted_prediction_tokens"), count("rejected_prediction_tokens"))
    };
    assert_eq!(details(&plain), (0, 0));

    let mut totals = [0, 0];
    let mut ask = |more: Value| {
        let answer = server.ask(&quoting(more));
        assert_eq!(text(&answer), text(&plain));
        assert_eq!(answer["usage"]["completion_tokens"], plain["usage"]["completion_tokens"]);
        let (n, accepted) = drafted(&answer);
        totals[0] += n;
        totals[1] += accepted;
        answer
    };
    let from_context = ask(json!({"speculate": 4}));
    let (n, accepted) = drafted(&from_context);
    assert!(accepted > 0 && accepted <= n, "{from_context}");
    assert_eq!(from_context["timings"]["draft_sources"]["context"]["accepted"], accepted);
    assert_eq!(details(&from_context), (0, 0), "the client predicted nothing");

    let prediction = json!({"type": "content", "content": SENTENCE});
    let predicted = ask(json!({"speculate": 7, "prediction": prediction}));
    let (n, accepted) = drafted(&predicted);
    let (right, wrong) = details(&predicted);
    assert!(right >= 4, "{predicted}");
    let of_prediction = &predicted["timings"]["draft_sources"]["prediction"];
    assert_eq!(of_prediction, &json!({"drafted": right + wrong, "accepted": right}));
    assert!(right <= accepted && right + wrong <= n, "{predicted}");
    let parts = json!([{"type": "text", "text": "Nobody knows "}, {"type": "text", "text": "it."}]);
    let mistaken =
        ask(json!({"speculate": 7, "prediction": {"type": "content", "content": parts}}));
    assert!(details(&mistaken).1 > 0, "{mistaken}");
    ask(json!({"speculate": "auto", "prediction": null}));

    let sum = |name: &str| -> f64 {
        let sources = ["context", "prediction", "model"];
        sources.map(|of| server.metric(&format!("{name}{{source=\"{of}\"}}"))).iter().sum()
    };
    assert_eq!(sum("weft_drafted_tokens_total"), totals[0] as f64);
    assert_eq!(sum("weft_accepted_tokens_total"), totals[1] as f64);
    assert!(server.metric("weft_draft_index_bytes") >= 0.0);
}

#[test]
fn completions_take_drafts_too() {
    let server = Server::start(&[]);
    let body = |more: Value| {
        merged(json!({"prompt": document(), "max_tokens": 12, "temperature": 0}), more)
    };
    let ask = |more: Value| server.post(COMPLETIONS, &body(more)).1;
    let plain = ask(json!({"speculate": "off"}));
    let said = plain["choices"][0]["text"].as_str().unwrap();
    let prediction = json!({"type": "content", "content": said});
    let off = ask(json!({"speculate": "off", "prediction": prediction}));
    assert_eq!(drafted(&off), (0, 0), "{off}");
    let predicted = ask(json!({"speculate": 4, "prediction": prediction, "logprobs": 2}));
    assert_eq!(predicted["choices"][0]["text"], said);
    assert!(drafted(&predicted).0 > 0, "{predicted}");
    let with_logprobs = ask(json!({"speculate": "off", "logprobs": 2}));
    let entries = |answer: &Value| answer["choices"][0]["logprobs"].clone();
    assert_eq!(entries(&predicted), entries(&with_logprobs), "every bit");
}

#[test]
fn a_stream_says_which_tokens_were_drafted_if_it_is_asked() {
    let server = Server::start(&[]);
    let accepted = |event: &Value| event["weft"]["accepted"].as_u64().unwrap_or_default();
    let asked = json!({"speculate": 4, "return_accepted": true});
    let events = server.events(CHAT, &quoting(asked));
    assert_eq!(joined(&events), SENTENCE);
    let n: u64 = events.iter().map(accepted).sum();
    let (_, all) = drafted(events.last().unwrap());
    // The token that ends the answer has no text, and so no event.
    assert!(n > 0 && (n == all || n + 1 == all), "{n} of {all}");
    let events = server.events(CHAT, &quoting(json!({"speculate": 4})));
    assert!(drafted(events.last().unwrap()).1 > 0);
    assert!(events.iter().all(|event| event.get("weft").is_none()), "nobody asked for it");
    let completion = json!({"prompt": document(), "max_tokens": 12, "temperature": 0,
        "speculate": 4, "return_accepted": true});
    let events = server.events(COMPLETIONS, &completion);
    let (_, all) = drafted(events.last().unwrap());
    assert!(events.iter().map(accepted).sum::<u64>() <= all);
}

#[test]
fn the_server_s_setting_holds_for_requests_that_do_not_say() {
    let server = Server::start(&["--speculate", "off"]);
    assert_eq!(drafted(&server.ask(&quoting(json!({})))), (0, 0));
    assert!(drafted(&server.ask(&quoting(json!({"speculate": 4})))).0 > 0);
    drop(server);
    let server = Server::start(&["--speculate", "4", "--draft", "weft-tiny"]);
    server.until_logged("drafts by weft-tiny");
    let answer = server.ask(&quoting(json!({})));
    assert_eq!(text(&answer), SENTENCE);
    let of_model = &answer["timings"]["draft_sources"]["model"];
    assert!(of_model["drafted"].as_u64().unwrap() > 0, "{answer}");
    assert_eq!(of_model["accepted"], of_model["drafted"], "the same model guesses right");
}

#[test]
fn wrong_ways_to_speculate_are_refused_by_their_field() {
    let server = Server::start(&[]);
    for (field, value, says) in [
        ("speculate", json!(8), "1 to 7"),
        ("speculate", json!(-1), "\"-1\""),
        ("speculate", json!("on"), "auto, off, or 1 to 7"),
        ("speculate", json!(true), "auto, off, or 1 to 7"),
        ("prediction", json!("a text"), "prediction"),
        ("prediction", json!({"type": "content"}), "content"),
        (
            "prediction",
            json!({"type": "content", "content": 1}),
            "a string or a list of text parts",
        ),
        ("prediction", json!({"type": "other", "content": "a"}), "other"),
        ("return_accepted", json!(1), "true or false"),
    ] {
        let body = chat_with(json!({field: value}));
        let message = server.refusal(CHAT, &body, 400);
        assert!(message.contains(field) && message.contains(says), "{body}: {message}");
    }
}
