//! The program on a terminal, as a user meets it. Python's `pty` plays the user.
#![cfg(unix)]

mod chat;
mod drafts;
mod embed;
mod flags;
mod mistakes;
mod models;
mod paths;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;

/// What the user does and sees.
enum Step<'a> {
    /// Waits until the terminal shows a text.
    Expect(&'a str),
    /// Types.
    Send(&'a str),
}

/// Runs `weft` in a folder that is also the home folder; returns the exit code and what was shown.
fn at_terminal(home: &Path, args: &[&str], steps: &[Step<'_>]) -> (i32, String) {
    let driver = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/terminal/user.py");
    let mut child = Command::new("python3")
        .arg(driver)
        .arg(env!("CARGO_BIN_EXE_weft"))
        .args(args)
        .current_dir(home)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home)
        .env("TERM", "xterm")
        .env("HF_HUB_OFFLINE", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let steps: Vec<_> = steps
        .iter()
        .map(|step| match step {
            Step::Expect(text) => json!(["expect", text]),
            Step::Send(text) => json!(["send", text]),
        })
        .collect();
    child.stdin.take().unwrap().write_all(json!(steps).to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    let missing = String::from_utf8(output.stderr).unwrap();
    assert_eq!(missing, "", "{shown}");
    (output.status.code().unwrap(), shown)
}

/// A folder with documents.
fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo");
    for name in ["nusonix.txt", "krogaste.txt"] {
        std::fs::copy(demo.join(name), home.path().join(name)).unwrap();
    }
    home
}

/// The binary in a home folder: exit code, stdout, stderr.
fn weft(home: &Path, args: &[&str]) -> (i32, String, String) {
    weft_with(home, args, &[])
}

fn weft_with(home: &Path, args: &[&str], env: &[(&str, &str)]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(args)
        .current_dir(home)
        .env_clear()
        .env("HOME", home)
        .env("HF_HUB_OFFLINE", "1")
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}
