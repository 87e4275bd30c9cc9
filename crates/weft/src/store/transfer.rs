//! Carrying entries out of the store and into it, as files that users pass on.
//!
//! A file that comes in is a stranger's: header, length, rows and model are checked before anything
//! is stored. Whether its key is the hash of its content only the caller can tell.

use std::fs;
use std::io;
use std::path::Path;

use super::put::{write_bytes, write_synced};
use super::{Header, KvKey, Put, Store, StoreError, format, index, platform, read};

impl Store {
    /// Writes an entry to a file that does not exist yet, after checking it in full.
    ///
    /// # Errors
    /// When there is no sound entry, or the file cannot be written.
    pub fn export(&mut self, key: &KvKey, path: &Path) -> Result<(), StoreError> {
        let found = index::open(&self.folder, key)
            .and_then(|opened| read::rows(&opened).map(|rows| (opened, rows)));
        let (opened, rows) = match found {
            Ok(found) => found,
            Err(reason) => {
                self.refuse(key, &reason);
                return Err(StoreError::NoEntry { key: *key, reason });
            }
        };
        let head = format::encode(key, &opened.decoded.header, &opened.decoded.payload_checksum)
            .expect("it was decoded");
        write_new(path, &[&head, &rows.k, &rows.v])
            .map_err(|source| StoreError::Export { path: path.to_owned(), source })
    }

    /// Stores the entry in a file, and returns its key and header. The caller compares the key with
    /// the one that it computes from the header, and removes an entry whose key is not its own.
    ///
    /// # Errors
    /// When the file is damaged, of another model, or does not fit.
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
        // Before memory is taken for the rows: a file may be as large as it likes.
        if opened.bytes > self.budget_bytes {
            let (bytes, budget_bytes) = (opened.bytes, self.budget_bytes);
            return Err(not_stored(Put::TooLarge { bytes, budget_bytes }));
        }
        let rows = read::rows(&opened).map_err(refused)?;
        match self.put(&key, &header, &rows) {
            Put::Stored | Put::Present => Ok((key, header)),
            outcome => Err(not_stored(outcome)),
        }
    }
}

/// Writes a file for its owner alone; what was begun and failed is removed.
fn write_new(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut file = platform::create_private_file(path)?;
    write_synced(&mut file, parts, &mut write_bytes()).inspect_err(|_| {
        // The error that matters is the one of writing.
        let _ = fs::remove_file(path);
    })
}
