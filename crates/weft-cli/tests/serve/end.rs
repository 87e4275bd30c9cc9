//! Clients that leave, servers that shut down, and the metrics of both.

use std::io::{BufRead, Read};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use crate::harness::{ANSWER, JSON, Server, chat, chat_with, endless, text};

#[test]
fn who_leaves_frees_the_lane() {
    // So slow that no answer ends by itself.
    let server = Server::start(&["--kernels", "reference"]);
    let mut stream = server.open_stream(&endless(3900));
    stream.read_line(&mut String::new()).unwrap();
    let silent = endless(3900).to_string().replace("\"stream\":true", "\"stream\":false");
    let whole = server.open("POST", "/v1/chat/completions", &JSON, silent.as_bytes());
    server.until("both run", || server.metric("weft_lanes_running") == 2.0);
    drop((stream, whole));
    server.until("both are gone", || server.is_idle());
    assert_eq!(server.cancelled(), 2.0);
}

#[test]
fn many_that_leave_harm_nobody() {
    let server = Server::start(&[]);
    let body = endless(3900).to_string();
    let streams: Vec<TcpStream> = (0..200)
        .map(|_| server.open("POST", "/v1/chat/completions", &JSON, body.as_bytes()))
        .collect();
    std::thread::sleep(Duration::from_millis(500));
    drop(streams);
    // Until the server has seen that they left, the queue may be full.
    server.until("there is room", || {
        let (status, answer) = server.post("/v1/chat/completions", &chat());
        assert!(status == 429 || text(&answer) == ANSWER, "{answer}");
        status == 200
    });
    server.until("all are gone", || server.is_idle());
}

#[test]
fn none_is_lost_of_more_than_there_are_lanes_for() {
    let server = Server::start(&["--queue", "12"]);
    let ask = || {
        let body = chat_with(json!({"max_tokens": 40, "ignore_eos": true})).to_string();
        let (status, head, body) =
            server.send("POST", "/v1/chat/completions", &JSON, body.as_bytes());
        if status == 429 {
            assert!(head.to_lowercase().contains("retry-after: "), "{head}");
            server.check_error(&serde_json::from_slice(&body).unwrap());
        }
        status
    };
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..40).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(statuses.iter().all(|status| matches!(status, 200 | 429)), "{statuses:?}");
    assert!(statuses.iter().filter(|status| **status == 200).count() >= 12, "{statuses:?}");
    server.until("all is over", || server.is_idle());
}

#[test]
fn an_orderly_end_finishes_what_runs_and_refuses_what_comes() {
    let server = Server::start(&[]);
    // More than fits into the buffers: it does not end before it is read.
    let mut running = server.open_stream(&endless(3900));
    running.read_line(&mut String::new()).unwrap();
    server.until("it runs", || server.metric("weft_lanes_running") == 1.0);
    server.signal("-TERM");
    server.until("it is draining", || {
        let (status, health) = server.get("/health");
        assert!(status == 200 || health["status"] == "draining", "{status}: {health}");
        status == 503
    });
    server.refusal("/v1/chat/completions", &chat(), 503);
    let mut rest = String::new();
    running.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"finish_reason\":\"length\"") && rest.contains("[DONE]"));
    assert_eq!(server.wait().0, Some(0));
}

#[test]
fn nothing_of_what_is_said_is_logged() {
    let server = Server::start(&["--api-key", "a-secret-key"]);
    server.ask(&chat());
    server.refusal("/v1/chat/completions", &chat_with(json!({"n": 0})), 400);
    server.post("/v1/chunks", &json!({"text": "About Krogaste", "name": "Krogaste"}));
    server.send("POST", "/v1/chat/completions", &JSON, b"{\"messages\": Krogaste");
    server.signal("-TERM");
    server.until_logged("finishing");
    let log = server.log();
    for secret in ["Krogaste", ANSWER, "a-secret-key"] {
        assert!(!log.contains(secret), "{log}");
    }
}

#[test]
fn what_is_counted_is_what_was_answered() {
    let server = Server::start(&[]);
    let (mut prompt, mut cached, mut generated) = (0, 0, 0);
    let mut last = json!(null);
    for more in [json!({}), json!({}), json!({"max_tokens": 2}), json!({"temperature": 1.0})] {
        let answer = server.ask(&chat_with(more));
        let usage = &answer["usage"];
        prompt += usage["prompt_tokens"].as_u64().unwrap();
        cached += usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        generated += usage["completion_tokens"].as_u64().unwrap();
        last = answer["id"].clone();
    }
    // Rows computed in advance, or for a comparison, are not answers.
    let chunk = server.post("/v1/chunks", &json!({"text": "A document."})).1;
    let warm = format!("/v1/chunks/{}/warm", chunk["id"].as_str().unwrap());
    assert_eq!(server.post(&warm, &json!({})).0, 200);
    assert_eq!(server.post("/v1/chunks/verify", &json!({"completion": last})).0, 200);
    server.refusal("/v1/chat/completions", &json!({"messages": 1}), 400);
    for (name, wanted) in [
        ("weft_prompt_tokens_total", prompt),
        ("weft_cached_tokens_total", cached),
        ("weft_generated_tokens_total", generated),
        ("weft_first_token_seconds_count", 4),
        ("weft_token_seconds_count", generated - 4),
        ("weft_http_requests_total{route=\"/v1/chat/completions\",status=\"200\"}", 4),
        ("weft_http_requests_total{route=\"/v1/chat/completions\",status=\"400\"}", 1),
        ("weft_lanes_running", 0),
        ("weft_requests_waiting", 0),
    ] {
        assert_eq!(server.metric(name), wanted as f64, "{name}");
    }
    check_format(&server.metrics());
}

/// Every series has its help and its type before it.
fn check_format(metrics: &str) {
    let mut known = Vec::new();
    for line in metrics.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            known.push(rest.split(' ').next().unwrap().to_owned());
        } else if !line.starts_with("# HELP ") {
            let name = line.split(['{', ' ']).next().unwrap();
            let base = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| name.strip_suffix(suffix))
                .unwrap_or(name);
            assert!(known.iter().any(|k| k == base || k == name), "{line}");
            assert!(line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
        }
    }
    assert!(known.len() > 12, "{known:?}");
}

#[test]
fn a_head_that_never_ends_is_not_waited_for() {
    use std::io::Write;
    let server = Server::start(&[]);
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: local").unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut answer = Vec::new();
    // The server may close with or without a message; our own timeout would be an error.
    stream.read_to_end(&mut answer).unwrap();
    let huge = format!("GET /health HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let _ = stream.write_all(huge.as_bytes());
    let _ = stream.read_to_end(&mut answer);
    assert_eq!(server.get("/health").0, 200);
}
