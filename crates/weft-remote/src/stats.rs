//! Counts and warnings of the remote tier. The library prints nothing; the caller does.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::breaker::BreakerState;
use crate::miss::Miss;

/// Counts since the service was opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RemoteStats {
    /// Fetches that returned rows.
    pub hits: u64,
    /// Fetches that did not.
    pub misses: u64,
    /// The same by [`Miss::name`].
    pub reasons: BTreeMap<&'static str, u64>,
    /// Bytes of the rows that were fetched.
    pub read_bytes: u64,
    /// Time of the fetches that returned rows.
    pub reads: Latency,
    /// Entries that were written.
    pub stored: u64,
    /// Entries that the store had already.
    pub present: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Time of the writes that succeeded.
    pub writes: Latency,
    /// Entries that could not be written, by [`Miss::name`].
    pub failed_writes: BTreeMap<&'static str, u64>,
    /// Entries that were dropped before they were written: the queue was full, the store failed
    /// before, or there was no time left at the end.
    pub dropped: u64,
    /// Entries that wait to be written, and their bytes.
    pub queued: (usize, u64),
    /// Whether the store is asked for rows.
    pub read_breaker: BreakerState,
    /// Whether rows are written.
    pub write_breaker: BreakerState,
    /// How often one of the two opened.
    pub n_opened: u64,
}

impl RemoteStats {
    /// Number of misses for a reason.
    pub fn count(&self, reason: &str) -> u64 {
        self.reasons.get(reason).copied().unwrap_or_default()
    }

    /// Number of failed writes for a reason.
    pub fn count_failed(&self, reason: &str) -> u64 {
        self.failed_writes.get(reason).copied().unwrap_or_default()
    }
}

/// The time that requests took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Their number.
    pub count: u64,
    /// Their sum.
    pub total: Duration,
    /// The longest.
    pub longest: Duration,
}

impl Latency {
    pub(crate) fn add(&mut self, time: Duration) {
        self.count += 1;
        self.total += time;
        self.longest = self.longest.max(time);
    }

    /// The mean; zero if there was none.
    pub fn mean(&self) -> Duration {
        self.total.checked_div(u32::try_from(self.count).unwrap_or(u32::MAX)).unwrap_or_default()
    }
}

/// Messages for the user, each kind once.
#[derive(Debug, Default)]
pub(crate) struct Warnings {
    said: BTreeSet<(&'static str, &'static str)>,
    texts: Vec<String>,
}

impl Warnings {
    /// A warning about a miss that the user should know about.
    pub(crate) fn add(&mut self, what: &'static str, miss: &Miss) {
        if (miss.is_failure() || miss.is_damage()) && self.said.insert((what, miss.name())) {
            self.texts
                .push(format!("{what} the remote store: {miss}; further cases are only counted"));
        }
    }

    pub(crate) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.texts)
    }
}
