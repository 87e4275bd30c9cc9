//! Errors of using the store. A failing disk is not an error here, but a miss.

use std::io;
use std::path::PathBuf;

use super::reason::Reason;
use super::{KvKey, Put};

/// Why a store could not be opened, or an entry could not be exported or imported.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder does not exist and cannot be created, or is not a folder.
    #[error("cannot create the cache folder {folder:?}: {source}; choose another folder")]
    Folder {
        /// The folder as given.
        folder: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Other users can write to the folder.
    #[error("the cache folder {folder:?} is not used: {source}")]
    Shared {
        /// The folder as given.
        folder: PathBuf,
        /// Who can write to it.
        source: io::Error,
    },
    /// The folder cannot be listed.
    #[error("cannot list the cache folder {folder:?}: {source}; check its owner and permissions")]
    List {
        /// The folder as given.
        folder: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The folder is not writable.
    #[error(
        "cannot write in the cache folder {folder:?}: {source}; choose another folder, or run \
         without one"
    )]
    Unwritable {
        /// The folder as given.
        folder: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// No entry has this key, or its file is damaged.
    #[error("the cache folder has no intact entry {key}: {reason}")]
    NoEntry {
        /// The key as given.
        key: KvKey,
        /// Why it cannot be used.
        reason: Reason,
    },
    /// The export file already exists, or cannot be written.
    #[error("cannot write {path:?}: {source}; name a new file")]
    Export {
        /// The file as given.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The imported file is damaged, or belongs to another model.
    #[error("{path:?} is refused: {reason}")]
    Refused {
        /// The file as given.
        path: PathBuf,
        /// Why it is refused.
        reason: Reason,
    },
    /// The imported file is intact, but was not stored.
    #[error("{path:?} is not stored: {outcome}")]
    NotStored {
        /// The file as given.
        path: PathBuf,
        /// The result of storing it.
        outcome: Put,
    },
}
