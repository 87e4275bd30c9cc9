//! Disks that fail: the answer is the same, and the user gets one warning.

use std::path::Path;

use crate::home::{ANSWER, DOCUMENTS, Home, QUESTION, sources};

fn quarantined(home: &Home) -> usize {
    let folder = home.file(".cache/weft/kv/quarantine");
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

fn flip(file: &Path, from_end: usize) {
    let mut bytes = std::fs::read(file).unwrap();
    let at = bytes.len() - from_end;
    bytes[at] ^= 0x10;
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn a_damaged_file_of_rows_costs_time_and_no_answer() {
    let home = Home::new();
    let cold = home.ask(&DOCUMENTS, &[]);
    let rows = home.rows();
    flip(&rows[0], 1);
    std::fs::write(&rows[1], "not rows at all").unwrap();
    let mut args = vec!["ask", "-q", "--system", "Answer in one word."];
    args.extend(DOCUMENTS.iter().flat_map(|document| ["--context", document]));
    args.push(QUESTION);
    let ran = home.run(&args).ok();
    assert_eq!(ran.stdout, format!("{ANSWER}\n"));
    assert_eq!(ran.stderr.matches("weft: warning: chunk ").count(), 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("checksum") && ran.stderr.contains("quarantine"));
    assert_eq!(quarantined(&home), 2);
    assert_eq!(home.rows(), rows, "what was lost is written anew");
    let warm = home.ask(&DOCUMENTS, &[]);
    assert_eq!(warm["text"], cold["text"]);
    assert_eq!(sources(&warm), ["disk", "disk", "disk", "disk", "computed"]);
    let freed = home.chunk(&["gc"]).ok().stdout;
    assert!(freed.contains("freed 2 damaged files"), "{freed}");
    assert_eq!(quarantined(&home), 0);
}

#[test]
fn many_damaged_files_are_reported_in_few_lines() {
    let home = Home::new();
    home.chunk(&["add", "nusonix.txt"]).ok();
    home.ask(&["nusonix"], &[]);
    let file = home.rows()[0].clone();
    let digits = file.file_stem().unwrap().len();
    for n in 0..34 {
        std::fs::write(file.with_file_name(format!("{n:0digits$x}.safetensors")), "cut").unwrap();
    }
    let ran = home.chunk(&["list"]).ok();
    assert_eq!(ran.stderr.lines().count(), 4, "{}", ran.stderr);
    assert!(ran.stderr.contains("is too short for a header"), "{}", ran.stderr);
    assert!(ran.stderr.contains("31 more damaged files were moved to"), "{}", ran.stderr);
    assert!(ran.stderr.contains("kv/quarantine"), "{}", ran.stderr);
}

#[test]
fn a_folder_that_cannot_be_used_is_reported_once() {
    let home = Home::new();
    home.write("file", "");
    // There can be no folder below a file, for any user.
    let ran = home.run(&[
        "ask",
        "-q",
        "--cache-dir",
        "file/kv",
        "--context",
        "nusonix.txt",
        "--",
        QUESTION,
    ]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "Vubegok\n"));
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    assert!(
        ran.stderr.starts_with("weft: warning: KV rows are not saved on disk"),
        "{}",
        ran.stderr
    );
    let doctor = home.run(&["doctor", "--cache-dir", "file/kv"]);
    assert_eq!(doctor.code, 1);
    assert!(doctor.stdout.contains("FAIL  kept rows"), "{}", doctor.stdout);
    assert_eq!(home.chunk(&["gc", "--cache-dir", "file/kv"]).code, 1);
}

#[test]
fn left_over_files_are_swept_and_rows_of_others_if_asked() {
    let home = Home::new();
    home.ask(&["nusonix.txt"], &[]);
    home.write(".cache/weft/kv/999999999-0.tmp", "half");
    let freed = home.chunk(&["gc", "-q"]).ok().stdout;
    assert!(freed.contains("freed 1 left-over file"), "{freed}");
    home.ask(&["nusonix.txt"], &["--kernels", "reference"]);
    assert_eq!(home.rows().len(), 4, "two devices, two sets of rows");
    let freed = home.chunk(&["gc", "-q", "--other-models"]).ok().stdout;
    assert!(freed.contains("freed 2 files of other models"), "{freed}");
    let warm = home.ask(&["nusonix.txt"], &[]);
    assert_eq!(sources(&warm), ["disk", "disk", "computed"]);
}

#[test]
fn a_file_on_the_shelf_without_a_chunk_is_reported_and_stays() {
    let home = Home::new();
    home.chunk(&["add", "nusonix.txt", "--name", "town"]).ok();
    let shelf = std::fs::read_dir(home.file(".local/share/weft/chunks")).unwrap();
    let shelf = shelf.map(|entry| entry.unwrap().path()).next().unwrap();
    std::fs::write(shelf.join("broken.json"), "{}").unwrap();
    let listed = home.chunk(&["list"]).ok();
    assert!(listed.stderr.contains("broken.json"), "{}", listed.stderr);
    assert!(listed.stderr.contains("; delete the file, and add its text again"));
    let asked = home.run(&["ask", "-q", "--context", "town", "--", QUESTION]).ok();
    assert_eq!(asked.stderr.matches("broken.json").count(), 1, "{}", asked.stderr);
    assert!(listed.stdout.contains("town"), "{}", listed.stdout);
    assert!(shelf.join("broken.json").exists());
}

#[cfg(unix)]
#[test]
fn what_is_kept_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    home.chunk(&["add", "nusonix.txt", "--name", "town"]).ok();
    home.ask(&["town"], &[]);
    home.chunk(&["export", "town", "town.chunk"]).ok();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let mut folders = vec![home.file(".cache/weft/kv"), home.file(".local/share/weft/chunks")];
    let mut files = vec![home.file("town.chunk")];
    while let Some(folder) = folders.pop() {
        assert_eq!(mode(&folder), 0o700, "{folder:?}");
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    assert_eq!(files.len(), 4);
    for file in files {
        assert_eq!(mode(&file), 0o600, "{file:?}");
    }
}
