//! Tests that need internals of the store: a disk that fails on demand, files that are being
//! written.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use super::temp::TempFile;
use super::*;
use crate::dtype::Dtype;

fn key(n: u8) -> KvKey {
    KvKey::from_bytes([n; 32])
}

/// One layer of one token; each `n` has its own rows.
fn sample(n: u8) -> (KvKey, Header, HostRows) {
    let header = Header {
        fingerprint: "model".to_owned(),
        dtype: Dtype::Bf16,
        form: RowForm::Full,
        layers: 1,
        kv_width: 4,
        reuse: "exact".to_owned(),
        parent: KvKey::NOTHING,
        home_position: 0,
        tokens: vec![u32::from(n)],
        prefill_us: 1,
    };
    (key(n), header, HostRows { k: vec![n; 8].into(), v: vec![!n; 8].into() })
}

fn put(store: &mut Store, n: u8) -> Put {
    let (key, header, rows) = sample(n);
    store.put(&key, &header, &rows)
}

fn is_served(store: &mut Store, n: u8) -> bool {
    let (key, header, rows) = sample(n);
    store.get(&key, &header).is_some_and(|found| {
        assert_eq!(found, rows);
        true
    })
}

/// A store with the entries 1 to 3, whose next `n_failures` files fail after a few bytes.
fn failing(n_failures: usize, kind: ErrorKind) -> (TempDir, Store) {
    let folder = TempDir::new().unwrap();
    let mut store = Store::open(&folder.path().join("chunks"), 1 << 20).unwrap();
    for n in 1..=3 {
        assert_eq!(put(&mut store, n), Put::Stored);
    }
    let mut left = n_failures;
    store.write_bytes = Box::new(move |file, bytes| {
        if left == 0 {
            return file.write_all(bytes);
        }
        left -= 1;
        file.write_all(&bytes[..bytes.len() / 2])?;
        Err(kind.into())
    });
    (folder, store)
}

fn names(folder: &Path, ending: &str) -> Vec<String> {
    let names =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(ending)).collect()
}

const FULL: [ErrorKind; 3] =
    [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::FileTooLarge];

#[test]
fn a_full_disk_is_met_by_evicting_and_one_more_try() {
    for kind in FULL {
        let (_folder, mut store) = failing(1, kind);
        assert_eq!(put(&mut store, 4), Put::Stored, "{kind:?}");
        assert!(is_served(&mut store, 4));
        assert_eq!(store.stats().evicted, 1, "as much as was needed, and no more");
        assert!(!is_served(&mut store, 1), "the oldest goes first");
        assert!(store.take_warnings().is_empty() && store.stats().off.is_none());
    }
}

#[test]
fn a_disk_that_stays_full_turns_writing_off_with_one_warning() {
    for kind in FULL {
        let (folder, mut store) = failing(2, kind);
        assert_eq!(put(&mut store, 4), Put::Off, "{kind:?}");
        assert_eq!(put(&mut store, 5), Put::Off, "the disk works again, the tier stays off");
        let warnings = store.take_warnings();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("free space"), "{warnings:?}");
        assert_eq!(store.stats().off.as_ref(), Some(&warnings[0]));
        assert!(is_served(&mut store, 2) && is_served(&mut store, 3), "reads go on");
        assert_eq!(names(&folder.path().join("chunks"), ".tmp"), [""; 0]);

        store.set_budget(1 << 20);
        assert_eq!(put(&mut store, 5), Put::Stored, "a new budget is a new try");
    }
}

#[test]
fn pinned_entries_outlive_a_full_disk() {
    let (_folder, mut store) = failing(2, ErrorKind::StorageFull);
    (1..=3).for_each(|n| store.pin(&key(n)));
    assert_eq!(put(&mut store, 4), Put::Off);
    assert!((1..=3).all(|n| is_served(&mut store, n)));
}

#[test]
fn another_failure_evicts_nothing() {
    let (_folder, mut store) = failing(1, ErrorKind::PermissionDenied);
    assert_eq!(put(&mut store, 4), Put::Off);
    assert_eq!(store.take_warnings().len(), 1);
    assert!((1..=3).all(|n| is_served(&mut store, n)));
}

/// Stores samples as one group.
fn put_all(store: &mut Store, samples: impl IntoIterator<Item = u8>) -> Vec<Put> {
    let samples: Vec<_> = samples.into_iter().map(sample).collect();
    let entries: Vec<_> =
        samples.iter().map(|(key, header, rows)| NewEntry { key, header, rows }).collect();
    store.put_all(&entries)
}

#[test]
fn a_group_has_the_results_of_its_entries_one_by_one() {
    let (folder, mut store) = failing(0, ErrorKind::Other);
    let budget = 4 * store.used_bytes() / 3;
    store.set_budget(budget);
    let mut expected = vec![Put::Present];
    expected.extend([Put::Stored; 4]);
    assert_eq!(put_all(&mut store, 3..=7), expected);
    assert!(store.used_bytes() <= budget);
    assert_eq!((store.stats().stored, store.stats().evicted), (7, 3));
    // As another process sees it.
    let mut store = Store::open(&folder.path().join("chunks"), budget).unwrap();
    let served: Vec<u8> = (1..=7).filter(|n| is_served(&mut store, *n)).collect();
    assert_eq!(served, [4, 5, 6, 7]);
    assert_eq!(names(&folder.path().join("chunks"), ".tmp"), [""; 0]);
}

#[test]
fn a_full_disk_costs_a_group_no_more_than_it_must() {
    for kind in FULL {
        let (_folder, mut store) = failing(1, kind);
        assert_eq!(put_all(&mut store, 4..=6), [Put::Stored; 3], "{kind:?}");
        assert!((4..=6).all(|n| is_served(&mut store, n)));
        let (_folder, mut store) = failing(usize::MAX, kind);
        assert_eq!(put_all(&mut store, 4..=6), [Put::Off; 3], "{kind:?}");
        assert_eq!(store.take_warnings().len(), 1);
    }
}

/// File systems use a clock of milliseconds. An entry must not look older than one that was read
/// before it was written.
#[test]
fn the_time_of_writing_is_exact() {
    let (_folder, mut store) = failing(0, ErrorKind::Other);
    store.write_bytes = Box::new(|file, bytes| {
        file.write_all(bytes)?;
        file.set_modified(SystemTime::UNIX_EPOCH)
    });
    let before = SystemTime::now();
    assert_eq!(put(&mut store, 4), Put::Stored);
    assert!(store.find(&key(4)).unwrap().last_use >= before);
}

#[test]
fn only_stale_temporary_files_are_swept() {
    let folder = TempDir::new().unwrap();
    let being_written = TempFile::create(folder.path()).unwrap();
    for name in ["7-0.tmp", "7-1.tmp", "notes.tmp", "a-1.tmp", "7-.tmp"] {
        fs::write(folder.path().join(name), "half").unwrap();
    }
    let store = Store::open(folder.path(), 1 << 20).unwrap();
    assert_eq!(store.stats().swept_temp_files, 2);
    let left = names(folder.path(), ".tmp");
    assert_eq!(left.len(), 4, "{left:?}");

    let to = folder.path().join("done");
    being_written.rename(&to).unwrap();
    assert!(to.exists());
}

#[test]
fn a_header_beyond_what_is_read_is_not_written() {
    let folder = TempDir::new().unwrap();
    let mut store = Store::open(folder.path(), 1 << 30).unwrap();
    let (key, header, _) = sample(1);
    let header = Header { tokens: vec![1_000_000; 2_200_000], layers: 0, ..header };
    let rows = HostRows { k: Vec::new().into(), v: Vec::new().into() };
    assert!(matches!(store.put(&key, &header, &rows), Put::TooLarge { .. }));
    assert_eq!(names(folder.path(), ".safetensors"), [""; 0]);
}

/// One layer of one token in 8 bits, with a scale, under the right checksums.
fn write_coarse(folder: &Path, scale: u16) -> (KvKey, Header) {
    let (_, header, _) = sample(1);
    let form = RowForm::Int8 { group: 4 };
    let header = Header { form, reuse: "coarse".to_owned(), ..header };
    let [low, high] = scale.to_le_bytes();
    let rows = HostRows { k: vec![0, 127, 0x81, 0x80, low, high].into(), v: vec![0; 6].into() };
    let key = header.key();
    let checksum = format::hash_rows(&rows).to_string();
    let head = format::encode(&key, &header, &checksum).unwrap();
    fs::write(file_of(folder, &key), [&head[..], &rows.k, &rows.v].concat()).unwrap();
    (key, header)
}

#[test]
fn coarse_rows_whose_scales_are_no_magnitudes_are_moved_away() {
    for (scale, is_fine) in [(0x3f80, true), (0x7f80, false), (0x7fc0, false), (0xbf80, false)] {
        let folder = TempDir::new().unwrap();
        let (key, header) = write_coarse(folder.path(), scale);
        let mut store = Store::open(folder.path(), 1 << 20).unwrap();
        let rows = store.get(&key, &header);
        assert_eq!(rows.is_some(), is_fine, "{scale:x}");
        let numbers = rows.map(|rows| Dtype::Bf16.numbers(&rows.k));
        assert!(numbers.is_none_or(|numbers| numbers == [0.0, 1.0, -1.0, -1.0]));
        let counts = (store.stats().count("scale"), store.stats().quarantined);
        assert_eq!(counts, if is_fine { (0, 0) } else { (1, 1) });
    }
}

#[test]
fn coarse_rows_are_never_written_unless_they_are_numbers() {
    let folder = TempDir::new().unwrap();
    let mut store = Store::open(folder.path(), 1 << 20).unwrap();
    let (_, header, rows) = sample(1);
    let header = Header { form: RowForm::Int8 { group: 2 }, ..header };
    let k = [&0x7f80_u16.to_le_bytes()[..], &rows.k[2..]].concat();
    let wrong = HostRows { k: k.into(), ..rows.clone() };
    assert_eq!(store.put(&header.key(), &header, &wrong), Put::NotFinite);
    assert_eq!(store.put(&header.key(), &header, &rows), Put::Stored);
    assert!(store.find(&header.key()).unwrap().bytes > 0);
}

#[cfg(unix)]
#[test]
fn a_folder_that_others_can_write_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = TempDir::new().unwrap();
    for mode in [0o720, 0o702, 0o777] {
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
        let refused = Store::open(folder.path(), 1 << 20).err();
        assert!(matches!(refused, Some(StoreError::Shared { .. })), "{mode:o}");
        assert!(refused.unwrap().to_string().contains("chmod 700"), "{mode:o}");
    }
}

#[test]
fn a_full_disk_is_tried_again_after_a_while() {
    let (_folder, mut store) = failing(2, ErrorKind::StorageFull);
    (1..=3).for_each(|n| store.pin(&key(n)));
    assert_eq!(put(&mut store, 4), Put::Off);
    let stats = store.stats();
    assert!(stats.disk_is_full && stats.off.is_some() && stats.failed_writes == 1, "{stats:?}");
    assert_eq!(put(&mut store, 4), Put::Off, "not at once");
    store.full_since =
        store.full_since.and_then(|since| since.checked_sub(Duration::from_secs(60)));
    assert_eq!(put(&mut store, 4), Put::Stored);
    assert!(!store.stats().disk_is_full && store.stats().off.is_none());
}

#[test]
fn warnings_are_bounded() {
    let mut warnings = Warnings::default();
    (0..1000).for_each(|n| warnings.add(n.to_string()));
    let texts = warnings.take(Path::new("q"));
    assert_eq!(texts.len(), 33);
    assert_eq!(texts[32], "and 968 more warnings about cached rows");
    assert!(warnings.take(Path::new("q")).is_empty());
}
