//! Sizes of what is sent: heads, bodies that are announced, empty ones, and large bodies of many
//! clients, whose sum is bounded without small requests noticing; answers that nobody reads; and
//! paths that nobody knows.

mod harness;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use self::harness::{get, read, send, serve};

const LIMIT: usize = 16 << 20;

/// A client that announces a body and sends so many bytes of it.
fn begun(address: SocketAddr, announced: usize, sent: usize) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n\
         Content-Type: application/json\r\nContent-Length: {announced}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&vec![b' '; sent]).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// The first bytes of an answer, whether or not the connection stays open.
fn first_bytes(mut stream: &TcpStream) -> String {
    let mut bytes = [0; 1024];
    let n = stream.read(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes[..n]).into_owned()
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
    // They take the whole budget, which is counted in KiB.
    let clients: Vec<TcpStream> = (0..4).map(|_| begun(address, LIMIT, LIMIT - 16)).collect();
    // What the clients sent may still be on its way, and a chat that takes a share meanwhile can
    // make one of them wait too long.
    std::thread::sleep(Duration::from_secs(1));
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
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    drop(clients);
    let start = Instant::now();
    while !chat(address, 1 << 20).starts_with("HTTP/1.1 200") {
        assert!(start.elapsed() < Duration::from_secs(20), "the share is returned");
    }
}

#[test]
fn a_body_that_stops_within_its_wait_is_refused_as_soon_as_others() {
    let (address, _) = serve();
    let _clients: Vec<TcpStream> = (0..4).map(|_| begun(address, LIMIT, LIMIT - 4096)).collect();
    // What they sent may still be on its way. Their own time is over after ten seconds.
    std::thread::sleep(Duration::from_secs(1));
    let start = Instant::now();
    let answer = first_bytes(&begun(address, 1 << 20, 600 << 10));
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
}

#[test]
fn a_body_that_is_too_large_is_refused_by_its_header() {
    let (address, _) = serve();
    let start = Instant::now();
    for announced in [LIMIT + 1, 99_999_999_999] {
        let answer = first_bytes(&begun(address, announced, 0));
        assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("16 MB"), "{answer}");
    }
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    // A client that sends all of it before it reads gets the answer too.
    let answer = first_bytes(&begun(address, LIMIT + (4 << 20), LIMIT + (4 << 20)));
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

#[test]
fn heads_are_bounded() {
    let (address, _) = serve();
    let answer = |bytes: usize| {
        let mut stream = TcpStream::connect(address).unwrap();
        let pad = "x".repeat(bytes);
        let head = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n".to_owned();
        stream.write_all(format!("{head}X-Pad: {pad}\r\n\r\n").as_bytes()).unwrap();
        first_bytes(&stream)
    };
    assert!(answer(60_000).starts_with("HTTP/1.1 200"));
    for bytes in [65_536, 80_000, 100_000] {
        let answer = answer(bytes);
        assert!(answer.starts_with("HTTP/1.1 431"), "{bytes}: {answer}");
    }
}

/// Each would be a series of the metrics for as long as the server runs.
#[test]
fn paths_that_clients_invent_are_counted_together() {
    let (address, _) = serve();
    for n in 0..20 {
        for path in [format!("/no/such/{n}"), format!("/v1/chunks/{n:032x}")] {
            assert!(get(address, &path).starts_with("HTTP/1.1 404"), "{path}");
        }
    }
    let metrics = get(address, "/metrics");
    for route in ["other", "/v1/chunks/{id}"] {
        let series = format!("weft_http_requests_total{{route=\"{route}\",status=\"404\"}} 20\n");
        assert!(metrics.contains(&series), "{series}: {metrics}");
    }
    assert!(!metrics.contains("/no/such"), "{metrics}");
}

#[test]
fn an_empty_body_has_no_options() {
    let (address, _) = serve();
    let chunk = read(send(address, "POST", "/v1/chunks", "{\"text\": \"a b c\"}"));
    let id = chunk.split("\"id\":\"").nth(1).and_then(|rest| rest.split('"').next());
    let id = id.unwrap_or_else(|| panic!("{chunk}"));
    let post = |path: &str| read(send(address, "POST", path, ""));
    let answer = post(&format!("/v1/chunks/{id}/pin"));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let answer = post(&format!("/v1/chunks/{}/warm", "0".repeat(id.len())));
    assert!(
        answer.starts_with("HTTP/1.1 404"),
        "the body was read, and the id looked up: {answer}"
    );
    // Other routes need theirs.
    assert!(post("/v1/chunks").starts_with("HTTP/1.1 400"));
}

#[test]
fn an_answer_that_nobody_reads_soon_waits() {
    let (address, control) = serve();
    control.step_us.store(50, std::sync::atomic::Ordering::Relaxed);
    let body = r#"{"stream": true, "ignore_eos": true, "max_tokens": 4000,
        "messages": [{"role": "user", "content": "x"}]}"#;
    let _unread = send(address, "POST", "/v1/chat/completions", body);
    let tokens = || -> u32 {
        let metrics = get(address, "/metrics");
        let count = metrics.lines().find_map(|line| line.strip_prefix("weft_token_seconds_count "));
        count.unwrap().parse().unwrap()
    };
    let (start, mut before) = (Instant::now(), 0);
    loop {
        assert!(start.elapsed() < Duration::from_secs(60), "it never waits");
        std::thread::sleep(Duration::from_secs(1));
        let now = tokens();
        if now > 0 && now == before {
            break;
        }
        before = now;
    }
    assert!(before < 3000, "{before} tokens were computed for a client that does not read");
}
