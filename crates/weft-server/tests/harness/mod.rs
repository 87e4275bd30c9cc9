//! A server on a device that computes nothing, and requests to it as bytes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use weft_server::{Loaded, Options, Server};
use weft_testing::stub::{self, Control};

/// A server whose engine is under our control; it lives as long as the test's process.
pub fn serve() -> (SocketAddr, Arc<Control>) {
    let control = Arc::new(Control::default());
    control.step_us.store(500, Ordering::Relaxed);
    let server = Server::bind(Options::new("127.0.0.1:0".parse().unwrap()), |_| {}).unwrap();
    let address = server.address().unwrap();
    let in_server = Arc::clone(&control);
    std::thread::spawn(move || {
        server.run(
            "stub",
            Box::new(move || {
                let model = stub::model();
                let engine = stub::engine(&model, "a", &in_server);
                Ok(Loaded::new("stub", model, engine))
            }),
        )
    });
    while !get(address, "/health").starts_with("HTTP/1.1 200") {
        std::thread::sleep(Duration::from_millis(5));
    }
    (address, control)
}

pub fn send(address: SocketAddr, method: &str, path: &str, body: &str) -> TcpStream {
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

pub fn get(address: SocketAddr, path: &str) -> String {
    read(send(address, "GET", path, ""))
}

/// All of an answer.
pub fn read(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
