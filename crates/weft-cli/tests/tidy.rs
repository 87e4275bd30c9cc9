//! Rules about the source tree that the compiler does not check.

use std::path::{Path, PathBuf};

const MAX_LINES: usize = 500;
const MAX_COLUMNS: usize = 100;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All files below a folder with one of the endings, except built or installed ones.
fn files(folder: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.starts_with('.')
                && !matches!(name.as_str(), "target" | "dist" | "node_modules")
            {
                files(&path, endings, found);
            }
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            found.push(path);
        }
    }
}

fn all(endings: &[&str]) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    files(&root(), endings, &mut found);
    assert!(!found.is_empty());
    found.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn no_source_file_is_long() {
    for (path, text) in all(&[".rs", ".py", ".cu"]) {
        let lines = text.lines().count();
        assert!(lines <= MAX_LINES, "{} has {lines} lines", path.display());
    }
}

#[test]
fn every_file_says_what_it_owns() {
    for (path, text) in all(&[".rs"]) {
        assert!(text.starts_with("//! "), "{} opens without a word", path.display());
    }
}

/// Cargo runs `tests/*.rs` and `tests/*/main.rs`. Any other file is a module of one of them.
#[test]
fn every_test_file_is_part_of_a_program() {
    for folder in std::fs::read_dir(root().join("crates")).unwrap() {
        let tests = folder.unwrap().path().join("tests");
        let mut found = Vec::new();
        if tests.exists() {
            files(&tests, &[".rs"], &mut found);
        }
        let texts = found.iter().map(|path| std::fs::read_to_string(path).unwrap());
        let named: Vec<String> = texts
            .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
            .filter_map(|line| {
                Some(line.trim().strip_prefix("mod ")?.strip_suffix(';')?.to_owned())
            })
            .collect();
        let stem = |path: &Path| path.file_stem().unwrap().to_string_lossy().into_owned();
        for path in found {
            let folder = path.parent().unwrap();
            let is_program =
                folder == tests || stem(&path) == "main" && folder.parent().unwrap() == tests;
            let name = if stem(&path) == "mod" { stem(folder) } else { stem(&path) };
            assert!(is_program || named.contains(&name), "{} is never run", path.display());
        }
    }
}

#[test]
fn every_op_has_its_files_and_its_row() {
    let plan = std::fs::read_to_string(root().join("crates/weft-core/src/plan.rs")).unwrap();
    let names: Vec<&str> = plan
        .lines()
        .filter(|line| line.contains("=> \"") && line.trim_start().starts_with("Self::"))
        .filter_map(|line| line.split('"').nth(1))
        .collect();
    assert_eq!(names.len(), 11, "{names:?}");
    let table = std::fs::read_to_string(root().join("docs/model.md")).unwrap();
    for name in names {
        for folder in ["crates/weft-core/src/reference", "crates/weft-cpu/src/ops"] {
            let file = root().join(folder).join(format!("{name}.rs"));
            assert!(file.exists(), "{}", file.display());
        }
        assert!(table.contains(&format!("| `{name}` |")), "docs/model.md has no row for {name}");
    }
}

#[test]
fn no_line_of_a_document_is_long() {
    for (path, text) in all(&[".md"]) {
        for (number, line) in text.lines().enumerate() {
            // A table row cannot be wrapped.
            let columns = line.chars().count();
            let fits = line.starts_with('|') || columns <= MAX_COLUMNS;
            assert!(fits, "{}:{} has {columns} columns", path.display(), number + 1);
        }
    }
}

#[test]
fn links_in_documents_lead_somewhere() {
    for (path, text) in all(&[".md"]) {
        for target in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let file = path.parent().unwrap().join(target);
            assert!(file.exists(), "{} links to {target}", path.display());
        }
    }
}

#[test]
fn the_code_map_is_true() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let mut crate_folder = PathBuf::new();
    for cell in text.lines().filter_map(|line| line.strip_prefix("| `")?.split('|').next()) {
        for name in
            cell.split('`').filter(|part| part.contains(['/', '.']) || part.starts_with("· "))
        {
            let Some(module) = name.strip_prefix("· ") else {
                check_path(&root().join(name), &crate_folder.join("src").join(name), name);
                if name.starts_with("crates/weft") {
                    crate_folder = root().join(name);
                }
                continue;
            };
            check_path(&crate_folder.join("src").join(module), &root().join(module), module);
        }
    }
}

/// A name of the map is a path from the root, or a module of the crate above it.
fn check_path(first: &Path, second: &Path, name: &str) {
    let exists = |path: &Path| path.exists() || path.with_extension("rs").exists();
    let is_pattern = name.contains('*');
    assert!(is_pattern || exists(first) || exists(second), "ARCHITECTURE.md names {name}");
}
