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
