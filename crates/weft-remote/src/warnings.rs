//! Warnings of the remote tier. The library prints nothing; the caller does.

use std::collections::BTreeSet;

use crate::miss::Miss;

/// Messages for the user, each kind once in an outage.
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

    /// The store works again: the next failure is another outage.
    pub(crate) fn end_outage(&mut self, what: &'static str) {
        self.said.retain(|(said, _)| *said != what);
        self.texts.push(format!("the remote store is back: {}", what.replace(" not", "")));
    }

    pub(crate) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.texts)
    }
}
