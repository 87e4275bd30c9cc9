//! Lists that are longer than any honest one, or do not end.

use std::sync::atomic::Ordering;

use object_store::path::Path;
use weft_core::chunk::{Chunk, ChunkId, Kind};
use weft_remote::{Miss, Sweep};

use super::*;

const VOCABULARY: &str = "0123456789abcdef";

/// More than any listing may have.
const MANY: usize = 1_100_000;

fn chunk(n: u32) -> ChunkId {
    ChunkId::of(Kind::Context, &[n])
}

/// The misses of everything that lists a folder.
fn misses(remote: &Remote) -> Vec<&'static str> {
    let name = |miss: Miss| miss.name();
    let used = remote.pull_rows(&weft_chunk(), "model on device", 1 << 20, |_| Ok(()), |_| ());
    let results = [
        remote.labels(VOCABULARY).map(drop).map_err(name),
        used.map_err(name),
        remote.sweep(&Sweep::default()).map(drop).map_err(name),
    ];
    results.into_iter().map(|result| result.err().unwrap_or("none")).collect()
}

fn weft_chunk() -> Chunk {
    Chunk::of_tokens(Kind::Context, "One.".to_owned(), vec![1])
}

/// Objects that nobody asked for count too: they take time, and could go on without end.
#[test]
fn a_list_with_more_objects_than_anybody_stores_is_refused() {
    let store = Faulty::new();
    let remote = open(&store);
    assert_eq!(misses(&remote), ["none"; 3]);
    store.n_invented.store(MANY, Ordering::SeqCst);
    assert_eq!(misses(&remote), ["too_many"; 3]);
}

#[test]
fn a_list_that_does_not_come_is_given_up() {
    let store = Faulty::new();
    let remote =
        open_as(&store, Trust::Key(KEY), Limits { listing: Duration::from_millis(1), ..limits() });
    store.n_invented.store(usize::MAX, Ordering::SeqCst);
    assert_eq!(misses(&remote), ["timeout"; 3]);
    assert_eq!(remote.has_rows(&chunk(1)).unwrap_err().name(), "timeout");
}

/// Each is short enough, and nobody can use it; all of them are read.
#[test]
fn labels_that_are_too_long_together_are_refused() {
    let store = Faulty::new();
    let remote = open(&store);
    let plant = |n: u32| {
        let path = format!("team/kv/names/{VOCABULARY}/{}/label", chunk(n));
        store.write(&Path::from(path), vec![b' '; 1 << 20]);
    };
    (0..64).for_each(plant);
    assert_eq!(remote.labels(VOCABULARY).unwrap().refused.len(), 64);
    plant(64);
    assert_eq!(misses(&remote)[0], "too_large");
}
