//! What a user of the store can get wrong. A failing disk is not among it: that is a miss.

use std::io;
use std::path::PathBuf;

use super::reason::Reason;
use super::{KvKey, Put};

/// Why a store could not be opened, or an entry not carried in or out.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder is not there and cannot be made, or is no folder.
    #[error("cannot make the chunk folder {folder:?}: {source}; name a folder that can be made")]
    Folder {
        /// The folder as given.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The folder is there and its content cannot be listed.
    #[error("cannot list the chunk folder {folder:?}: {source}; check its owner and permissions")]
    List {
        /// The folder as given.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The folder is there and nothing can be written in it.
    #[error(
        "cannot write in the chunk folder {folder:?}: {source}; name a folder of your own, or run \
         without one"
    )]
    Unwritable {
        /// The folder as given.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No entry has this key, or its file turned out to be damaged.
    #[error("the chunk store has no sound entry {key}: {reason}")]
    NoEntry {
        /// The key as given.
        key: KvKey,
        /// What is wrong with it.
        reason: Reason,
    },
    /// The file to carry out to exists already, or cannot be written.
    #[error("cannot write {path:?}: {source}; name a file that does not exist")]
    Export {
        /// The file as given.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file to carry in is not a sound one of this model.
    #[error("{path:?} is refused: {reason}")]
    Refused {
        /// The file as given.
        path: PathBuf,
        /// What is wrong with it.
        reason: Reason,
    },
    /// The file to carry in is sound and was not stored.
    #[error("{path:?} is not stored: {outcome}")]
    NotStored {
        /// The file as given.
        path: PathBuf,
        /// What became of it.
        outcome: Put,
    },
}
