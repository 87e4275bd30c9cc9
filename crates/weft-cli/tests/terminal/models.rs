//! `weft list`, `rm`, `pull`, names of models, and `weft config`, `help` and `chunk add`.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::Step::{Expect, Send};
use crate::{at_terminal, home, weft, weft_with};

/// Puts a model into the hub cache; returns its folder there.
fn cache(home: &Path, id: &str) -> std::path::PathBuf {
    let sha = "0123456789abcdef0123456789abcdef01234567";
    let name = format!("models--{}", id.replace('/', "--"));
    let folder = home.join(".cache/huggingface/hub").join(name);
    std::fs::create_dir_all(folder.join("snapshots").join(sha)).unwrap();
    std::fs::create_dir_all(folder.join("refs")).unwrap();
    std::fs::write(folder.join("refs/main"), sha).unwrap();
    std::fs::write(folder.join("snapshots").join(sha).join("config.json"), "{}").unwrap();
    folder
}

#[test]
fn rm_asks_and_deletes_only_what_the_cache_has() {
    let home = home();
    let (first, second) = (cache(home.path(), "org/first"), cache(home.path(), "org/second"));
    let outside = home.path().join("mine");
    std::fs::create_dir(&outside).unwrap();
    let rm = |args: &[&str]| weft(home.path(), &[&["rm"], args].concat());
    for (name, says) in [
        ("mine", "not in the hub cache"),
        ("./mine", "is a path"),
        ("../../etc", "is a path"),
        ("weft-tiny", "part of the program"),
        ("org/frist", "did you mean org/first?"),
        ("org/first@main", "names a revision"),
    ] {
        let (code, _, stderr) = rm(&["-y", name]);
        assert!(code == 2 && stderr.contains(says), "{name}: {stderr}");
    }
    let (code, _, stderr) = rm(&["org/first"]);
    assert!(code == 2 && stderr.contains("-y"), "there is nobody to ask: {stderr}");
    let ask = |answer: &str, says: &str| {
        let steps = [Expect("delete org/first"), Expect("[y/N] "), Send(answer), Expect(says)];
        assert_eq!(at_terminal(home.path(), &["rm", "org/first"], &steps).0, 0);
    };
    ask("\r", "kept org/first");
    assert!(first.exists());
    ask("y\r", "deleted org/first");
    assert!(!first.exists() && second.exists() && outside.exists());
    assert_eq!(rm(&["-y", "second"]).0, 0, "a cached name without its organisation");
    assert!(!second.exists());
    #[cfg(unix)]
    {
        let link = home.path().join(".cache/huggingface/hub/models--org--link");
        let target = cache(home.path(), "org/target");
        let elsewhere = home.path().join("elsewhere");
        std::fs::rename(target, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, link).unwrap();
        let (code, _, stderr) = rm(&["-y", "org/link"]);
        assert!(code == 2 && stderr.contains("is a link"), "{stderr}");
        assert!(elsewhere.join("refs/main").exists());
    }
}

#[test]
fn the_list_has_the_bundled_model() {
    let home = home();
    let (code, stdout, stderr) = weft(home.path(), &["list"]);
    assert!(code == 0 && stdout.contains("weft-tiny"), "{stdout}");
    assert!(stdout.contains("bundled") && stderr.contains("weft pull"), "{stdout}{stderr}");
    let json: serde_json::Value =
        serde_json::from_str(&weft(home.path(), &["list", "--json"]).1).unwrap();
    assert_eq!(json[0]["id"], "weft-tiny");
}

#[test]
fn names_of_other_programs_are_looked_up_on_the_hub() {
    let home = home();
    for args in [&["run", "qwen3:0.6b", "hi"][..], &["show", "-m", "qwen3:0.6b"]] {
        let (code, _, stderr) = weft(home.path(), args);
        assert!(code == 3 && stderr.contains("qwen3:0.6b is Qwen/Qwen3-0.6B"), "{stderr}");
        assert!(stderr.contains("weft pull Qwen/Qwen3-0.6B"), "{stderr}");
    }
    let (code, _, stderr) = weft(home.path(), &["pull", "llama3.2:3b"]);
    assert!(code == 1 && stderr.contains("meta-llama/Llama-3.2-3B-Instruct"), "{stderr}");
}

#[test]
fn pull_without_a_network_fails_at_once_in_one_line() {
    let home = home();
    let start = Instant::now();
    // Nobody listens on port 1.
    let env = [("HF_ENDPOINT", "http://127.0.0.1:1"), ("HF_HUB_OFFLINE", "0")];
    let (code, _, stderr) = weft_with(home.path(), &["pull", "org/name"], &env);
    assert_eq!((code, stderr.lines().count()), (1, 1), "{stderr}");
    assert!(stderr.contains("cannot be reached"), "{stderr}");
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn settings_are_written_checked_and_shown() {
    let home = home();
    let config = |args: &[&str]| weft(home.path(), &[&["config"], args].concat());
    let path = home.path().join(".config/weft/config.toml");
    assert_eq!(config(&["path"]).1, format!("{}\n", path.display()));
    assert_eq!(config(&["set", "max-tokens", "3"]).0, 0);
    assert_eq!(config(&["set", "temperature", "0"]).0, 0);
    assert_eq!(config(&["set", "stop", "END", "a,b"]).0, 0);
    assert_eq!(config(&["set", "max-tokens", "4"]).0, 0);
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, "max-tokens = 4\ntemperature = 0\nstop = [\"END\", \"a,b\"]\n");
    for (args, says) in [
        (&["set", "max_tokens", "4"][..], "did you mean `max-tokens`?"),
        (&["set", "ctx-size", "many"], "32k"),
        (&["set", "device", "tpu"], "cuda"),
        (&["set", "top-p", "7"], "top_p"),
        (&["set", "api-key", ""], "is empty"),
        (&["set", "seed", "1", "2"], "takes one value"),
        (&["set", "yes", "true"], "command line"),
        (&["unset", "seed"], "is not set"),
    ] {
        let (code, _, stderr) = config(args);
        assert!(code == 2 && stderr.contains(says), "{args:?}: {stderr}");
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "refusals change nothing");
    let shown = weft_with(home.path(), &["config", "show"], &[("WEFT_SEED", "7")]).1;
    assert!(shown.contains("WEFT_SEED") && shown.contains("END, a,b"), "{shown}");
    assert_eq!(weft_with(home.path(), &["config"], &[("WEFT_SEED", "7")]).1, shown);
    let shown = weft_with(home.path(), &["config"], &[("WEFT_API_KEY", "a-long-long-secret")]).1;
    let columns: Vec<_> =
        shown.lines().map(|line| line.find("  WEFT").or(line.find("  conf"))).collect();
    assert!(columns.windows(2).all(|pair| pair[0] == pair[1]), "{shown}");
    assert!(shown.contains("(hidden)  WEFT_API_KEY"), "{shown}");
    let (code, stdout, stderr) = weft(home.path(), &["run", "--ignore-eos", "--json", "hello"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("\"generated_tokens\":4"), "{stdout}");
    std::fs::write(&path, "ctx_size = 1\n").unwrap();
    let (code, _, stderr) = weft(home.path(), &["list"]);
    assert!(code == 2 && stderr.contains("did you mean `ctx-size`?"), "{stderr}");
    let (code, shown, _) = config(&["show"]);
    assert!(code == 2 && shown.contains("WRONG"), "a broken file can be shown: {shown}");
    for args in [&["--help"][..], &["ask", "-h"], &["--version"], &["help"], &["help", "ask"]] {
        let (code, shown, stderr) = weft(home.path(), args);
        assert!(code == 0 && shown.contains("weft"), "{args:?}: {stderr}");
    }
    assert_eq!(config(&["unset", "ctx_size"]).0, 0, "and repaired");
    assert_eq!(weft(home.path(), &["list"]).0, 0);
}

#[test]
fn every_command_has_help_with_examples_and_names_the_other_sources() {
    let home = home();
    let (code, all, _) = weft(home.path(), &["help"]);
    assert_eq!(code, 0);
    let commands = all.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands: Vec<&str> = commands
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(commands.contains(&"rm") && commands.contains(&"config"), "{all}");
    for command in commands.iter().filter(|command| **command != "help") {
        let (code, text, stderr) = weft(home.path(), &["help", command]);
        assert_eq!(code, 0, "{stderr}");
        for part in ["Examples:\n  ", "WEFT_", "config.toml"] {
            assert!(text.contains(part), "help of {command} has no {part:?}: {text}");
        }
        assert_eq!(weft(home.path(), &[command, "--help"]).1, text);
    }
}

#[test]
fn a_chunk_is_named_after_its_file() {
    let home = home();
    let chunk = |args: &[&str]| weft(home.path(), &[&["chunk"], args].concat());
    let (code, id, stderr) = chunk(&["add", "nusonix.txt"]);
    assert!(code == 0 && stderr.contains("--context nusonix"), "{stderr}");
    assert_eq!(chunk(&["add", "nusonix.txt"]).1, id, "the same text");
    std::fs::write(home.path().join("nusonix.md"), "Another text.").unwrap();
    let (code, _, stderr) = chunk(&["add", "nusonix.md"]);
    assert!(code == 0 && stderr.contains("has no name"), "the name is taken: {stderr}");
    std::fs::write(home.path().join("My notes.txt"), "Notes.").unwrap();
    assert!(chunk(&["add", "My notes.txt"]).2.contains("My-notes: 2 tokens"));
    let (code, answer, stderr) =
        weft(home.path(), &["ask", "--context", "nusonix", "Who is the ruler of Nusonix?"]);
    assert_eq!((code, answer.as_str()), (0, "Vubegok\n"), "{stderr}");
    assert!(chunk(&["rm", "My-notes"]).2.contains("removed 1 chunk,"));
}

#[test]
fn a_repair_that_does_nothing_is_said_and_verify_leads_with_the_answer() {
    let home = home();
    let ask = |args: &[&str]| {
        let question = ["nusonix.txt", "Who is the ruler of Nusonix?"];
        weft(home.path(), &[args, &question].concat())
    };
    let (code, _, stderr) = ask(&["verify", "--repair", "link:16"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("--repair does nothing with --reuse exact"), "{stderr}");
    assert!(stderr.lines().any(|line| line.starts_with("same answer, bit for bit ·")), "{stderr}");
    assert!(!ask(&["ask", "--reuse", "anchored", "--repair", "link:16"]).2.contains("nothing"));
}

#[test]
fn serve_opens_the_page_in_the_browser() {
    use std::os::unix::fs::PermissionsExt;
    let home = home();
    let browser = home.path().join("xdg-open");
    std::fs::write(&browser, "#!/bin/sh\nprintf %s \"$1\" >\"$HOME/opened.new\"\nmv \"$HOME/opened.new\" \"$HOME/opened\"\n")
        .unwrap();
    std::fs::set_permissions(&browser, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", home.path().display());
    let mut child = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(["serve", "--open", "--port", "0", "--host", "0.0.0.0", "--insecure", "-q"])
        .env_clear()
        .env("HOME", home.path())
        .env("PATH", path)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _guard = weft_testing::DieWithUs::new(&child);
    let opened = home.path().join("opened");
    let start = Instant::now();
    while !opened.exists() && start.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let url = std::fs::read_to_string(opened).unwrap();
    assert!(url.starts_with("http://127.0.0.1:") && url.ends_with('/'), "{url}");
}
