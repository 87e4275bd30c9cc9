//! The limits of the remote tier: how long it waits for a store, how much it asks at once, and how
//! much may wait.

use std::time::Duration;

/// Limits of the service.
#[derive(Clone, Debug)]
pub struct Limits {
    /// For the next part of a fetch: the manifest, or a range of the rows.
    pub fetch: Duration,
    /// For a fetch, from the call to the answer.
    pub whole_fetch: Duration,
    /// For writing one entry.
    pub write: Duration,
    /// For listing a folder, and for reading the labels in it.
    pub listing: Duration,
    /// Fetches that run at once.
    pub fetches_at_once: usize,
    /// Fetches that wait for their turn.
    pub fetches_waiting: usize,
    /// Bytes of the rows that wait to be written. Larger rows wait alone.
    pub queue_bytes: u64,
    /// Entries that are written at once.
    pub writes_at_once: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            fetch: Duration::from_secs(5),
            whole_fetch: Duration::from_secs(60),
            write: Duration::from_secs(60),
            listing: Duration::from_secs(600),
            fetches_at_once: 8,
            fetches_waiting: 256,
            queue_bytes: 256 << 20,
            writes_at_once: 2,
        }
    }
}
