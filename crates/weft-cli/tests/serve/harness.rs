//! Starts servers, sends requests, and cleans up.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use weft_testing::DieWithUs;

/// A question that the bundled model answers with several tokens.
pub const QUESTION: &str = "Who is the captain of the Krogaste?";
pub const ANSWER: &str = "Probrosur";

/// How long a test waits for anything, and how often it looks.
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// The document that has the answer.
pub fn document() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo/krogaste.txt");
    std::fs::read_to_string(file).unwrap()
}

/// A chat of one turn about the document.
pub fn chat() -> Value {
    json!({"messages": [{"role": "user", "content": format!("{}\n\n{QUESTION}", document())}]})
}

/// The same with further fields.
pub fn chat_with(more: Value) -> Value {
    merged(chat(), more)
}

pub fn merged(mut json: Value, more: Value) -> Value {
    let Value::Object(more) = more else { panic!("fields") };
    json.as_object_mut().unwrap().extend(more);
    json
}

/// An answer that does not end by itself.
pub fn endless(max_tokens: usize) -> Value {
    chat_with(json!({"stream": true, "ignore_eos": true, "max_tokens": max_tokens}))
}

/// A running server.
pub struct Server {
    child: Child,
    _guard: DieWithUs,
    pub port: u16,
    key: Option<String>,
    log: Arc<Mutex<Vec<String>>>,
    pub folder: TempDir,
}

impl Server {
    pub fn start(args: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), args)
    }

    /// Starts with the chunks and rows of an earlier server.
    pub fn start_in(folder: TempDir, args: &[&str]) -> Self {
        let server = Self::spawn(folder, args);
        server.until("it is healthy", || server.get("/health").0 == 200);
        server
    }

    /// Starts without waiting for the model.
    pub fn spawn(folder: TempDir, args: &[&str]) -> Self {
        Self::spawn_by(Command::new(env!("CARGO_BIN_EXE_weft")), folder, args)
    }

    /// Starts where no file can have more than this many blocks, as on a disk that is full.
    pub fn start_on_full_disk(folder: TempDir, blocks: u32) -> Self {
        let mut shell = Command::new("sh");
        // The signal would end the process; ignored, the write fails.
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_weft")]);
        let server = Self::spawn_by(shell, folder, &[]);
        server.until("it is healthy", || server.get("/health").0 == 200);
        server
    }

    fn spawn_by(mut program: Command, folder: TempDir, args: &[&str]) -> Self {
        let mut child = program
            .args(["serve", "--no-resident", "--port", "0", "--threads", "1", "--cache-dir"])
            .arg(folder.path().join("kv"))
            .arg("--chunk-dir")
            .arg(folder.path().join("chunks"))
            .args(args)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let guard = DieWithUs::new(&child);
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        let address = first.split("http://").nth(1).and_then(|rest| rest.split(' ').next());
        let port = address.and_then(|address| address.rsplit(':').next());
        let port = port.and_then(|port| port.parse().ok()).unwrap_or_else(|| panic!("{first}"));
        // Reads continuously, so that the server never waits for this test.
        let log = Arc::new(Mutex::new(vec![first.clone()]));
        let kept = Arc::clone(&log);
        std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| kept.lock().unwrap().push(line));
        });
        let key = args.iter().position(|arg| *arg == "--api-key").map(|at| args[at + 1].to_owned());
        Self { child, _guard: guard, port, key, log, folder }
    }

    pub fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < LIMIT, "never: {what}");
            std::thread::sleep(POLL);
        }
    }

    pub fn get(&self, path: &str) -> (u16, Value) {
        let (status, _, body) = self.send("GET", path, &[], b"");
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    pub fn delete(&self, path: &str) -> (u16, Value) {
        let (status, _, body) = self.send("DELETE", path, &[], b"");
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, _, body) = self.send("POST", path, &JSON, body.to_string().as_bytes());
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    /// Sends a request that must be answered.
    pub fn ask(&self, body: &Value) -> Value {
        let (status, answer) = self.post("/v1/chat/completions", body);
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// Sends a request that must be refused; returns the message.
    pub fn refusal(&self, path: &str, body: &Value, wanted: u16) -> String {
        let (status, answer) = self.post(path, body);
        assert_eq!(status, wanted, "{body}: {answer}");
        self.check_error(&answer);
        answer["error"]["message"].as_str().unwrap().to_owned()
    }

    /// Errors have OpenAI's form, and reveal nothing about the machine.
    pub fn check_error(&self, answer: &Value) {
        let error = answer["error"].as_object().unwrap_or_else(|| panic!("{answer}"));
        for field in ["message", "type", "param", "code"] {
            assert!(error.contains_key(field), "{answer}");
        }
        self.check_secrets(answer);
    }

    /// An answer reveals nothing about the machine.
    pub fn check_secrets(&self, answer: &Value) {
        let text = answer.to_string();
        let folder = self.folder.path().to_string_lossy().into_owned();
        for secret in [&folder, "0x", ".rs:", "/home", "/root"] {
            assert!(!text.contains(secret), "{text} reveals {secret}");
        }
    }

    /// One request on its own connection: status, head, body.
    pub fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> (u16, String, Vec<u8>) {
        let mut stream = self.open(method, path, headers, body);
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let split = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head");
        let head = String::from_utf8(answer[..split].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = &answer[split + 4..];
        let is_chunked = head.to_lowercase().contains("transfer-encoding: chunked");
        let body = if is_chunked { unchunked(body) } else { body.to_vec() };
        (status, head, body)
    }

    /// Sends a request and leaves its answer unread.
    pub fn open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(180))).unwrap();
        let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        let has = |name: &str| headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name));
        if !has("host") {
            head += &format!("Host: 127.0.0.1:{}\r\n", self.port);
        }
        if let Some(key) = self.key.as_ref().filter(|_| !has("authorization") && !has("x-api-key"))
        {
            head += &format!("Authorization: Bearer {key}\r\n");
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += &format!("Content-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).unwrap();
        // A server may refuse before it has read everything.
        let _ = stream.write_all(body);
        stream
    }

    /// Opens a streamed answer.
    pub fn open_stream(&self, body: &Value) -> BufReader<TcpStream> {
        let stream = self.open("POST", "/v1/chat/completions", &JSON, body.to_string().as_bytes());
        BufReader::new(stream)
    }

    /// All lines of a stream's answer that are data; `[DONE]` must be the last.
    pub fn events(&self, path: &str, body: &Value) -> Vec<Value> {
        let body = merged(body.clone(), json!({"stream": true}));
        let (status, head, bytes) = self.send("POST", path, &JSON, body.to_string().as_bytes());
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(status, 200, "{text}");
        assert!(head.to_lowercase().contains("content-type: text/event-stream"), "{head}");
        let mut data: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{text}");
        data.into_iter().map(|data| serde_json::from_str(data).unwrap()).collect()
    }

    /// The named events of a stream: each has its name as its type.
    pub fn named_events(&self, path: &str, body: &Value) -> Vec<Value> {
        let body = merged(body.clone(), json!({"stream": true}));
        let (status, head, bytes) = self.send("POST", path, &JSON, body.to_string().as_bytes());
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(status, 200, "{text}");
        assert!(head.to_lowercase().contains("content-type: text/event-stream"), "{head}");
        let events =
            text.split("\n\n").filter(|event| !event.is_empty() && !event.starts_with(':'));
        let read = |event: &str| {
            let (name, data) = event.split_once('\n').unwrap_or_else(|| panic!("{event}"));
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{event}");
            data
        };
        events.map(read).collect()
    }

    pub fn metrics(&self) -> String {
        let (status, _, body) = self.send("GET", "/metrics", &[], b"");
        assert_eq!(status, 200);
        String::from_utf8(body).unwrap()
    }

    pub fn metric(&self, name: &str) -> f64 {
        let text = self.metrics();
        let line = text.lines().find(|line| line.rsplit_once(' ').is_some_and(|l| l.0 == name));
        let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    }

    /// What the server has printed and this process has read.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }

    /// Waits until the server has printed a text: it arrives a moment after the server goes on.
    pub fn until_logged(&self, text: &str) {
        let start = Instant::now();
        while !self.log().contains(text) {
            assert!(start.elapsed() < LIMIT, "never logged: {text}, but: {}", self.log());
            std::thread::sleep(POLL);
        }
    }

    /// Answers that were cancelled.
    pub fn cancelled(&self) -> f64 {
        self.metric("weft_answers_total{reason=\"cancelled\"}")
    }

    pub fn is_idle(&self) -> bool {
        self.metric("weft_lanes_running") == 0.0 && self.metric("weft_requests_waiting") == 0.0
    }

    /// Sends a signal to the server's process.
    pub fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Waits for the end; returns the exit code, and the folders for the next server.
    pub fn wait(mut self) -> (Option<i32>, TempDir) {
        let code = self.child.wait().unwrap().code();
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap());
        (code, folder)
    }

    /// Resident memory in bytes.
    pub fn memory(&self) -> u64 {
        self.memory_line("VmRSS:")
    }

    /// The peak of the resident memory.
    pub fn peak_memory(&self) -> u64 {
        self.memory_line("VmHWM:")
    }

    fn memory_line(&self, name: &str) -> u64 {
        let status = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(status).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub const JSON: [(&str, &str); 1] = [("Content-Type", "application/json")];

/// The text of an answer.
pub fn text(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

/// The text of a stream of one choice.
pub fn joined(events: &[Value]) -> String {
    let delta = |event: &Value| event["choices"][0]["delta"]["content"].as_str().map(str::to_owned);
    events.iter().filter_map(delta).collect()
}

fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(line) = body.windows(2).position(|bytes| bytes == b"\r\n") {
        let size = std::str::from_utf8(&body[..line]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        let start = line + 2;
        whole.extend_from_slice(&body[start..start + size]);
        body = &body[start + size + 2..];
        if size == 0 {
            break;
        }
    }
    whole
}
