//! Files, folders and addresses that are missing, taken or full: the exit code and what to do.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::{home, weft};

/// Flags of a very short bench of the bundled model.
const BENCH: [&str; 15] = [
    "bench",
    "-m",
    "weft-tiny",
    "--bandwidth-mib",
    "8",
    "-p",
    "8",
    "-n",
    "2",
    "-b",
    "1",
    "-r",
    "1",
    "-t",
    "1",
];

#[test]
fn a_bench_is_refused_before_it_measures_what_it_cannot_save() {
    let home = home();
    let save = |path: &str| weft(home.path(), &[&BENCH[..], &["--save", path]].concat());
    let (code, stdout, stderr) = save("nosuch/x.json");
    assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
    assert!(stderr.contains("nosuch is not a folder; make it first"), "{stderr}");
    assert!(!stderr.contains("loading"), "{stderr}");
    let (code, _, stderr) = save(".");
    assert!(code == 2 && stderr.contains("it is a folder; name a file in it"), "{stderr}");
    // What cannot be written later is printed.
    let (code, stdout, _) = save(&"x".repeat(300));
    assert_eq!(code, 1);
    assert!(stdout.contains("\"samples_us\""), "{stdout}");
}

#[test]
fn the_bundled_model_can_be_measured_and_need_not_be_pulled() {
    let home = home();
    let (code, stdout, stderr) = weft(home.path(), &[&BENCH[..], &["-o", "json"]].concat());
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("\"name\": \"weft-tiny\""), "{stdout}");
    let (code, stdout, stderr) = weft(home.path(), &["pull", "weft-tiny"]);
    assert_eq!((code, stdout.as_str()), (0, ""), "{stderr}");
    assert!(stderr.contains("is part of the program; there is nothing to download"), "{stderr}");
}

#[test]
fn a_file_that_does_not_exist_is_a_mistake_in_the_command() {
    let home = home();
    weft(home.path(), &["chunk", "add", "nusonix.txt"]);
    let key = "`weft chunk key team.key` writes one";
    for (args, says) in [
        (&["chunk", "import", "no.chunk"][..], "no.chunk: there is no such file"),
        (&["chunk", "import", "--key", "no.key", "no.chunk"], key),
        (&["chunk", "export", "--key", "no.key", "nusonix", "to.chunk"], key),
        (&["chunk", "list", "--remote", "file:///tmp", "--remote-key", "no.key"], key),
        (&["bench", "compare", "a.json", "b.json"], "a.json"),
        (&["bench", "plot", "a.json", "--out", "a.svg"], "a.json"),
        (&["compare", "--base", "no.bin", "weft-tiny"], "no.bin"),
    ] {
        let (code, _, stderr) = weft(home.path(), args);
        assert!(code == 2 && stderr.contains(says), "{args:?}: {code} {stderr}");
    }
}

#[test]
fn a_file_that_exists_is_not_replaced() {
    let home = home();
    fs::write(home.path().join("team.key"), "mine").unwrap();
    weft(home.path(), &["chunk", "add", "nusonix.txt"]);
    for args in [&["chunk", "key", "team.key"][..], &["chunk", "export", "nusonix", "team.key"]] {
        let (code, _, stderr) = weft(home.path(), args);
        assert!(code == 1 && stderr.contains("it exists already, and weft does not"), "{stderr}");
    }
    assert_eq!(fs::read(home.path().join("team.key")).unwrap(), b"mine");
}

#[test]
fn an_address_of_another_machine_is_refused_with_the_reason() {
    let home = home();
    // TEST-NET-1: no machine has it.
    let args = ["serve", "--host", "192.0.2.1", "--insecure", "--port", "0"];
    let (code, _, stderr) = weft(home.path(), &args);
    assert!(code == 1 && stderr.contains("choose another --host"), "{stderr}");
    assert!(!stderr.contains("--port"), "{stderr}");
}

#[test]
fn a_minus_is_stdin_for_the_prompts_file_too() {
    let home = home();
    let run = |args: &[&str]| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_weft"))
            .args(["run", "-q", "--temp", "0", "-n", "4"])
            .args(args)
            .env_clear()
            .env("HOME", home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let _ = child.stdin.take().unwrap().write_all(b"a text");
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    assert_eq!(run(&["-f", "-", "sum up"]), run(&["sum up"]));
}

#[test]
fn a_key_without_a_store_does_nothing_and_says_so() {
    let home = home();
    let (code, _, stderr) = weft(home.path(), &["chunk", "list", "--remote-key", "team.key"]);
    assert!(code == 0 && stderr.contains("--remote-key does nothing without --remote"), "{stderr}");
    let args = ["run", "-n", "1", "--remote-unsigned", "hi"];
    let (code, _, stderr) = weft(home.path(), &args);
    assert!(code == 0 && stderr.contains("--remote-unsigned does nothing"), "{stderr}");
}

#[test]
fn a_quantised_model_may_fill_an_empty_folder_and_no_other() {
    let home = home();
    let write = |to: &str, more: &[&str]| {
        weft(home.path(), &[&["quantize", "weft-tiny", "-o", to][..], more].concat())
    };
    fs::create_dir(home.path().join("empty")).unwrap();
    let (code, _, stderr) = write("empty", &[]);
    assert_eq!(code, 0, "{stderr}");
    assert!(write("empty", &[]).2.contains("--force replaces it"));
    fs::create_dir(home.path().join("other")).unwrap();
    fs::write(home.path().join("other/notes.txt"), "").unwrap();
    for more in [&[][..], &["--force"]] {
        let (code, _, stderr) = write("other", more);
        assert!(code == 2 && stderr.contains("name another path"), "{stderr}");
        assert!(!stderr.contains("--force"), "{stderr}");
    }
}
