//! `weft embed` with many texts: checked before the first is computed, printed as they are done.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::home;

fn embed() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    let folder = home();
    command
        .args(["embed", "-q", "--no-resident", "--no-cache", "--dimensions", "2"])
        .env_clear()
        .env("HOME", folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Exit code, stdout, stderr.
fn embedded(lines: &str) -> (i32, String, String) {
    let mut child = embed().spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_text_that_is_too_long_is_named_before_anything_is_computed() {
    let lines = format!("short\n\nshort too\n{}\n", "bridge ".repeat(9000));
    let (code, stdout, stderr) = embedded(&lines);
    assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
    assert!(
        stderr.contains("line 4 of stdin has ") && stderr.contains("the limit is 4095"),
        "{stderr}"
    );
}

#[test]
fn texts_are_printed_as_they_are_done() {
    const TEXTS: usize = 2000;
    let mut child = embed().spawn().unwrap();
    let lines: String =
        (0..TEXTS).map(|n| format!("Text {n} says that {n} bridges stand.\n")).collect();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let start = Instant::now();
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
    out.next().unwrap().unwrap();
    let first = start.elapsed();
    assert_eq!(1 + out.count(), TEXTS);
    assert!(child.wait().unwrap().success());
    let all = start.elapsed();
    assert!(2 * first < all, "the first after {first:?}, all after {all:?}");
}
