//! How long the parts of a device's creation took.

use std::time::Instant;

/// What creating a device took, part by part, in ms.
pub(crate) struct StartParts {
    pub(crate) all: Vec<(&'static str, f64)>,
    since: Instant,
}

impl StartParts {
    pub(crate) fn begin() -> Self {
        Self { all: Vec::new(), since: Instant::now() }
    }

    pub(crate) fn end(&mut self, part: &'static str) {
        let now = Instant::now();
        self.all.push((part, (now - self.since).as_secs_f64() * 1e3));
        self.since = now;
    }
}
