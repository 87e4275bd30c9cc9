//! KV rows on disk: each file holds the rows of some tokens after a context.
//!
//! The store defines the folder, the file format, the checks before rows are returned, and
//! eviction. It knows neither engine nor device: rows are bytes, and keys and fingerprints come
//! from the caller. A damaged file is a miss; it never fails the caller's request. Several
//! processes may share a folder: the files are authoritative, and each is either complete or
//! absent.

mod checksum;
mod coarse;
mod error;
mod evict;
mod format;
mod group;
mod header;
mod index;
mod key;
pub(crate) mod platform;
mod prefix;
pub(crate) mod put;
mod quarantine;
mod read;
mod reader;
mod reason;
mod row_bytes;
mod signing;
mod stats;
pub(crate) mod temp;
mod transfer;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

pub use coarse::{NotFinite, PackedRows, RowForm, StoredRows};
pub use error::StoreError;
pub use header::{Header, HostRows};
pub use index::Entry;
pub use key::{KeyError, KvKey};
pub(crate) use prefix::Prefix;
pub use put::{NewEntry, Put};
pub use reader::{Io, Reader, WasRead};
pub use reason::Reason;
pub use row_bytes::{LentMemory, PlainMemory, RowBytes, RowMemory};
pub use signing::{Signature, SigningKey};
pub use stats::StoreStats;

use index::{Index, file_of};
use put::WriteBytes;
use read::Opened;
use stats::Warnings;

/// A folder of chunks, with an index of its files.
pub struct Store {
    folder: PathBuf,
    budget_bytes: u64,
    index: Index,
    /// Never evicted by this process. Other processes do not know these pins.
    pins: HashSet<KvKey>,
    stats: StoreStats,
    warnings: Warnings,
    write_bytes: WriteBytes,
    reader: Reader,
    /// When the disk was last found full. After a while, writing is tried again.
    full_since: Option<Instant>,
}

impl Store {
    /// Opens a folder, and creates it if it does not exist. Removes leftovers of crashes and reads
    /// the headers of all files. Even above the budget, nothing is evicted before something is
    /// stored or [`set_budget`](Self::set_budget) is called.
    ///
    /// # Errors
    /// If the folder cannot be created, listed or written to, or if other users can write to it.
    pub fn open(folder: &Path, budget_bytes: u64) -> Result<Self, StoreError> {
        let at = || folder.to_owned();
        platform::create_private_folder(folder)
            .map_err(|source| StoreError::Folder { folder: at(), source })?;
        platform::check_ours(folder)
            .map_err(|source| StoreError::Shared { folder: at(), source })?;
        check_writable(folder).map_err(|source| StoreError::Unwritable { folder: at(), source })?;
        let mut store = Self {
            folder: at(),
            budget_bytes,
            index: Index::default(),
            pins: HashSet::new(),
            stats: StoreStats::default(),
            warnings: Warnings::default(),
            write_bytes: put::write_bytes(),
            reader: Reader::new(folder),
            full_since: None,
        };
        store.scan().map_err(|source| StoreError::List { folder: at(), source })?;
        Ok(store)
    }

    fn scan(&mut self) -> io::Result<()> {
        if platform::is_open_to_others(&self.folder)? {
            self.warnings.add(format!(
                "other users can see which chunks are in {:?}; run `chmod 700` on it",
                self.folder
            ));
        }
        self.stats.swept_temp_files = temp::sweep(&self.folder)?;
        self.reindex()
    }

    fn reindex(&mut self) -> io::Result<()> {
        let refused = self.index.refresh(&self.folder)?;
        refused.iter().for_each(|(key, reason)| self.refuse(key, reason));
        Ok(())
    }

    /// Updates the index with files that other processes added or removed.
    fn find_changes(&mut self) {
        // What is wrong with the folder is reported when it is written to.
        let refused = self.index.find_changes(&self.folder).unwrap_or_default();
        refused.iter().for_each(|(key, reason)| self.refuse(key, reason));
    }

    /// The entry of a key, from the index. Its rows may still turn out to be damaged.
    pub fn find(&self, key: &KvKey) -> Option<&Entry> {
        self.index.get(key)
    }

    /// All entries, by key.
    pub fn entries(&self) -> impl Iterator<Item = (&KvKey, &Entry)> {
        self.index.iter()
    }

    /// Updates the index with the changes of other processes.
    pub fn refresh(&mut self) {
        if let Err(error) = self.reindex() {
            self.warnings.add(format!("cannot list the cache folder {:?}: {error}", self.folder));
        }
    }

    /// Reads the rows of a key, if they match `expected` and every byte is as it was written.
    /// Anything else is a miss; a damaged file is moved to quarantine.
    pub fn get(&mut self, key: &KvKey, expected: &Header) -> Option<HostRows> {
        let (rows, was_read) = self.reader.read(key, expected);
        self.note(was_read);
        rows
    }

    /// Calls a function before each file is read or written, on the thread that does so. Tests of
    /// slow disks wait in it.
    pub fn set_before_io(&mut self, before: impl Fn(Io) + Send + Sync + 'static) {
        self.reader.before = Arc::new(before);
    }

    /// Reads rows without the store; [`note`](Self::note) takes the results.
    pub fn reader(&self) -> Reader {
        self.reader.clone()
    }

    /// Counts what was read elsewhere, and moves a damaged file to quarantine.
    pub fn note(&mut self, was_read: WasRead) {
        let WasRead { key, result } = was_read;
        match result {
            Ok(opened) => {
                self.stats.hits += 1;
                self.touch(opened);
            }
            Err(reason) => {
                self.stats.misses += 1;
                self.refuse(&key, &reason);
            }
        }
    }

    /// Records that an entry was used now.
    fn touch(&mut self, opened: Opened) {
        let now = SystemTime::now();
        // If the time cannot be written, only the age after the next start is wrong.
        let _ = opened.file.set_modified(now);
        self.index.insert(opened, now);
    }

    /// Counts why a file is not used, and moves it to quarantine if it is damaged.
    fn refuse(&mut self, key: &KvKey, reason: &Reason) {
        self.stats.add_reason(reason);
        let what_now = match reason {
            Reason::Absent => return self.index.remove(key),
            Reason::Unreadable(_) => String::new(),
            _ => match self.quarantine(key) {
                Ok(path) => {
                    let text = format!("chunk {key} is not used: {reason} (moved to {path:?})");
                    return self.warnings.add_moved(text);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    " (another process removed it)".to_owned()
                }
                Err(error) => format!(" (it cannot be moved to quarantine: {error})"),
            },
        };
        self.warnings.add(format!("chunk {key} is not used: {reason}{what_now}"));
    }

    /// Moves a file to quarantine, and returns its new path.
    fn quarantine(&mut self, key: &KvKey) -> io::Result<PathBuf> {
        self.index.remove(key);
        let path = quarantine::move_in(&self.folder, key, self.budget_bytes)?;
        self.stats.quarantined += 1;
        Ok(path)
    }

    /// Deletes an entry, pinned or not. Returns false if there was none.
    pub fn remove(&mut self, key: &KvKey) -> bool {
        self.index.remove(key);
        fs::remove_file(file_of(&self.folder, key)).is_ok()
    }

    /// Prevents this process from evicting an entry, stored now or later.
    pub fn pin(&mut self, key: &KvKey) {
        self.pins.insert(*key);
    }

    /// Undoes [`pin`](Self::pin).
    pub fn unpin(&mut self, key: &KvKey) {
        self.pins.remove(key);
    }

    /// Whether an entry is exempt from eviction.
    pub fn is_pinned(&self, key: &KvKey) -> bool {
        self.pins.contains(key)
    }

    fn pinned_bytes(&self) -> u64 {
        self.pins.iter().filter_map(|key| self.index.get(key)).map(|entry| entry.bytes).sum()
    }

    /// Changes the budget, and evicts at once down to it. If writing was off, it is tried again.
    pub fn set_budget(&mut self, budget_bytes: u64) {
        self.budget_bytes = budget_bytes;
        self.turn_on();
        self.refresh();
        self.evict(self.used_bytes().saturating_sub(budget_bytes));
    }

    /// Bytes of all entries. Quarantine is not included: it has at most an eighth of the budget, or
    /// one file.
    pub fn used_bytes(&self) -> u64 {
        self.index.used_bytes()
    }

    /// The folder of its files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Deletes the files in quarantine, and returns their number and their bytes.
    ///
    /// # Errors
    /// If a file cannot be deleted.
    pub fn empty_quarantine(&mut self) -> io::Result<(u64, u64)> {
        quarantine::empty(&self.folder)
    }

    /// Maximum bytes of all entries.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Counts since the store was opened.
    pub fn stats(&self) -> &StoreStats {
        &self.stats
    }

    /// Warnings for the user, each returned once.
    pub fn take_warnings(&mut self) -> Vec<String> {
        self.warnings.take(&quarantine::folder(&self.folder))
    }
}

/// A full disk is accepted: stored entries can be read, and eviction makes room.
fn check_writable(folder: &Path) -> io::Result<()> {
    match temp::TempFile::create(folder) {
        Err(error) if !put::is_disk_full(&error) => Err(error),
        _ => Ok(()),
    }
}
