//! Writes an entry: makes room, writes a temporary file, then renames it.
//!
//! A reader sees a complete file or none, even after a power failure: the content is on disk before
//! the file gets its name. Failures do not affect the caller's answer, so they are outcomes, not
//! errors.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::time::{Duration, Instant, SystemTime};

use super::index::{self, file_of};
use super::reason::Reason;
use super::temp::TempFile;
use super::{Header, KvKey, Rows, Store, evict, format, platform};

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

impl Store {
    /// Stores rows under a key, and evicts others if the budget requires it. Rows are immutable: if
    /// the key is already stored, its rows stay.
    ///
    /// # Panics
    /// If the length of `k` or `v` differs from the header's.
    pub fn put(&mut self, key: &KvKey, header: &Header, rows: &Rows) -> Put {
        let tensor_bytes = header.tensor_bytes();
        assert_eq!(Some(rows.k.len()), tensor_bytes, "bytes of k");
        assert_eq!(Some(rows.v.len()), tensor_bytes, "bytes of v");
        if self.is_off() {
            return Put::Off;
        }
        if self.is_present(key, header) {
            return Put::Present;
        }
        let payload_checksum = format::hash_rows(rows).to_string();
        let head = format::encode(key, header, &payload_checksum);
        let head_bytes = head.as_ref().map_or(format::HEADER_LIMIT, |head| head.len() as u64);
        let bytes = head_bytes + 2 * rows.k.len() as u64;
        let Some(head) = head.filter(|_| bytes <= self.budget_bytes) else {
            return Put::TooLarge { bytes, budget_bytes: self.budget_bytes };
        };
        if let Err(pinned_bytes) = self.make_room(bytes) {
            return Put::NoRoom { bytes, pinned_bytes };
        }
        match self.write_evicting(key, &[&head, &rows.k, &rows.v]) {
            Ok(()) => self.stored(key),
            Err(error) => self.turn_off(&error),
        }
    }

    /// Whether writing is off. After a full disk it is tried again from time to time.
    fn is_off(&mut self) -> bool {
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
    fn is_present(&mut self, key: &KvKey, header: &Header) -> bool {
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

    /// Evicts until `bytes` fit the budget. If that is impossible, evicts nothing and returns the
    /// pinned bytes.
    fn make_room(&mut self, bytes: u64) -> Result<(), u64> {
        // Files of other processes count too.
        self.refresh();
        let pinned_bytes = self.pinned_bytes();
        if pinned_bytes + bytes > self.budget_bytes {
            return Err(pinned_bytes);
        }
        self.evict((self.used_bytes() + bytes).saturating_sub(self.budget_bytes));
        Ok(())
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

    /// Writes a file. If the disk is full, evicts as much as needed and tries once more.
    fn write_evicting(&mut self, key: &KvKey, parts: &[&[u8]]) -> io::Result<()> {
        let result = self.write(key, parts);
        match result {
            Err(error) if is_disk_full(&error) => {
                self.evict(parts.iter().map(|part| part.len() as u64).sum());
                self.write(key, parts)
            }
            result => result,
        }
    }

    fn write(&mut self, key: &KvKey, parts: &[&[u8]]) -> io::Result<()> {
        let mut temp = TempFile::create(&self.folder)?;
        for part in parts {
            (self.write_bytes)(&mut temp.file, part)?;
        }
        // The kernel's own timestamp is coarse: an entry that was read a moment before could look
        // newer.
        temp.file.set_modified(SystemTime::now())?;
        temp.file.sync_all()?;
        temp.rename(&file_of(&self.folder, key))?;
        platform::sync_folder(&self.folder)
    }

    /// Indexes the new file, as another process would see it.
    fn stored(&mut self, key: &KvKey) -> Put {
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

    fn turn_off(&mut self, error: &io::Error) -> Put {
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
