//! Entries exported from one store and imported into another. A refusal must say why, and must not
//! change the file or the store.

use std::fs;

use weft_core::store::{Store, StoreError};

use crate::samples::{AMPLE, find, folder_with, key, names, new_folder, open, quarantined, sample};

const FINGERPRINT: &str = "Qwen3-0.6B/cpu";

#[test]
fn an_exported_entry_can_be_imported_elsewhere() {
    let entry = sample(1, 5);
    let (outer, folder, bytes) = folder_with(&entry);
    let file = outer.path().join("chunk.safetensors");
    open(&folder).export(&entry.key, &file).unwrap();
    assert_eq!(fs::read(&file).unwrap(), bytes);

    let (_other, elsewhere) = new_folder();
    let mut store = open(&elsewhere);
    for _ in 0..2 {
        let (key, header) = store.import(&file, FINGERPRINT).unwrap();
        assert_eq!((key, header), (entry.key, entry.header.clone()));
    }
    assert!(entry.is_served(&mut store));
}

#[test]
fn an_entry_of_several_blocks_is_exported_whole() {
    let entry = sample(1, 40_000);
    let (outer, folder, bytes) = folder_with(&entry);
    let file = outer.path().join("chunk.safetensors");
    open(&folder).export(&entry.key, &file).unwrap();
    assert!(bytes.len() > 2 << 20 && fs::read(&file).unwrap() == bytes);
}

#[test]
fn nothing_is_exported_over_a_file_or_from_a_damaged_entry() {
    let entry = sample(1, 5);
    let (outer, folder, mut bytes) = folder_with(&entry);
    let mut store = open(&folder);
    let file = outer.path().join("mine");
    fs::write(&file, "mine").unwrap();
    let error = store.export(&entry.key, &file).unwrap_err().to_string();
    assert!(error.contains("name a new file"), "{error}");
    assert_eq!(fs::read(&file).unwrap(), b"mine");

    *bytes.last_mut().unwrap() ^= 1;
    fs::write(entry.file(&folder), bytes).unwrap();
    let target = outer.path().join("new");
    let error = store.export(&entry.key, &target).unwrap_err().to_string();
    assert!(error.contains(&entry.key.to_string()) && error.contains("checksum"), "{error}");
    assert!(!target.exists());
    assert_eq!(quarantined(&folder).len(), 1);

    let error = store.export(&key(7), &target).unwrap_err().to_string();
    assert!(error.contains("no file has this key"), "{error}");
}

/// A refusal says what and why; nothing is stored, and the file is unchanged.
#[test]
fn damaged_and_foreign_files_are_not_imported() {
    let entry = sample(1, 5);
    let (outer, _folder, bytes) = folder_with(&entry);
    let changed = |at: usize| {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        changed
    };
    let foreign = br#"{"__metadata__":{"format":"pt"}}"#;
    let foreign = [&(foreign.len() as u64).to_le_bytes()[..], foreign].concat();
    let in_tokens = find(&bytes, r#""tokens":""#) + 12;
    let cases: [(&str, Vec<u8>, &str); 6] = [
        ("rows", changed(bytes.len() - 1), "the checksum of its rows"),
        ("header", changed(in_tokens), "its header does not match its checksum"),
        ("cut", bytes[..bytes.len() - 1].to_vec(), "its header says"),
        ("empty", Vec::new(), "it has 0 bytes"),
        ("foreign", foreign, "its format is \"pt\""),
        ("text", b"no header at all, but long enough for one".to_vec(), "its header claims"),
    ];
    let (_other, elsewhere) = new_folder();
    let mut store = open(&elsewhere);
    for (name, content, expected) in cases {
        let file = outer.path().join(name);
        fs::write(&file, &content).unwrap();
        let error = store.import(&file, FINGERPRINT).unwrap_err();
        assert!(matches!(error, StoreError::Refused { .. }), "{error}");
        let error = error.to_string();
        assert!(error.contains(expected) && error.contains(name), "{error}");
        assert_eq!(fs::read(&file).unwrap(), content);
    }
    assert_eq!(names(&elsewhere, ".safetensors"), [""; 0]);
    let error = store.import(&outer.path().join("nowhere"), FINGERPRINT).unwrap_err().to_string();
    assert!(error.contains("nowhere"), "{error}");
}

#[test]
fn an_entry_of_another_model_is_not_imported() {
    let entry = sample(1, 5);
    let (_outer, folder, _) = folder_with(&entry);
    let (_other, elsewhere) = new_folder();
    let mut store = open(&elsewhere);
    let error = store.import(&entry.file(&folder), "Llama-3/cpu").unwrap_err().to_string();
    for part in ["fingerprint", FINGERPRINT, "Llama-3/cpu"] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(store.entries().count(), 0);
}

#[test]
fn an_entry_that_does_not_fit_is_not_imported() {
    let entry = sample(1, 5);
    let (_outer, folder, bytes) = folder_with(&entry);
    let (_other, elsewhere) = new_folder();
    let mut store = Store::open(&elsewhere, bytes.len() as u64 - 1).unwrap();
    let error = store.import(&entry.file(&folder), FINGERPRINT).unwrap_err().to_string();
    assert!(error.contains("raise the budget"), "{error}");
    store.set_budget(AMPLE);
    assert!(store.import(&entry.file(&folder), FINGERPRINT).is_ok());
}
