//! The limits of a real server: its connections at a time, and how long clients that do not read
//! are waited for.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener, UnixStream};

use super::*;

/// The patience of a test with a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(30);

/// Requests wait at it until the test lets them through.
struct Door {
    n_entered: AtomicUsize,
    gate: Semaphore,
}

impl Door {
    fn new() -> Arc<Self> {
        Arc::new(Self { n_entered: AtomicUsize::new(0), gate: Semaphore::new(0) })
    }

    fn router(self: &Arc<Self>) -> Router {
        let door = Arc::clone(self);
        let enter = async move || {
            door.n_entered.fetch_add(1, Ordering::SeqCst);
            door.gate.acquire().await.unwrap().forget();
            "passed"
        };
        Router::new().route("/", get(enter))
    }

    async fn until_entered(&self, n: usize) {
        let start = Instant::now();
        while self.n_entered.load(Ordering::SeqCst) < n {
            assert!(start.elapsed() < PATIENCE, "never: {n} requests");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Three clients of a server that accepts two: the third one waits until another has gone.
async fn the_third_one_waits<S, C>(door: &Door, connect: impl Fn() -> C)
where
    S: AsyncRead + AsyncWrite + Unpin,
    C: Future<Output = std::io::Result<S>>,
{
    let mut clients = Vec::new();
    for n in 1..=3 {
        let mut client = connect().await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        clients.push(client);
        door.until_entered(n.min(2)).await;
    }
    let soon = Duration::from_millis(200);
    assert!(tokio::time::timeout(soon, door.until_entered(3)).await.is_err(), "it is let in");
    let mut third = clients.pop().unwrap();
    clients.pop();
    door.until_entered(3).await;
    door.gate.add_permits(3);
    let mut answer = [0; 1024];
    let n = tokio::time::timeout(PATIENCE, third.read(&mut answer)).await.unwrap().unwrap();
    let answer = String::from_utf8_lossy(&answer[..n]);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn connections_are_limited_until_they_end() {
    let door = Door::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let graceful = GracefulShutdown::new();
    tokio::select! {
        () = accept(&listener, door.router(), &graceful, 2) => panic!("it accepts no more"),
        () = the_third_one_waits(&door, || TcpStream::connect(address)) => {}
    }
}

#[tokio::test]
async fn connections_of_programs_are_limited_until_they_end() {
    let door = Door::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = Some(UnixListener::bind(&path).unwrap());
    let graceful = GracefulShutdown::new();
    tokio::select! {
        () = resident::accept_all(listener, door.router(), &graceful, 2) => {
            panic!("it accepts no more")
        }
        () = the_third_one_waits(&door, || UnixStream::connect(&path)) => {}
    }
}

/// As docs/server.md promises.
#[test]
fn clients_that_do_not_read_are_waited_for_as_documented() {
    let log: Arc<dyn Fn(&str) + Send + Sync> = Arc::new(|_| {});
    let options = Options { queue: 7, ..Options::new("127.0.0.1:0".parse().unwrap()) };
    let limits = settings(&options, &log).limits;
    let seconds = (limits.slow_reader.as_secs_f64(), limits.give_way.as_secs_f64());
    assert_eq!((seconds, limits.queue), ((60.0, 2.0), 7));
    let docs = std::fs::read_to_string(weft_testing::in_tree("docs/server.md")).unwrap();
    assert!(docs.contains("ends after 60 s, or after 2 s if another request waits for a lane"));
    assert_eq!(limits.fault_window.as_secs(), 3600);
    assert!(docs.contains("If the engine fails again within an hour, it\nstays down."));
}
