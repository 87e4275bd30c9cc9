//! Several servers on one store: what one has computed, the others find.

use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cache::{about, register};
use crate::harness::{Server, document, text};

/// A folder as the store, and a key.
struct Bucket(TempDir);

impl Bucket {
    fn new() -> Self {
        let bucket = Self(tempfile::tempdir().unwrap());
        std::fs::write(bucket.key(), "5".repeat(64)).unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(bucket.key(), std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        bucket
    }

    fn key(&self) -> PathBuf {
        self.0.path().join("team.key")
    }

    fn folder(&self) -> PathBuf {
        self.0.path().join("store")
    }

    /// A server with an empty disk.
    fn server(&self) -> Server {
        let url = format!("file://{}", self.folder().display());
        let key = self.key().display().to_string();
        Server::start(&["--remote", &url, "--remote-key", &key])
    }

    /// Changes every object.
    fn damage(&self) {
        let mut folders = vec![self.folder()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let mut bytes = std::fs::read(&path).unwrap();
                let middle = bytes.len() / 2;
                bytes[middle] ^= 4;
                std::fs::write(&path, bytes).unwrap();
            }
        }
    }
}

fn sources(answer: &Value) -> Vec<String> {
    let chunks = answer["chunk_report"]["chunks"].as_array().unwrap();
    chunks.iter().map(|chunk| chunk["source"].as_str().unwrap().to_owned()).collect()
}

/// The text and the log-probabilities, which are equal if all bits are.
fn said(answer: &Value) -> (String, Value) {
    (text(answer).to_owned(), answer["choices"][0]["logprobs"].clone())
}

fn question(id: &str) -> Value {
    about(&[id], json!({"logprobs": true, "temperature": 0}))
}

fn stored(server: &Server) -> f64 {
    server.metric("weft_remote_writes_total{result=\"stored\"}")
}

#[test]
fn a_second_server_finds_the_chunks_of_the_first_with_the_same_bits() {
    let bucket = Bucket::new();
    let first = bucket.server();
    let id = register(&first, "context", &document());
    let answer = first.ask(&question(&id));
    assert!(!sources(&answer).contains(&"remote".to_owned()));
    first.until("it is in the store", || stored(&first) == 1.0);

    let second = bucket.server();
    assert_eq!(register(&second, "context", &document()), id);
    let again = second.ask(&question(&id));
    assert_eq!(said(&again), said(&answer));
    assert!(sources(&again).contains(&"remote".to_owned()), "{again}");
    assert_eq!(second.metric("weft_remote_fetches_total{result=\"hit\"}"), 1.0);
    assert_eq!(second.metric("weft_chunk_uses_total{source=\"remote\"}"), 1.0);
    assert_eq!(second.get("/v1/chunks").1["tiers"]["remote"]["hits"], 1);
    second.signal("-TERM");
    let (code, folder) = second.wait();
    assert_eq!(code, Some(0));
    // The disk is the cache of the store: the next server needs no store.
    let third = Server::start_in(folder, &[]);
    let again = third.ask(&question(&id));
    assert_eq!(said(&again), said(&answer));
    assert!(sources(&again).contains(&"disk".to_owned()), "{again}");
}

#[test]
fn servers_with_clients_at_the_same_time_answer_alike() {
    let bucket = Bucket::new();
    let servers = [bucket.server(), bucket.server()];
    let documents: Vec<String> = (0..6).map(|n| format!("Note {n}. {}", document())).collect();
    let alone = Server::start(&[]);
    let expected: Vec<_> = documents
        .iter()
        .map(|document| said(&alone.ask(&question(&register(&alone, "context", document)))))
        .collect();
    let (documents, expected) = (&documents, &expected);
    std::thread::scope(|scope| {
        for (n, server) in servers.iter().flat_map(|server| [(0, server), (3, server)]) {
            scope.spawn(move || {
                for i in 0..documents.len() {
                    let at = (n + i) % documents.len();
                    let id = register(server, "context", &documents[at]);
                    assert_eq!(said(&server.ask(&question(&id))), expected[at]);
                }
            });
        }
    });
    // Each document is in the store, written once by one of them or by both at once.
    let settled = |server: &Server| server.metric("weft_remote_queue_bytes") == 0.0;
    servers.iter().for_each(|server| server.until("all is written", || settled(server)));
    for server in &servers {
        assert_eq!(server.metric("weft_remote_writes_total{result=\"dropped\"}"), 0.0);
        assert_eq!(server.metric("weft_remote_open{what=\"read\"}"), 0.0);
    }
    let newcomer = bucket.server();
    for (document, expected) in documents.iter().zip(expected) {
        let answer = newcomer.ask(&question(&register(&newcomer, "context", document)));
        assert_eq!(said(&answer), *expected);
        assert!(sources(&answer).contains(&"remote".to_owned()), "{answer}");
    }
}

#[test]
fn a_damaged_store_changes_no_answer_and_is_reported() {
    let bucket = Bucket::new();
    let first = bucket.server();
    let id = register(&first, "context", &document());
    let answer = first.ask(&question(&id));
    first.until("it is in the store", || stored(&first) == 1.0);
    bucket.damage();
    let second = bucket.server();
    register(&second, "context", &document());
    let again = second.ask(&question(&id));
    assert_eq!(said(&again), said(&answer));
    assert!(!sources(&again).contains(&"remote".to_owned()), "{again}");
    assert_eq!(second.metric("weft_remote_fetches_total{result=\"hit\"}"), 0.0);
    second.until_logged("rows are not fetched from the remote store");
    // What was computed replaces what was damaged.
    second.until("it is in the store", || stored(&second) == 1.0);
    let third = bucket.server();
    register(&third, "context", &document());
    assert!(sources(&third.ask(&question(&id))).contains(&"remote".to_owned()));
}

#[test]
fn without_a_key_the_store_is_not_used_and_without_files_it_is_refused() {
    let bucket = Bucket::new();
    let url = format!("file://{}", bucket.folder().display());
    let server = Server::start(&["--remote", &url]);
    server.until_logged("no --remote-key says whose rows to believe");
    assert!(!server.metrics().contains("weft_remote"));
    let refused = Server::spawn(
        tempfile::tempdir().unwrap(),
        &["--remote", &url, "--remote-unsigned", "--disk-cache", "0"],
    );
    refused.until_logged("--disk-cache is 0");
    assert_eq!(refused.wait().0, Some(2));
}
