//! Several processes in one folder, and processes that are killed. In the end, only correct rows
//! are returned, and no partial file is left.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, Stdio};
use std::thread;
use std::time::Duration;

use weft_core::store::{Put, Store};

use crate::samples::{
    Random, Sample, child, folder_of_child, folder_with, names, new_folder, open, quarantined,
    sample,
};

const N_KILLS: u64 = 200;
const KILLED_TOKENS: usize = 256;

#[test]
fn a_writer_killed_at_any_moment_leaves_nothing_wrong() {
    if let Some(folder) = folder_of_child() {
        write_until_killed(&folder);
    }
    let mut random = Random(7);
    let (mut n_stored, mut n_swept) = (0, 0);
    for _ in 0..N_KILLS {
        let (_outer, folder) = new_folder();
        let stored = kill_a_writer(&folder, &mut random);
        n_swept += check_after_kill(&folder, stored);
        n_stored += stored;
    }
    println!("{N_KILLS} kills: {n_stored} entries reported stored, {n_swept} cut short");
    assert!(n_stored > N_KILLS && n_swept > 0, "the kills came at the wrong moments");
}

/// Prints each entry once it is stored.
fn write_until_killed(folder: &Path) -> ! {
    let entries: Vec<_> = (0..100).map(|n| sample(n, KILLED_TOKENS)).collect();
    eprintln!("ready");
    let mut store = open(folder);
    for entry in entries {
        assert_eq!(entry.put(&mut store), Put::Stored);
        eprintln!("stored");
    }
    loop {
        thread::park();
    }
}

/// Kills a writer a moment after one of its first entries, or while it opens the folder. Returns
/// the number of entries that it printed; these are stored.
fn kill_a_writer(folder: &Path, random: &mut Random) -> u64 {
    let test = "processes::a_writer_killed_at_any_moment_leaves_nothing_wrong";
    let (mut writer, mut stderr) = start(test, folder);
    // Counts entries, not only time: a busy machine could kill the writer before its first entry.
    let n_awaited = random.below(8);
    for _ in 0..n_awaited {
        wait_for("stored\n", &mut stderr);
    }
    thread::sleep(Duration::from_micros(random.below(3_000)));
    writer.kill().unwrap();
    writer.wait().unwrap();
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    n_awaited + rest.lines().filter(|line| *line == "stored").count() as u64
}

/// Starts a test as another process and waits until it is ready.
fn start(test: &str, folder: &Path) -> (Child, BufReader<ChildStderr>) {
    let mut child =
        child(test, folder).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    wait_for("ready\n", &mut stderr);
    (child, stderr)
}

fn wait_for(text: &str, stderr: &mut BufReader<ChildStderr>) {
    let mut line = String::new();
    while line != text {
        line.clear();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "the child ended early");
    }
}

/// All entries that were reported as stored are returned, all rows are correct, and no partial file
/// is left.
fn check_after_kill(folder: &Path, n_stored: u64) -> u64 {
    let n_temp = names(folder, ".tmp").len() as u64;
    let mut store = open(folder);
    // The probe of opening may have been interrupted too.
    assert_eq!(store.stats().swept_temp_files, n_temp);
    assert_eq!(names(folder, ".tmp"), [""; 0]);
    let n_files = names(folder, ".safetensors").len() as u64;
    assert!((n_stored..=n_stored + 1).contains(&n_files), "{n_files} files of {n_stored}");
    for n in 0..n_files {
        assert!(sample(n, KILLED_TOKENS).is_served(&mut store), "entry {n}");
    }
    assert!(quarantined(folder).is_empty() && store.take_warnings().is_empty());
    n_temp
}

const N_SHARED: u64 = 24;
const SHARED_TOKENS: usize = 64;

/// Room for a third of the entries, so that the processes evict each other's.
fn shared_budget() -> u64 {
    let (_outer, folder) = new_folder();
    let mut store = open(&folder);
    sample(0, SHARED_TOKENS).put(&mut store);
    store.used_bytes() * N_SHARED / 3
}

#[test]
fn processes_share_a_folder() {
    if let Some(folder) = folder_of_child() {
        eprintln!("ready");
        let hits = write_and_read(&folder, u64::from(std::process::id()));
        eprintln!("hits {hits}");
        return;
    }
    let (_outer, folder) = new_folder();
    let test = "processes::processes_share_a_folder";
    let children = [start(test, &folder), start(test, &folder)];
    let mut hits = vec![write_and_read(&folder, 1)];
    for (mut child, mut stderr) in children {
        let mut rest = String::new();
        stderr.read_to_string(&mut rest).unwrap();
        assert!(child.wait().unwrap().success(), "{rest}");
        let n_hits = rest.lines().find_map(|line| line.strip_prefix("hits "));
        hits.push(n_hits.unwrap().parse().unwrap());
    }
    println!("hits of the three processes: {hits:?}");
    assert!(hits.iter().all(|hits| *hits > 50), "{hits:?}");
    assert!(quarantined(&folder).is_empty());
    assert_eq!(names(&folder, ".tmp"), [""; 0]);
    let mut store = Store::open(&folder, shared_budget()).unwrap();
    let served = (0..N_SHARED).filter(|n| sample(*n, SHARED_TOKENS).is_served(&mut store));
    assert_eq!(served.count(), names(&folder, ".safetensors").len());
    // Each process makes room before it writes; all three may do so at the same moment.
    let entry_bytes = 3 * shared_budget() / N_SHARED;
    assert!(store.used_bytes() <= shared_budget() + 2 * entry_bytes);
}

/// Reads and writes entries at random, and reopens the folder from time to time: files that others
/// are writing stay, entries that others evicted are plain misses, and nothing is ever damaged.
fn write_and_read(folder: &Path, seed: u64) -> u64 {
    let mut random = Random(seed);
    let budget = shared_budget();
    let mut hits = 0;
    for _ in 0..40 {
        let mut store = Store::open(folder, budget).unwrap();
        for _ in 0..15 {
            let entry = sample(random.below(N_SHARED), SHARED_TOKENS);
            if !entry.is_served(&mut store) {
                assert!(matches!(entry.put(&mut store), Put::Stored | Put::Present));
            }
        }
        hits += store.stats().hits;
        let warnings = store.take_warnings();
        assert!(warnings.is_empty() && store.stats().quarantined == 0, "{warnings:?}");
    }
    hits
}

#[test]
fn one_process_sees_what_another_does() {
    let (_outer, folder) = new_folder();
    let (first, second) = (sample(1, 5), sample(2, 5));
    let (mut mine, mut theirs) = (open(&folder), open(&folder));
    first.put(&mut theirs);
    second.put(&mut theirs);
    assert!(mine.find(&first.key).is_none());
    assert!(first.is_served(&mut mine), "the files are the truth, not the index");
    assert_eq!(mine.entries().count(), 1);
    mine.refresh();
    assert_eq!(mine.entries().count(), 2);
    assert_eq!(mine.used_bytes(), theirs.used_bytes());

    let served_at = mine.find(&second.key).unwrap().last_use;
    assert!(second.is_served(&mut theirs));
    mine.refresh();
    assert!(mine.find(&second.key).unwrap().last_use > served_at);

    theirs.remove(&first.key);
    assert!(!first.is_served(&mut mine));
    assert_eq!((mine.stats().quarantined, mine.stats().count("absent")), (0, 1));
    theirs.remove(&second.key);
    mine.refresh();
    assert_eq!((mine.entries().count(), mine.used_bytes()), (0, 0));
    assert!(mine.take_warnings().is_empty());
    assert!(!fs::exists(folder.join("quarantine")).unwrap());
}

#[test]
fn a_file_that_another_process_replaced_is_read_again() {
    let (_outer, folder) = new_folder();
    let before = sample(1, 5);
    let mut mine = open(&folder);
    before.put(&mut mine);
    // Other rows of another length under the same key.
    let after = Sample { key: before.key, ..sample(2, 9) };
    let (_elsewhere, _folder, bytes) = folder_with(&after);
    fs::write(before.file(&folder), &bytes).unwrap();
    mine.refresh();
    let found = mine.find(&before.key).unwrap();
    assert_eq!((&found.header, found.bytes), (&after.header, bytes.len() as u64));
    assert_eq!(mine.used_bytes(), bytes.len() as u64);
    assert!(after.is_served(&mut mine));
}
