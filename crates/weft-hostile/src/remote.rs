//! Objects that lie in a remote store: a manifest and its rows, or a label and its card.
//!
//! An input is the small object, which has two lines, and then the large one. Both lie where a
//! reader looks for them, whatever the input says that they are.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use weft_core::chunk::{Chunk, ChunkId, Kind};
use weft_remote::{Limits, Pulled, Remote, Trust};

use crate::{BUDGET_BYTES, FINGERPRINT, KEY, parcel_tokenizer, seal};

/// The tokenizer's name in the store.
pub const VOCABULARY: &str = "0123456789abcdef";

/// The folder of everything.
const PREFIX: &str = "kv";

/// Digits in names.
const GROUP_DIGITS: usize = 16;
const HASH_DIGITS: usize = 32;

/// The chunk whose text and rows are in the store.
pub fn remote_chunk() -> Chunk {
    let chunk = Chunk::new(parcel_tokenizer(), Kind::Context, "A text.", Default::default());
    Chunk { created: std::time::UNIX_EPOCH, ..chunk.expect("a chunk") }
}

/// Objects of a remote store: as they are, and with their checksums and signatures made right.
/// Whatever is pulled is what its name says.
pub fn remote(input: &[u8]) {
    static SCENE: OnceLock<Mutex<Shelf>> = OnceLock::new();
    let scene = SCENE.get_or_init(|| Mutex::new(Shelf::new()));
    let scene = scene.lock().unwrap_or_else(PoisonError::into_inner);
    for bytes in [Some(input.to_vec()), seal::remote(input)].into_iter().flatten() {
        scene.read(&bytes);
    }
}

/// The number of chunks and of files of rows that an input holds, as it is.
pub fn pulled_from(input: &[u8]) -> (usize, usize) {
    Shelf::new().read(input)
}

/// A store, and somebody who reads it.
struct Shelf {
    store: Arc<InMemory>,
    remote: Remote,
    runtime: Runtime,
    chunk: Chunk,
}

impl Shelf {
    fn new() -> Self {
        let store = Arc::new(InMemory::new());
        let trust = Trust::Key(KEY);
        let remote = Remote::with_store(Arc::clone(&store) as _, PREFIX, trust, Limits::default());
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        Self { store, remote: remote.expect("threads"), runtime, chunk: remote_chunk() }
    }

    /// Has the objects of an input read; nothing of them stays.
    fn read(&self, input: &[u8]) -> (usize, usize) {
        let objects = objects(input, &self.chunk.id);
        self.runtime.block_on(async {
            for (path, bytes) in &objects {
                let payload = PutPayload::from(bytes.clone());
                self.store.put(path, payload).await.expect("memory");
            }
        });
        let pulled = (self.pull_chunks(), self.pull_rows());
        self.runtime.block_on(async {
            for (path, _) in &objects {
                self.store.delete(path).await.expect("it is there");
            }
        });
        pulled
    }

    fn pull_chunks(&self) -> usize {
        let labels = self.remote.labels(VOCABULARY).expect("a store in memory");
        let pulled = labels.labels.iter().filter_map(|label| {
            let chunk = self.remote.pull_chunk(VOCABULARY, label).ok()?;
            assert_eq!((chunk.id, chunk.kind), (label.id, label.kind));
            Some(chunk)
        });
        pulled.count()
    }

    fn pull_rows(&self) -> usize {
        let mut n_pulled = 0;
        let take = |pulled| {
            let Ok(Pulled { key, header, rows }) = pulled else { return };
            assert_eq!((key, header.fingerprint.as_str()), (header.key(), FINGERPRINT));
            assert!(self.chunk.is_in(&header.tokens));
            assert_eq!(header.full_bytes(), Some(rows.k.len()));
            assert_eq!(header.full_bytes(), Some(rows.v.len()));
            if header.form.is_coarse() {
                let numbers = [header.dtype.numbers(&rows.k), header.dtype.numbers(&rows.v)];
                assert!(numbers.iter().flatten().all(|number| number.is_finite()));
            }
            n_pulled += 1;
        };
        let (remote, any) = (&self.remote, |_: &_| Ok(()));
        let pulled = remote.pull_rows(&self.chunk, FINGERPRINT, BUDGET_BYTES, any, take);
        pulled.expect("a store in memory");
        n_pulled
    }
}

/// The objects of an input, each where a reader looks for it.
fn objects(input: &[u8], chunk: &ChunkId) -> Vec<(Path, Vec<u8>)> {
    let (small, large) = split(input);
    let json: Value = small
        .split(|byte| *byte == b'\n')
        .next()
        .map_or(Value::Null, |line| serde_json::from_slice(line).unwrap_or_default());
    let text = |name: &str| json.get(name).and_then(Value::as_str).unwrap_or_default();
    let (small, large) = (small.to_vec(), large.to_vec());
    if json.get("metadata").is_some() {
        let id = text("id").parse().unwrap_or(*chunk);
        let folder = format!("{PREFIX}/names/{VOCABULARY}/{id}");
        let card = begin(&blake3::hash(&large), HASH_DIGITS);
        return vec![
            (Path::from(format!("{folder}/{card}")), large),
            (Path::from(format!("{folder}/label")), small),
        ];
    }
    let digits = |name: &str, n: usize| {
        let is_hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        let begin = text(name).get(..n).filter(|begin| begin.chars().all(is_hex));
        begin.map_or_else(|| "0".repeat(n), str::to_owned)
    };
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase());
    let reuse = Some(text("reuse")).filter(|word| is_word(word)).unwrap_or("exact");
    let model = begin(&blake3::hash(text("fingerprint").as_bytes()), GROUP_DIGITS);
    let (parent, key) = (digits("parent", GROUP_DIGITS), digits("key", HASH_DIGITS));
    let place = format!("{model}/{reuse}/{parent}/{key}");
    let rows = format!("{PREFIX}/rows/{place}/{}", begin(&name_of_rows(&json), HASH_DIGITS));
    vec![
        (Path::from(rows), large),
        (Path::from(format!("{PREFIX}/rows/{place}/manifest")), small),
        (Path::from(format!("{PREFIX}/uses/{chunk}/{place}")), b"\n".to_vec()),
    ]
}

/// The hash that names the rows of a manifest.
fn name_of_rows(manifest: &Value) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"weft remote rows 1\0");
    let ranges = manifest.get("ranges").and_then(Value::as_array).into_iter().flatten();
    for text in ranges.filter_map(Value::as_array).flatten().filter_map(Value::as_str) {
        if let Ok(hash) = blake3::Hash::from_hex(text) {
            hasher.update(hash.as_bytes());
        }
    }
    hasher.finalize()
}

/// The two lines of an input, and what follows them.
pub(crate) fn split(input: &[u8]) -> (&[u8], &[u8]) {
    let mut ends = input.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    let end = ends.nth(1).map_or(input.len(), |(at, _)| at + 1);
    input.split_at(end)
}

fn begin(hash: &blake3::Hash, digits: usize) -> String {
    let mut text = hash.to_string();
    text.truncate(digits);
    text
}
