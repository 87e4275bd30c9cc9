//! A fake hub for tests. It serves repositories from memory over HTTP/1.1 on the loopback address,
//! logs all requests, and misbehaves on demand.
//!
//! Like the real hub, it serves small files itself and redirects requests for weights to a second
//! server, the CDN, which has another port and must never receive a token. Dropping it ends all its
//! threads, including those that stall on purpose.

mod answer;
mod serve;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// One of the two servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// The hub itself.
    Hub,
    /// The host of large files.
    Cdn,
}

/// A received request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The server that received it.
    pub server: Server,
    /// `GET` or `HEAD`.
    pub method: String,
    /// The path, still escaped.
    pub path: String,
    /// The `Range` header.
    pub range: Option<String>,
    /// The `Authorization` header.
    pub authorization: Option<String>,
}

/// A fault in a response.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Another status, with this `X-Error-Code` unless it is empty.
    Status(u16, &'static str),
    /// The connection is closed after this many bytes of the body.
    CutAfter(usize),
    /// After this many bytes of the body, nothing more is sent, and the connection stays open.
    StallAfter(usize),
    /// The whole file, for any requested range.
    IgnoreRange,
    /// Both: the same first bytes of the file, every time.
    IgnoreRangeAndCutAfter(usize),
    /// A range that starts elsewhere than requested.
    ShiftRange(u64),
    /// A body of this many bytes, with that length in the header.
    SayLength(usize),
    /// A body without a length in the header, ended by closing the connection.
    NoLength,
    /// Another body.
    Body(Vec<u8>),
    /// Another value for a header; an empty one leaves it out.
    Header(&'static str, String),
    /// A redirect to this address.
    Redirect(String),
    /// No response before [`FakeHub::open_gate`] is called.
    Hold,
}

/// The hub. It stops when it is dropped.
pub struct FakeHub {
    shared: Arc<Shared>,
    addresses: [SocketAddr; 2],
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    cdn: SocketAddr,
}

#[derive(Default)]
struct State {
    files: Vec<StoredFile>,
    /// (repository, revision, commit)
    refs: Vec<(String, String, String)>,
    faults: Vec<PlannedFault>,
    log: Vec<Request>,
    token: Option<String>,
    redirects_small_files: bool,
    lists_names_alone: bool,
    is_gate_open: bool,
    is_stopping: bool,
}

#[derive(Clone)]
struct StoredFile {
    repo: String,
    sha: String,
    name: String,
    content: Vec<u8>,
}

struct PlannedFault {
    server: Server,
    method: &'static str,
    path_end: String,
    fault: Fault,
    is_lasting: bool,
}

impl StoredFile {
    /// Weights are large files, which the hub stores on the CDN and names by their sha-256.
    fn is_large(&self) -> bool {
        self.name.ends_with(".safetensors")
    }

    fn etag(&self) -> String {
        etag(&self.name, &self.content)
    }
}

/// The name of a file's blob in a cache: a SHA-256, or the id of a git object.
pub fn etag(name: &str, content: &[u8]) -> String {
    let hex = |hash: &[u8]| hash.iter().map(|byte| format!("{byte:02x}")).collect();
    if name.ends_with(".safetensors") {
        return hex(&Sha256::digest(content));
    }
    let header = format!("blob {}\0", content.len());
    hex(&Sha1::new_with_prefix(header).chain_update(content).finalize())
}

impl FakeHub {
    /// Starts both servers on free ports.
    pub fn start() -> Self {
        let listeners = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let addresses = [0, 1].map(|i: usize| listeners[i].local_addr().unwrap());
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            cdn: addresses[1],
        });
        let threads = [Server::Hub, Server::Cdn]
            .into_iter()
            .zip(listeners)
            .map(|(server, listener)| {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || serve::accept(&shared, server, &listener))
            })
            .collect();
        FakeHub { shared, addresses, threads }
    }

    /// The value for `HF_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.addresses[0])
    }

    /// The address of the CDN.
    pub fn cdn_endpoint(&self) -> String {
        format!("http://{}", self.addresses[1])
    }

    /// Adds files to a commit, and points `main` to it.
    pub fn add_commit(&self, repo: &str, sha: &str, files: &[(&str, &[u8])]) {
        let mut state = self.shared.lock();
        state.files.extend(files.iter().map(|(name, content)| StoredFile {
            repo: repo.to_owned(),
            sha: sha.to_owned(),
            name: (*name).to_owned(),
            content: content.to_vec(),
        }));
        drop(state);
        self.set_ref(repo, "main", sha);
    }

    /// Points a branch or tag to a commit.
    pub fn set_ref(&self, repo: &str, revision: &str, sha: &str) {
        let refs = &mut self.shared.lock().refs;
        refs.retain(|(r, name, _)| (r.as_str(), name.as_str()) != (repo, revision));
        refs.push((repo.to_owned(), revision.to_owned(), sha.to_owned()));
    }

    /// Responds with 401 on the hub to requests without this token.
    pub fn require_token(&self, token: &str) {
        self.shared.lock().token = Some(token.to_owned());
    }

    /// Redirects requests for small files to another path of the hub first, like the real hub.
    pub fn redirect_small_files(&self) {
        self.shared.lock().redirects_small_files = true;
    }

    /// Lists files without their hashes, as some mirrors of the hub do.
    pub fn list_names_alone(&self) {
        self.shared.lock().lists_names_alone = true;
    }

    /// Adds a fault to the next response to a request whose path ends like this. Faults are used in
    /// order.
    pub fn fault(&self, server: Server, method: &'static str, path_end: &str, fault: Fault) {
        self.plan(server, method, path_end, fault, false);
    }

    /// Adds a fault to all such responses.
    pub fn always(&self, server: Server, method: &'static str, end: &str, fault: Fault) {
        self.plan(server, method, end, fault, true);
    }

    fn plan(&self, server: Server, method: &'static str, end: &str, fault: Fault, lasting: bool) {
        let path_end = end.to_owned();
        let planned = PlannedFault { server, method, path_end, fault, is_lasting: lasting };
        self.shared.lock().faults.push(planned);
    }

    /// Sends the held responses.
    pub fn open_gate(&self) {
        self.shared.lock().is_gate_open = true;
        self.shared.changed.notify_all();
    }

    /// All requests up to now, oldest first.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.lock().log.clone()
    }

    /// The ranges of the requests for a file's content, oldest first; `None` for the whole file.
    pub fn content_requests(&self, file: &str) -> Vec<Option<String>> {
        let server = if file.ends_with(".safetensors") { Server::Cdn } else { Server::Hub };
        self.requests()
            .into_iter()
            .filter(|r| r.server == server && r.method == "GET" && r.path.ends_with(file))
            .map(|r| r.range)
            .collect()
    }

    /// Waits for a request with such a path; panics after 10 s.
    pub fn wait_for_request(&self, server: Server, method: &str, path_end: &str) {
        let arrived =
            |r: &Request| r.server == server && r.method == method && r.path.ends_with(path_end);
        let limit = Duration::from_secs(10);
        let state = self.shared.lock();
        let waited = self
            .shared
            .changed
            .wait_timeout_while(state, limit, |state| !state.log.iter().any(arrived));
        assert!(!waited.unwrap().1.timed_out(), "no {method} {path_end} arrived");
    }
}

impl Drop for FakeHub {
    fn drop(&mut self) {
        self.shared.lock().is_stopping = true;
        self.shared.changed.notify_all();
        for address in self.addresses {
            // Wakes the thread that accepts.
            let _ = TcpStream::connect(address);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// If a test panics elsewhere, the hub must not panic too.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Waits until the hub stops, or until `is_over` returns true. The time is limited, so that a
    /// client without a timeout fails its test instead of hanging it.
    fn wait_until(&self, is_over: impl Fn(&State) -> bool) {
        let (state, limit) = (self.lock(), Duration::from_secs(20));
        let waits = |state: &mut State| !state.is_stopping && !is_over(state);
        drop(self.changed.wait_timeout_while(state, limit, waits));
    }
}
