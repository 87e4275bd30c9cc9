//! Values of flags, and where they come from: each error names what the user wrote.

use std::fs;

use crate::{home, weft, weft_with};

#[test]
fn a_seed_of_minus_one_is_a_new_one() {
    let home = home();
    let run = |seed: &str| {
        let args =
            ["run", "-q", "--temp", "3", "-n", "24", "--ignore-eos", "--seed", seed, "hello"];
        let (code, stdout, stderr) = weft(home.path(), &args);
        assert_eq!(code, 0, "{stderr}");
        stdout
    };
    assert_eq!(run("7"), run("7"));
    assert_ne!(run("-1"), run("-1"));
}

#[test]
fn a_wrong_value_names_the_variable_or_the_file_that_it_is_from() {
    let home = home();
    let says = |env: &[(&str, &str)], args: &[&str], reason: &str| {
        let (code, _, stderr) = weft_with(home.path(), args, env);
        assert!(code != 0 && stderr.trim_end().ends_with(reason), "{env:?} {args:?}: {stderr}");
    };
    let run = ["run", "-q", "hi"];
    says(&[("WEFT_CTX_SIZE", "32k")], &run, " (from WEFT_CTX_SIZE)");
    says(&[("WEFT_TOP_P", "7")], &run, " (from WEFT_TOP_P)");
    says(&[("WEFT_MODEL", "nosuch")], &run, " (from WEFT_MODEL)");
    let folder = home.path().join(".config/weft");
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("config.toml");
    fs::write(&file, "ctx-size = \"32k\"\n").unwrap();
    says(&[], &run, &format!(" (from ctx-size in {})", file.display()));
    // The flag itself takes precedence, and its errors are its own.
    says(&[], &["run", "-q", "-c", "16k", "hi"], "lower it");
}

#[test]
fn variables_without_effect_and_words_that_switch_nothing_are_reported() {
    let home = home();
    let list = |env| weft_with(home.path(), &["list"], &[env]);
    let (code, _, stderr) = list(("WEFT_TEMP", "0"));
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("WEFT_TEMP is set and has no effect; its name is WEFT_TEMPERATURE"));
    let (code, _, stderr) = list(("WEFT_JSON", "maybe"));
    assert!(code == 2 && stderr.contains("\"maybe\" is not true or false"), "{stderr}");
}

#[test]
fn a_negative_number_gets_the_flags_own_error() {
    let home = home();
    for (args, says) in [
        (&["run", "--temperature", "-1", "hi"][..], "temperature is -1"),
        (&["run", "--top-p", "-1", "hi"], "top_p is -1"),
        (&["run", "--top-k", "-1", "hi"], "`-1` is not a number of tokens; give 1 or more"),
        (&["run", "-c", "-5", "hi"], "`-5` is not a number like 8192"),
        (&["run", "-t", "-1", "hi"], "`-1` is not a number like 8192"),
        (&["run", "--seed", "-2", "hi"], "-1 for a new one"),
        (&["ask", "--kv-memory", "-1", "Who?"], "`-1` is not a size like 512m"),
        (&["serve", "--port", "-1"], "-1 is not in 0..=65535"),
        (&["serve", "--queue", "-3"], "`-3` is not a number"),
        (&["embed", "--dimensions", "-4", "hi"], "`-4` is not a number"),
        (&["bench", "-r", "-1"], "`-1` is not a number"),
    ] {
        let (code, _, stderr) = weft(home.path(), args);
        assert!(code == 2 && stderr.contains(says), "{args:?}: {stderr}");
        assert!(!stderr.contains("unexpected argument"), "{args:?}: {stderr}");
    }
}
