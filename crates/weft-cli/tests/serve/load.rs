//! Many clients at once, some of which leave: afterwards, the server's state is as before.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{JSON, Server, chat, chat_with, endless};

const CLIENTS: usize = 200;

/// Seconds of load; `WEFT_LOAD_SECONDS` sets more than the default of everyday tests.
fn seconds() -> u64 {
    std::env::var("WEFT_LOAD_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(8)
}

/// Counts of the clients' requests.
#[derive(Default)]
struct Tally {
    answered: AtomicUsize,
    refused: AtomicUsize,
    left: AtomicUsize,
}

#[test]
fn two_hundred_clients_leave_no_trace() {
    // Little room for rows, so that it is full before the comparison.
    let flags =
        ["--queue", "256", "--kv-memory", "64m", "--ram-cache", "8m", "--disk-cache", "16m"];
    let server = Server::start(&flags);
    let at_start = server.memory();
    // One-time allocations happen now.
    run(&server, Duration::from_secs(seconds().div_ceil(2)), &Tally::default());
    server.until("it is idle", || server.is_idle());
    let before = server.memory();
    let tally = Tally::default();
    run(&server, Duration::from_secs(seconds()), &tally);
    server.until("all is over", || server.is_idle());
    // Connections give their memory back a moment after their lanes.
    let (over, bound) = (Instant::now(), before + before / 20);
    while server.memory() > bound && over.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(100));
    }
    let after = server.memory();
    let growth = after as f64 / before as f64 - 1.0;
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    report(&json!({
        "test": "load", "clients": CLIENTS, "seconds": seconds(), "flags": flags.join(" "),
        "answered": count(&tally.answered), "refused": count(&tally.refused),
        "left": count(&tally.left), "lanes_running_after": server.metric("weft_lanes_running"),
        "requests_waiting_after": server.metric("weft_requests_waiting"),
        "memory_bytes": {"at_start": at_start, "before": before, "after": after},
        "growth": growth,
    }));
    assert!(count(&tally.answered) > 0 && count(&tally.left) > 0);
    assert!(growth < 0.05, "memory grew by {:.1} %", growth * 100.0);
    assert_eq!(server.ask(&chat())["choices"][0]["finish_reason"], "stop");
}

#[test]
fn large_bodies_are_read_a_few_at_a_time() {
    let server = Server::start(&[]);
    // Each entry is two bytes here and many more while it is read.
    let body = format!("{{\"prompt\": [{}1]}}", "1,".repeat((16 << 20) / 2 - 20));
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let send = || server.send("POST", "/v1/completions", &JSON, body.as_bytes()).0;
        let clients: Vec<_> = (0..6).map(|_| scope.spawn(send)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    // Four have a share at once. On a busy machine the others may wait too long for theirs.
    assert!(statuses.iter().filter(|status| **status == 400).count() >= 4, "{statuses:?}");
    assert!(statuses.iter().all(|status| matches!(status, 400 | 503)), "{statuses:?}");
    let peak = server.peak_memory();
    assert!(peak < 2_500_000_000, "{peak} bytes");
    assert_eq!(server.ask(&chat())["choices"][0]["finish_reason"], "stop");
}

/// Prints the results, and writes them to the file `WEFT_LOAD_REPORT` if it is set.
fn report(figures: &Value) {
    println!("{figures}");
    if let Some(file) = std::env::var_os("WEFT_LOAD_REPORT") {
        std::fs::write(file, format!("{figures:#}\n")).unwrap();
    }
}

fn run(server: &Server, time: Duration, tally: &Tally) {
    let end = Instant::now() + time;
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let mut turn = client;
                while Instant::now() < end {
                    turn += 1;
                    match turn % 3 {
                        0 => leave(server, turn, tally),
                        _ => answer(server, turn, tally),
                    }
                }
            });
        }
    });
}

fn answer(server: &Server, turn: usize, tally: &Tally) {
    let body = chat_with(json!({"stream": turn.is_multiple_of(2), "max_tokens": 1 + turn % 7}));
    let (status, _, body) =
        server.send("POST", "/v1/chat/completions", &JSON, body.to_string().as_bytes());
    assert!(matches!(status, 200 | 429), "{status} {}", String::from_utf8_lossy(&body));
    let counter = if status == 200 { &tally.answered } else { &tally.refused };
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Sends a long request and leaves after a while.
fn leave(server: &Server, turn: usize, tally: &Tally) {
    let stream = server.open_stream(&endless(500));
    std::thread::sleep(Duration::from_millis(turn as u64 * 7 % 97));
    drop(stream);
    tally.left.fetch_add(1, Ordering::Relaxed);
}
