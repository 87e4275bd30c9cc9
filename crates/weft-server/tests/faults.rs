//! The server on a device that computes nothing: what a stream says when the engine fails under it,
//! and how it keeps quiet clients.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use weft_server::{Loaded, Options, Server};

use weft_testing::stub::{self, Control};

/// A server whose engine is under our control; it lives as long as the test's process.
fn serve() -> (SocketAddr, Arc<Control>) {
    let control = Arc::new(Control::default());
    control.step_us.store(500, Ordering::Relaxed);
    let server = Server::bind(Options::new("127.0.0.1:0".parse().unwrap()), |_| {}).unwrap();
    let address = server.address().unwrap();
    let in_server = Arc::clone(&control);
    std::thread::spawn(move || {
        server.run(Box::new(move || {
            let model = stub::model();
            let engine = stub::engine(&model, "a", &in_server);
            Ok(Loaded { id: "stub".into(), model, engine, shelf: None })
        }))
    });
    while !get(address, "/health").starts_with("HTTP/1.1 200") {
        std::thread::sleep(Duration::from_millis(5));
    }
    (address, control)
}

fn send(address: SocketAddr, method: &str, path: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let n = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {n}\r\n\r\n{body}"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

fn get(address: SocketAddr, path: &str) -> String {
    let mut answer = String::new();
    send(address, "GET", path, "").read_to_string(&mut answer).unwrap();
    answer
}

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
    for (text, fail) in faults {
        let mut stream = ask(address, 4000);
        until(&mut stream, "\"content\":\"a\"");
        fail(&control);
        let event = until(&mut stream, "\"error\"");
        assert!(event.starts_with("data: {\"error\":{\"message\""), "{event}");
        assert!(event.contains(text), "{event}");
        until(&mut stream, "data: [DONE]");
        control.says_nan.store(false, Ordering::Relaxed);
        let is_up = || get(address, "/health").starts_with("HTTP/1.1 200");
        // Back after the first fault; down for good after the second.
        for _ in 0..100 {
            if is_up() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
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
