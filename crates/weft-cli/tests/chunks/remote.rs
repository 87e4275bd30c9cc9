//! Chunks in a store that two homes share: `push`, `pull`, `list --remote`, `gc --remote`.

use std::path::PathBuf;

use serde_json::Value;

use crate::home::{ANSWER, Home, QUESTION, Ran, sources};

/// A folder as the store, and two keys.
struct Shared {
    folder: tempfile::TempDir,
}

impl Shared {
    fn new() -> Self {
        let shared = Self { folder: tempfile::tempdir().unwrap() };
        for (name, digit) in [("team.key", "5"), ("other.key", "6")] {
            let path = shared.key(name);
            std::fs::write(&path, digit.repeat(64)).unwrap();
            #[cfg(unix)]
            {
                use std::os::unix::fs::PermissionsExt;
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            }
        }
        shared
    }

    fn url(&self) -> String {
        format!("file://{}/store", self.folder.path().display())
    }

    fn key(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `weft chunk …` with this store and this key.
    fn chunk(&self, home: &Home, args: &[&str], key: Option<&str>) -> Ran {
        let (url, key) = (self.url(), key.map(|name| self.key(name).display().to_string()));
        let mut all = vec!["chunk"];
        all.extend(args);
        all.extend(["--remote", &url]);
        all.extend(key.iter().flat_map(|key| ["--remote-key", key]));
        home.run(&all)
    }
}

/// A home that has answered a question about a document, so that its rows are on disk.
fn stocked() -> Home {
    let home = Home::new();
    home.chunk(&["add", "nusonix.txt", "--meta", "of=demo"]).ok();
    let answer = ask(&home);
    assert_eq!((answer["text"].as_str(), home.rows().len()), (Some(ANSWER), 1));
    home
}

fn ask(home: &Home) -> Value {
    home.run(&["ask", "-q", "--json", "--context", "nusonix", QUESTION]).json()
}

#[test]
fn a_pushed_chunk_is_read_on_another_machine_without_computing() {
    let (shared, here, there) = (Shared::new(), stocked(), Home::new());
    let key = Some("team.key");
    let pushed = shared.chunk(&here, &["push", "nusonix"], key).ok();
    assert!(pushed.stderr.contains("the text, and 1 file of rows"), "{}", pushed.stderr);
    let again = shared.chunk(&here, &["push", "nusonix"], key).ok();
    assert!(again.stderr.contains("the text (already there)"), "{}", again.stderr);
    assert!(again.stderr.contains("already there: 1 file"), "{}", again.stderr);

    let pulled = shared.chunk(&there, &["pull", "nusonix"], key).ok();
    assert_eq!(pulled.stdout, here.chunk(&["add", "nusonix.txt"]).ok().stdout);
    assert!(pulled.stderr.contains("1 file of rows"), "{}", pulled.stderr);
    assert_eq!(there.rows().len(), 1);
    let bytes = |home: &Home| std::fs::read(&home.rows()[0]).unwrap();
    assert!(bytes(&here) == bytes(&there), "the same file");
    let answer = ask(&there);
    assert_eq!(answer["text"], ANSWER);
    assert_eq!(sources(&answer)[1], "disk", "the document, after the template's beginning");
}

/// Commands and scripts here use it.
#[test]
fn a_text_that_is_pulled_keeps_its_local_name() {
    let (shared, here, there) = (Shared::new(), stocked(), Home::new());
    shared.chunk(&here, &["push", "nusonix"], Some("team.key")).ok();
    there.chunk(&["add", "nusonix.txt", "--name", "town"]).ok();
    let pulled = shared.chunk(&there, &["pull", "nusonix"], Some("team.key")).ok();
    let kept = "nusonix is \"town\" here, and keeps that name";
    assert!(pulled.stderr.contains(kept), "{}", pulled.stderr);
    let shown = there.chunk(&["show", "town", "--json"]).json();
    let notes = &shown["metadata"];
    assert_eq!((notes["name"].as_str(), notes["of"].as_str()), (Some("town"), Some("demo")));
}

#[test]
fn without_a_key_the_text_comes_and_the_rows_do_not() {
    let (shared, here, there) = (Shared::new(), stocked(), Home::new());
    shared.chunk(&here, &["push", "nusonix"], None).ok();
    let pulled = shared.chunk(&there, &["pull", "nusonix"], None).ok();
    assert!(pulled.stderr.contains("no --remote-key"), "{}", pulled.stderr);
    assert_eq!(there.rows().len(), 0);
    assert_eq!(ask(&there)["text"], ANSWER);
    let other = Home::new();
    shared.chunk(&other, &["pull", "nusonix", "--remote-unsigned"], None).ok();
    assert_eq!(other.rows().len(), 1);
}

#[test]
fn what_another_key_signed_is_not_used() {
    let (shared, here, there) = (Shared::new(), stocked(), Home::new());
    shared.chunk(&here, &["push", "nusonix"], Some("other.key")).ok();
    let refused = shared.chunk(&there, &["pull", "nusonix"], Some("team.key"));
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("its signature is not by the key"), "{}", refused.stderr);
    assert!(refused.stderr.contains("has no chunk \"nusonix\""), "{}", refused.stderr);
    // Rows that were damaged in the store are not used either.
    let pushed = shared.chunk(&here, &["push", "nusonix"], Some("team.key")).ok();
    assert!(pushed.stderr.contains("the text, and 1 file of rows"), "{}", pushed.stderr);
    let rows = files(&shared.folder.path().join("store/team")).len();
    assert_eq!(rows, 0, "the prefix is the folder");
    for path in files(&shared.folder.path().join("store/rows")) {
        if path.file_name().unwrap() != "manifest" {
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[100] ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
    }
    let pulled = shared.chunk(&there, &["pull", "nusonix"], Some("team.key")).ok();
    assert!(pulled.stderr.contains("do not match their checksum"), "{}", pulled.stderr);
    assert_eq!((there.rows().len(), ask(&there)["text"].as_str()), (0, Some(ANSWER)));
}

/// All files below a folder.
fn files(folder: &std::path::Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn the_store_is_listed_if_the_flag_says_so_and_its_rows_are_deleted_by_age() {
    let (shared, here) = (Shared::new(), stocked());
    here.chunk(&["add", "krogaste.txt"]).ok();
    let key = Some("team.key");
    shared.chunk(&here, &["push", "nusonix", "krogaste"], key).ok();
    let there = Home::new();
    let url = shared.url();
    let set = ("WEFT_REMOTE", url.as_str());
    let listed = there.run_with(&["chunk", "list", "--remote"], set).ok();
    assert_eq!(listed.stdout.lines().count(), 3, "{}", listed.stdout);
    assert!(listed.stdout.contains("  krogaste\n"), "{}", listed.stdout);
    let local = there.run_with(&["chunk", "list"], set).ok();
    assert!(local.stderr.contains("there are no chunks yet"), "{}", local.stderr);
    let json = there.run_with(&["chunk", "list", "--json", "--meta", "of=demo", "--remote"], set);
    let json = json.json();
    assert_eq!((json[0]["name"].as_str(), json.as_array().unwrap().len()), (Some("nusonix"), 1));

    let swept = shared.chunk(&there, &["gc", "--older-than", "1d"], key).ok();
    assert!(swept.stdout.contains("left  1 file"), "{}", swept.stdout);
    let swept = shared.chunk(&there, &["gc", "--max-size", "0"], key).ok();
    assert!(swept.stdout.contains("left  0 files"), "{}", swept.stdout);
    let pulled = shared.chunk(&there, &["pull", "nusonix"], key).ok();
    assert_eq!((there.rows().len(), pulled.code), (0, 0), "texts stay");
}

#[test]
fn mistakes_are_explained() {
    let (shared, home) = (Shared::new(), Home::new());
    home.chunk(&["add", "nusonix.txt"]).ok();
    let says = |ran: Ran, code: i32, words: &[&str]| {
        assert_eq!(ran.code, code, "{}", ran.stderr);
        words.iter().for_each(|word| assert!(ran.stderr.contains(word), "{}", ran.stderr));
    };
    says(home.chunk(&["push", "nusonix"]), 2, &["--remote URL", "WEFT_REMOTE"]);
    says(home.chunk(&["list", "--remote"]), 2, &["--remote URL"]);
    says(home.chunk(&["push", "nusonix", "--remote", "ftp://x"]), 2, &["s3://BUCKET/PREFIX"]);
    says(shared.chunk(&home, &["push", "nothing"], None), 2, &["nothing"]);
    says(shared.chunk(&home, &["pull", "nothing"], None), 2, &["has no chunk \"nothing\""]);
    says(home.chunk(&["gc", "--max-size", "1g"]), 2, &["--remote"]);
    let open = shared.key("open.key");
    std::fs::write(&open, "7".repeat(64)).unwrap();
    if cfg!(unix) {
        says(shared.chunk(&home, &["pull", "nusonix"], Some("open.key")), 1, &["chmod 600"]);
    }
}

#[test]
fn a_question_about_a_document_uses_and_fills_the_store() {
    let (shared, here, there) = (Shared::new(), Home::new(), Home::new());
    let (url, key) = (shared.url(), shared.key("team.key").display().to_string());
    let ask = |home: &Home| {
        let args = ["ask", "-q", "--json", "nusonix.txt", QUESTION];
        let store = ["--remote", &url, "--remote-key", &key];
        home.run(&[&args[..], &store].concat()).json()
    };
    let first = ask(&here);
    assert_eq!((first["text"].as_str(), sources(&first)[1].as_str()), (Some(ANSWER), "computed"));
    let second = ask(&there);
    assert_eq!((second["text"].as_str(), sources(&second)[1].as_str()), (Some(ANSWER), "remote"));
    assert_eq!(there.rows().len(), 1, "the rows are on its disk now");
    let third = ask(&there);
    assert_eq!((third["text"].as_str(), sources(&third)[1].as_str()), (Some(ANSWER), "disk"));
}

#[test]
fn rows_are_pulled_for_the_homes_of_their_chunk_alone() {
    let (shared, here, there) = (Shared::new(), Home::new(), Home::new());
    let key = Some("team.key");
    let ask = |home: &Home, documents: &[&str]| {
        let mut args = vec!["ask", "-q", "--json"];
        documents.iter().for_each(|name| args.extend(["--context", name]));
        args.push(QUESTION);
        home.run(&args).json()
    };
    for file in ["nusonix.txt", "krogaste.txt"] {
        here.chunk(&["add", file]).ok();
    }
    // The second document attends to the first: its rows belong to this prompt alone.
    ask(&here, &["krogaste", "nusonix"]);
    ask(&here, &["nusonix"]);
    let pushed = shared.chunk(&here, &["push", "nusonix"], key).ok();
    assert!(pushed.stderr.contains("2 files of rows"), "{}", pushed.stderr);
    let pulled = shared.chunk(&there, &["pull", "nusonix"], key).ok();
    let refused = "1 file of rows not used: they attended to something else than a system prompt";
    assert!(pulled.stderr.contains(refused), "{}", pulled.stderr);
    assert_eq!(there.rows().len(), 1);
    let answer = ask(&there, &["nusonix"]);
    assert_eq!((answer["text"].as_str(), sources(&answer)[1].as_str()), (Some(ANSWER), "disk"));
}
