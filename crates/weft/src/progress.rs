//! What opening a model reports while it runs.

use std::time::Duration;

/// One step of a download, or of loading.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The file is already in the cache.
    Cached {
        /// The file.
        file: &'a str,
    },
    /// A download begins, or goes on where an earlier one ended.
    Started {
        /// The file.
        file: &'a str,
        /// Its whole size.
        size_bytes: u64,
        /// What is already on disk.
        have_bytes: u64,
    },
    /// Bytes arrived.
    Received {
        /// How much of the file is on disk now.
        have_bytes: u64,
    },
    /// An attempt failed; another follows.
    Retrying {
        /// The file, or the list of files.
        what: &'a str,
        /// Why.
        reason: &'a str,
        /// The pause before the next attempt.
        wait: Duration,
    },
    /// Another process fetches the same file.
    Waiting {
        /// The file.
        file: &'a str,
    },
    /// All bytes are there; their hash is computed.
    Verifying {
        /// The file.
        file: &'a str,
    },
    /// The file is in the cache, checked.
    Finished {
        /// The file.
        file: &'a str,
        /// Its size.
        size_bytes: u64,
    },
    /// A device failed its self-test; answers come slowly, from the reference device.
    SelfTestFailed {
        /// What was wrong.
        reason: &'a str,
    },
    /// Weights are being read.
    Loading {
        /// Bytes that were read.
        have_bytes: u64,
        /// Bytes of all weights.
        size_bytes: u64,
    },
    /// The device has all weights.
    Loaded,
}

/// Takes the events of opening a model. Loading reports from several threads at once.
pub trait Progress: Send + Sync {
    /// Called for each event.
    fn report(&self, event: Event<'_>);
}

/// Reports nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn report(&self, _event: Event<'_>) {}
}
