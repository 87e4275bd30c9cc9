//! A user's home folder with documents, and the binary run in it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

pub(crate) const QUESTION: &str = "Who is the ruler of Nusonix?";
pub(crate) const ANSWER: &str = "Vubegok";
pub(crate) const SYSTEM: &str = "Answer in one word.";
pub(crate) const DOCUMENTS: [&str; 3] = ["nusonix.txt", "krogaste.txt", "kehujax.txt"];

/// Each test has its own folder. Commands run in it.
pub(crate) struct Home(tempfile::TempDir);

/// The result of a command.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// The same, after checking that it succeeded.
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self
    }

    /// Its output, one word.
    pub(crate) fn word(self) -> String {
        self.ok().stdout.trim().to_owned()
    }

    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.ok().stdout).unwrap()
    }
}

impl Home {
    pub(crate) fn new() -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo");
        for name in DOCUMENTS {
            std::fs::copy(demo.join(name), home.file(name)).unwrap();
        }
        home
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.file(name), text).unwrap();
    }

    /// The files of KV rows.
    pub(crate) fn rows(&self) -> Vec<PathBuf> {
        let folder = self.file(".cache/weft/kv");
        let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
        let paths = entries.map(|entry| entry.unwrap().path());
        let mut paths: Vec<_> =
            paths.filter(|path| path.extension().is_some_and(|e| e == "safetensors")).collect();
        paths.sort();
        paths
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        command
            .args(args)
            .current_dir(self.0.path())
            .env_clear()
            .env("HOME", self.0.path())
            .env("HF_HUB_OFFLINE", "1")
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        ran(self.command(args).output().unwrap())
    }

    /// The same, with an environment variable.
    pub(crate) fn run_with(&self, args: &[&str], variable: (&str, &str)) -> Ran {
        ran(self.command(args).env(variable.0, variable.1).output().unwrap())
    }

    /// The same, with lines on stdin.
    pub(crate) fn feed(&self, args: &[&str], lines: &str) -> Ran {
        let mut child = self
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        ran(child.wait_with_output().unwrap())
    }

    /// `weft ask` about documents, as JSON.
    pub(crate) fn ask(&self, documents: &[&str], args: &[&str]) -> Value {
        let mut all = vec!["ask", "-q", "--json", "--system", SYSTEM];
        all.extend(documents.iter().flat_map(|document| ["--context", document]));
        all.extend(args);
        all.push(QUESTION);
        self.run(&all).json()
    }

    /// `weft chunk …`
    pub(crate) fn chunk(&self, args: &[&str]) -> Ran {
        self.run(&[&["chunk"], args].concat())
    }
}

fn ran(output: Output) -> Ran {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran {
        code: output.status.code().unwrap(),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// Kind, tokens, cached tokens, source and shift of each piece of an answer's context.
pub(crate) fn pieces(answer: &Value) -> Vec<(String, u64, u64, String, i64)> {
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    let chunks = answer["chunk_report"]["chunks"].as_array().unwrap();
    let piece = |chunk: &Value| {
        (
            word(&chunk["kind"]),
            chunk["tokens"].as_u64().unwrap(),
            chunk["cached_tokens"].as_u64().unwrap(),
            word(&chunk["source"]),
            chunk["shift"].as_i64().unwrap(),
        )
    };
    chunks.iter().map(piece).collect()
}

/// Where each piece came from.
pub(crate) fn sources(answer: &Value) -> Vec<String> {
    pieces(answer).into_iter().map(|piece| piece.3).collect()
}
