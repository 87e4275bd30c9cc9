//! The server on a device that computes nothing: what a stream says when the engine fails under it,
//! and how it keeps quiet clients.

mod harness;

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::time::Duration;

use weft_testing::stub::Control;

use self::harness::{get, send, serve};

fn ask(address: SocketAddr, max_tokens: usize) -> BufReader<TcpStream> {
    let body = format!(
        "{{\"stream\": true, \"max_tokens\": {max_tokens}, \"messages\": \
         [{{\"role\": \"user\", \"content\": \"x\"}}]}}"
    );
    BufReader::new(send(address, "POST", "/v1/chat/completions", &body))
}

/// Reads until a line that holds this.
fn until(stream: &mut BufReader<TcpStream>, what: &str) -> String {
    loop {
        let mut line = String::new();
        assert!(stream.read_line(&mut line).unwrap() > 0, "never: {what}");
        if line.contains(what) {
            return line;
        }
    }
}

#[test]
fn a_failure_in_mid_stream_is_an_event_and_then_the_end() {
    let (address, control) = serve();
    type Fault = (&'static str, fn(&Control));
    let faults: [Fault; 3] = [
        ("cannot be sampled", |control| control.says_nan.store(true, Ordering::Relaxed)),
        ("the engine failed", |control| control.panics.store(true, Ordering::Relaxed)),
        ("the engine failed", |control| control.fails.store(true, Ordering::Relaxed)),
    ];
    for (n, (text, fail)) in faults.into_iter().enumerate() {
        let mut stream = ask(address, 4000);
        until(&mut stream, "\"content\":\"a\"");
        fail(&control);
        let event = until(&mut stream, "\"error\"");
        assert!(event.starts_with("data: {\"error\":{\"message\""), "{event}");
        assert!(event.contains(text), "{event}");
        until(&mut stream, "data: [DONE]");
        control.says_nan.store(false, Ordering::Relaxed);
        let is_up = || get(address, "/health").starts_with("HTTP/1.1 200");
        // The engine survives a token that cannot be sampled, is back after its first fault, and is
        // down for good after the second.
        let comes_back = n < 2;
        let rounds = if comes_back { 1000 } else { 100 };
        let is_back = (0..rounds).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            is_up()
        });
        assert_eq!(is_back, comes_back, "after fault {n}");
    }
    assert!(get(address, "/health").starts_with("HTTP/1.1 503"));
    let mut refused = String::new();
    ask(address, 1).read_to_string(&mut refused).unwrap();
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    assert!(refused.contains("retry-after: 1"), "{refused}");
}

#[test]
fn clients_hear_comments_while_nothing_happens() {
    let (address, control) = serve();
    control.step_us.store(2_500_000, Ordering::Relaxed);
    let mut stream = ask(address, 1);
    until(&mut stream, "\"role\":\"assistant\"");
    let comment = until(&mut stream, ": still working");
    assert!(comment.starts_with(':'));
    until(&mut stream, "data: [DONE]");
}
