//! Exports entries to files for other machines, and imports them.
//!
//! An imported file is not trusted: header, length, rows and model are checked before anything is
//! stored. The caller must check that the key is the hash of the content.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use super::platform::MOST_READERS;
use super::read::Opened;
use super::reason::Reason;
use super::{Header, KvKey, PlainMemory, Put, Store, StoreError, format, index, platform, read};

/// Bytes copied at a time.
const BLOCK_BYTES: usize = 1 << 20;

impl Store {
    /// Copies an entry to a new file, and checks every byte on the way.
    ///
    /// # Errors
    /// If there is no intact entry, or the file cannot be written. A partial file is removed.
    pub fn export(&mut self, key: &KvKey, path: &Path) -> Result<(), StoreError> {
        let exported = index::open(&self.folder, key)
            .map_err(ExportError::Source)
            .and_then(|opened| copy_to_new(&opened, path));
        exported.map_err(|error| match error {
            ExportError::Source(reason) => {
                self.refuse(key, &reason);
                StoreError::NoEntry { key: *key, reason }
            }
            ExportError::Target(source) => StoreError::Export { path: path.to_owned(), source },
        })
    }

    /// The key and header of a file that is to be imported. Nothing is proven about its rows, and
    /// nothing is stored.
    ///
    /// # Errors
    /// If the file's header or length is wrong.
    pub fn peek(path: &Path) -> Result<(KvKey, Header), StoreError> {
        let refused = |reason| StoreError::Refused { path: path.to_owned(), reason };
        let decoded = read::header(path).map_err(refused)?.decoded;
        Ok((decoded.key, decoded.header))
    }

    /// Stores the entry in a file, and returns its key and header. The caller compares the key with
    /// the one computed from the header, and removes the entry if they differ.
    ///
    /// # Errors
    /// If the file is damaged, belongs to another model, or does not fit.
    pub fn import(
        &mut self,
        path: &Path,
        fingerprint: &str,
    ) -> Result<(KvKey, Header), StoreError> {
        let refused = |reason| StoreError::Refused { path: path.to_owned(), reason };
        let not_stored = |outcome| StoreError::NotStored { path: path.to_owned(), outcome };
        let opened = read::header(path).map_err(refused)?;
        let (key, header) = (opened.decoded.key, opened.decoded.header.clone());
        let ours = Header { fingerprint: fingerprint.to_owned(), ..header.clone() };
        if let Some(reason) = ours.mismatch(&header) {
            return Err(refused(reason));
        }
        // Checked before memory is allocated for the rows: the file's size is not trusted.
        if opened.bytes > self.budget_bytes {
            let (bytes, budget_bytes) = (opened.bytes, self.budget_bytes);
            return Err(not_stored(Put::TooLarge { bytes, budget_bytes }));
        }
        let rows = read::rows(&opened, &PlainMemory, MOST_READERS, false).map_err(refused)?;
        match self.put(&key, &header, &rows) {
            Put::Stored | Put::Present => Ok((key, header)),
            outcome => Err(not_stored(outcome)),
        }
    }
}

/// Which side of a copy failed.
enum ExportError {
    Source(Reason),
    Target(io::Error),
}

fn copy_to_new(opened: &Opened, path: &Path) -> Result<(), ExportError> {
    let mut file = platform::create_private_file(path).map_err(ExportError::Target)?;
    copy(opened, &mut file).inspect_err(|_| {
        // A partial file must not remain. The error of copying is the one to report.
        let _ = fs::remove_file(path);
    })
}

/// Copies in blocks: an entry may be larger than memory.
fn copy(opened: &Opened, to: &mut File) -> Result<(), ExportError> {
    let decoded = &opened.decoded;
    let head = format::encode(&decoded.key, &decoded.header, &decoded.payload_checksum);
    to.write_all(&head.expect("it was decoded")).map_err(ExportError::Target)?;

    let mut hasher = blake3::Hasher::new();
    let mut block = vec![0; BLOCK_BYTES];
    for start in (opened.data_start..opened.bytes).step_by(BLOCK_BYTES) {
        let n = (opened.bytes - start).min(BLOCK_BYTES as u64) as usize;
        opened.read_at(start, &mut block[..n]).map_err(ExportError::Source)?;
        hasher.update(&block[..n]);
        to.write_all(&block[..n]).map_err(ExportError::Target)?;
    }
    decoded.check_payload(hasher.finalize()).map_err(ExportError::Source)?;
    to.sync_all().map_err(ExportError::Target)
}
