//! Counts and warnings of a store. The library prints nothing; the caller does.

use std::collections::BTreeMap;
use std::path::Path;

use super::reason::Reason;

/// Maximum number of warnings between two calls; further ones are only counted.
const MAX_WARNINGS: usize = 32;

/// Maximum number of those about files that were moved to quarantine.
const MAX_MOVED: u64 = 3;

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
    /// Files that were moved to quarantine.
    n_moved: u64,
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

    /// About a file that was moved to quarantine. A few show what is wrong with the disk.
    pub(super) fn add_moved(&mut self, text: String) {
        self.n_moved += 1;
        if self.n_moved <= MAX_MOVED {
            self.add(text);
        }
    }

    pub(super) fn take(&mut self, quarantine: &Path) -> Vec<String> {
        let mut texts = std::mem::take(&mut self.texts);
        match std::mem::take(&mut self.n_moved).saturating_sub(MAX_MOVED) {
            0 => {}
            1 => texts.push(format!("1 more damaged file was moved to {quarantine:?}")),
            n => texts.push(format!("{n} more damaged files were moved to {quarantine:?}")),
        }
        match std::mem::take(&mut self.n_dropped) {
            0 => {}
            n => texts.push(format!("and {n} more warnings about cached rows")),
        }
        texts
    }
}
