//! Objects that are damaged, cut, exchanged or forged. Each is a counted miss, and rows that were
//! damaged are written again.

use std::sync::atomic::Ordering;

use object_store::path::Path;
use weft_core::chunk::{Chunk, Kind};
use weft_core::store::{Header, SigningKey};
use weft_remote::{Miss, Trust};

use super::faulty::Faulty;
use super::*;

fn is_manifest(path: &Path) -> bool {
    path.as_ref().ends_with("/manifest")
}

/// Whether rows came back, and the reason if not. Wrong rows fail the test.
fn outcome(store: &Arc<Faulty>, header: &Header) -> Option<String> {
    let remote = open(store);
    match fetch(&remote, header) {
        Some(found) => {
            assert!(found == *rows(header), "wrong rows");
            None
        }
        None => {
            let stats = remote.stats();
            assert_eq!((stats.hits, stats.misses), (0, 1));
            Some(stats.reasons.keys().next().unwrap().to_string())
        }
    }
}

#[test]
fn a_thousand_flipped_bits_give_no_wrong_row() {
    let store = Faulty::new();
    let wanted = header(&[1, 2, 3]);
    store_rows(&open(&store), &wanted);
    let lengths: Vec<(Path, usize)> =
        store.paths().into_iter().map(|path| (path.clone(), store.bytes(&path).len())).collect();
    let total_bits: usize = lengths.iter().map(|(_, bytes)| 8 * bytes).sum();
    let mut n_misses = 0;
    for n in 0..1000 {
        let mut bit = n * total_bits / 1000 + n % 8;
        let (path, _) = lengths
            .iter()
            .find(|(_, bytes)| match bit.checked_sub(8 * bytes) {
                Some(rest) => {
                    bit = rest;
                    false
                }
                None => true,
            })
            .unwrap()
            .clone();
        store.damage(move |read, mut bytes| {
            if *read == path {
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            Ok(bytes)
        });
        n_misses += usize::from(outcome(&store, &wanted).is_some());
    }
    assert_eq!(n_misses, 1000);
    store.heal();
    assert_eq!(outcome(&store, &wanted), None);
}

#[test]
fn truncated_and_longer_objects_are_misses() {
    let store = Faulty::new();
    let wanted = header(&[1, 2, 3]);
    store_rows(&open(&store), &wanted);
    // In the body of an answer.
    for keep in [0, 1, 100] {
        store.damage(move |_, mut bytes| {
            bytes.truncate(keep);
            Ok(bytes)
        });
        assert_eq!(outcome(&store, &wanted).as_deref(), Some("length"), "{keep} bytes");
        store.damage(move |path, mut bytes| {
            if !is_manifest(path) {
                bytes.truncate(keep);
            }
            Ok(bytes)
        });
        assert_eq!(outcome(&store, &wanted).as_deref(), Some("length"), "{keep} bytes of rows");
    }
    store.damage(|path, mut bytes| {
        if !is_manifest(path) {
            bytes.push(0);
        }
        Ok(bytes)
    });
    assert_eq!(outcome(&store, &wanted).as_deref(), Some("length"));
    store.heal();
    // In the store itself.
    for path in store.paths() {
        let whole = store.bytes(&path);
        for keep in [0, 1, whole.len() / 2, whole.len() - 1] {
            store.write(&path, whole[..keep].to_vec());
            let reason = outcome(&store, &wanted);
            let expected = if is_manifest(&path) { "form" } else { "length" };
            assert_eq!(reason.as_deref(), Some(expected), "{keep} bytes of {path}");
        }
        store.write(&path, whole);
    }
    assert_eq!(outcome(&store, &wanted), None);
}

/// However much a store sends, no more than a piece beyond what was asked for is read.
#[test]
fn what_was_not_asked_for_is_not_read() {
    let store = Faulty::new();
    let wanted = header(&[1, 2, 3]);
    store_rows(&open(&store), &wanted);
    store.damage(|path, mut bytes| {
        if !is_manifest(path) {
            bytes.resize(1 << 24, 0);
        }
        Ok(bytes)
    });
    assert_eq!(outcome(&store, &wanted).as_deref(), Some("length"));
    let n_sent = store.n_sent.load(Ordering::SeqCst);
    assert!(n_sent < 1 << 20, "{n_sent} bytes");
}

#[test]
fn rows_of_another_entry_under_this_name_are_misses() {
    let store = Faulty::new();
    let (wanted, other) = (header(&[1, 2, 3]), header(&[4, 5, 6]));
    store_rows(&open(&store), &wanted);
    let ours = store.paths();
    let there = Faulty::new();
    store_rows(&open(&there), &other);
    let theirs = there.paths();
    // The other's rows under our name.
    let whole = store.bytes(&ours[0]);
    store.write(&ours[0], there.bytes(&theirs[0]));
    assert_eq!(outcome(&store, &wanted).as_deref(), Some("range_checksum"));
    store.write(&ours[0], whole);
    // The other's manifest under our name.
    store.write(&ours[1], there.bytes(&theirs[1]));
    assert_eq!(outcome(&store, &wanted).as_deref(), Some("key"));
}

#[test]
fn another_model_or_position_is_a_miss() {
    let store = Faulty::new();
    let wanted = header(&[1, 2, 3]);
    store_rows(&open(&store), &wanted);
    let moved = Header { home_position: 18, ..wanted.clone() };
    assert_eq!(outcome(&store, &moved).as_deref(), Some("home_position"));
    let wide = Header { kv_width: 65, ..wanted.clone() };
    assert_eq!(outcome(&store, &wide).as_deref(), Some("layers_x_width"));
    let model = Header { fingerprint: "another".to_owned(), ..wanted.clone() };
    assert_eq!(outcome(&store, &model).as_deref(), Some("absent"));
    let reuse = Header { reuse: "a/../b".to_owned(), ..wanted };
    assert_eq!(outcome(&store, &reuse).as_deref(), Some("form"));
}

#[test]
fn only_rows_signed_with_the_key_are_read() {
    let other = Trust::Key(SigningKey::from_bytes([4; 32]));
    for (writer, reason) in [(Trust::Anyone, "unsigned"), (other, "signature")] {
        let store = Faulty::new();
        let wanted = header(&[1, 2, 3]);
        store_rows(&open_as(&store, writer, limits()), &wanted);
        assert_eq!(outcome(&store, &wanted).as_deref(), Some(reason));
        // Whoever has the key and computes the rows replaces what cannot be used.
        store_rows(&open(&store), &wanted);
        assert_eq!(outcome(&store, &wanted), None);
    }
}

#[test]
fn without_a_key_rows_are_read_only_if_the_user_says_so() {
    let store = Faulty::new();
    let wanted = header(&[1, 2, 3]);
    store_rows(&open_as(&store, Trust::Nobody, limits()), &wanted);
    let before = store.reads();
    let remote = open_as(&store, Trust::Nobody, limits());
    assert_eq!(fetch(&remote, &wanted), None);
    assert_eq!((remote.stats().count("untrusted"), store.reads()), (1, before));
    let remote = open_as(&store, Trust::Anyone, limits());
    assert_eq!(fetch(&remote, &wanted).as_ref(), Some(&*rows(&wanted)));
}

#[test]
fn a_manifest_without_its_rows_is_a_miss_and_is_healed() {
    let store = Faulty::new();
    let wanted = header(&[1, 2, 3]);
    store_rows(&open(&store), &wanted);
    let manifest = store.paths().pop().unwrap();
    let damaged = Faulty::new();
    damaged.write(&manifest, store.bytes(&manifest));
    let remote = open(&damaged);
    assert_eq!(fetch(&remote, &wanted), None);
    assert_eq!(reasons(&remote.stats()), [("rows_absent", 1)]);
    store_rows(&remote, &wanted);
    assert_eq!(fetch(&remote, &wanted).as_ref(), Some(&*rows(&wanted)));
}

#[test]
fn rows_that_were_found_damaged_are_written_again() {
    let store = Faulty::new();
    let wanted = header(&[1, 2, 3]);
    store_rows(&open(&store), &wanted);
    let path = store.paths().remove(0);
    let mut bytes = store.bytes(&path);
    bytes[5] ^= 1;
    store.write(&path, bytes);
    let remote = open(&store);
    assert_eq!(fetch(&remote, &wanted), None);
    store_rows(&remote, &wanted);
    assert_eq!(fetch(&remote, &wanted).as_ref(), Some(&*rows(&wanted)));
}

/// Changes a word of the only manifest, and seals it again. Returns where it lies, and its bytes.
fn forge_manifest(store: &Faulty, from: &str, to: &str) -> (Path, Vec<u8>) {
    let path = store.paths().pop().unwrap();
    let text = String::from_utf8(store.bytes(&path)).unwrap();
    let body = text.lines().next().unwrap().replace(from, to);
    let seal = format!("{{\"blake3\":\"{}\"}}", blake3::hash(body.as_bytes()));
    let forged = format!("{body}\n{seal}\n").into_bytes();
    store.write(&path, forged.clone());
    (path, forged)
}

#[test]
fn a_manifest_that_promises_much_takes_no_memory() {
    // Signed, consistent, and about a terabyte of rows.
    let store = Faulty::new();
    let wanted = header(&[1, 2, 3]);
    let remote = open_as(&store, Trust::Anyone, limits());
    store_rows(&remote, &wanted);
    forge_manifest(&store, "\"kv_width\":64", "\"kv_width\":64000000000");
    let remote = open_as(&store, Trust::Anyone, limits());
    assert_eq!(fetch(&remote, &wanted), None);
    assert_eq!(reasons(&remote.stats()), [("layers_x_width", 1)]);
    // An object of endless length.
    store.damage(|_, bytes| Ok([bytes, vec![b' '; 9 << 20]].concat()));
    let remote = open_as(&store, Trust::Anyone, limits());
    assert_eq!(fetch(&remote, &wanted), None);
    assert_eq!(reasons(&remote.stats()), [("length", 1)]);
}

/// Their manifest says already that they are of no use.
#[test]
fn rows_that_are_not_wanted_are_not_asked_for() {
    let store = Faulty::new();
    let remote = open(&store);
    let stored = header(&[1, 2, 3]);
    let chunk = |tokens: &[u32]| Chunk::of_tokens(Kind::Context, String::new(), tokens.to_vec());
    for tokens in [&[1, 2, 3], &[1, 2, 4]] {
        remote.push_rows(&chunk(tokens).id, &key(&stored), &stored, &rows(&stored)).unwrap();
    }
    let n_sent = || store.n_sent.swap(0, Ordering::SeqCst);
    let pull = |tokens: &[u32], limit, fits: fn(&Header) -> Result<(), Miss>| {
        let mut found = Vec::new();
        let take = |pulled: Result<_, Miss>| found.push(pulled.map(drop).map_err(|m| m.name()));
        remote.pull_rows(&chunk(tokens), &stored.fingerprint, limit, fits, take).unwrap();
        found.pop().unwrap()
    };
    let everything = |_: &Header| Ok(());
    // Only damaged reads are counted.
    store.damage(|path, bytes| Ok(if is_manifest(path) { bytes } else { vec![0; bytes.len()] }));
    assert_eq!(pull(&[1, 2, 3], 1 << 20, everything), Err("range_checksum"));
    let with_rows = n_sent();
    assert_eq!(pull(&[1, 2, 3], 1 << 20, |_| Err(Miss::Elsewhere)), Err("elsewhere"));
    let manifest = n_sent();
    assert!(manifest < with_rows, "{manifest} and {with_rows} bytes");
    assert_eq!(pull(&[1, 2, 4], 1 << 20, everything), Err("card"));
    assert_eq!(n_sent(), manifest);
    assert_eq!(pull(&[1, 2, 3], 1, everything), Err("too_large"));
    assert_eq!(n_sent(), manifest);
}

#[test]
fn what_a_later_version_wrote_is_neither_read_nor_replaced() {
    let store = Faulty::new();
    let wanted = header(&[1, 2, 3]);
    let remote = open_as(&store, Trust::Anyone, limits());
    store_rows(&remote, &wanted);
    let (manifest, later) = forge_manifest(&store, "\"version\":1", "\"version\":3");
    let remote = open_as(&store, Trust::Anyone, limits());
    assert_eq!(fetch(&remote, &wanted), None);
    assert_eq!(reasons(&remote.stats()), [("version", 1)]);
    store_rows(&remote, &wanted);
    assert_eq!(remote.stats().count_failed("version"), 1);
    assert_eq!(store.bytes(&manifest), later);
}
