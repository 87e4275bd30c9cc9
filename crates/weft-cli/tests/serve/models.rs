//! Several models behind one server: the bundled one and others of the same weights under other
//! names, real files and real memory.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{ANSWER, JSON, Server, chat, chat_with, endless, merged, text};

const FILES: [&str; 5] = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "chat_template.jinja",
    "tokenizer.json",
];

fn bundled() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/weft-tiny")
}

/// Copies of the bundled model, in folders of these names.
fn copies(names: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in names {
        fs::create_dir(folder.path().join(name)).unwrap();
        for file in FILES {
            fs::copy(bundled().join(file), folder.path().join(name).join(file)).unwrap();
        }
    }
    folder
}

/// A server of the bundled model and of copies.
fn start(copies: &TempDir, names: &[&str], more: &[&str]) -> Server {
    let paths: Vec<String> =
        names.iter().map(|name| copies.path().join(name).display().to_string()).collect();
    let paths = paths.iter().map(String::as_str);
    let args: Vec<&str> =
        ["weft-tiny"].into_iter().chain(paths).chain(more.iter().copied()).collect();
    Server::start(&args)
}

fn status(server: &Server, id: &str) -> String {
    let (code, model) = server.get(&format!("/v1/models/{id}"));
    assert_eq!(code, 200, "{model}");
    model["status"]["value"].as_str().unwrap().to_owned()
}

fn asked(model: &str) -> Value {
    chat_with(json!({"model": model}))
}

#[test]
fn each_model_is_loaded_on_first_use_and_answers_under_its_names() {
    let copies = copies(&["second", "third"]);
    let alias = ["--alias", "gpt-4o=second"];
    let server = start(&copies, &["second", "third"], &alias);
    let ids = ["weft-tiny", "second", "gpt-4o", "third"];
    let all = server.get("/v1/models").1;
    for (model, id) in all["data"].as_array().unwrap().iter().zip(ids) {
        assert_eq!((&model["id"], &model["status"]), (&json!(id), &json!({"value": "unloaded"})));
        assert_eq!(model["meta"]["forms"], json!(["bf16"]), "{model}");
        assert_eq!(model["max_model_len"], model["meta"]["n_ctx"]);
        assert!(model["max_model_len"].as_u64().unwrap() > 0, "{model}");
        assert!(!model.to_string().contains(copies.path().to_str().unwrap()), "{model}");
    }
    let answer = server.ask(&asked("gpt-4o"));
    assert_eq!((text(&answer), &answer["model"]), (ANSWER, &json!("second")));
    assert_eq!(server.ask(&chat())["model"], "weft-tiny", "without a name");
    assert_eq!(
        ["weft-tiny", "second", "third"].map(|id| status(&server, id)),
        ["loaded", "loaded", "unloaded"]
    );
    // As Ollama lists those in memory.
    let ps = server.get("/api/ps").1;
    let names: Vec<&Value> = ps["models"].as_array().unwrap().iter().map(|m| &m["name"]).collect();
    assert_eq!(names, ["weft-tiny", "second"]);
    // Each has its own chunks.
    let chunk = json!({"text": "The flag is blue.", "model": "second"});
    assert_eq!(server.post("/v1/chunks", &chunk).0, 201);
    let count = |path: &str| server.get(path).1["data"].as_array().unwrap().len();
    assert_eq!((count("/v1/chunks?model=second"), count("/v1/chunks")), (1, 0));
    // An answer is verified by the model that gave it.
    let id = answer["id"].as_str().unwrap();
    let (code, verified) = server.post("/v1/chunks/verify", &json!({"completion": id}));
    assert_eq!((code, &verified["exact"]), (200, &json!(true)), "{verified}");
    let unknown = server.refusal("/v1/chat/completions", &asked("gpt-9"), 404);
    assert!(unknown.contains("gpt-9"), "{unknown}");
    server.signal("-TERM");
    assert_eq!(server.wait().0, Some(0));
}

#[test]
fn a_model_that_is_damaged_fails_alone_and_names_no_path() {
    let copies = copies(&["second", "third"]);
    let weights = copies.path().join("third/model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    fs::write(&weights, &bytes[..bytes.len() / 2]).unwrap();
    let server = start(&copies, &["second", "third"], &[]);
    server.ask(&asked("second"));
    for body in [asked("third"), merged(asked("third"), json!({"stream": true}))] {
        let message = server.refusal("/v1/chat/completions", &body, 503);
        assert!(message.contains("the model third"), "{message}");
        assert!(!message.contains(copies.path().to_str().unwrap()), "{message}");
    }
    server.until_logged("third cannot be loaded");
    assert_eq!(text(&server.ask(&asked("second"))), ANSWER);
    // When its files are mended, it is loaded. A request that comes before the failed load is
    // forgotten shares its failure.
    server.until("it is forgotten", || status(&server, "third") == "unloaded");
    fs::write(&weights, &bytes).unwrap();
    assert_eq!(text(&server.ask(&asked("third"))), ANSWER);
}

#[test]
fn an_idle_model_is_unloaded_by_age_and_comes_back() {
    let copies = copies(&["second"]);
    let server = start(&copies, &["second"], &["--keep-loaded", "0"]);
    for _ in 0..2 {
        assert_eq!(text(&server.ask(&asked("second"))), ANSWER);
        server.until("it is unloaded", || status(&server, "second") == "unloaded");
    }
}

#[test]
fn a_server_ends_while_a_model_loads() {
    let copies = copies(&["slow"]);
    let pipe = copies.path().join("slow/tokenizer.json");
    fs::remove_file(&pipe).unwrap();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let server = start(&copies, &["slow"], &[]);
    let mut waiting =
        server.open("POST", "/v1/chat/completions", &JSON, asked("slow").to_string().as_bytes());
    server.until("it loads", || status(&server, "slow") == "loading");
    assert_eq!(server.get("/health").0, 200);
    assert_eq!(text(&server.ask(&chat())), ANSWER, "the others answer");
    server.signal("-TERM");
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("shutting down"), "{answer}");
    assert_eq!(server.wait().0, Some(0));
}

#[test]
fn weft_ps_lists_the_models_of_a_server_and_commands_find_theirs() {
    let (copies, home) = (copies(&["second"]), tempfile::tempdir().unwrap());
    let second = copies.path().join("second").display().to_string();
    let weft = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        command.args(args).env("HOME", home.path()).env("XDG_RUNTIME_DIR", home.path());
        command.env("HF_HUB_OFFLINE", "1").env_remove("XDG_CACHE_HOME");
        command
    };
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let port = port.to_string();
    let serve = ["serve", "weft-tiny", &second, "--port", &port, "--threads", "1", "-q"];
    let mut server = weft(&serve).spawn().unwrap();
    let _guard = weft_testing::DieWithUs::new(&server);
    let ps = || {
        let output = weft(&["ps", "--json"]).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default()
    };
    let start = Instant::now();
    while ps().as_array().is_none_or(Vec::is_empty) {
        assert!(start.elapsed() < Duration::from_secs(30), "no server");
    }
    let rows = ps();
    let states: Vec<_> =
        rows.as_array().unwrap().iter().map(|row| (&row["model"], &row["state"])).collect();
    let unloaded = json!("unloaded");
    assert_eq!(states, [(&json!("weft-tiny"), &unloaded), (&json!("second"), &unloaded)]);
    // A client has one of them loaded; a command of the same model is answered by it.
    let mut stream = std::net::TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    let body = json!({"model": "second"}).to_string();
    let head = "POST /models/load HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    let request = format!(
        "{head}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let table = String::from_utf8(weft(&["ps"]).output().unwrap().stdout).unwrap();
    let row = |name: &str| table.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(row("second").contains("loaded") && row("second").contains(" min"), "{table}");
    assert!(row("weft-tiny").contains("unloaded"), "{table}");
    let asked = weft(&["run", "-m", &second, "--max-tokens", "1", "hello"]).output().unwrap();
    let said = String::from_utf8(asked.stderr).unwrap();
    assert!(said.contains("resident server") && said.contains("second"), "{said}");
    let stopped = weft(&["stop", "second"]).output().unwrap();
    assert!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
    assert!(server.wait().unwrap().success());
}

/// Counts from 0 in steps that look random, and are the same in every run.
struct Steps(u64);

impl Steps {
    fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Two models in turn with room for one. Some clients leave while their model loads or answers.
/// `WEFT_TEST_SWITCHES` sets the number of switches.
#[test]
fn switching_between_models_gives_all_memory_back_and_loses_no_request() {
    let switches = std::env::var("WEFT_TEST_SWITCHES").ok().and_then(|n| n.parse().ok());
    let switches: usize = switches.unwrap_or(12);
    let copies = copies(&["second"]);
    let more = ["--max-loaded", "1", "--no-cache", "--ctx-size", "2048"];
    let server = start(&copies, &["second"], &more);
    let names = ["weft-tiny", "second"];
    let unload = || {
        for model in names {
            assert_eq!(server.post("/models/unload", &json!({"model": model})).0, 200);
        }
    };
    let (mut steps, mut peak) = (Steps(1), 0);
    let mut switch = |n: usize| {
        let model = names[n % 2];
        let body = merged(endless(50), json!({"model": model})).to_string();
        // Some clients ask, and leave before they have their answer.
        let leaving: Vec<_> = (0..steps.below(3))
            .map(|_| server.open("POST", "/v1/chat/completions", &JSON, body.as_bytes()))
            .collect();
        let answer = server.ask(&asked(model));
        assert_eq!((text(&answer), &answer["model"]), (ANSWER, &json!(model)));
        if steps.below(2) == 0 {
            // Others ask for the other model, and leave while it loads.
            let other = merged(endless(50), json!({"model": names[(n + 1) % 2]})).to_string();
            drop(server.open("POST", "/v1/chat/completions", &JSON, other.as_bytes()));
        }
        drop(leaving);
        peak = peak.max(server.memory());
    };
    // What stays with no model loaded. A client that left may still hold a tokenizer for a moment
    // when its model is unloaded, so the least of a few rounds counts.
    let settled = |switch: &mut dyn FnMut(usize)| {
        let round = |_| {
            (0..2).for_each(&mut *switch);
            unload();
            server.memory()
        };
        (0..6).map(round).min().unwrap()
    };
    let start = settled(&mut switch);
    for _ in 0..switches / 2 {
        (0..2).for_each(&mut switch);
    }
    let end = settled(&mut switch);
    println!(
        "{switches} switches: {start} bytes before, {peak} at most, {end} after: {:+.2} %",
        (end as f64 / start as f64 - 1.0) * 100.0
    );
    // What one switch leaves behind would be a tokenizer's 2 MB at least, and there are many.
    // Threads that come and go have less than a megabyte.
    let slack = 1 << 20;
    assert!(end < start + start * 3 / 100 + slack, "{start} bytes before, {end} after");
    let metrics = server.metrics();
    assert!(metrics.contains("weft_lanes_running{model=\"second\"} 0"), "{metrics}");
}
