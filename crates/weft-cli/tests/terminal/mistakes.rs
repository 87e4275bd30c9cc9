//! Mistakes of a new user: each is reported at once, in one line that says what to do.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use weft_testing::DieWithUs;

use crate::Step::Expect;
use crate::{at_terminal, home, weft, weft_with};

const QUESTION: &str = "Who is the ruler of Nusonix?";
const ANSWER: &str = "Vubegok\n";

/// A shell's line in a home folder, with `weft` in its path: exit code, stdout, stderr.
fn shell(home: &Path, line: &str) -> (i32, String, String) {
    let binary = Path::new(env!("CARGO_BIN_EXE_weft")).parent().unwrap();
    let output = Command::new("sh")
        .args(["-c", line])
        .current_dir(home)
        .env_clear()
        .env("HOME", home)
        .env("PATH", format!("{}:/usr/bin:/bin", binary.display()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Runs commands that are refused with code 2 before anything is loaded.
fn refused(home: &Path, cases: &[(&[&str], &str)]) {
    for (args, says) in cases {
        let (code, stdout, stderr) = weft(home, args);
        assert_eq!((code, stdout.as_str()), (2, ""), "{args:?}: {stderr}");
        assert!(stderr.contains(says), "{args:?}: `{stderr}` does not say `{says}`");
        assert!(!stderr.contains(" · CPU · "), "{args:?}: the model was loaded: {stderr}");
    }
}

#[test]
fn an_empty_pipe_is_no_document() {
    let home = home();
    for line in ["true | weft ask -q", "echo | weft ask -q", ": >empty; weft ask -q <empty"] {
        let (line, at) = line.split_once(" <").map_or((line, ""), |(line, _)| (line, " <empty"));
        let (code, stdout, stderr) = shell(home.path(), &format!("{line} \"{QUESTION}\"{at}"));
        assert_eq!((code, stdout.as_str()), (2, ""), "{line}: {stderr}");
        assert!(stderr.contains("stdin is empty"), "{line}: {stderr}");
    }
    let (code, stdout, stderr) = shell(
        home.path(),
        &format!(
            "weft ask -q nusonix.txt \"{QUESTION}\" </dev/null; true | weft ask -q nusonix.txt \"{QUESTION}\""
        ),
    );
    assert_eq!((code, stdout), (0, ANSWER.repeat(2)), "{stderr}");
}

#[test]
fn a_question_in_a_loop_leaves_the_list_alone() {
    let home = home();
    fs::write(home.path().join("list"), "nusonix.txt\nkrogaste.txt\nnusonix.txt\n").unwrap();
    let ask = format!("do weft ask -q -n 4 \"$f\" \"{QUESTION}\" >&2; echo \"$f\"; done");
    for line in
        [format!("while read -r f; {ask} <list"), format!("cat list | while read -r f; {ask}")]
    {
        let (code, stdout, stderr) = shell(home.path(), &line);
        assert_eq!((code, stdout.lines().count()), (0, 3), "{line}: {stdout}{stderr}");
    }
    // Without a document too, and `run`, if the list is a file.
    for command in ["ask", "run"] {
        let line =
            format!("while read -r f; do weft {command} -q -n 1 \"$f?\" >&2; echo; done <list");
        let (code, stdout, stderr) = shell(home.path(), &line);
        assert_eq!((code, stdout.lines().count()), (0, 3), "{line}: {stdout}{stderr}");
    }
    let both = format!("weft ask -q krogaste.txt - \"{QUESTION}\" <nusonix.txt");
    let (_, stdout, stderr) = shell(home.path(), &both);
    assert_eq!(stdout, ANSWER, "{stderr}");
}

#[test]
fn the_bundled_models_name_alone_is_a_model() {
    let home = home();
    refused(home.path(), &[(&["run", "weft-tiny"], "the prompt is empty")]);
    let steps = [Expect("weft-tiny> "), crate::Step::Send("\x04")];
    assert_eq!(at_terminal(home.path(), &["run", "weft-tiny"], &steps).0, 0);
}

#[test]
fn files_that_are_not_texts_are_refused_by_their_contents() {
    let home = home();
    let write = |name: &str, bytes: &[u8]| fs::write(home.path().join(name), bytes).unwrap();
    write("a.txt", b"%PDF-1.4\nall of it is text\n");
    write("b.docx", b"PK\x03\x04 and more");
    write("c.txt", b"text\0text");
    write("empty.txt", b" \n");
    refused(
        home.path(),
        &[
            (
                &["ask", "a.txt", QUESTION],
                "a.txt is a PDF; make it a text first, as with pdftotext",
            ),
            (&["chunk", "add", "b.docx"], "pandoc"),
            (&["chat", "--context", "c.txt"], "NUL bytes"),
            (&["ask", "empty.txt", QUESTION], "empty.txt is empty"),
        ],
    );
    let text = fs::read_to_string(home.path().join("nusonix.txt")).unwrap();
    let words = format!("\u{feff}{text}");
    let bytes: Vec<u8> = words.encode_utf16().flat_map(u16::to_le_bytes).collect();
    write("utf-16.txt", &bytes);
    let (code, stdout, stderr) = weft(home.path(), &["ask", "-q", "utf-16.txt", QUESTION]);
    assert_eq!((code, stdout.as_str()), (0, ANSWER), "{stderr}");
}

#[test]
fn one_mistake_has_one_code_and_no_model_is_loaded_for_it() {
    let home = home();
    refused(
        home.path(),
        &[
            (&["ask", "--context", "nope.txt", QUESTION], "nope.txt"),
            (&["ask", "nusonix.txt", ""], "the question is empty"),
            (&["ask", "--system", "@nope", "nusonix.txt", QUESTION], "nope: there is no such file"),
            (&["chat", "--context", "nope.txt"], "nope.txt"),
            (&["chunk", "add", "nope.txt"], "nope.txt: there is no such file"),
            (&["chunk", "warm", "nope"], "nope"),
            (&["chunk", "show", "nope"], "nope"),
            (&["chunk", "add", "."], "is a folder"),
            (&["run", "-f", "nope.txt", "hi"], "nope.txt: there is no such file"),
        ],
    );
}

#[test]
fn wrong_names_of_models_lead_to_the_nearest() {
    let home = home();
    refused(
        home.path(),
        &[
            (&["chat", "nope"], "`org/name` like Qwen/Qwen3-0.6B"),
            (&["run", "-m", "weft-tny", "hi"], "did you mean weft-tiny?"),
            (&["show", "qwen3:7b"], "did you mean Qwen/Qwen3-8B?"),
            (&["serve", "qwen3:7b"], "did you mean Qwen/Qwen3-8B?"),
            (&["pull", "qwen3:7b"], "did you mean Qwen/Qwen3-8B?"),
            (
                &["ask", "nusonx.txt", "krogaste.txt", "--temp", "0", "Who?"],
                "did you mean nusonix.txt?",
            ),
        ],
    );
    let (code, _, stderr) = weft(home.path(), &["ask", "mistral:7b", "nusonix.txt", "Who is it?"]);
    assert!(code == 2 && !stderr.contains("-m mistral:7b"), "{stderr}");
    let (code, _, stderr) = weft(home.path(), &["run", "-m", "./nope.gguf", "hi"]);
    assert!(code == 3 && stderr.contains("no model at \"./nope.gguf\""), "{stderr}");
}

#[test]
fn a_plain_terminal_gets_no_colours_and_notes_fit_a_line() {
    let home = home();
    let line = |term: &str| {
        let env = format!("TERM={term} script -qec 'weft ask nope.txt Who' /dev/null");
        shell(home.path(), &env).1
    };
    assert!(line("xterm").contains("\x1b[1;31m"), "{:?}", line("xterm"));
    assert!(!line("dumb").contains('\x1b'), "{:?}", line("dumb"));
    let (_, _, stderr) = weft(home.path(), &["run", "-n", "2", "hello"]);
    let note = stderr.lines().find(|line| line.contains("bundled demo model")).unwrap();
    assert!(note.chars().count() < 100 && !note.contains("weft-tiny"), "{note}");
}

#[test]
fn lists_without_rows_say_why() {
    use std::os::unix::fs::PermissionsExt;
    let home = home();
    let (code, _, stderr) = weft(home.path(), &["chunk", "list"]);
    assert!(code == 0 && stderr.contains("no chunks yet"), "{stderr}");
    let run = home.path().join("weft");
    fs::create_dir(&run).unwrap();
    fs::set_permissions(&run, fs::Permissions::from_mode(0o755)).unwrap();
    let env = [("XDG_RUNTIME_DIR", home.path().to_str().unwrap())];
    let (code, _, stderr) = weft_with(home.path(), &["ps"], &env);
    assert!(code == 1 && stderr.contains("chmod 700"), "{stderr}");
}

#[test]
fn minus_one_token_means_as_many_as_fit() {
    let home = home();
    let ask = |limit: &str| weft(home.path(), &["ask", "-q", "-n", limit, "nusonix.txt", QUESTION]);
    assert_eq!(ask("-1").1, ANSWER, "{}", ask("-1").2);
    assert_eq!(ask("-2").0, 2);
}

#[test]
fn serve_prints_an_address_that_works_and_ends_at_once_while_it_loads() {
    let home = home();
    let model = home.path().join("model");
    fs::create_dir(&model).unwrap();
    // Loading waits until somebody writes to this pipe, which nobody does.
    assert!(Command::new("mkfifo").arg(model.join("config.json")).status().unwrap().success());
    let log = home.path().join("log");
    let mut child = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(["serve", "--port", "0", "--host", "0.0.0.0", "--insecure", "./model"])
        .current_dir(home.path())
        .env_clear()
        .env("HOME", home.path())
        .stdin(Stdio::null())
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let _guard = DieWithUs::new(&child);
    let start = Instant::now();
    let is_late = |start: Instant| start.elapsed() > Duration::from_secs(60);
    // The handler of Ctrl-C is installed by the time that the server answers.
    let answers = || {
        let log = fs::read_to_string(&log).unwrap();
        let port = log.split("http://127.0.0.1:").nth(1).and_then(|rest| rest.split(' ').next());
        let stream = port.map(|port| TcpStream::connect(format!("127.0.0.1:{port}")));
        let Some(Ok(mut stream)) = stream else { return false };
        stream
            .write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).is_ok_and(|_| answer.starts_with("HTTP/1.1 "))
    };
    while !answers() && !is_late(start) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let sent = Instant::now();
    let mut code = None;
    while code.is_none() && !is_late(sent) {
        code = child.try_wait().unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    child.wait().unwrap();
    let log = fs::read_to_string(&log).unwrap();
    assert!(code.is_some_and(|code| code.success()), "{log}");
    assert!(log.contains("http://127.0.0.1:") && !log.contains("finishing"), "{log}");
}
