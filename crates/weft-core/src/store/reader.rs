//! Reads rows beside the thread that owns the store.
//!
//! A [`Reader`] needs nothing but the folder, so several can read at once while the store writes.
//! What it finds is counted later, by the store ([`Store::note`](super::Store::note)).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::platform::MOST_READERS;
use super::read::{self, Opened};
use super::reason::Reason;
use super::{Header, HostRows, KvKey, PlainMemory, RowMemory, index};

/// What is about to be done to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// A file is read.
    Read,
    /// A file is written.
    Write,
}

/// Called before files are read and written.
pub(super) type BeforeIo = Arc<dyn Fn(Io) + Send + Sync>;

/// Reads the rows of a folder's files.
#[derive(Clone)]
pub struct Reader {
    folder: PathBuf,
    pub(super) before: BeforeIo,
}

/// What reading a file came to, for [`Store::note`](super::Store::note).
pub struct WasRead {
    pub(super) key: KvKey,
    pub(super) result: Result<Opened, Reason>,
}

impl Reader {
    pub(super) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), before: Arc::new(|_| ()) }
    }

    /// Reads the rows of a key, if they match `expected` and every byte is as it was written. Opens
    /// the file even if no index has it: another process may have written it.
    pub fn read(&self, key: &KvKey, expected: &Header) -> (Option<HostRows>, WasRead) {
        self.read_to(key, expected, &PlainMemory, MOST_READERS, false)
    }

    /// The same, into memory that is taken from `memory`, by at most `n_threads` threads. Coarse
    /// rows stay as they are stored if they shall stay `coarse`.
    pub(crate) fn read_to(
        &self,
        key: &KvKey,
        expected: &Header,
        memory: &dyn RowMemory,
        n_threads: usize,
        coarse: bool,
    ) -> (Option<HostRows>, WasRead) {
        (self.before)(Io::Read);
        let found = index::open_expected(&self.folder, key, expected);
        let rows = |opened: &Opened| read::rows(opened, memory, n_threads, coarse);
        let found = found.and_then(|opened| Ok((rows(&opened)?, opened)));
        let (rows, result) = match found {
            Ok((rows, opened)) => (Some(rows), Ok(opened)),
            Err(reason) => (None, Err(reason)),
        };
        (rows, WasRead { key: *key, result })
    }
}
