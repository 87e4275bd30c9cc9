//! What weft depends on keeps to `deny.toml`: licences, sources, bans and versions. `cargo deny`
//! checks more, and is not everywhere.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn rules() -> toml::Table {
    std::fs::read_to_string(root().join("deny.toml")).unwrap().parse().unwrap()
}

/// Everything that is built for any system, tests included.
fn packages() -> Vec<Value> {
    let metadata = |more: &[&str]| {
        Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--locked", "--all-features"])
            .args(more)
            .current_dir(root())
            .output()
            .unwrap()
    };
    // A first build downloads nothing for other systems; cargo then has to ask for their crates.
    let mut output = metadata(&["--offline"]);
    if !output.status.success() {
        output = metadata(&[]);
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

fn texts(list: &toml::Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

/// Whether an expression of SPDX is met by licences that are allowed. Some authors write `/` for
/// `OR`. `AND` binds closer than `OR`.
fn is_met(expression: &str, allowed: &[&str]) -> bool {
    let expression = expression.replace('/', " OR ").replace('(', "( ").replace(')', " )");
    let words: Vec<&str> = expression.split_whitespace().collect();
    let (met, rest) = any_of(&words, allowed);
    assert!(rest.is_empty(), "{expression:?} is no expression");
    met
}

fn any_of<'w>(words: &'w [&'w str], allowed: &[&str]) -> (bool, &'w [&'w str]) {
    let (mut met, mut rest) = all_of(words, allowed);
    while let ["OR", after @ ..] = rest {
        let (also, after) = all_of(after, allowed);
        (met, rest) = (met | also, after);
    }
    (met, rest)
}

fn all_of<'w>(words: &'w [&'w str], allowed: &[&str]) -> (bool, &'w [&'w str]) {
    let (mut met, mut rest) = one(words, allowed);
    while let ["AND", after @ ..] = rest {
        let (also, after) = one(after, allowed);
        (met, rest) = (met & also, after);
    }
    (met, rest)
}

fn one<'w>(words: &'w [&'w str], allowed: &[&str]) -> (bool, &'w [&'w str]) {
    match words {
        ["(", inside @ ..] => match any_of(inside, allowed) {
            (met, [")", after @ ..]) => (met, after),
            _ => panic!("{words:?} has no end"),
        },
        [licence, "WITH", exception, rest @ ..] => {
            (allowed.contains(&&*format!("{licence} WITH {exception}")), rest)
        }
        [licence, rest @ ..] => (allowed.contains(licence), rest),
        [] => panic!("a licence is missing"),
    }
}

#[test]
fn expressions_are_read_as_spdx_means_them() {
    let allowed = ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"];
    for met in [
        "MIT",
        "GPL-3.0 OR MIT",
        "MIT/GPL-3.0",
        "(GPL-3.0 OR ISC) AND MIT",
        "GPL-3.0 AND ISC OR MIT",
        "Apache-2.0 WITH LLVM-exception",
    ] {
        assert!(is_met(met, &allowed), "{met}");
    }
    for unmet in ["GPL-3.0", "MIT AND GPL-3.0", "Apache-2.0", "ISC AND (GPL-3.0 OR AGPL-3.0)"] {
        assert!(!is_met(unmet, &allowed), "{unmet}");
    }
}

#[test]
fn licences_are_allowed_ones() {
    let rules = rules();
    let allowed = texts(&rules["licenses"]["allow"]);
    let exceptions = rules["licenses"]["exceptions"].as_array().unwrap();
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        let licence = package["license"].as_str();
        let licence = licence.unwrap_or_else(|| panic!("{name} says nothing of its licence"));
        let mut allowed = allowed.clone();
        let of_this = |entry: &&toml::Value| entry["crate"].as_str() == Some(name);
        exceptions.iter().filter(of_this).for_each(|entry| allowed.extend(texts(&entry["allow"])));
        assert!(is_met(licence, &allowed), "{name}: {licence} is not allowed by deny.toml");
    }
}

#[test]
fn sources_and_names_are_allowed_ones() {
    let rules = rules();
    let registries = texts(&rules["sources"]["allow-registry"]);
    let denied = rules["bans"]["deny"].as_array().unwrap();
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        // Those of this workspace have none.
        if let Some(source) = package["source"].as_str() {
            let is_known = registries.iter().any(|known| source == format!("registry+{known}"));
            assert!(is_known, "{name} comes from {source}");
        }
        let is_denied = denied.iter().any(|entry| entry["crate"].as_str() == Some(name));
        assert!(!is_denied, "{name} is denied by deny.toml");
    }
}

#[test]
fn no_version_is_left_open() {
    for package in packages().iter().filter(|package| package["source"].is_null()) {
        for dependency in package["dependencies"].as_array().unwrap() {
            let open = dependency["req"] == "*" && dependency["path"].is_null();
            assert!(!open, "{}: {} is of any version", package["name"], dependency["name"]);
        }
    }
}
