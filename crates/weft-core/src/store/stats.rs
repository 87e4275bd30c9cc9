//! Counts and warnings of a store. The library prints nothing; the caller does.

use std::collections::BTreeMap;

use super::reason::Reason;

/// Maximum number of warnings between two calls; further ones are only counted.
const MAX_WARNINGS: usize = 32;

/// Counts since the store was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Reads that returned rows.
    pub hits: u64,
    /// Reads that did not.
    pub misses: u64,
    /// Entries written.
    pub stored: u64,
    /// Entries removed to make room.
    pub evicted: u64,
    /// Files moved to quarantine.
    pub quarantined: u64,
    /// Temporary files of dead processes, removed on opening.
    pub swept_temp_files: u64,
    /// Files not used or not indexed, by [`Reason::name`].
    pub reasons: BTreeMap<&'static str, u64>,
    /// Entries that could not be written.
    pub failed_writes: u64,
    /// Whether writing has been turned off because the disk is full.
    pub disk_is_full: bool,
    /// Why writing has been turned off; `None` while writing works. Reads continue.
    pub off: Option<String>,
}

impl StoreStats {
    /// Number of occurrences of a reason.
    pub fn count(&self, reason: &str) -> u64 {
        self.reasons.get(reason).copied().unwrap_or_default()
    }

    pub(super) fn add_reason(&mut self, reason: &Reason) {
        *self.reasons.entry(reason.name()).or_default() += 1;
    }
}

/// Messages for the user, in order of occurrence.
#[derive(Default)]
pub(super) struct Warnings {
    texts: Vec<String>,
    n_dropped: u64,
}

impl Warnings {
    /// A failing disk can damage a thousand files; memory and log stay bounded.
    pub(super) fn add(&mut self, text: String) {
        if self.texts.len() < MAX_WARNINGS {
            self.texts.push(text);
        } else {
            self.n_dropped += 1;
        }
    }

    pub(super) fn take(&mut self) -> Vec<String> {
        let mut texts = std::mem::take(&mut self.texts);
        match std::mem::take(&mut self.n_dropped) {
            0 => {}
            n => texts.push(format!("and {n} more warnings about cached rows")),
        }
        texts
    }
}
