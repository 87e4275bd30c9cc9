//! What is shown and checked before a model is loaded. The tokenizer of the model here is a pipe,
//! so that it loads for as long as a test wants.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use weft_testing::DieWithUs;

const FILES: [&str; 4] =
    ["config.json", "generation_config.json", "model.safetensors", "chat_template.jinja"];

fn bundled() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/weft-tiny")
}

/// The bundled model, whose tokenizer has yet to be sent.
fn slow_model() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in FILES {
        std::fs::copy(bundled().join(name), folder.path().join(name)).unwrap();
    }
    let pipe = folder.path().join("tokenizer.json");
    assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
    folder
}

/// Lets the model load.
fn send_tokenizer(folder: &TempDir) {
    let tokenizer = std::fs::read(bundled().join("tokenizer.json")).unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer).unwrap();
}

fn weft(home: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(args).env("HOME", home.path()).env("HF_HUB_OFFLINE", "1").stdin(Stdio::null());
    command
}

/// All that a program prints to a terminal, piece by piece.
fn on_terminal(command: &Command) -> (Child, mpsc::Receiver<Vec<u8>>) {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    let mut script = Command::new("script");
    script.args(["-qec", &words.join(" "), "/dev/null"]).env("TERM", "xterm");
    for (name, value) in command.get_envs() {
        script.env(name, value.unwrap());
    }
    let mut child = script.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    let (pieces, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(n @ 1..) = output.read(&mut piece) {
            let _ = pieces.send(piece[..n].to_vec());
        }
    });
    (child, receiver)
}

/// Waits until some text was printed; returns everything up to there.
fn until(pieces: &mpsc::Receiver<Vec<u8>>, wanted: &str) -> String {
    let mut text = String::new();
    let start = Instant::now();
    while !text.contains(wanted) {
        assert!(start.elapsed() < Duration::from_secs(20), "never {wanted:?}: {text:?}");
        if let Ok(piece) = pieces.recv_timeout(Duration::from_millis(100)) {
            text += &String::from_utf8_lossy(&piece);
        }
    }
    text
}

#[test]
fn a_bar_is_shown_before_anything_is_known_about_the_model() {
    let (model, home) = (slow_model(), tempfile::tempdir().unwrap());
    let path = model.path().to_str().unwrap();
    let (mut child, pieces) = on_terminal(&weft(&home, &["run", "-m", path, "--seed", "1", "hi"]));
    let _guard = DieWithUs::new(&child);
    until(&pieces, "loading [");
    send_tokenizer(&model);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_server_answers_while_its_model_loads() {
    let (model, home) = (slow_model(), tempfile::tempdir().unwrap());
    let path = model.path().to_str().unwrap();
    let mut command = weft(&home, &["serve", "--port", "0", path]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let _guard = DieWithUs::new(&child);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let port = first.split("127.0.0.1:").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
    let get = |path: &str| {
        let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let health = get("/health");
    assert!(health.starts_with("HTTP/1.1 503") && health.contains("\"status\":\"loading\""));
    assert!(health.contains("\"progress\":0.0"), "{health}");
    assert!(get("/").starts_with("HTTP/1.1 200"), "the page is there");
    send_tokenizer(&model);
    let start = Instant::now();
    while !get("/health").starts_with("HTTP/1.1 200") {
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn what_is_named_and_missing_is_reported_before_the_model_is_loaded() {
    let (model, home) = (slow_model(), tempfile::tempdir().unwrap());
    let path = model.path().to_str().unwrap();
    let missing = ["--system", "@/no/such/file"];
    for command in [
        vec!["run", "-m", path, "hi"],
        vec!["chat", "-m", path],
        vec!["ask", "-m", path, "--context", "/dev/null", "Who?"],
    ] {
        // Nobody sends the tokenizer: a command that waits for it would never end.
        let found = weft(&home, &[&command[..], &missing].concat()).output().unwrap();
        let text = String::from_utf8(found.stderr).unwrap();
        assert_eq!(found.status.code(), Some(2), "{command:?}: {text}");
        assert!(text.contains("/no/such/file"), "{command:?}: {text}");
    }
    let ask = ["ask", "--context", "no-such-chunk", "Who?"];
    let found = weft(&home, &ask).output().unwrap();
    let text = String::from_utf8(found.stderr).unwrap();
    assert_eq!((found.status.success(), text.lines().count()), (false, 1), "{text}");
    assert!(text.contains("neither a file nor a chunk"), "{text}");
}
