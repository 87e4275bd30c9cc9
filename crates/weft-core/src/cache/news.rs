//! What the cache hears from threads outside: files that were written, rows that have come.
//!
//! This is the border for everything that holds rows elsewhere, such as files. A node whose rows
//! are elsewhere gives out an [`Awaited`]. The code that fetches the rows delivers them through it,
//! or reports that there are none, from any thread and at any time. The engine picks up news
//! between steps.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::NodeId;
use super::remote::{Fetched, Interest};
use crate::chunk::Tier;
use crate::store::HostRows;

/// One message to the cache.
pub(super) enum News {
    /// A node's rows have left the queue of rows to file.
    Filed {
        node: NodeId,
        bytes: u64,
        /// Whether they are in a file now, safe from a crash.
        is_on_disk: bool,
    },
    /// A file was read to measure the disk: its bytes and the time, if it could be read.
    Tried { read: Option<(u64, Duration)> },
    /// Rows that a node awaited have come, or cannot come.
    Arrived(Arrival),
}

/// The end of waiting for rows.
pub(super) struct Arrival {
    pub(super) node: NodeId,
    pub(super) ticket: Weak<()>,
    pub(super) rows: Option<HostRows>,
    /// The time to fetch them, or to learn that there are none; `None` if nobody answered.
    pub(super) time: Option<Duration>,
    /// The time that they once took to compute, if it is known.
    pub(super) cost: Option<Duration>,
}

/// The channel on which news comes.
pub(super) struct NewsChannel {
    pub(super) to: Sender<News>,
    pub(super) from: Receiver<News>,
}

impl Default for NewsChannel {
    fn default() -> Self {
        let (to, from) = channel();
        Self { to, from }
    }
}

/// A node's wait for rows from elsewhere. If it is dropped, nobody wants them any more.
#[derive(Debug)]
pub(super) struct Fetching {
    ticket: Arc<()>,
    /// Where they come from.
    pub(super) tier: Tier,
    /// Tells the remote tier that they are wanted.
    pub(super) interest: Option<Interest>,
}

impl Fetching {
    /// Starts to wait for the rows of a node.
    pub(super) fn new(node: NodeId, tier: Tier, news: &NewsChannel) -> (Self, Awaited) {
        let ticket = Arc::new(());
        let (since, to) = (Instant::now(), Some(news.to.clone()));
        let awaited = Awaited { node, ticket: Arc::downgrade(&ticket), since, to };
        (Self { ticket, tier, interest: None }, awaited)
    }

    /// Whether it was this wait that has ended.
    pub(super) fn is_ended_by(&self, arrival: &Arrival) -> bool {
        Weak::ptr_eq(&Arc::downgrade(&self.ticket), &arrival.ticket)
    }
}

/// The promise to deliver the rows of one node. If it is dropped, there are none, and the rows are
/// computed.
pub(crate) struct Awaited {
    node: NodeId,
    ticket: Weak<()>,
    since: Instant,
    /// `None` once delivered.
    to: Option<Sender<News>>,
}

impl Awaited {
    /// Whether a lane still waits for the rows.
    pub(crate) fn is_wanted(&self) -> bool {
        self.ticket.strong_count() > 0
    }

    /// Hands over the rows, or reports that there are none. `time` is the time to fetch them.
    pub(crate) fn deliver(mut self, rows: Option<HostRows>, time: Duration) {
        self.send(rows, Some(time), None);
    }

    /// The same for what the remote tier sent. Waiting for its turn is a part of the time.
    pub(super) fn deliver_fetched(mut self, fetched: Fetched) {
        let time = Some(self.since.elapsed());
        match fetched {
            // They would stay in memory until the engine has something to do.
            Fetched::Rows { .. } if !self.is_wanted() => self.send(None, None, None),
            Fetched::Rows { rows, cost } => self.send(Some(rows), time, Some(cost)),
            Fetched::Absent => self.send(None, time, None),
            Fetched::Failed => self.send(None, None, None),
        }
    }

    fn send(&mut self, rows: Option<HostRows>, time: Option<Duration>, cost: Option<Duration>) {
        let (node, ticket) = (self.node, self.ticket.clone());
        if let Some(to) = self.to.take() {
            // The engine may be gone.
            let _ = to.send(News::Arrived(Arrival { node, ticket, rows, time, cost }));
        }
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.send(None, None, None);
    }
}
