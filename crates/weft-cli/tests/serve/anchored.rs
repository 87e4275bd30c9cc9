//! Agents: prompts whose first system block changes with every request, in every dialect.

use serde_json::{Value, json};

use crate::harness::{ANSWER, JSON, QUESTION, Server, document, merged};

const TURNS: usize = 4;
const ROUTES: [&str; 4] = ["/v1/messages", "/v1/chat/completions", "/v1/responses", "/api/chat"];

/// The block that changes, as Claude Code sends it.
fn billing(turn: usize) -> String {
    format!("x-anthropic-billing-header: cc_version=2.1; cch={:05x};", turn * 7919 + 4097)
}

fn rules() -> String {
    let rules = (0..40).map(|n| format!("Rule {n}: answer number {n} in one word.\n"));
    rules.collect::<String>() + &document()
}

/// A conversation that has grown for some turns, as the route's clients send it.
fn request(route: &str, turn: usize) -> Value {
    let turns = (0..turn).flat_map(|n| {
        [("user", format!("Note number {n}. {QUESTION}")), ("assistant", format!("{ANSWER} {n}."))]
    });
    let last = ("user", format!("Note number {turn}. {QUESTION}"));
    let message = |(role, text): (&str, String)| json!({"role": role, "content": text});
    let messages: Vec<Value> = turns.chain([last]).map(message).collect();
    let block = |text: String| json!({"type": "text", "text": text});
    let before = |systems: Vec<Value>| Value::from([systems, messages.clone()].concat());
    match route {
        "/v1/messages" => {
            let mut stays = block(rules());
            stays["cache_control"] = json!({"type": "ephemeral"});
            json!({"model": "m", "max_tokens": 8, "temperature": 0,
                "system": [block(billing(turn)), stays], "messages": messages})
        }
        "/v1/chat/completions" => {
            let blocks = [block(billing(turn)), block(rules())];
            json!({"max_tokens": 8, "temperature": 0, "logprobs": true, "top_logprobs": 3,
                "messages": before(vec![json!({"role": "system", "content": blocks})])})
        }
        "/v1/responses" => {
            let rules = json!({"role": "developer", "content": rules()});
            json!({"max_output_tokens": 8, "temperature": 0, "instructions": billing(turn),
                "input": before(vec![rules])})
        }
        _ => {
            let systems = [billing(turn), rules()].map(|text| message(("system", text)));
            json!({"model": "m", "stream": false, "messages": before(systems.to_vec()),
                "options": {"temperature": 0, "num_predict": 8}})
        }
    }
}

fn ask(server: &Server, route: &str, header: Option<&str>, body: &Value) -> Value {
    let mut headers = JSON.to_vec();
    headers.extend(header.map(|reuse| ("x-weft-reuse", reuse)));
    let (status, _, bytes) = server.send("POST", route, &headers, body.to_string().as_bytes());
    let answer: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(status, 200, "{answer}");
    answer
}

/// Of all tokens of a prompt: those that were kept, and those that are approximate.
fn shares(answer: &Value) -> (f64, f64) {
    let report = &answer["chunk_report"];
    let chunks = report["chunks"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let sum = |field: &str| chunks.iter().map(|c| c[field].as_f64().unwrap()).sum::<f64>();
    let approximate = report["approximate_tokens"].as_f64().unwrap();
    (sum("cached_tokens") / sum("tokens"), approximate / sum("tokens"))
}

#[test]
fn a_changing_first_block_costs_only_itself_in_every_dialect() {
    for route in ROUTES {
        let server = Server::start(&[]);
        for turn in 0..TURNS {
            let answer = ask(&server, route, Some("anchored"), &request(route, turn));
            let (kept, approximate) = shares(&answer);
            assert!(approximate > 0.5, "{route}: the report says it: {answer}");
            let is_kept = |chunk: &&Value| chunk["source"] != "computed";
            let chunks = answer["chunk_report"]["chunks"].as_array().unwrap();
            if turn == 0 {
                assert_eq!(kept, 0.0, "{route}");
                continue;
            }
            // The changed block, the last question, the answer to it, and the new question.
            let computed = chunks.iter().filter(|chunk| !is_kept(chunk)).count();
            assert_eq!(computed, 4, "{route}, turn {turn}: {chunks:#?}");
            assert!(kept > 0.8, "{route}, turn {turn}: {kept}");
        }
    }
}

/// Without a word about it reuse is exact, and an answer is the one of a server that keeps nothing.
#[test]
fn exact_agents_get_the_cold_answer_bit_for_bit() {
    let server = Server::start(&[]);
    for turn in 0..TURNS {
        let body = request("/v1/chat/completions", turn);
        for header in [None, Some("exact")] {
            let warm = ask(&server, "/v1/chat/completions", header, &body);
            let cold = merged(body.clone(), json!({"cache_prompt": false}));
            let cold = ask(&server, "/v1/chat/completions", header, &cold);
            assert_eq!(warm["choices"], cold["choices"], "log-probabilities too");
            assert_eq!(shares(&warm).1, 0.0);
        }
        // The same prompt in the other dialects has the same text.
        let said = ask(&server, "/v1/messages", None, &request("/v1/messages", turn));
        let content = &ask(&server, "/v1/chat/completions", None, &body)["choices"][0]["message"];
        assert_eq!(said["content"][0]["text"], content["content"]);
    }
}

#[test]
fn the_field_the_header_and_the_flag_say_how_pieces_are_reused() {
    let route = "/v1/messages";
    let server = Server::start(&["--reuse", "anchored"]);
    let approximate = |header: Option<&str>, more: Value| {
        let body = merged(request(route, 1), more);
        shares(&ask(&server, route, header, &body)).1
    };
    assert!(approximate(None, json!({})) > 0.5, "the flag");
    assert_eq!(approximate(Some("exact"), json!({})), 0.0);
    assert!(approximate(Some("isolated"), json!({})) > 0.5);
    assert_eq!(approximate(Some("isolated"), json!({"reuse": "exact"})), 0.0, "the field wins");
    let headers = [JSON[0], ("x-weft-reuse", "sometimes")];
    let body = request(route, 0).to_string();
    let (status, _, answer) = server.send("POST", route, &headers, body.as_bytes());
    let answer = String::from_utf8(answer).unwrap();
    assert_eq!(status, 400, "{answer}");
    assert!(answer.contains("sometimes") && answer.contains("anchored"), "{answer}");
    // What is approximate can be compared with the exact answer.
    let answer = ask(&server, "/v1/chat/completions", None, &request("/v1/chat/completions", 2));
    let verified = server.post("/v1/chunks/verify", &json!({"completion": answer["id"]})).1;
    assert!(verified["kl"].is_number(), "{verified}");
}
