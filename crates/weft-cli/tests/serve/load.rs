//! Many clients at once, some of whom leave: afterwards everything is as it was.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::{JSON, Server, chat, chat_with, endless};

const CLIENTS: usize = 200;

/// Seconds of load; `WEFT_LOAD_SECONDS` asks for more than everyday tests need.
fn seconds() -> u64 {
    std::env::var("WEFT_LOAD_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(8)
}

#[test]
fn two_hundred_clients_leave_no_trace() {
    // Little to keep rows in, so that it is full before anything is compared.
    let server = Server::start(&[
        "--queue",
        "256",
        "--kv-memory",
        "64m",
        "--ram-cache",
        "8m",
        "--disk-cache",
        "16m",
    ]);
    // Everything that is taken once is taken now.
    run(&server, Duration::from_secs(seconds().div_ceil(2)), &AtomicUsize::new(0));
    server.until("it is idle", || server.is_idle());
    let before = server.memory();
    let answered = AtomicUsize::new(0);
    run(&server, Duration::from_secs(seconds()), &answered);
    server.until("all is over", || server.is_idle());
    let after = server.memory();
    let growth = after as f64 / before as f64 - 1.0;
    let answered = answered.into_inner();
    println!("{answered} answers, {before} bytes before, {after} after ({:.1} %)", growth * 100.0);
    assert!(answered > 0);
    assert!(growth < 0.05, "memory grew by {:.1} %", growth * 100.0);
    assert_eq!(server.ask(&chat())["choices"][0]["finish_reason"], "stop");
}

fn run(server: &Server, time: Duration, answered: &AtomicUsize) {
    let end = Instant::now() + time;
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let mut turn = client;
                while Instant::now() < end {
                    turn += 1;
                    match turn % 3 {
                        0 => leave(server, turn),
                        _ => answer(server, turn, answered),
                    }
                }
            });
        }
    });
}

fn answer(server: &Server, turn: usize, answered: &AtomicUsize) {
    let body = chat_with(json!({"stream": turn.is_multiple_of(2), "max_tokens": 1 + turn % 7}));
    let (status, _, body) =
        server.send("POST", "/v1/chat/completions", &JSON, body.to_string().as_bytes());
    assert!(matches!(status, 200 | 429), "{status} {}", String::from_utf8_lossy(&body));
    answered.fetch_add(usize::from(status == 200), Ordering::Relaxed);
}

/// Asks for much and goes away after a while.
fn leave(server: &Server, turn: usize) {
    let stream = server.open_stream(&endless(500));
    std::thread::sleep(Duration::from_millis(turn as u64 * 7 % 97));
    drop(stream);
}
