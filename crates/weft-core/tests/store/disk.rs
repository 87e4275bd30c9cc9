//! Disks that are full, read-only or absent. They are mounted in the test's own namespace. If that
//! is not allowed, the tests are skipped; `src/store/tests.rs` injects the same faults.

use std::fs;
use std::process::Command;

use weft_core::store::{Put, Store, StoreError};
use weft_testing::{Missing, skip};

use crate::samples::{AMPLE, child_in_namespace, folder_of_child, names, new_folder, open, sample};

/// Runs a test of this program on its own disk; returns false if none can be mounted.
fn ran_on_mount(options: &str, test: &str) -> bool {
    let (_outer, folder) = new_folder();
    fs::create_dir(&folder).unwrap();
    let mount = format!("mount -t tmpfs -o mode=0700,{options} tmpfs \"$1\"");
    let may_mount = Command::new("unshare")
        .args(["-rm", "sh", "-c", &mount, "sh"])
        .arg(&folder)
        .output()
        .is_ok_and(|output| output.status.success());
    if !may_mount {
        skip(Missing::Mount, &options);
        return false;
    }
    let output = child_in_namespace(&mount, test, &folder).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    true
}

#[test]
fn a_full_disk_makes_room_and_then_turns_writing_off() {
    let Some(folder) = folder_of_child() else {
        ran_on_mount("size=256k", "disk::a_full_disk_makes_room_and_then_turns_writing_off");
        return;
    };
    // About 19 KiB each: the disk holds a dozen, the budget thousands.
    let entries: Vec<_> = (0..40).map(|n| sample(n, 256)).collect();
    let mut store = open(&folder);
    for entry in &entries {
        assert_eq!(entry.put(&mut store), Put::Stored);
        assert!(entry.is_served(&mut store));
    }
    let evicted = store.stats().evicted;
    assert!(evicted > 20, "{evicted} evicted");
    assert!(!entries[0].is_served(&mut store) && entries[38].is_served(&mut store));

    let kept: Vec<_> = entries.iter().filter(|entry| entry.is_served(&mut store)).collect();
    assert!(kept.len() >= 8, "{} kept", kept.len());
    kept.iter().for_each(|entry| store.pin(&entry.key));
    assert_eq!(sample(100, 512).put(&mut store), Put::Off);
    assert_eq!(sample(101, 1).put(&mut store), Put::Off);
    let warnings = store.take_warnings();
    assert!(warnings.len() == 1 && warnings[0].contains("No space left"), "{warnings:?}");
    assert!(kept.iter().all(|entry| entry.is_served(&mut store)), "reads go on");
    assert_eq!(names(&folder, ".tmp"), [""; 0]);
    assert_eq!(open(&folder).entries().count(), kept.len(), "a full disk can be opened");
}

#[test]
fn a_read_only_folder_is_an_error_that_says_so() {
    let Some(folder) = folder_of_child() else {
        ran_on_mount("ro", "disk::a_read_only_folder_is_an_error_that_says_so");
        return;
    };
    let error = Store::open(&folder, AMPLE).map(|_| ()).unwrap_err();
    assert!(matches!(error, StoreError::Unwritable { .. }), "{error}");
    let error = error.to_string();
    for part in [&format!("{folder:?}"), "Read-only", "choose another folder"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_folder_that_cannot_be_made_is_an_error_that_names_it() {
    let (outer, _) = new_folder();
    let file = outer.path().join("file");
    fs::write(&file, "mine").unwrap();
    for folder in [file.clone(), file.join("below")] {
        let error = Store::open(&folder, AMPLE).map(|_| ()).unwrap_err();
        assert!(matches!(error, StoreError::Folder { .. }), "{error}");
        assert!(error.to_string().contains(&format!("{folder:?}")), "{error}");
    }
}

#[test]
fn a_folder_removed_while_in_use_costs_no_answer() {
    let (_outer, folder) = new_folder();
    let entry = sample(1, 5);
    let mut store = open(&folder);
    entry.put(&mut store);
    fs::remove_dir_all(&folder).unwrap();
    assert!(!entry.is_served(&mut store));
    assert_eq!(store.stats().quarantined, 0);
    assert_eq!(entry.put(&mut store), Put::Off);
    assert!(store.stats().off.is_some());
}
