//! Registered chunks in a shared store, the rows that are found with them, and what is deleted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use weft_core::chunk::{Chunk, Kind};
use weft_core::dtype::Dtype;
use weft_core::store::{Header, HostRows, KvKey, RowForm, SigningKey};
use weft_remote::{Limits, Pulled, Remote, Sweep, Swept, Trust, Written};

const VOCABULARY: &str = "0123456789abcdef";
const MODEL: &str = "model on device";
const HOUR: Duration = Duration::from_secs(60 * 60);

fn key(byte: u8) -> Trust {
    Trust::Key(SigningKey::from_bytes([byte; 32]))
}

fn open(store: &Arc<dyn ObjectStore>, trust: Trust) -> Remote {
    Remote::with_store(Arc::clone(store), "team", trust, Limits::default()).unwrap()
}

fn memory() -> Arc<dyn ObjectStore> {
    Arc::new(InMemory::new())
}

fn chunk(name: &str, tokens: &[u32]) -> Chunk {
    let text = format!("The text of {name}.");
    Chunk {
        metadata: BTreeMap::from([("name".to_owned(), name.to_owned())]),
        created: SystemTime::UNIX_EPOCH + HOUR,
        ..Chunk::of_tokens(Kind::Context, text, tokens.to_vec())
    }
}

fn entry(tokens: &[u32]) -> (KvKey, Header, Arc<HostRows>) {
    let header = Header {
        fingerprint: MODEL.to_owned(),
        dtype: Dtype::F32,
        form: RowForm::Full,
        layers: 2,
        kv_width: 4,
        reuse: "exact".to_owned(),
        parent: KvKey::NOTHING,
        home_position: 0,
        tokens: tokens.to_vec(),
        prefill_us: 5,
    };
    let n = header.tensor_bytes().unwrap();
    let list = |byte: u8| vec![byte; n].into();
    let rows = HostRows { k: list(tokens[0] as u8), v: list(tokens[0] as u8 + 1) };
    (header.key(), header, Arc::new(rows))
}

fn push(remote: &Remote, chunk: &Chunk, tokens: &[u32]) {
    let (key, header, rows) = entry(tokens);
    remote.push_rows(&chunk.id, &key, &header, &rows).unwrap();
}

fn pull(
    remote: &Remote,
    chunk: &Chunk,
    model: &str,
    limit: u64,
) -> Vec<Result<Pulled, &'static str>> {
    let mut all = Vec::new();
    remote
        .pull_rows(
            chunk,
            model,
            limit,
            |_| Ok(()),
            |pulled| all.push(pulled.map_err(|miss| miss.name())),
        )
        .unwrap();
    all
}

fn paths(store: &Arc<dyn ObjectStore>) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let listed = store.list(None).map(|meta| meta.unwrap().location.to_string());
    let mut paths: Vec<String> = runtime.block_on(listed.collect());
    paths.sort();
    paths
}

fn change(store: &Arc<dyn ObjectStore>, path: &str, change: impl Fn(Vec<u8>) -> Option<Vec<u8>>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let path = Path::from(path);
        let bytes = store.get(&path).await.unwrap().bytes().await.unwrap().to_vec();
        match change(bytes) {
            Some(bytes) => drop(store.put(&path, bytes.into()).await.unwrap()),
            None => store.delete(&path).await.unwrap(),
        }
    });
}

#[test]
fn a_chunk_and_its_rows_are_found_by_name_on_another_machine() {
    let folder = tempfile::tempdir().unwrap();
    let files: Arc<dyn ObjectStore> =
        Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap());
    for store in [memory(), files] {
        let here = open(&store, key(1));
        let handbook = Chunk { uses: 7, pinned: true, ..chunk("handbook", &[1, 2, 3]) };
        assert!(matches!(here.push_chunk(VOCABULARY, &handbook), Ok(Written::New { .. })));
        assert_eq!(here.push_chunk(VOCABULARY, &handbook).unwrap(), Written::Present);
        here.push_chunk(VOCABULARY, &chunk("other", &[4])).unwrap();
        push(&here, &handbook, &[1, 2, 3]);
        push(&here, &handbook, &[9, 1, 2, 3]);

        let there = open(&store, key(1));
        let labels = there.labels(VOCABULARY).unwrap();
        let names: Vec<_> = labels.labels.iter().map(|label| label.name().unwrap()).collect();
        assert_eq!((names, labels.refused.len()), (vec!["handbook", "other"], 0));
        assert!(there.labels("fedcba").unwrap().labels.is_empty());
        let digits = handbook.id.to_string();
        for name in ["handbook", &digits, &digits[..6]] {
            let [label] = labels.find(name)[..] else { panic!("{name}") };
            let pulled = there.pull_chunk(VOCABULARY, label).unwrap();
            assert_eq!(pulled, chunk("handbook", &[1, 2, 3]), "use counts stay at home");
        }
        assert!(labels.find(&digits[..3]).is_empty());
        let all = pull(&there, &handbook, MODEL, 1 << 20);
        assert_eq!(all.len(), 2);
        for pulled in all {
            let Pulled { key, header, rows } = pulled.unwrap();
            assert_eq!((key, header.clone(), Arc::new(rows)), entry(&header.tokens));
        }
        assert!(pull(&there, &handbook, "another model", 1 << 20).is_empty());
        let small: Vec<_> =
            pull(&there, &handbook, MODEL, 200).into_iter().map(|p| p.is_ok()).collect();
        assert_eq!(small.iter().filter(|fits| **fits).count(), 1, "one of them fits in 200 bytes");
    }
}

#[test]
fn a_new_name_replaces_the_old_one() {
    let store = memory();
    let remote = open(&store, key(1));
    remote.push_chunk(VOCABULARY, &chunk("old", &[1, 2])).unwrap();
    remote.push_chunk(VOCABULARY, &chunk("new", &[1, 2])).unwrap();
    let labels = remote.labels(VOCABULARY).unwrap();
    assert_eq!(labels.labels.len(), 1);
    assert_eq!(labels.labels[0].name(), Some("new"));
    let pulled = remote.pull_chunk(VOCABULARY, &labels.labels[0]).unwrap();
    assert_eq!(pulled.name(), Some("new"));
}

#[test]
fn what_nobody_trusted_signed_is_refused() {
    let store = memory();
    let (stranger, remote) = (open(&store, key(2)), open(&store, key(1)));
    let planted = chunk("planted", &[1, 2]);
    stranger.push_chunk(VOCABULARY, &planted).unwrap();
    push(&stranger, &planted, &[1, 2]);
    let labels = remote.labels(VOCABULARY).unwrap();
    assert!(labels.labels.is_empty());
    assert_eq!(labels.refused[0].1.name(), "signature");
    assert_eq!(pull(&remote, &planted, MODEL, 1 << 20).pop().unwrap().unwrap_err(), "signature");
    let careful = open(&store, Trust::Nobody);
    assert_eq!(careful.labels(VOCABULARY).unwrap().labels.len(), 1, "texts can be read");
    assert_eq!(pull(&careful, &planted, MODEL, 1 << 20).pop().unwrap().unwrap_err(), "untrusted");
}

/// Users with the key would lose the chunk: they refuse a label without a signature.
#[test]
fn a_writer_without_a_key_does_not_replace_what_is_signed() {
    let store = memory();
    let team = open(&store, key(1));
    team.push_chunk(VOCABULARY, &chunk("handbook", &[1, 2])).unwrap();
    for trust in [Trust::Nobody, Trust::Anyone] {
        let renamed = open(&store, trust).push_chunk(VOCABULARY, &chunk("renamed", &[1, 2]));
        let miss = renamed.unwrap_err();
        assert_eq!(miss.name(), "signed");
        assert!(miss.to_string().contains("--remote-key FILE"), "{miss}");
    }
    let labels = team.labels(VOCABULARY).unwrap();
    assert_eq!((labels.labels[0].name(), labels.refused.len()), (Some("handbook"), 0));
    open(&store, key(2)).push_chunk(VOCABULARY, &chunk("renamed", &[1, 2])).unwrap();
    // What nobody has signed, anybody replaces.
    let (anyone, other) = (open(&store, Trust::Anyone), [3, 4]);
    anyone.push_chunk(VOCABULARY, &chunk("a", &other)).unwrap();
    anyone.push_chunk(VOCABULARY, &chunk("b", &other)).unwrap();
}

#[test]
fn rows_that_do_not_hold_the_chunk_are_refused() {
    let store = memory();
    let remote = open(&store, key(1));
    let handbook = chunk("handbook", &[1, 2, 3]);
    // Somebody names other rows as rows of this chunk.
    push(&remote, &handbook, &[5, 6, 7]);
    assert_eq!(pull(&remote, &handbook, MODEL, 1 << 20).pop().unwrap().unwrap_err(), "card");
}

#[test]
fn damaged_cards_and_labels_are_refused() {
    let store = memory();
    let remote = open(&store, key(1));
    remote.push_chunk(VOCABULARY, &chunk("handbook", &[1, 2, 3])).unwrap();
    let [card, label] = &paths(&store)[..] else { panic!() };
    let flip = |mut bytes: Vec<u8>| {
        bytes[40] ^= 1;
        Some(bytes)
    };
    let labels = remote.labels(VOCABULARY).unwrap();
    let pull = || remote.pull_chunk(VOCABULARY, &labels.labels[0]).unwrap_err().name();
    change(&store, card, flip);
    assert_eq!(pull(), "card");
    change(&store, card, |bytes| Some([bytes, vec![0]].concat()));
    assert_eq!(pull(), "too_large");
    change(&store, card, |_| None);
    assert_eq!(pull(), "absent");
    change(&store, label, flip);
    let labels = remote.labels(VOCABULARY).unwrap();
    assert_eq!((labels.labels.len(), labels.refused[0].1.name()), (0, "manifest_checksum"));
}

/// A store whose objects have the age that a test gives them.
fn files_of_age(folder: &std::path::Path, which: &str, age: Duration) {
    let entries = std::fs::read_dir(folder).unwrap();
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            files_of_age(&path, which, age);
        } else if path.to_str().unwrap().contains(which) {
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
        }
    }
}

#[test]
fn old_rows_and_rows_over_the_budget_are_deleted_and_chunks_stay() {
    let folder = tempfile::tempdir().unwrap();
    let store: Arc<dyn ObjectStore> =
        Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap());
    let remote = open(&store, key(1));
    let handbook = chunk("handbook", &[1]);
    remote.push_chunk(VOCABULARY, &handbook).unwrap();
    for (n, hours) in [(1, 30), (2, 20), (3, 10), (4, 0)] {
        push(&remote, &handbook, &[n, 1]);
        let name = entry(&[n, 1]).0.to_string()[..32].to_owned();
        files_of_age(folder.path(), &name, hours * HOUR);
    }
    std::fs::write(folder.path().join("team/readme.txt"), "not weft's").unwrap();
    let all = remote.sweep(&Sweep::default()).unwrap();
    assert_eq!((all.deleted, all.leftovers, all.left.0), ((0, 0), (0, 0), 4));
    let one = all.left.1 / 4;

    let swept = remote.sweep(&Sweep { older_than: Some(25 * HOUR), max_bytes: None }).unwrap();
    assert_eq!((swept.deleted, swept.left), ((1, one), (3, 3 * one)));
    let swept = remote.sweep(&Sweep { older_than: None, max_bytes: Some(2 * one) }).unwrap();
    assert_eq!((swept.deleted, swept.left), ((1, one), (2, 2 * one)));
    let left: Vec<u32> = pull(&remote, &handbook, MODEL, 1 << 20)
        .into_iter()
        .map(|pulled| pulled.unwrap().header.tokens[0])
        .collect();
    assert_eq!(
        {
            let mut l = left;
            l.sort_unstable();
            l
        },
        [3, 4]
    );
    assert_eq!(remote.labels(VOCABULARY).unwrap().labels.len(), 1);
    let swept = remote.sweep(&Sweep { older_than: Some(Duration::ZERO), max_bytes: None }).unwrap();
    assert_eq!((swept.deleted.0, swept.left), (2, (0, 0)));
    let rest = paths(&store);
    assert_eq!(rest.len(), 4, "card, label, clock and the file of others: {rest:?}");
    assert!(rest.iter().any(|path| path.ends_with("readme.txt")), "{rest:?}");
}

#[test]
fn the_oldest_rows_go_first_whatever_their_names() {
    for (ages, left) in [([2, 1], 2), ([1, 2], 1)] {
        let folder = tempfile::tempdir().unwrap();
        let store: Arc<dyn ObjectStore> =
            Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap());
        let remote = open(&store, key(1));
        let handbook = chunk("handbook", &[1]);
        for (n, hours) in [1, 2].into_iter().zip(ages) {
            push(&remote, &handbook, &[n, 1]);
            let name = entry(&[n, 1]).0.to_string()[..32].to_owned();
            files_of_age(folder.path(), &name, hours * HOUR);
        }
        let one = remote.sweep(&Sweep::default()).unwrap().left.1 / 2;
        remote.sweep(&Sweep { older_than: None, max_bytes: Some(one) }).unwrap();
        let pulled = pull(&remote, &handbook, MODEL, 1 << 20);
        let tokens: Vec<u32> =
            pulled.into_iter().map(|pulled| pulled.unwrap().header.tokens[0]).collect();
        assert_eq!(tokens, [left], "{ages:?}");
    }
}

/// Their age is that of their last use: another chunk has stored them again.
#[test]
fn rows_that_a_chunk_has_used_lately_stay() {
    let folder = tempfile::tempdir().unwrap();
    let store: Arc<dyn ObjectStore> =
        Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap());
    let remote = open(&store, key(1));
    push(&remote, &chunk("handbook", &[1]), &[1, 1]);
    push(&remote, &chunk("handbook", &[1]), &[2, 1]);
    files_of_age(folder.path(), "", 30 * HOUR);
    push(&remote, &chunk("minutes", &[2]), &[1, 1]);
    let old = Sweep { older_than: Some(25 * HOUR), max_bytes: None };
    let swept = remote.sweep(&old).unwrap();
    assert_eq!((swept.deleted.0, swept.left.0), (1, 1));
}

#[test]
fn leftovers_are_deleted_when_no_writer_can_complete_them() {
    let folder = tempfile::tempdir().unwrap();
    let store: Arc<dyn ObjectStore> =
        Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap());
    let remote = open(&store, key(1));
    let handbook = chunk("handbook", &[1]);
    push(&remote, &handbook, &[1, 1]);
    push(&remote, &handbook, &[2, 1]);
    let all = paths(&store);
    let rows_of = |n: u32, manifest: bool| {
        let name = entry(&[n, 1]).0.to_string()[..32].to_owned();
        let is_it = |p: &&String| {
            p.contains("/rows/") && p.contains(&name) && p.ends_with("manifest") == manifest
        };
        all.iter().find(is_it).unwrap().clone()
    };
    change(&store, &rows_of(1, true), |_| None);
    change(&store, &rows_of(2, false), |_| None);
    assert_eq!(remote.sweep(&Sweep::default()).unwrap(), Swept::default(), "they may be new");
    files_of_age(folder.path(), "", 2 * HOUR);
    let swept = remote.sweep(&Sweep::default()).unwrap();
    assert_eq!((swept.leftovers.0, swept.deleted, swept.left), (4, (0, 0), (0, 0)));
    assert_eq!(paths(&store), ["team/clock"]);
}
