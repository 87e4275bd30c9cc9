//! Large bodies of many clients: their sum is bounded, and small requests do not notice.

mod harness;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use self::harness::{read, send, serve};

const LIMIT: usize = 16 << 20;

/// A client that announces the largest body and stops before its last bytes.
fn stalled(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n\
         Content-Type: application/json\r\nContent-Length: {LIMIT}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&vec![b' '; LIMIT - 4096]).unwrap();
    stream
}

/// A chat whose body has about this many bytes more than it needs.
fn chat(address: SocketAddr, padding: usize) -> String {
    let pad = "x".repeat(padding);
    let body = format!(
        "{{\"max_tokens\": 1, \"pad\": \"{pad}\", \"messages\": \
         [{{\"role\": \"user\", \"content\": \"x\"}}]}}"
    );
    read(send(address, "POST", "/v1/chat/completions", &body))
}

#[test]
fn bodies_are_bounded_in_sum() {
    let (address, _) = serve();
    assert!(chat(address, 1 << 20).starts_with("HTTP/1.1 200"));
    let clients: Vec<TcpStream> = (0..4).map(|_| stalled(address)).collect();
    // What the clients sent may still be on its way.
    let sent = Instant::now();
    let (start, refused) = loop {
        let start = Instant::now();
        let response = chat(address, 1 << 20);
        if !response.starts_with("HTTP/1.1 200") || sent.elapsed() > Duration::from_secs(20) {
            break (start, response);
        }
    };
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    assert!(refused.contains("retry-after: 1") && refused.contains("bodies"), "{refused}");
    assert!(start.elapsed() < Duration::from_secs(9), "{:?}", start.elapsed());
    let start = Instant::now();
    assert!(chat(address, 0).starts_with("HTTP/1.1 200"), "a small body needs no share");
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    drop(clients);
    let start = Instant::now();
    while !chat(address, 1 << 20).starts_with("HTTP/1.1 200") {
        assert!(start.elapsed() < Duration::from_secs(20), "the share is returned");
    }
}
