//! One entry: written, found, read, named, described, removed. Its file is also read by the
//! safetensors crate and by hand.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use safetensors::SafeTensors;
use weft_core::dtype::Dtype;
use weft_core::store::{Header, HostRows, KvKey, Put, Store};

use crate::samples::{AMPLE, Sample, folder_with, key, names, new_folder, open, sample};

#[test]
fn what_was_put_is_served_now_and_after_a_restart() {
    let (_outer, folder) = new_folder();
    let bf16 = sample(1, 5);
    let k = [&bf16.rows.k[..], &bf16.rows.v].concat();
    let f32_rows = HostRows { k: k.into(), v: vec![7; 320].into() };
    let f32 = Sample {
        key: key(2),
        header: Header { dtype: Dtype::F32, reuse: "isolated".to_owned(), ..bf16.header.clone() },
        rows: f32_rows,
    };
    let mut store = open(&folder);
    for entry in [&bf16, &f32] {
        assert!(!entry.is_served(&mut store));
        assert_eq!(entry.put(&mut store), Put::Stored);
        assert!(entry.is_served(&mut store));
        assert_eq!(entry.put(&mut store), Put::Present);
    }
    let stats = store.stats();
    assert_eq!((stats.hits, stats.misses, stats.stored), (2, 2, 2));
    assert_eq!(stats.count("absent"), 2);

    let mut again = open(&folder);
    assert!(bf16.is_served(&mut again) && f32.is_served(&mut again));
    assert!(again.take_warnings().is_empty());
}

#[test]
fn the_index_has_header_size_and_last_use() {
    let (_outer, folder) = new_folder();
    let entry = sample(1, 5);
    let mut store = open(&folder);
    let before = SystemTime::now();
    entry.put(&mut store);
    assert!(entry.is_served(&mut store), "and counted once");
    for store in [&store, &open(&folder)] {
        let found = store.find(&entry.key).unwrap();
        assert_eq!(found.header, entry.header);
        assert_eq!(found.bytes, fs::metadata(entry.file(&folder)).unwrap().len());
        assert!(found.last_use + Duration::from_millis(1) >= before);
        assert_eq!(store.used_bytes(), found.bytes);
        let keys: Vec<&KvKey> = store.entries().map(|(key, _)| key).collect();
        assert_eq!(keys, [&entry.key]);
    }
}

/// As a reader in another language sees it: safetensors, two tensors, strings.
#[test]
fn a_file_is_plain_safetensors() {
    let entry = sample(1, 5);
    let (_outer, _folder, bytes) = folder_with(&entry);
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.names().len(), 2);
    for (name, expected) in [("k", &entry.rows.k), ("v", &entry.rows.v)] {
        let tensor = file.tensor(name).unwrap();
        assert_eq!(tensor.shape(), [2, 5, 8]);
        assert_eq!(tensor.dtype(), safetensors::Dtype::BF16);
        assert_eq!(tensor.data(), &**expected);
    }
    let (header_bytes, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let fields = metadata.metadata().clone().unwrap();
    check_fields(&entry, &fields);

    let payload = [&entry.rows.k[..], &entry.rows.v].concat();
    assert_eq!(fields["payload_blake3"], blake3::hash(&payload).to_string());
    let text = std::str::from_utf8(&bytes[8..8 + header_bytes]).unwrap().trim_end();
    let unsigned = text.replace(&fields["header_blake3"], "");
    assert_eq!(fields["header_blake3"], blake3::hash(unsigned.as_bytes()).to_string());
}

fn check_fields(entry: &Sample, fields: &HashMap<String, String>) {
    let tokens: Vec<String> = entry.header.tokens.iter().map(u32::to_string).collect();
    let expected = [
        ("format", "weft-kv".to_owned()),
        ("version", "1".to_owned()),
        ("key", entry.key.to_string()),
        ("fingerprint", "Qwen3-0.6B/cpu".to_owned()),
        ("dtype", "bf16".to_owned()),
        ("reuse", "exact".to_owned()),
        ("parent", entry.header.parent.to_string()),
        ("home_position", "1001".to_owned()),
        ("tokens", tokens.join(",")),
        ("prefill_us", "50000".to_owned()),
    ];
    for (name, value) in expected {
        assert_eq!(fields[name], value, "{name}");
    }
    assert!(fields["layout"].contains("[layers][rows][kv_width]"));
    assert_eq!(fields.len(), 13, "{fields:?}");
}

#[test]
fn tensors_are_aligned_whatever_the_header() {
    for n_tokens in 1..=8 {
        let (_outer, _folder, bytes) = folder_with(&sample(1, n_tokens));
        let (header_bytes, _) = SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(header_bytes % 8, 0, "{n_tokens} tokens");
    }
}

#[test]
fn the_same_entry_is_the_same_bytes() {
    let entry = sample(1, 5);
    assert_eq!(folder_with(&entry).2, folder_with(&entry).2);
}

#[test]
fn only_the_owner_can_read() {
    let entry = sample(1, 5);
    let (_outer, folder, bytes) = folder_with(&entry);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    assert_eq!(mode(&entry.file(&folder)), 0o600);

    fs::write(entry.file(&folder), &bytes[1..]).unwrap();
    let mut store = open(&folder);
    assert_eq!(store.stats().quarantined, 1);
    assert_eq!(mode(&folder.join("quarantine")), 0o700);
    assert_eq!(store.take_warnings().len(), 1, "about the damaged file alone");

    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    let warnings = open(&folder).take_warnings();
    assert!(warnings.len() == 1 && warnings[0].contains("chmod 700"), "{warnings:?}");
}

#[test]
fn a_removed_entry_is_gone() {
    let entry = sample(1, 5);
    let (_outer, folder, _) = folder_with(&entry);
    let mut store = open(&folder);
    assert!(store.remove(&entry.key));
    assert!(!store.remove(&entry.key));
    assert!(store.find(&entry.key).is_none() && !entry.is_served(&mut store));
    assert_eq!(store.used_bytes(), 0);
    assert_eq!(names(&folder, ".safetensors"), [""; 0]);
}

#[test]
fn files_that_are_not_entries_are_left_alone() {
    let entry = sample(1, 5);
    let (_outer, folder, _) = folder_with(&entry);
    let upper_case = format!("{}.safetensors", entry.key.to_string().to_uppercase());
    for name in ["README", "model.safetensors", "notes.tmp", "7-notes.tmp", &upper_case] {
        fs::write(folder.join(name), "mine").unwrap();
    }
    let mut store = Store::open(&folder, AMPLE).unwrap();
    assert_eq!(store.entries().count(), 1);
    assert!(store.take_warnings().is_empty());
    for name in ["README", "model.safetensors", "notes.tmp", "7-notes.tmp", &upper_case] {
        assert_eq!(fs::read(folder.join(name)).unwrap(), b"mine");
    }
}

#[test]
fn a_key_has_one_spelling() {
    let text = key(1).to_string();
    assert_eq!(text.parse(), Ok(key(1)));
    assert_eq!(KvKey::NOTHING.to_string(), "0".repeat(64));
    for wrong in ["", &text[1..], &format!("{text}0"), &text.to_uppercase(), &"é".repeat(32)] {
        let error = wrong.parse::<KvKey>().unwrap_err().to_string();
        assert!(error.contains("64 lower-case hex digits"), "{error}");
    }
}

#[test]
#[should_panic(expected = "bytes of v")]
fn rows_of_another_shape_are_a_bug_of_the_caller() {
    let (_outer, folder) = new_folder();
    let mut entry = sample(1, 5);
    entry.rows.v = entry.rows.v[1..].to_vec().into();
    entry.put(&mut open(&folder));
}
