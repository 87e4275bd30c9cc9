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
        let now = what.replace(" not", "");
        self.texts.push(format!("the remote store is back: {now} it"));
    }

    pub(crate) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.texts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_failure_is_said_once_in_an_outage() {
        let mut warnings = Warnings::default();
        let silent = Miss::Silent("nobody listens".to_owned());
        (0..3).for_each(|_| warnings.add("rows are not fetched from", &silent));
        warnings.add("rows are not written to", &silent);
        warnings.add("rows are not fetched from", &Miss::Absent);
        let said = warnings.take();
        assert_eq!(said.len(), 2, "{said:?}");
        warnings.end_outage("rows are not fetched from");
        assert_eq!(warnings.take(), ["the remote store is back: rows are fetched from it"]);
        (0..3).for_each(|_| warnings.add("rows are not fetched from", &silent));
        warnings.add("rows are not written to", &silent);
        let said = warnings.take();
        assert!(said.len() == 1 && said[0].contains("fetched"), "{said:?}");
    }
}
