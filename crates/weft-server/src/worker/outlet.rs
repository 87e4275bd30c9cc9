//! Where a lane's events go. A full channel is not a closed one: what does not fit is held here, and
//! the lane waits for its reader.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;

use super::work::Happening;

/// What happened to which choice of a request.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) choice: usize,
    pub(crate) what: Happening,
}

/// How a reader is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    Reads,
    /// It has not read for this long what is held for it.
    Behind(Duration),
    Gone,
}

pub(super) struct Outlet {
    to: Sender<Told>,
    choice: usize,
    held: VecDeque<Happening>,
    behind_since: Option<Instant>,
}

impl Outlet {
    pub(super) fn new(to: Sender<Told>, choice: usize) -> Self {
        Self { to, choice, held: VecDeque::new(), behind_since: None }
    }

    /// Tells something, now or as soon as there is room for it.
    pub(super) fn tell(&mut self, what: Happening) -> Reader {
        self.held.push_back(what);
        self.flush()
    }

    /// Tells what is held.
    pub(super) fn flush(&mut self) -> Reader {
        while let Some(what) = self.held.pop_front() {
            match self.to.try_send(Told { choice: self.choice, what }) {
                Ok(()) => self.behind_since = None,
                Err(TrySendError::Full(told)) => {
                    self.held.push_front(told.what);
                    let since = *self.behind_since.get_or_insert_with(Instant::now);
                    return Reader::Behind(since.elapsed());
                }
                Err(TrySendError::Closed(_)) => {
                    self.held.clear();
                    return Reader::Gone;
                }
            }
        }
        Reader::Reads
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    #[test]
    fn what_does_not_fit_comes_later_and_in_order() {
        let (to, mut events) = mpsc::channel(1);
        let mut outlet = Outlet::new(to, 3);
        assert_eq!(outlet.tell(Happening::Admitted), Reader::Reads);
        let failed = || Happening::Failed(super::super::Failure::Fault);
        assert!(matches!(outlet.tell(failed()), Reader::Behind(_)));
        let first = events.try_recv().unwrap();
        assert!(matches!(first, Told { choice: 3, what: Happening::Admitted }));
        assert_eq!(outlet.flush(), Reader::Reads);
        assert!(matches!(events.try_recv().unwrap().what, Happening::Failed(_)));
        drop(events);
        assert_eq!(outlet.tell(Happening::Admitted), Reader::Gone);
    }
}
