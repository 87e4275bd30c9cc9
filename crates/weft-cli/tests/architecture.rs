//! Compares ARCHITECTURE.md with the code: the life of a request, the names of things, and the
//! modules of weft-core, whose dependencies must not have cycles.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The lines of ARCHITECTURE.md under a heading.
fn section(heading: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let after = text.lines().skip_while(|line| *line != heading).skip(1);
    let lines: Vec<String> =
        after.take_while(|line| !line.starts_with("## ")).map(str::to_owned).collect();
    assert!(!lines.is_empty(), "ARCHITECTURE.md has no section {heading:?}");
    lines
}

/// The words of a line between backticks.
fn quoted(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).collect()
}

fn source(path: &str) -> String {
    let file = root().join("crates").join(path);
    fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// A step is `N. **Title**: `crate/src/file.rs`, `function` …`; a step may name several.
#[test]
fn the_life_of_a_request_is_the_one_in_the_code() {
    let mut n_steps = 0;
    let mut file = String::new();
    let mut named = 0;
    for line in section("## The life of a request") {
        let is_step = line.split_once(". ").is_some_and(|(n, _)| n.parse::<usize>().is_ok());
        n_steps += usize::from(is_step);
        for word in quoted(&line) {
            if word.ends_with(".rs") {
                file = word.to_owned();
                source(&file);
            } else if let Some(name) = word.strip_suffix("()") {
                let name = name.rsplit("::").next().unwrap();
                let is_there = source(&file).contains(&format!("fn {name}"));
                assert!(is_there, "{file} has no function {name}: {line}");
                named += 1;
            }
        }
    }
    assert!((4..=8).contains(&n_steps), "{n_steps} steps");
    assert!(named >= n_steps, "{named} functions in {n_steps} steps");
}

/// A row is `| `Name` | meaning | `crate/src/file.rs` |`.
#[test]
fn the_names_are_those_of_the_code() {
    let rows = section("## Names").into_iter().filter(|line| line.starts_with("| `"));
    let mut n_rows = 0;
    for line in rows {
        let words = quoted(&line);
        let (name, file) = (words[0], words[words.len() - 1]);
        let text = source(file);
        let kinds = ["struct", "enum", "type", "trait"];
        let is_there = kinds.iter().any(|kind| {
            text.contains(&format!("{kind} {name} "))
                || text.contains(&format!("{kind} {name}<"))
                || text.contains(&format!("{kind} {name}("))
                || text.contains(&format!("{kind} {name}:"))
        });
        assert!(is_there, "{file} defines no {name}");
        n_rows += 1;
    }
    assert!(n_rows >= 8, "{n_rows} names");
}

/// A row is `| n | what holds | `test`, … |`; each test is a function of a test program or of a
/// module of tests.
#[test]
fn invariants_have_tests() {
    let tests: String = ["weft", "weft-core", "weft-cpu", "weft-cuda", "weft-server", "weft-cli"]
        .iter()
        .flat_map(|name| {
            let tests = root().join("crates").join(name).join("tests");
            let inner = root().join("crates").join(name).join("src");
            [tests, inner].into_iter().flat_map(|folder| all_sources(&folder))
        })
        .collect();
    let rows = section("## Invariants").into_iter().filter(|line| line.ends_with("` |"));
    let mut n_rows = 0;
    for line in rows {
        let named = line.trim_end_matches([' ', '|']).rsplit('|').next().unwrap();
        for test in quoted(named) {
            assert!(tests.contains(&format!("fn {test}()")), "no test is called {test}");
        }
        n_rows += 1;
    }
    assert_eq!(n_rows, 12);
}

/// All Rust files below a folder.
fn all_sources(path: &Path) -> Vec<String> {
    if path.is_file() {
        let is_rust = path.extension().is_some_and(|ending| ending == "rs");
        return is_rust.then(|| fs::read_to_string(path).unwrap()).into_iter().collect();
    }
    fs::read_dir(path).unwrap().flat_map(|entry| all_sources(&entry.unwrap().path())).collect()
}

/// The modules of a crate that each module names, without tests.
fn dependencies(src: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in fs::read_dir(src).unwrap() {
        let path = entry.unwrap().path();
        let module = path.file_stem().unwrap().to_string_lossy().into_owned();
        if module == "lib" {
            continue;
        }
        let names = found.entry(module.clone()).or_default();
        for text in sources(&path) {
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            for line in code {
                for after in line.split("crate::").skip(1) {
                    let name = after.split(|c: char| !c.is_alphanumeric() && c != '_').next();
                    names.extend(name.filter(|name| *name != module).map(str::to_owned));
                }
            }
        }
    }
    found
}

fn sources(path: &Path) -> Vec<String> {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    if name == "tests" || name == "tests.rs" {
        return Vec::new();
    }
    if path.is_file() {
        return vec![fs::read_to_string(path).unwrap()];
    }
    fs::read_dir(path).unwrap().flat_map(|entry| sources(&entry.unwrap().path())).collect()
}

#[test]
fn modules_of_the_core_depend_in_one_direction() {
    let mut left = dependencies(&root().join("crates/weft-core/src"));
    assert!(left.len() > 10 && left["engine"].contains("device"), "{left:?}");
    // Removes modules that depend on none of the remaining ones, until none is left.
    loop {
        let all: BTreeSet<String> = left.keys().cloned().collect();
        let before = left.len();
        left.retain(|_, names| names.intersection(&all).next().is_some());
        if left.len() == before {
            break;
        }
    }
    assert!(left.is_empty(), "these depend on one another: {left:?}");
}
