//! The results of storing rows, and the steps of it: whether rows are there already, a temporary
//! file, eviction, what a failure turns off. `group.rs` puts the steps together.
//!
//! Failures do not affect the caller's answer, so they are outcomes, not errors.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::time::{Duration, Instant, SystemTime};

use super::index;
use super::reason::Reason;
use super::temp::TempFile;
use super::{Header, HostRows, Io, KvKey, NotFinite, Store, evict};

/// The result of storing rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The rows are on disk.
    Stored,
    /// The same rows were already stored.
    Present,
    /// The rows exceed the budget, or their header exceeds its limit.
    TooLarge {
        /// Size that the file would have.
        bytes: u64,
        /// The budget.
        budget_bytes: u64,
    },
    /// The rows shall be stored in 8 bits, and are not finite numbers.
    NotFinite,
    /// Pinned entries leave too little of the budget.
    NoRoom {
        /// Size that the file would have.
        bytes: u64,
        /// Bytes of pinned entries.
        pinned_bytes: u64,
    },
    /// Writing has been turned off, see [`StoreStats::off`](super::StoreStats::off).
    Off,
}

impl fmt::Display for Put {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stored => write!(f, "stored"),
            Self::Present => write!(f, "stored before"),
            Self::TooLarge { bytes, budget_bytes } => write!(
                f,
                "it takes {bytes} bytes and the budget is {budget_bytes}; raise the budget or cut \
                 the chunk"
            ),
            Self::NotFinite => write!(f, "{NotFinite}"),
            Self::NoRoom { bytes, pinned_bytes } => write!(
                f,
                "it takes {bytes} bytes and pinned chunks take {pinned_bytes}; unpin some or raise \
                 the budget"
            ),
            Self::Off => write!(f, "writing is off after an earlier failure"),
        }
    }
}

/// How long writing stays off after the disk was full.
const RETRY: Duration = Duration::from_secs(30);

/// Writes bytes to a file. Tests replace it by one that fails.
pub(super) type WriteBytes = Box<dyn FnMut(&mut File, &[u8]) -> io::Result<()> + Send>;

/// The system's own write.
pub(super) fn write_bytes() -> WriteBytes {
    Box::new(File::write_all)
}

/// Rows to store.
#[derive(Clone, Copy)]
pub struct NewEntry<'a> {
    /// The key to store them under.
    pub key: &'a KvKey,
    /// Their description.
    pub header: &'a Header,
    /// The rows as devices have them. Coarse ones are encoded here, unless they are already.
    pub rows: &'a HostRows,
}

impl Store {
    /// Stores rows under a key, and evicts others if the budget requires it. Rows are immutable: if
    /// the key is already stored, its rows stay. They are on disk when this returns.
    ///
    /// # Panics
    /// If the length of `k` or `v` differs from the header's.
    pub fn put(&mut self, key: &KvKey, header: &Header, rows: &HostRows) -> Put {
        self.put_all(&[NewEntry { key, header, rows }])[0]
    }

    /// Whether writing is off. After a full disk it is tried again from time to time.
    pub(super) fn is_off(&mut self) -> bool {
        if self.full_since.is_some_and(|since| since.elapsed() >= RETRY) {
            self.turn_on();
        }
        self.stats.off.is_some()
    }

    pub(super) fn turn_on(&mut self) {
        self.full_since = None;
        self.stats.disk_is_full = false;
        self.stats.off = None;
    }

    /// Whether the file exists with a valid header and the same content.
    pub(super) fn is_present(&mut self, key: &KvKey, header: &Header) -> bool {
        match index::open_expected(&self.folder, key, header) {
            Ok(opened) => {
                self.touch(opened);
                true
            }
            Err(Reason::Absent) => false,
            Err(reason) => {
                self.refuse(key, &reason);
                false
            }
        }
    }

    /// Evicts entries of `bytes` in total, or all that are not pinned.
    pub(super) fn evict(&mut self, bytes: u64) {
        let unpinned = self.index.iter().filter(|(key, _)| !self.pins.contains(key));
        for key in evict::victims(unpinned, bytes, SystemTime::now()) {
            if self.remove(&key) {
                self.stats.evicted += 1;
            }
        }
    }

    /// Writes a temporary file. It is not on disk yet.
    pub(super) fn write_temp(&mut self, parts: &[&[u8]]) -> io::Result<TempFile> {
        (self.reader.before)(Io::Write);
        let mut temp = TempFile::create(&self.folder)?;
        for part in parts {
            (self.write_bytes)(&mut temp.file, part)?;
        }
        // The kernel's own timestamp is coarse: an entry that was read a moment before could look
        // newer.
        temp.file.set_modified(SystemTime::now())?;
        Ok(temp)
    }

    /// Indexes the new file, as another process would see it.
    pub(super) fn stored(&mut self, key: &KvKey) -> Put {
        self.stats.stored += 1;
        match index::open(&self.folder, key) {
            Ok(opened) => {
                let last_use = opened.last_use;
                self.index.insert(opened, last_use);
            }
            // Another process has already evicted it.
            Err(reason) => self.refuse(key, &reason),
        }
        Put::Stored
    }

    pub(super) fn turn_off(&mut self, error: &io::Error) -> Put {
        self.stats.failed_writes += 1;
        self.stats.disk_is_full = is_disk_full(error);
        let what_next = if self.stats.disk_is_full {
            self.full_since = Some(Instant::now());
            "free space, or lower the budget; it is tried again in a while"
        } else {
            "check the folder and its disk, and start again"
        };
        let text = format!(
            "chunks are no longer written to {:?}: {error}; those that are there are still read; \
             {what_next}",
            self.folder
        );
        self.warnings.add(text.clone());
        self.stats.off = Some(text);
        Put::Off
    }
}

pub(crate) fn is_disk_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}
