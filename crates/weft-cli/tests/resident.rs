//! Commands that use a resident server: what they print, whom the socket lets in, how it ends.
#![cfg(unix)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use weft_core::chunk::Asked;
use weft_server::resident::protocol::{ANSWER, Event, FACTS, Fault, Question, Refusal};
use weft_testing::DieWithUs;

const QUESTION: &str = "Who is the ruler of Nusonix?";

/// A user's home folder, in which commands and servers run.
struct Home(tempfile::TempDir);

/// Code, stdout and stderr of a command.
type Ran = (i32, String, String);

impl Home {
    fn new() -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo");
        for name in ["nusonix.txt", "krogaste.txt"] {
            fs::copy(demo.join(name), home.0.path().join(name)).unwrap();
        }
        home
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        let home = self.0.path();
        command.args(args).current_dir(home).env_clear().env("HOME", home).stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        let output = self.command(args).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
    }

    /// The folder of sockets.
    fn sockets(&self) -> PathBuf {
        self.0.path().join(".cache/weft/run")
    }

    fn serve(&self, args: &[&str]) -> Server {
        let mut command = self.command(&["serve", "-v", "--port", "0", "--threads", "1"]);
        let mut child = command.args(args).stderr(Stdio::piped()).spawn().unwrap();
        let guard = DieWithUs::new(&child);
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut log = String::new();
        while !log.contains("loaded in") {
            assert_ne!(lines.read_line(&mut log).unwrap(), 0, "{log}");
        }
        let server = Server { child, lines, log, _guard: guard };
        let start = Instant::now();
        while !log_is_over(self, server.child.id()) {
            assert!(start.elapsed() < Duration::from_secs(30), "no socket: {}", server.log);
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }
}

impl Home {
    /// Asks a server by HTTP, as any client would.
    fn get(&self, server: &Server, path: &str) -> Value {
        let servers: Value = serde_json::from_str(&self.run(&["ps", "--json"]).1).unwrap();
        let all = servers.as_array().unwrap();
        let ours = all.iter().find(|found| found["pid"] == server.child.id()).unwrap();
        let mut stream = TcpStream::connect(ours["address"].as_str().unwrap()).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }
}

/// Whether `weft ps` says that a server is ready, or there is no socket to ask.
fn log_is_over(home: &Home, pid: u32) -> bool {
    let (_, stdout, _) = home.run(&["ps", "--json"]);
    let servers: Value = serde_json::from_str(&stdout).unwrap();
    let is_it = |server: &&Value| server["pid"] == pid && server["ready"] == true;
    servers.as_array().unwrap().iter().any(|server| is_it(&server))
}

struct Server {
    child: Child,
    lines: BufReader<std::process::ChildStderr>,
    log: String,
    _guard: DieWithUs,
}

impl Server {
    /// Waits for its end; returns its code and all it has said.
    fn end(mut self) -> (i32, String) {
        let code = self.child.wait().unwrap().code().unwrap_or(-1);
        self.lines.read_to_string(&mut self.log).unwrap();
        (code, self.log)
    }
}

fn is_resident(ran: &Ran) -> bool {
    ran.2.contains("resident server")
}

/// A report without times and places, which differ from run to run.
fn timeless(json: &str) -> Value {
    let mut json: Value = serde_json::from_str(json).unwrap();
    let object = json.as_object_mut().unwrap();
    // How much is drafted follows measured times.
    const DRAFTS: [&str; 3] = ["speculation", "drafted_tokens", "accepted_tokens"];
    object.retain(|key, _| {
        !key.ends_with("_ms") && !key.contains("per_second") && !DRAFTS.contains(&key.as_str())
    });
    let report = object["chunk_report"].as_object_mut().unwrap();
    report.retain(|key, _| key == "chunks" || key == "answer_attention");
    for chunk in report["chunks"].as_array_mut().unwrap() {
        chunk.as_object_mut().unwrap().retain(|key, _| key != "ms");
    }
    json
}

#[test]
fn a_resident_server_answers_as_a_loaded_model_would() {
    let home = Home::new();
    let server = home.serve(&[]);
    let document = "nusonix.txt";
    for args in [
        &["ask", document, QUESTION][..],
        &["ask", document, "krogaste.txt", "--reuse", "isolated", QUESTION],
        &["ask", document, "--system", "Answer in capitals.", QUESTION],
        &["ask", document, "--stats", "-q", QUESTION],
        &["ask", document, "--verify", QUESTION],
        &["run", "--system", "Answer in one word.", "-f", document, QUESTION],
        &["run", "--raw", "-n", "8", "--temperature", "0", "The river"],
        &["run", "-n", "6", "--seed", "7", "--temperature", "1.5", "--ignore-eos", "Hello"],
    ] {
        let resident = home.run(args);
        let own = home.run(&[args, &["--no-resident", "--cache-dir", "other"]].concat());
        assert!(is_resident(&resident) || args.contains(&"-q"), "{args:?}: {}", resident.2);
        assert!(!is_resident(&own), "{}", own.2);
        assert_eq!((resident.0, &resident.1), (own.0, &own.1), "{args:?}: {}", resident.2);
        let lines = |text: &str| text.lines().filter(|l| !l.contains(" ms")).count();
        let more = usize::from(!args.contains(&"-q"));
        assert!(lines(&resident.2) + 1 >= lines(&own.2) - more, "{}\n{}", resident.2, own.2);
    }
    let json = &["ask", "--json", "--no-cache", document, QUESTION][..];
    let own = home.run(&[json, &["--no-resident"]].concat());
    let resident = home.run(json);
    assert!(is_resident(&resident), "{}", resident.2);
    assert_eq!(timeless(&resident.1), timeless(&own.1));

    // The server drafts as the command says.
    let sentence = ["ask", document, "--system", "Answer in a full sentence.", QUESTION];
    for (how, drafts) in [("4", true), ("off", false)] {
        let ran = home.run(&[&sentence[..], &["--speculate", how]].concat());
        assert!(is_resident(&ran) && ran.2.contains(" drafted") == drafts, "{how}: {}", ran.2);
    }
    let ran = home.run(&[&sentence[..], &["--draft", "weft-tiny"]].concat());
    assert!(!is_resident(&ran) && ran.2.contains("drafts by weft-tiny"), "{}", ran.2);

    // Errors have the same words and codes.
    let long = "word ".repeat(20_000);
    home.run(&["chunk", "add", document, "--name", "n"]);
    for args in [
        &["ask", "--context", "absent", QUESTION][..],
        &["ask", document, " "],
        &["run", &long],
        &["ask", "--context", "n", "--context", "n2", QUESTION],
    ] {
        let last = |ran: Ran| (ran.0, ran.2.lines().last().unwrap_or_default().to_owned());
        let resident = last(home.run(args));
        assert_ne!(resident.0, 0, "{resident:?}");
        assert_eq!(resident, last(home.run(&[args, &["--no-resident"]].concat())), "{args:?}");
    }

    // Flags that the server does not have lead to a model of the command's own.
    for flags in [["--ctx-size", "300"], ["--cache-dir", "x"], ["--kernels", "reference"]] {
        let ran = home.run(&[&["ask", document, QUESTION][..], &flags].concat());
        assert!(!is_resident(&ran) && ran.0 == 0, "{flags:?}: {}", ran.2);
    }
    drop(home.run(&["stop"]));
    server.end();
}

#[test]
fn chunks_of_commands_and_of_the_server_are_the_same() {
    let home = Home::new();
    let server = home.serve(&[]);
    let (code, id, _) = home.run(&["chunk", "add", "nusonix.txt", "--name", "nusonix"]);
    assert_eq!(code, 0);
    let warm = home.run(&["chunk", "warm", "nusonix"]);
    assert!(is_resident(&warm) && warm.2.contains("computed now"), "{}", warm.2);
    // The system prompt may be a text; it is no registered chunk afterwards.
    for more in [&[][..], &["--no-resident"]] {
        let args = &["chunk", "warm", "nusonix", "--system", "Answer in one word."][..];
        let warm = home.run(&[args, more].concat());
        assert!(warm.0 == 0 && warm.2.contains(" warm, "), "{more:?}: {}", warm.2);
        assert_eq!(is_resident(&warm), more.is_empty(), "{}", warm.2);
    }
    assert!(!home.run(&["chunk", "list"]).1.contains("system"));
    let asked = home.run(&["ask", "--context", "nusonix", "--stats", QUESTION]);
    assert!(is_resident(&asked) && asked.1.contains("Vubegok"), "{}{}", asked.1, asked.2);
    assert!(asked.2.contains("cached") && asked.2.contains("nusonix"), "{}", asked.2);
    // The server pins what a command pins.
    for command in ["pin", "unpin"] {
        assert_eq!(home.run(&["chunk", command, "nusonix"]).0, 0);
        let chunks = home.get(&server, "/v1/chunks");
        let is_pinned = chunks["data"][0]["pinned"] == true;
        assert_eq!(is_pinned, command == "pin", "{command}: {chunks}");
    }
    // Registered by a process that has loaded the model itself.
    home.run(&["chunk", "add", "krogaste.txt", "--name", "ship", "--no-resident"]);
    let asked = home.run(&["ask", "--context", "ship", "Who is the captain of the Krogaste?"]);
    assert!(is_resident(&asked) && asked.1.contains("Probrosur"), "{}{}", asked.1, asked.2);
    assert_eq!(home.run(&["chunk", "rm", id.trim()]).0, 0);
    let (code, _, stderr) = home.run(&["ask", "--context", "nusonix", QUESTION]);
    assert!(code == 2 && stderr.contains("neither a file nor a chunk"), "{stderr}");
    assert!(!home.run(&["chunk", "list"]).1.contains("nusonix"));
    home.run(&["stop"]);
    server.end();
}

/// The bar of a terminal needs them.
#[test]
fn the_progress_of_a_prompt_is_sent() {
    let home = Home::new();
    let server = home.serve(&[]);
    let text = fs::read_to_string(home.0.path().join("nusonix.txt")).unwrap();
    let question = Question {
        asked: Asked::Text(text),
        thinking: None,
        sampling: Default::default(),
        use_cache: false,
        speculate: None,
    };
    let body = serde_json::to_string(&question).unwrap();
    let socket = home.sockets().join(format!("{}.sock", server.child.id()));
    let mut stream = UnixStream::connect(socket).unwrap();
    let head = "content-type: application/json\r\nhost: localhost";
    let length = body.len();
    write!(stream, "POST {ANSWER} HTTP/1.0\r\n{head}\r\ncontent-length: {length}\r\n\r\n{body}")
        .unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    let (_, events) = said.split_once("\r\n\r\n").unwrap();
    let events = events.lines().filter(|line| !line.is_empty());
    let events: Vec<Event> = events.map(|line| serde_json::from_str(line).unwrap()).collect();
    let Event::Started { prompt_tokens, .. } = events[0] else { panic!("{said}") };
    let is_text = |event: &Event| matches!(event, Event::Text(_));
    let first = events.iter().position(is_text).unwrap();
    let is_whole = |event: &Event| matches!(event, Event::Prefill(done) if *done == prompt_tokens);
    assert!(events[..first].iter().any(is_whole), "{said}");
    home.run(&["stop"]);
    server.end();
}

#[test]
fn a_chat_goes_through_the_server() {
    let home = Home::new();
    let server = home.serve(&[]);
    let said = |more: &[&str]| {
        let mut command = home.command(&[&["chat"][..], more].concat());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines =
            format!("/context nusonix.txt\n{QUESTION}\n/chunks\n/context absent\n/verify\n/quit\n");
        Write::write_all(&mut child.stdin.take().unwrap(), lines.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    };
    let (resident, own) = (said(&[]), said(&["--no-resident"]));
    assert!(is_resident(&resident) && !is_resident(&own), "{}", resident.2);
    assert_eq!((resident.0, &resident.1), (own.0, &own.1), "{}", resident.2);
    for part in
        ["tokens, before the next message", "nusonix.txt", "absent is neither", "same answer"]
    {
        assert!(resident.2.contains(part) && own.2.contains(part), "{part}: {}", resident.2);
    }
    home.run(&["stop"]);
    server.end();
}

#[test]
fn ctrl_c_ends_the_answer_and_not_the_server() {
    let home = Home::new();
    // So slow that the answer does not end by itself.
    let slow = ["--kernels", "reference"];
    let server = home.serve(&slow);
    let mut command = home.command(&["run", "--ignore-eos", "-n", "8000", "Hello"]);
    command.args(slow);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("tok prompt") && stderr.contains("cancelled"), "{stderr}");
    let start = Instant::now();
    let running = || {
        let servers: Value = serde_json::from_str(&home.run(&["ps", "--json"]).1).unwrap();
        servers[0]["running"].as_u64().unwrap()
    };
    while running() > 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "the lane is not free");
    }
    home.run(&["stop"]);
    server.end();
}

#[test]
fn ps_lists_servers_and_stop_ends_one() {
    let home = Home::new();
    assert!(home.run(&["ps"]).2.contains("no server"));
    assert_eq!(home.run(&["stop"]).0, 1);
    let server = home.serve(&[]);
    let other = home.serve(&["-c", "300"]);
    let pid = server.child.id().to_string();
    let servers: Value = serde_json::from_str(&home.run(&["ps", "--json"]).1).unwrap();
    assert_eq!(servers.as_array().unwrap().len(), 2);
    let find = |found: &&Value| found["pid"] == server.child.id();
    let ours = servers.as_array().unwrap().iter().find(find).unwrap();
    assert_eq!((&ours["model"], &ours["lanes"]), (&"weft-tiny".into(), &8.into()));
    assert!(ours["memory_bytes"].as_u64().unwrap() > 1 << 20);
    assert!(ours["address"].as_str().unwrap().starts_with("127.0.0.1:"));
    let table = home.run(&["ps"]).1;
    assert!(table.contains("weft-tiny") && table.contains(&pid), "{table}");

    let (code, _, stderr) = home.run(&["stop", "weft-tiny"]);
    assert!(code == 2 && stderr.contains("2 servers"), "{stderr}");
    assert_eq!(home.run(&["stop", &pid]).0, 0);
    let (code, log) = server.end();
    assert!(code == 0 && log.contains("finishing"), "{code} {log}");
    assert_eq!(fs::read_dir(home.sockets()).unwrap().count(), 1);
    // A name is found in any case.
    assert_eq!(home.run(&["stop", "Weft-Tiny"]).0, 0);
    other.end();
    assert_eq!(fs::read_dir(home.sockets()).unwrap().count(), 0);
}

#[test]
fn only_the_user_can_enter_and_stale_sockets_go() {
    let home = Home::new();
    let server = home.serve(&[]);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let socket = home.sockets().join(format!("{}.sock", server.child.id()));
    assert_eq!((mode(&home.sockets()), mode(&socket)), (0o700, 0o600));

    let stale = home.sockets().join("1.sock");
    drop(UnixListener::bind(&stale).unwrap());
    assert!(stale.exists());
    let asked = home.run(&["ask", "nusonix.txt", QUESTION]);
    assert!(is_resident(&asked) && !stale.exists(), "{}", asked.2);

    // A folder that others may enter is not trusted, by commands and by servers.
    fs::set_permissions(home.sockets(), fs::Permissions::from_mode(0o755)).unwrap();
    let asked = home.run(&["ask", "nusonix.txt", QUESTION]);
    assert!(!is_resident(&asked) && asked.0 == 0, "{}", asked.2);
    assert!(home.run(&["ps"]).2.contains("chmod 700"));
    let mut other = home.command(&["serve", "--port", "0"]);
    let mut other = other.stderr(Stdio::piped()).spawn().unwrap();
    let guard = DieWithUs::new(&other);
    let mut lines = BufReader::new(other.stderr.take().unwrap());
    let mut log = String::new();
    while !log.contains("can be entered by other users") {
        assert_ne!(lines.read_line(&mut log).unwrap(), 0, "{log}");
    }
    other.kill().unwrap();
    other.wait().unwrap();
    drop(guard);
    fs::set_permissions(home.sockets(), fs::Permissions::from_mode(0o700)).unwrap();

    // Without the socket, the server serves HTTP alone.
    home.run(&["stop"]);
    server.end();
    let mut alone = home.command(&["serve", "--port", "0", "--no-resident"]);
    let mut alone = alone.stderr(Stdio::piped()).spawn().unwrap();
    let _guard = DieWithUs::new(&alone);
    let mut lines = BufReader::new(alone.stderr.take().unwrap());
    let mut log = String::new();
    while !log.contains("Ctrl-C ends") {
        assert_ne!(lines.read_line(&mut log).unwrap(), 0, "{log}");
    }
    let n_sockets = fs::read_dir(home.sockets()).unwrap().count();
    alone.kill().unwrap();
    alone.wait().unwrap();
    assert_eq!(n_sockets, 0);
}

/// Listens on a socket: says that it is the server whose facts these are, and refuses all
/// questions. Returns how many it has refused.
fn refuse_all(path: &Path, facts: String, fault: Fault) -> Arc<AtomicUsize> {
    let listener = UnixListener::bind(path).unwrap();
    let n_refused = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&n_refused);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            let refusal = Refusal { fault, message: "all lanes are taken".to_owned() };
            let (status, body) = match line.split(' ').nth(1) {
                Some(FACTS) => (200, facts.clone()),
                _ => {
                    counter.fetch_add(1, Ordering::Relaxed);
                    (503, serde_json::to_string(&refusal).unwrap())
                }
            };
            // A command that only looks for servers may not read the answer.
            let _ = write!(stream, "HTTP/1.0 {status} x\r\n\r\n{body}");
        }
    });
    n_refused
}

#[test]
fn a_command_loads_the_model_if_the_server_is_busy() {
    let home = Home::new();
    let server = home.serve(&[]);
    let path = home.sockets().join(format!("{}.sock", server.child.id()));
    let mut stream = UnixStream::connect(&path).unwrap();
    write!(stream, "GET {FACTS} HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
    let mut facts = String::new();
    stream.read_to_string(&mut facts).unwrap();
    let facts = facts.split_once("\r\n\r\n").unwrap().1;
    home.run(&["stop"]);
    server.end();

    let ask = ["ask", "nusonix.txt", QUESTION];
    let busy = refuse_all(&path, facts.to_owned(), Fault::Busy);
    let ran = home.run(&ask);
    assert!(is_resident(&ran) && busy.load(Ordering::Relaxed) == 1, "{}", ran.2);
    assert!(ran.0 == 0 && ran.1.contains("Vubegok"), "{}{}", ran.1, ran.2);
    assert!(ran.2.contains("all lanes are taken; loading the model"), "{}", ran.2);

    // Other refusals are the command's own errors.
    fs::remove_file(&path).unwrap();
    let refused = refuse_all(&path, facts.to_owned(), Fault::Request);
    let ran = home.run(&ask);
    assert!(ran.0 != 0 && refused.load(Ordering::Relaxed) == 1, "{}{}", ran.1, ran.2);
    assert!(ran.2.contains("all lanes are taken") && !ran.2.contains("loading"), "{}", ran.2);
}
