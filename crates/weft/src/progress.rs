//! Progress reports of opening a model.

use std::time::Duration;

/// An event of downloading or loading a model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The file is already in the cache.
    Cached {
        /// The file.
        file: &'a str,
    },
    /// The file in the cache does not have the hub's hash, and is downloaded again.
    Damaged {
        /// The file.
        file: &'a str,
    },
    /// A download starts, or continues an earlier one.
    Started {
        /// The file.
        file: &'a str,
        /// Its size.
        size_bytes: u64,
        /// Bytes that are already on disk.
        have_bytes: u64,
    },
    /// Bytes arrived.
    Received {
        /// Bytes of the file that are on disk now.
        have_bytes: u64,
    },
    /// An attempt failed, and another follows.
    Retrying {
        /// The file, or the list of files.
        what: &'a str,
        /// Why the attempt failed.
        reason: &'a str,
        /// The pause before the next attempt.
        wait: Duration,
    },
    /// Another process is downloading the same file, and this one waits for it.
    Waiting {
        /// The file.
        file: &'a str,
    },
    /// The file is on disk, and its hash is being checked.
    Verifying {
        /// The file.
        file: &'a str,
    },
    /// The file has been checked and is in the cache.
    Finished {
        /// The file.
        file: &'a str,
        /// Its size.
        size_bytes: u64,
    },
    /// The device failed its self-test. The slow reference device runs the model instead.
    SelfTestFailed {
        /// The result that was wrong.
        reason: &'a str,
    },
    /// Weights are being read.
    Loading {
        /// Bytes read up to now.
        have_bytes: u64,
        /// Bytes of all weights.
        size_bytes: u64,
    },
    /// The device has loaded all weights.
    Loaded,
}

/// Receives the events of opening a model. Loading calls it from several threads at once.
pub trait Progress: Send + Sync {
    /// Called for each event.
    fn report(&self, event: Event<'_>);
}

/// Ignores all events.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Silent;

impl Progress for Silent {
    fn report(&self, _event: Event<'_>) {}
}
