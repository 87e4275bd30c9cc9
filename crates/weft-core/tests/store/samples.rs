//! Sample entries, and helpers for folders. Every entry follows from a number, so that another
//! process knows it too.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use weft_core::dtype::Dtype;
use weft_core::store::{Header, HostRows, KvKey, Put, RowBytes, RowForm, Store};

/// Enough for every test that is not about budgets.
pub const AMPLE: u64 = 1 << 30;

/// SplitMix64: the same numbers for the same seed, on every machine.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

/// An entry whose every part follows from a number.
#[derive(Clone)]
pub struct Sample {
    pub key: KvKey,
    pub header: Header,
    pub rows: HostRows,
}

/// Entry `n` with `n_tokens` rows. Numbers have a fixed width, so entries of one length are files
/// of one size.
pub fn sample(n: u64, n_tokens: usize) -> Sample {
    let mut random = Random(n);
    let header = Header {
        fingerprint: "Qwen3-0.6B/cpu".to_owned(),
        dtype: Dtype::Bf16,
        form: RowForm::Full,
        layers: 2,
        kv_width: 8,
        reuse: "exact".to_owned(),
        parent: key(n + 1_000_000),
        home_position: 1000 + n as usize % 1000,
        tokens: (0..n_tokens).map(|_| 100_000 + random.below(50_000) as u32).collect(),
        prefill_us: 50_000,
    };
    let bytes = header.tensor_bytes().unwrap();
    let rows = HostRows { k: random.bytes(bytes).into(), v: random.bytes(bytes).into() };
    Sample { key: key(n), header, rows }
}

/// The same in 8 bits, of rows that can be stored so.
pub fn coarse_sample(n: u64, n_tokens: usize) -> Sample {
    let Sample { key, header, .. } = sample(n, n_tokens);
    let header = Header { form: RowForm::Int8 { group: 4 }, reuse: "coarse".to_owned(), ..header };
    let n_numbers = header.full_bytes().unwrap() / 2;
    let mut random = Random(n);
    // From a half to two, either sign.
    let mut number = || [random.next() as u8, 0x3f | (random.next() as u8 & 0x80)];
    let mut numbers = || (0..n_numbers).flat_map(|_| number()).collect::<RowBytes>();
    let rows = HostRows { k: numbers(), v: numbers() };
    let stored = header.stored(&rows).unwrap().unwrap();
    Sample { key, rows: header.read_stored(stored).unwrap(), header }
}

pub fn key(n: u64) -> KvKey {
    let mut random = Random(!n);
    KvKey::from_bytes(std::array::from_fn(|_| random.next() as u8))
}

impl Sample {
    pub fn put(&self, store: &mut Store) -> Put {
        store.put(&self.key, &self.header, &self.rows)
    }

    /// Whether the entry is returned. Returned rows must be correct.
    pub fn is_served(&self, store: &mut Store) -> bool {
        let found = store.get(&self.key, &self.header);
        assert!(found.is_none() || found.as_ref() == Some(&self.rows), "wrong rows were served");
        found.is_some()
    }

    pub fn file(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.safetensors", self.key))
    }
}

/// A folder that does not exist yet, inside one that is removed with the returned value.
pub fn new_folder() -> (TempDir, PathBuf) {
    let outer = TempDir::new().unwrap();
    let folder = outer.path().join("chunks");
    (outer, folder)
}

pub fn open(folder: &Path) -> Store {
    Store::open(folder, AMPLE).unwrap()
}

/// A folder with one entry, closed, and the bytes of its file.
pub fn folder_with(sample: &Sample) -> (TempDir, PathBuf, Vec<u8>) {
    let (outer, folder) = new_folder();
    assert_eq!(sample.put(&mut open(&folder)), Put::Stored);
    let bytes = fs::read(sample.file(&folder)).unwrap();
    (outer, folder, bytes)
}

/// The offset of a text in a file.
pub fn find(bytes: &[u8], text: &str) -> usize {
    bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap()
}

/// Names in a folder with an ending, sorted; empty if there is no folder.
pub fn names(folder: &Path, ending: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(ending))
        .collect();
    names.sort();
    names
}

/// The files in quarantine, oldest first.
pub fn quarantined(folder: &Path) -> Vec<PathBuf> {
    let quarantine = folder.join("quarantine");
    names(&quarantine, "").into_iter().map(|name| quarantine.join(name)).collect()
}

/// The variable with the folder of a test that was started as another process.
const FOLDER_VARIABLE: &str = "WEFT_STORE_TEST_FOLDER";

/// The folder, if a test started this process.
pub fn folder_of_child() -> Option<PathBuf> {
    std::env::var_os(FOLDER_VARIABLE).map(PathBuf::from)
}

/// The program and arguments that run one test of this binary alone.
pub fn command_of(test: &str) -> Vec<OsString> {
    let program = std::env::current_exe().unwrap().into_os_string();
    let arguments = ["--exact", test, "--nocapture", "--test-threads=1"];
    std::iter::once(program).chain(arguments.map(OsString::from)).collect()
}

/// A process that runs one test of this binary as a child, with a folder to work in.
pub fn child(test: &str, folder: &Path) -> Command {
    let parts = command_of(test);
    let mut command = Command::new(&parts[0]);
    command.args(&parts[1..]).env(FOLDER_VARIABLE, folder);
    command
}

/// The same in its own mount namespace, after a shell command that gets the folder as `$1`.
pub fn child_in_namespace(setup: &str, test: &str, folder: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", &format!("{setup} && shift && exec \"$@\""), "sh"]);
    command.arg(folder).args(command_of(test)).env(FOLDER_VARIABLE, folder);
    command
}
