//! `weft chunk …`: its effects and its refusals.

use serde_json::Value;

use crate::home::{ANSWER, DOCUMENTS, Home, QUESTION, SYSTEM, sources};

/// Registers the documents under the start of their names, and a system prompt.
fn stocked() -> Home {
    let home = Home::new();
    for document in DOCUMENTS {
        let name = document.strip_suffix(".txt").unwrap();
        home.chunk(&["add", document, "--name", name, "--meta", "of=demo"]).ok();
    }
    home.feed(&["chunk", "add", "-", "--kind", "system", "--name", "brief"], SYSTEM).ok();
    home
}

fn names(home: &Home, args: &[&str]) -> Vec<String> {
    let listed = home.chunk(&[&["list", "--json"], args].concat()).json();
    let name = |chunk: &Value| chunk["name"].as_str().unwrap().to_owned();
    listed.as_array().unwrap().iter().map(name).collect()
}

#[test]
fn the_same_text_is_the_same_chunk() {
    let home = Home::new();
    let first = home.chunk(&["add", "nusonix.txt"]).word();
    assert_eq!(first.len(), 32);
    assert_eq!(home.chunk(&["add", "nusonix.txt", "--name", "town"]).word(), first);
    let text = std::fs::read_to_string(home.file("nusonix.txt")).unwrap();
    assert_eq!(home.feed(&["chunk", "add", "-"], &text).word(), first);
    assert_eq!(names(&home, &[]), ["town"], "the name stays");
    let output = home.chunk(&["add", "nusonix.txt", "--kind", "output"]).word();
    assert_ne!(output, first, "the kind is part of it");
}

#[test]
fn lists_are_chosen_by_kind_age_and_notes() {
    let home = stocked();
    assert_eq!(names(&home, &[]), ["nusonix", "krogaste", "kehujax", "brief"]);
    assert_eq!(names(&home, &["--kind", "system"]), ["brief"]);
    assert_eq!(names(&home, &["--meta", "of=demo"]), ["nusonix", "krogaste", "kehujax"]);
    assert_eq!(names(&home, &["--meta", "of=demo", "--meta", "name=kehujax"]), ["kehujax"]);
    assert_eq!(names(&home, &["--older-than", "1h"]), [""; 0]);
    assert_eq!(names(&home, &["--older-than", "0s"]).len(), 4);
    let table = home.chunk(&["list"]).ok().stdout;
    assert_eq!(table.lines().count(), 5);
    let row = table.lines().find(|line| line.ends_with("krogaste")).unwrap();
    assert!(row.contains("context") && row.contains("never"), "{table}");
    assert_eq!(home.chunk(&["list", "--older-than", "7"]).code, 2);
}

#[test]
fn chunks_are_shown_by_name_and_by_the_begin_of_their_id() {
    let home = stocked();
    let id = home.chunk(&["add", "nusonix.txt"]).word();
    let text = std::fs::read_to_string(home.file("nusonix.txt")).unwrap();
    for word in ["nusonix", &id, &id[..4]] {
        assert_eq!(home.chunk(&["show", word]).ok().stdout.trim_end(), text.trim_end(), "{word}");
    }
    let shown = home.chunk(&["show", "nusonix", "--json"]).json();
    assert_eq!(
        (shown["id"].as_str(), shown["metadata"]["of"].as_str()),
        (Some(&*id), Some("demo"))
    );
    assert_eq!(shown["rows_on_disk"]["files"], 0);
}

#[test]
fn a_warm_chunk_is_found_by_the_first_question() {
    let home = stocked();
    let stderr = home.chunk(&["warm", "nusonix", "kehujax", "--system", "brief"]).ok().stderr;
    assert!(stderr.contains("tokens warm") && stderr.contains("3 files"), "{stderr}");
    assert_eq!(home.chunk(&["show", "nusonix", "--json"]).json()["rows_on_disk"]["files"], 1);
    let args = ["ask", "-q", "--json", "--system", "brief", "--context", "nusonix", "--context"];
    let answer = home.run(&[&args[..], &["kehujax", QUESTION]].concat()).json();
    assert_eq!(answer["text"], ANSWER);
    assert_eq!(sources(&answer), ["disk", "disk", "disk", "computed"]);
    let again = home.chunk(&["warm", "nusonix", "kehujax", "--system", "brief"]).ok().stderr;
    assert!(again.contains(" 0 computed now"), "{again}");
    let moved = ["warm", "kehujax", "nusonix", "--system", "brief", "--reuse", "anchored"];
    home.chunk(&moved).ok();
    let used = home.chunk(&["show", "nusonix", "--json"]).json();
    assert_eq!(used["uses"], 4, "three times warmed, once asked about");
    assert!(used["last_used_ms"].as_u64() >= used["created_ms"].as_u64());
}

#[test]
fn files_and_chunks_with_the_same_text_share_their_rows() {
    let home = stocked();
    home.ask(&["nusonix.txt"], &[]);
    let by_name = home.ask(&["nusonix"], &[]);
    assert_eq!(sources(&by_name), ["disk", "disk", "computed"]);
    assert_eq!(home.chunk(&["show", "nusonix", "--json"]).json()["uses"], 1);
}

#[test]
fn pinned_rows_stay_when_others_have_to_go() {
    let home = stocked();
    let rows = |name: &str| {
        home.chunk(&["show", name, "--json"]).json()["rows_on_disk"]["files"].as_u64().unwrap()
    };
    home.ask(&["nusonix"], &[]);
    home.ask(&["krogaste"], &[]);
    home.chunk(&["pin", "nusonix"]).ok();
    assert_eq!(home.chunk(&["list", "--json"]).json()[0]["pinned"], true);
    let freed = home.chunk(&["gc", "--disk-cache", "1m"]).ok().stdout;
    assert!(
        freed.contains("freed 1 file over the budget") || freed.contains("freed 2 files"),
        "{freed}"
    );
    assert_eq!((rows("nusonix"), rows("krogaste")), (1, 0), "gc: {freed}");
    // Another question needs the room, and must not get all of it.
    home.ask(&["kehujax"], &["--disk-cache", "1300k"]);
    home.ask(&["krogaste"], &["--disk-cache", "1300k"]);
    assert_eq!(rows("nusonix"), 1);
    home.chunk(&["unpin", "nusonix"]).ok();
    home.chunk(&["gc", "--disk-cache", "1k"]).ok();
    assert_eq!((rows("nusonix"), home.rows().len()), (0, 0));
}

#[test]
fn what_is_removed_is_gone_with_its_rows() {
    let home = stocked();
    home.ask(&["nusonix", "krogaste"], &[]);
    assert_eq!(home.rows().len(), 3);
    let stderr = home.chunk(&["rm", "krogaste"]).ok().stderr;
    assert!(stderr.contains("removed 1 chunk"), "{stderr}");
    assert_eq!(home.rows().len(), 2);
    assert_eq!(names(&home, &[]), ["nusonix", "kehujax", "brief"]);
    home.chunk(&["rm", "--kind", "system"]).ok();
    assert_eq!(names(&home, &[]), ["nusonix", "kehujax"]);
    home.chunk(&["rm", "--older-than", "1h"]).ok();
    home.chunk(&["rm", "--meta", "of=other"]).ok();
    assert_eq!(names(&home, &[]).len(), 2);
    home.chunk(&["rm", "--all"]).ok();
    assert_eq!(names(&home, &[]), [""; 0]);
    assert_eq!(home.ask(&["nusonix.txt"], &[])["text"], ANSWER);
}

#[test]
fn nothing_is_removed_by_a_slip() {
    let home = stocked();
    for (args, says) in [
        (&["rm"][..], "--all"),
        (&["rm", "nusonix", "--all"], "either IDs"),
        (&["rm", "nusonix", "absent"], "absent"),
    ] {
        let refused = home.chunk(args);
        assert_ne!(refused.code, 0, "{args:?}");
        assert!(refused.stderr.contains(says), "{args:?}: {}", refused.stderr);
    }
    // Settings must never select chunks.
    assert_eq!(home.run_with(&["chunk", "rm"], ("WEFT_ALL", "1")).code, 2);
    assert_eq!(names(&home, &[]).len(), 4);
}

#[test]
fn errors_name_what_is_wrong_and_what_to_do() {
    let home = stocked();
    home.write("empty.txt", " \n");
    let refused = |args: &[&str], code: i32, says: &[&str]| {
        let ran = home.chunk(args);
        assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{args:?}: {}", ran.stderr);
        for part in says {
            assert!(ran.stderr.contains(part), "{args:?}: `{}` lacks `{part}`", ran.stderr);
        }
    };
    refused(&["show", "absent"], 2, &["absent", "weft chunk list"]);
    refused(&["show", &"0".repeat(32)], 2, &["there is no chunk"]);
    refused(&["pin", "nusonix", "absent"], 2, &["absent"]);
    refused(&["add", "/no/such/file"], 2, &["/no/such/file"]);
    refused(&["add", "empty.txt"], 2, &["empty.txt", "must not be empty"]);
    refused(&["add", "krogaste.txt", "--name", "nusonix"], 2, &["nusonix", "still means"]);
    refused(&["add", "krogaste.txt", "--name", "two words"], 2, &["one word"]);
    refused(&["add", "krogaste.txt", "--name", &"0".repeat(32)], 2, &["looks like an id"]);
    refused(&["add", "krogaste.txt", "--meta", "no-value"], 2, &["KEY=VALUE"]);
    refused(&["add", "krogaste.txt", "--kind", "query"], 2, &["query"]);
    refused(&["warm", "brief", "--system", "brief"], 1, &["one system"]);
    refused(&["warm", "nusonix", "--no-cache"], 2, &["nothing to warm"]);
    refused(&["import", "nusonix.txt"], 1, &["nusonix.txt"]);
    refused(&["gc", "--disk-cache", "0"], 2, &["--disk-cache"]);
    let pinned = home.chunk(&["list", "--json"]).json();
    assert!(pinned.as_array().unwrap().iter().all(|chunk| chunk["pinned"] == false));
    let ask = home.run(&["ask", "--context", "absent", "--", QUESTION]);
    assert_eq!(ask.code, 2);
    assert!(ask.stderr.contains("neither a file nor a chunk"), "{}", ask.stderr);
    let reuse = home.run(&["ask", "--reuse", "some", QUESTION]);
    assert!(reuse.code == 2 && reuse.stderr.contains("anchored"), "{}", reuse.stderr);
}

#[test]
fn an_abbreviation_of_two_ids_is_refused() {
    let home = Home::new();
    // Ids are hashes: among a few hundred, two share their first four digits.
    let mut seen = std::collections::BTreeMap::new();
    let shelf = home.file("shelf.txt");
    for n in 0..2000 {
        std::fs::write(&shelf, format!("note {n}")).unwrap();
        let id = id_of(&format!("note {n}"));
        let Some(other) = seen.insert(id[..4].to_owned(), n) else { continue };
        for n in [other, n] {
            std::fs::write(&shelf, format!("note {n}")).unwrap();
            let added = home.chunk(&["add", "shelf.txt"]).word();
            assert_eq!(added, id_of(&format!("note {n}")));
        }
        let refused = home.chunk(&["show", &id[..4]]);
        assert_eq!(refused.code, 1);
        assert!(refused.stderr.contains("matches 2 chunks"), "{}", refused.stderr);
        return;
    }
    panic!("no two ids share four digits");
}

/// The id of a document with the bundled model's tokens.
fn id_of(text: &str) -> String {
    use std::sync::OnceLock;
    use weft_core::chunk::{Kind, Library};
    use weft_core::tokenizer::Tokenizer;
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    let tokenizer = TOKENIZER.get_or_init(|| {
        let assets = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets");
        Tokenizer::from_file(assets.join("weft-tiny/tokenizer.json")).unwrap()
    });
    let mut library = Library::default();
    library.add(tokenizer, Kind::Context, text, Default::default()).unwrap().to_string()
}

#[test]
fn rows_in_8_bits_are_listed_reported_and_never_found_by_exact_questions() {
    let home = stocked();
    let coarse = ["--stored-rows", "int8", "--reuse", "anchored"];
    let documents = ["nusonix", "kehujax"];
    home.ask(&documents, &coarse);
    let listed = |name: &str| {
        let all = home.chunk(&["list", "--json"]).json();
        let mut all = all.as_array().unwrap().iter().cloned();
        all.find(|chunk| chunk["name"] == name).unwrap()["rows_on_disk"].clone()
    };
    let (files, bytes) = (listed("nusonix")["files"].clone(), listed("nusonix")["bytes"].clone());
    assert_eq!((files.as_u64(), listed("nusonix")["coarse_files"].as_u64()), (Some(1), Some(1)));
    let table = home.chunk(&["list"]).ok().stdout;
    let line = table.lines().find(|line| line.ends_with("nusonix")).unwrap();
    assert!(line.contains("  int8  "), "{table}");
    let answer = home.ask(&documents, &coarse);
    assert_eq!(answer["text"], ANSWER);
    assert_eq!(sources(&answer), ["disk", "disk", "disk", "computed"]);
    let report = &answer["chunk_report"];
    let tokens = |piece: usize| report["chunks"][piece]["coarse_tokens"].as_u64();
    assert_eq!((tokens(0), tokens(1)), (None, report["chunks"][1]["tokens"].as_u64()));
    assert_eq!(report["approximate_tokens"].as_u64(), tokens(1).zip(tokens(2)).map(|(a, b)| a + b));
    // Neither by exact questions, nor by commands that store full rows.
    for flags in [&["--stored-rows", "int8"][..], &["--reuse", "anchored"]] {
        let exact = home.ask(&documents, flags);
        assert_eq!(sources(&exact), ["disk", "computed", "computed", "computed"], "{flags:?}");
        home.chunk(&["gc", "--disk-cache", "1k"]).ok();
        home.ask(&documents, &coarse);
    }
    home.ask(&documents, &["--reuse", "anchored"]);
    assert!(home.chunk(&["list"]).ok().stdout.contains("  both  "));
    let full = listed("nusonix");
    assert!(2 * bytes.as_u64().unwrap() < full["bytes"].as_u64().unwrap(), "{full} {bytes}");
    let shown = home.chunk(&["show", "nusonix"]).ok().stderr;
    assert!(shown.contains("1 of them in 8 bits"), "{shown}");
}
