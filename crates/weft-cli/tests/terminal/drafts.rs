//! Drafts on the command line: the answer is the same, and the line of statistics says how much of
//! it was drafted.

use std::path::Path;

use serde_json::Value;

use crate::{home, weft, weft_with};

const QUESTION: [&str; 4] =
    ["--system", "Answer in a full sentence.", "nusonix.txt", "Who is the ruler of Nusonix?"];

fn ask(home: &Path, flags: &[&str]) -> (i32, String, String) {
    weft(home, &[&["ask", "--temp", "0"], flags, &QUESTION].concat())
}

#[test]
fn drafts_change_the_speed_alone_and_are_counted() {
    let home = home();
    let (code, plain, stderr) = ask(home.path(), &["--speculate", "off"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(!stderr.contains("drafted"), "{stderr}");
    let (code, drafted, stderr) = ask(home.path(), &["--speculate", "4"]);
    assert_eq!((code, &drafted), (0, &plain), "{stderr}");
    assert!(stderr.contains(" drafted · stop"), "{stderr}");
    for flags in [&["--speculate", "auto"][..], &["--speculate", "7", "--draft", "weft-tiny"]] {
        assert_eq!(ask(home.path(), flags).1, plain, "{flags:?}");
    }
    let json = |flags: &[&str]| -> Value {
        let (_, stdout, stderr) = ask(home.path(), &[&["--json"], flags].concat());
        serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stderr}"))
    };
    let report = json(&["--speculate", "4"]);
    let count = |value: &Value| value.as_u64().unwrap();
    assert!(count(&report["accepted_tokens"]) > 0, "{report}");
    assert!(count(&report["accepted_tokens"]) <= count(&report["drafted_tokens"]), "{report}");
    assert_eq!(report["speculation"]["context"]["drafted"], report["drafted_tokens"]);
    let report = json(&["--speculate", "4", "--draft", "weft-tiny"]);
    assert!(count(&report["speculation"]["model"]["drafted"]) > 0, "{report}");
}

#[test]
fn wrong_ways_to_speculate_name_their_source_and_the_right_ones() {
    let home = home();
    for flags in [["--speculate", "8"], ["--speculate", "on"]] {
        let (code, _, stderr) = ask(home.path(), &flags);
        assert_eq!(code, 2, "{stderr}");
        let says =
            format!("{:?} does not say how much to draft; give auto, off, or 1 to 7", flags[1]);
        assert!(stderr.contains(&says), "{stderr}");
    }
    let args = [&["ask"], &QUESTION[..]].concat();
    let (code, _, stderr) = weft_with(home.path(), &args, &[("WEFT_SPECULATE", "9")]);
    assert!(code == 2 && stderr.contains("WEFT_SPECULATE: "), "{stderr}");
    let (code, _, stderr) = ask(home.path(), &["--draft", "./absent"]);
    assert!(code == 3 && stderr.contains("absent"), "{code}: {stderr}");
}
