//! Files that changed since they were written, and files with other rows than requested. Each must
//! be a miss with a reason, and lie unchanged in quarantine.

use std::fs;
use std::path::Path;

use weft_core::dtype::Dtype;
use weft_core::store::{Header, Put, RowForm, Store};

use crate::samples::{
    AMPLE, Random, Sample, coarse_sample, find, folder_with, key, names, new_folder, open,
    quarantined, sample,
};

/// The damaged file is a miss, is counted under one reason, and lies unchanged in quarantine.
fn assert_refused(store: &mut Store, folder: &Path, entry: &Sample, damaged: &[u8], what: &str) {
    let before = store.stats().clone();
    assert!(!entry.is_served(store), "{what}");
    let stats = store.stats();
    assert_eq!(stats.misses, before.misses + 1, "{what}");
    assert_eq!(stats.quarantined, before.quarantined + 1, "{what}");
    let counted = |stats: &weft_core::store::StoreStats| stats.reasons.values().sum::<u64>();
    assert_eq!(counted(stats), counted(&before) + 1, "{what}");
    assert!(store.find(&entry.key).is_none() && !entry.file(folder).exists(), "{what}");
    let newest = quarantined(folder).pop().unwrap();
    assert_eq!(fs::read(newest).unwrap(), damaged, "{what}");
    assert_eq!(store.take_warnings().len(), 1, "{what}");
}

#[test]
fn every_single_bit_of_a_file_matters() {
    [sample(1, 3), coarse_sample(1, 3)].iter().for_each(flip_every_bit);
}

fn flip_every_bit(entry: &Sample) {
    let (_outer, folder, bytes) = folder_with(entry);
    let mut store = open(&folder);
    for bit in 0..8 * bytes.len() {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        fs::write(entry.file(&folder), &damaged).unwrap();
        assert_refused(&mut store, &folder, entry, &damaged, &format!("bit {bit}"));
    }
    println!("{} bits flipped, reasons: {:?}", 8 * bytes.len(), store.stats().reasons);
    for reason in ["header_length", "header_text", "version", "header_checksum", "payload_checksum"]
    {
        assert!(store.stats().count(reason) > 0, "{reason}");
    }
    assert_eq!(entry.put(&mut store), Put::Stored, "it can be written again");
    assert!(entry.is_served(&mut store));
}

#[test]
fn a_flipped_bit_of_a_large_file_is_found_after_a_restart() {
    let entry = sample(1, 900);
    let (_outer, folder, bytes) = folder_with(&entry);
    let mut random = Random(1);
    let mut found_at_open = 0;
    for _ in 0..1000 {
        let bit = random.below(8 * bytes.len() as u64) as usize;
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        fs::write(entry.file(&folder), &damaged).unwrap();
        let mut store = open(&folder);
        found_at_open += store.stats().quarantined;
        assert!(!entry.is_served(&mut store), "bit {bit}");
        assert_eq!(store.stats().quarantined, 1, "bit {bit}");
    }
    assert!((1..1000).contains(&found_at_open), "headers at open, rows when read");
}

#[test]
fn a_file_cut_or_extended_anywhere_is_refused() {
    let entry = sample(1, 5);
    let (_outer, folder, bytes) = folder_with(&entry);
    let header_end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let k_end = header_end + entry.rows.k.len();
    let cuts = [0, 1, 7, 8, 9, header_end / 2, header_end - 1, header_end, header_end + 1]
        .into_iter()
        .chain([(header_end + k_end) / 2, k_end, k_end + 1, bytes.len() - 1, bytes.len() + 1]);
    for length in cuts {
        let mut damaged = bytes.clone();
        damaged.resize(length, 0);
        fs::write(entry.file(&folder), &damaged).unwrap();
        let mut store = open(&folder);
        assert_eq!(store.stats().quarantined, 1, "{length}: its length is checked at open");
        fs::write(entry.file(&folder), &damaged).unwrap();
        store.take_warnings();
        assert_refused(&mut store, &folder, &entry, &damaged, &format!("{length} bytes"));
    }
}

/// An intact file with other rows than requested is a miss, under the name of the field that
/// differs.
#[test]
fn each_field_must_be_as_expected() {
    let entry = sample(1, 5);
    let header = || entry.header.clone();
    let mut other_token = header();
    other_token.tokens[4] += 1;
    let mut fewer_tokens = header();
    fewer_tokens.tokens.pop();
    let wrong = [
        ("fingerprint", Header { fingerprint: "Qwen3-0.6B/cuda".to_owned(), ..header() }),
        ("dtype", Header { dtype: Dtype::F32, ..header() }),
        ("form", Header { form: RowForm::Int8 { group: 4 }, ..header() }),
        ("layers_x_width", Header { layers: 4, kv_width: 4, ..header() }),
        ("reuse", Header { reuse: "isolated".to_owned(), ..header() }),
        ("parent", Header { parent: key(99), ..header() }),
        ("home_position", Header { home_position: 0, ..header() }),
        ("tokens", other_token),
        ("tokens", fewer_tokens),
    ];
    for (reason, expected) in wrong {
        let (_outer, folder, bytes) = folder_with(&entry);
        let mut store = open(&folder);
        let asked = Sample { header: expected, ..entry.clone() };
        assert_refused(&mut store, &folder, &asked, &bytes, reason);
        assert_eq!(store.stats().count(reason), 1, "{reason}: {:?}", store.stats());
    }
    let (_outer, folder, _) = folder_with(&entry);
    let dearer = Header { prefill_us: 1, ..header() };
    assert!(open(&folder).get(&entry.key, &dearer).is_some(), "the cost does not matter");
}

#[test]
fn rows_put_over_others_of_the_same_key_replace_them() {
    let entry = sample(1, 5);
    let (_outer, folder, _) = folder_with(&entry);
    let mut store = open(&folder);
    let moved = Sample {
        header: Header { home_position: 7, ..entry.header.clone() },
        rows: sample(2, 5).rows,
        ..entry
    };
    assert_eq!(moved.put(&mut store), Put::Stored);
    assert!(moved.is_served(&mut store));
    assert_eq!(store.stats().count("home_position"), 1);
}

#[test]
fn a_file_of_another_version_is_called_that() {
    let entry = sample(1, 5);
    let (_outer, folder, bytes) = folder_with(&entry);
    let mut newer = bytes.clone();
    newer[find(&bytes, r#""version":"1""#) + r#""version":""#.len()] = b'3';
    fs::write(entry.file(&folder), newer).unwrap();
    let mut store = open(&folder);
    assert_eq!(store.stats().count("version"), 1);
    let warning = store.take_warnings().remove(0);
    for part in
        [entry.key.to_string().as_str(), "version \"3\"", "expected \"1 or 2\"", "quarantine"]
    {
        assert!(warning.contains(part), "`{warning}` does not say `{part}`");
    }
}

#[test]
fn a_renamed_file_is_not_taken_for_another_entry() {
    let (mine, other) = (sample(1, 5), sample(2, 5));
    let (_outer, folder, _) = folder_with(&mine);
    fs::rename(mine.file(&folder), other.file(&folder)).unwrap();
    let store = open(&folder);
    assert_eq!((store.entries().count(), store.stats().count("key")), (0, 1));
}

/// Sizes that a file only claims. The allocator of this program ends the test if they are
/// allocated.
#[test]
fn claimed_header_sizes_take_no_memory() {
    let entry = sample(1, 5);
    for claimed in [u64::MAX, 1 << 62, 1 << 40, 100 << 20, (16 << 20) + 1] {
        let (_outer, folder) = new_folder();
        let mut store = open(&folder);
        let file = fs::File::create(entry.file(&folder)).unwrap();
        file.set_len(1 << 40).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &claimed.to_le_bytes(), 0).unwrap();
        assert!(!entry.is_served(&mut store));
        assert_eq!(store.stats().count("header_length"), 1, "{claimed}");
    }
}

/// A header with a valid checksum and tensors of half a tebibyte, over a sparse file.
fn forge_huge(path: &Path, entry: &Sample, bytes: &[u8]) {
    let header_bytes = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let text = String::from_utf8(bytes[8..8 + header_bytes].to_vec()).unwrap();
    let tensor_bytes = (1u64 << 37) * entry.header.tokens.len() as u64;
    let n = entry.rows.k.len();
    let text = text
        .trim_end()
        .replace("[2,5,8]", "[262144,5,262144]")
        .replace(&format!("[0,{n}]"), &format!("[0,{tensor_bytes}]"))
        .replace(&format!("[{n},{}]", 2 * n), &format!("[{tensor_bytes},{}]", 2 * tensor_bytes));
    let (before, after) = text.split_once(r#""header_blake3":""#).unwrap();
    let unsigned = format!(r#"{before}"header_blake3":"{}"#, &after[64..]);
    let checksum = blake3::hash(unsigned.as_bytes());
    let mut text = format!(r#"{before}"header_blake3":"{checksum}{}"#, &after[64..]);
    text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));

    let head = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    fs::write(path, &head).unwrap();
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_len(head.len() as u64 + 2 * tensor_bytes).unwrap();
}

#[test]
fn rows_that_nobody_expects_take_no_memory() {
    let entry = sample(1, 5);
    let (_outer, folder, bytes) = folder_with(&entry);
    forge_huge(&entry.file(&folder), &entry, &bytes);
    let mut store = Store::open(&folder, AMPLE).unwrap();
    assert!(store.find(&entry.key).is_some(), "the header is sound: {:?}", store.take_warnings());
    let error = store.import(&entry.file(&folder), "Qwen3-0.6B/cpu").unwrap_err().to_string();
    assert!(error.contains("the budget is"), "{error}");
    assert!(!entry.is_served(&mut store));
    assert_eq!(store.stats().count("layers_x_width"), 1);
}

#[test]
fn what_is_not_a_file_is_not_opened() {
    let entry = sample(1, 5);
    let (_outer, folder, _) = folder_with(&entry);
    let elsewhere = folder.join("elsewhere");
    fs::rename(entry.file(&folder), &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, entry.file(&folder)).unwrap();
    let mut store = open(&folder);
    assert!(!entry.is_served(&mut store));
    assert_eq!(store.stats().count("not_a_file"), 1);
    assert!(elsewhere.exists());
}

#[test]
fn quarantine_keeps_the_newest_few() {
    let entry = sample(1, 5);
    let (_outer, folder, bytes) = folder_with(&entry);
    let damage = |store: &mut Store, n: u8| {
        let mut damaged = bytes.clone();
        *damaged.last_mut().unwrap() ^= n;
        fs::write(entry.file(&folder), damaged).unwrap();
        assert!(!entry.is_served(store));
    };
    let mut store = open(&folder);
    (1..=20).for_each(|n| damage(&mut store, n));
    assert_eq!(quarantined(&folder).len(), 8);
    let newest = fs::read(quarantined(&folder).pop().unwrap()).unwrap();
    assert_eq!(newest.last(), Some(&(bytes.last().unwrap() ^ 20)));

    let three_files = 3 * 8 * bytes.len() as u64;
    damage(&mut Store::open(&folder, three_files).unwrap(), 21);
    assert_eq!(quarantined(&folder).len(), 3, "an eighth of the budget");
    damage(&mut Store::open(&folder, 0).unwrap(), 22);
    assert_eq!(quarantined(&folder).len(), 1, "the newest is kept whatever the budget");
    assert_eq!(Store::open(&folder, AMPLE).unwrap().entries().count(), 0, "and never served");
    assert_eq!(names(&folder, ".safetensors"), [""; 0]);
}
