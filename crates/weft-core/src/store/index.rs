//! An index of the folder's files by key, from their headers.
//!
//! The folder is authoritative and the index a copy: other processes write and remove files too.
//! The time of last use is the file's modification time, which costs one system call per hit and
//! survives restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::read::{self, Opened};
use super::reason::Reason;
use super::{Header, KvKey};

const ENDING: &str = ".safetensors";

/// A stored chunk, without its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The description of its rows.
    pub header: Header,
    /// Size of the file.
    pub bytes: u64,
    /// When it was last written or read.
    pub last_use: SystemTime,
}

/// The entries and their total size.
#[derive(Default)]
pub(super) struct Index {
    entries: BTreeMap<KvKey, Entry>,
    used_bytes: u64,
}

impl Index {
    pub(super) fn get(&self, key: &KvKey) -> Option<&Entry> {
        self.entries.get(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&KvKey, &Entry)> {
        self.entries.iter()
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    pub(super) fn insert(&mut self, opened: Opened, last_use: SystemTime) {
        let Opened { decoded, bytes, .. } = opened;
        let entry = Entry { header: decoded.header, bytes, last_use };
        self.used_bytes += bytes;
        if let Some(before) = self.entries.insert(decoded.key, entry) {
            self.used_bytes -= before.bytes;
        }
    }

    pub(super) fn remove(&mut self, key: &KvKey) {
        if let Some(entry) = self.entries.remove(key) {
            self.used_bytes -= entry.bytes;
        }
    }

    /// Reads the folder again. Returns the files that are not valid entries, and why.
    ///
    /// # Errors
    /// If the folder cannot be listed. Then nothing changes.
    pub(super) fn refresh(&mut self, folder: &Path) -> io::Result<Vec<(KvKey, Reason)>> {
        let present = keys(folder)?;
        self.retain(&present);
        let mut refused = Vec::new();
        for key in present {
            if !self.update_last_use(folder, &key)
                && let Err(reason) = self.load(folder, &key)
            {
                refused.push((key, reason));
            }
        }
        Ok(refused)
    }

    /// Like [`refresh`](Self::refresh), but takes files that are known for unchanged: one look at
    /// the folder instead of one at each file. Times of last use may be old then.
    pub(super) fn find_changes(&mut self, folder: &Path) -> io::Result<Vec<(KvKey, Reason)>> {
        let present = keys(folder)?;
        self.retain(&present);
        let mut refused = Vec::new();
        for key in present {
            if !self.entries.contains_key(&key)
                && let Err(reason) = self.load(folder, &key)
            {
                refused.push((key, reason));
            }
        }
        Ok(refused)
    }

    fn retain(&mut self, present: &BTreeSet<KvKey>) {
        self.entries.retain(|key, _| present.contains(key));
        self.used_bytes = self.entries.values().map(|entry| entry.bytes).sum();
    }

    /// Another process may have read the file since. Returns false if the file was replaced.
    fn update_last_use(&mut self, folder: &Path, key: &KvKey) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        let Ok(metadata) = fs::symlink_metadata(file_of(folder, key)) else { return false };
        if let Ok(modified) = metadata.modified() {
            entry.last_use = modified;
        }
        metadata.is_file() && metadata.len() == entry.bytes
    }

    /// Reads the header of a file.
    fn load(&mut self, folder: &Path, key: &KvKey) -> Result<(), Reason> {
        self.remove(key);
        let opened = open(folder, key)?;
        let last_use = opened.last_use;
        self.insert(opened, last_use);
        Ok(())
    }
}

/// The file of a key.
pub(super) fn file_of(folder: &Path, key: &KvKey) -> PathBuf {
    folder.join(format!("{key}{ENDING}"))
}

/// Opens the file of a key and checks its header, including its own key.
pub(super) fn open(folder: &Path, key: &KvKey) -> Result<Opened, Reason> {
    let opened = read::header(&file_of(folder, key))?;
    match opened.decoded.key {
        found if found != *key => Err(Reason::Key { found }),
        _ => Ok(opened),
    }
}

/// Opens the file of a key and checks that it holds the rows that `expected` describes, before
/// memory is allocated for them.
pub(super) fn open_expected(
    folder: &Path,
    key: &KvKey,
    expected: &Header,
) -> Result<Opened, Reason> {
    let opened = open(folder, key)?;
    match expected.mismatch(&opened.decoded.header) {
        Some(reason) => Err(reason),
        None => Ok(opened),
    }
}

/// The keys in file names. Files with other names do not belong to the store.
fn keys(folder: &Path) -> io::Result<BTreeSet<KvKey>> {
    let mut keys = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let stem = name.to_str().and_then(|name| name.strip_suffix(ENDING));
        keys.extend(stem.and_then(|stem| stem.parse::<KvKey>().ok()));
    }
    Ok(keys)
}
