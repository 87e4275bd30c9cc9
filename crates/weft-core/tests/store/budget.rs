//! The budget: which entries fit, which are evicted first, and which stay. Ages are set on the
//! files, so no test waits.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use weft_core::store::{Put, Store};

use crate::samples::{AMPLE, Sample, names, new_folder, open, sample};

/// Stores entries last used some seconds ago.
fn store_aged(folder: &Path, entries: &[(&Sample, u64)]) {
    let mut store = open(folder);
    for (entry, age_s) in entries {
        assert_eq!(entry.put(&mut store), Put::Stored);
        set_age(folder, entry, *age_s);
    }
}

fn set_age(folder: &Path, entry: &Sample, age_s: u64) {
    let file = fs::File::open(entry.file(folder)).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(age_s)).unwrap();
}

fn file_bytes(folder: &Path, entry: &Sample) -> u64 {
    fs::metadata(entry.file(folder)).unwrap().len()
}

/// Stores one entry more than fits, and returns which of `entries` are left.
fn survivors(folder: &Path, entries: &[&Sample]) -> Vec<usize> {
    let used = open(folder).used_bytes();
    let mut store = Store::open(folder, used).unwrap();
    let one_more = sample(99, 1);
    assert_eq!(one_more.put(&mut store), Put::Stored);
    assert!(store.used_bytes() <= used, "the budget is kept");
    assert!(one_more.is_served(&mut store), "what was just stored is never the one to go");
    (0..entries.len()).filter(|n| entries[*n].is_served(&mut store)).collect()
}

#[test]
fn the_least_recently_used_goes_first() {
    let (_outer, folder) = new_folder();
    let entries = [sample(1, 5), sample(2, 5), sample(3, 5)];
    store_aged(&folder, &[(&entries[0], 20), (&entries[1], 30), (&entries[2], 10)]);
    assert_eq!(survivors(&folder, &entries.each_ref()), [0, 2]);
}

/// Cost and age weigh the same for all that were never idle: then the time decides, and after it
/// the key, whatever the order in which they were stored.
#[test]
fn ties_are_broken_by_time_and_then_by_key() {
    // All in the future, so that their age is none.
    let later = SystemTime::now() + Duration::from_secs(3600);
    let mut entries = [sample(1, 5), sample(2, 5), sample(3, 5)];
    entries.sort_by_key(|entry| entry.key);
    for (seconds, left) in [([2, 0, 1], [0, 2]), ([0, 0, 0], [1, 2])] {
        let (_outer, folder) = new_folder();
        store_aged(&folder, &[(&entries[2], 0), (&entries[0], 0), (&entries[1], 0)]);
        for (entry, seconds) in entries.iter().zip(seconds) {
            let file = fs::File::open(entry.file(&folder)).unwrap();
            file.set_modified(later + Duration::from_secs(seconds)).unwrap();
        }
        assert_eq!(survivors(&folder, &entries.each_ref()), left, "{seconds:?}");
    }
}

#[test]
fn being_served_counts_as_use_and_survives_a_restart() {
    let (_outer, folder) = new_folder();
    let entries = [sample(1, 5), sample(2, 5)];
    store_aged(&folder, &[(&entries[0], 30), (&entries[1], 20)]);
    assert!(entries[0].is_served(&mut open(&folder)));
    assert_eq!(survivors(&folder, &entries.each_ref()), [0]);
}

#[test]
fn being_put_again_counts_as_use() {
    let (_outer, folder) = new_folder();
    let entries = [sample(1, 5), sample(2, 5)];
    store_aged(&folder, &[(&entries[0], 30), (&entries[1], 20)]);
    assert_eq!(entries[0].put(&mut open(&folder)), Put::Present);
    assert_eq!(survivors(&folder, &entries.each_ref()), [0]);
}

#[test]
fn what_is_dear_to_recompute_stays_longer() {
    for (age_s, expected) in [(30, [0]), (300, [1])] {
        let (_outer, folder) = new_folder();
        let mut entries = [sample(1, 5), sample(2, 5)];
        entries[0].header.prefill_us = 99_999;
        entries[1].header.prefill_us = 10_000;
        store_aged(&folder, &[(&entries[0], age_s), (&entries[1], 20)]);
        assert_eq!(survivors(&folder, &entries.each_ref()), expected, "ten times as dear");
    }
}

#[test]
fn of_equal_cost_and_age_the_larger_goes() {
    let (_outer, folder) = new_folder();
    let entries = [sample(1, 5), sample(2, 50)];
    store_aged(&folder, &[(&entries[0], 30), (&entries[1], 30)]);
    assert_eq!(survivors(&folder, &entries.each_ref()), [0]);
}

#[test]
fn pinned_entries_stay_and_can_leave_no_room() {
    let (_outer, folder) = new_folder();
    let entries = [sample(1, 5), sample(2, 5)];
    store_aged(&folder, &[(&entries[0], 30), (&entries[1], 20)]);
    let used = open(&folder).used_bytes();
    let mut store = Store::open(&folder, used).unwrap();
    store.pin(&entries[0].key);
    assert_eq!(sample(3, 5).put(&mut store), Put::Stored);
    assert!(entries[0].is_served(&mut store) && !entries[1].is_served(&mut store));

    store.pin(&sample(3, 5).key);
    let bytes = used / 2;
    let refused = sample(4, 5).put(&mut store);
    assert_eq!(refused, Put::NoRoom { bytes, pinned_bytes: used });
    assert!(refused.to_string().contains("unpin"), "{refused}");
    assert_eq!(store.entries().count(), 2, "nothing goes for what cannot be stored");

    store.unpin(&entries[0].key);
    assert!(!store.is_pinned(&entries[0].key));
    assert_eq!(sample(4, 5).put(&mut store), Put::Stored);
    assert!(!entries[0].is_served(&mut store));
}

#[test]
fn what_exceeds_the_budget_alone_evicts_nothing() {
    let (_outer, folder) = new_folder();
    let entry = sample(1, 5);
    store_aged(&folder, &[(&entry, 30)]);
    let budget_bytes = file_bytes(&folder, &entry);
    let mut store = Store::open(&folder, budget_bytes).unwrap();
    let outcome = sample(2, 6).put(&mut store);
    assert!(matches!(outcome, Put::TooLarge { budget_bytes: b, .. } if b == budget_bytes));
    assert!(entry.is_served(&mut store));
}

#[test]
fn a_smaller_budget_takes_effect_at_once() {
    let (_outer, folder) = new_folder();
    let entries = [sample(1, 5), sample(2, 5), sample(3, 5)];
    store_aged(&folder, &[(&entries[0], 30), (&entries[1], 20), (&entries[2], 10)]);
    let bytes = file_bytes(&folder, &entries[0]);
    let mut store = Store::open(&folder, bytes).unwrap();
    assert_eq!(store.used_bytes(), 3 * bytes, "opening alone deletes nothing");
    store.pin(&entries[0].key);
    store.set_budget(2 * bytes);
    assert_eq!((store.used_bytes(), store.budget_bytes()), (2 * bytes, 2 * bytes));
    assert_eq!(store.stats().evicted, 1);
    assert!(entries[0].is_served(&mut store) && entries[2].is_served(&mut store));
}

#[test]
fn what_another_process_wrote_counts() {
    let (_outer, folder) = new_folder();
    let (mine, theirs) = (sample(1, 5), sample(2, 5));
    let mut other = Store::open(&folder, AMPLE).unwrap();
    mine.put(&mut other);
    let bytes = other.used_bytes();
    other.remove(&mine.key);
    let mut store = Store::open(&folder, bytes).unwrap();
    theirs.put(&mut other);
    assert_eq!(mine.put(&mut store), Put::Stored);
    assert_eq!(names(&folder, ".safetensors"), [format!("{}.safetensors", mine.key)]);
}
