//! The border to the remote tier: a store of rows that several machines share.
//!
//! The cache asks for the rows of chunks that no other tier has, while the lane that needs them
//! waits alone, and gives the rows of chunks that were computed here. What comes is trusted as much
//! as a file is: the implementation of [`RemoteTier`] has checked it against the key and the
//! header. Rows that came are filed on disk, so the disk is the cache of the remote tier.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::news::Fetching;
use super::speeds::Way;
use super::{Cache, NodeId};
use crate::chunk::{ChunkId, ExpectedTimes, Tier};
use crate::store::{Header, HostRows, KvKey};

/// A store of rows outside of this machine. No call waits for the store, except `close`.
pub trait RemoteTier: Send + Sync {
    /// Asks for the rows of a key that `expected` describes. Returns what to keep while they are
    /// wanted, or nothing if it is known that none would come. `done` is called with the result,
    /// from any thread, or dropped.
    fn fetch(&self, key: &KvKey, expected: &Header, done: WhenFetched) -> Option<Interest>;

    /// Offers the rows of a chunk, to be written later. Returns whether they were taken.
    fn put(&self, chunk: &ChunkId, key: &KvKey, header: &Header, rows: Arc<HostRows>) -> bool;

    /// Takes no more, and waits at most for `limit` until everything is written. Returns the number
    /// of rows that are lost.
    fn close(&self, limit: Duration) -> usize;

    /// Counts since it was opened.
    fn stats(&self) -> RemoteStats;

    /// Warnings for the user since the last call.
    fn take_warnings(&self) -> Vec<String>;
}

/// Takes the result of a fetch.
pub type WhenFetched = Box<dyn FnOnce(Fetched) + Send>;

/// Somebody's interest in a fetch. If it is dropped, the fetch may be given up.
pub type Interest = Box<dyn Any + Send>;

/// The result of a fetch.
#[derive(Debug)]
pub enum Fetched {
    /// The rows that were asked for.
    Rows {
        /// The rows.
        rows: HostRows,
        /// The time that they once took to compute.
        cost: Duration,
    },
    /// The store answered, and has no rows that can be used.
    Absent,
    /// The store did not answer, or not in time.
    Failed,
}

/// Whether a store is asked, or left alone because it has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BreakerState {
    /// Requests go through.
    #[default]
    Closed,
    /// No request goes through.
    Open,
    /// One request goes through, as a test.
    HalfOpen,
}

impl BreakerState {
    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// Counts of the remote tier since it was opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RemoteStats {
    /// Fetches that returned rows.
    pub hits: u64,
    /// Fetches that did not.
    pub misses: u64,
    /// The same by reason.
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
    /// Entries that could not be written, by reason.
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
    /// Counts a request.
    pub fn add(&mut self, time: Duration) {
        self.count += 1;
        self.total += time;
        self.longest = self.longest.max(time);
    }

    /// The mean; zero if there was none.
    pub fn mean(&self) -> Duration {
        self.total.checked_div(u32::try_from(self.count).unwrap_or(u32::MAX)).unwrap_or_default()
    }
}

impl fmt::Debug for dyn RemoteTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RemoteTier")
    }
}

impl Cache {
    /// Asks the remote tier for the rows of a new node, if they are those of a chunk and computing
    /// them is not expected to be faster. Returns what was expected.
    pub(crate) fn ask_remote(&mut self, id: NodeId) -> Option<ExpectedTimes> {
        let node = self.node(id);
        if !node.is_public || node.group.is_some() || node.chunk.is_none() {
            return None;
        }
        let remote = Arc::clone(self.remote.as_ref()?);
        let (bytes, n_tokens) = (self.shape.stored_bytes(node), node.len());
        let choice = self.speeds.compare(Tier::Remote, bytes, n_tokens, Duration::ZERO);
        if self.speeds.choose(Tier::Remote, choice) != Way::Fetch {
            self.stats.not_asked += 1;
            return choice;
        }
        let (mut fetching, awaited) = Fetching::new(id, Tier::Remote, &self.news);
        let (key, header) = self.file_of(id);
        let done = Box::new(move |fetched| awaited.deliver_fetched(fetched));
        fetching.interest = remote.fetch(&key, &header, done);
        if fetching.interest.is_some() {
            let node = self.node_mut(id);
            node.fetching = Some(fetching);
            node.filler = None;
        }
        choice
    }

    /// Files rows that came from the remote tier, if the disk has time for them.
    pub(super) fn keep_fetched(&mut self, id: NodeId, rows: Arc<HostRows>) {
        let bytes = self.shape.node_bytes(self.node(id));
        let node = self.node(id);
        // It may have been forgotten meanwhile.
        if node.filing.is_some() || !node.is_public {
            return;
        }
        if self.has_room(bytes) {
            self.reserve(bytes);
            self.queue(id, rows);
        } else if self.files.is_some() {
            self.stats.unfiled += 1;
        }
    }

    /// Offers the rows of a chunk to the remote tier, once.
    pub(super) fn share(&mut self, id: NodeId, rows: &Arc<HostRows>) {
        let Some(remote) = self.remote.clone() else { return };
        let node = self.node(id);
        let may_share = node.is_public && node.is_chunk_s_own && !node.is_shared;
        let Some(chunk) = node.chunk.filter(|_| may_share) else { return };
        let (key, header) = self.file_of(id);
        self.node_mut(id).is_shared = remote.put(&chunk, &key, &header, Arc::clone(rows));
    }

    pub(crate) fn remote(&self) -> Option<Arc<dyn RemoteTier>> {
        self.remote.clone()
    }

    /// Waits until the remote tier has written what it took, at most for `limit`. It takes no more.
    /// Returns the number of rows that are lost.
    pub(crate) fn close_remote(&mut self, limit: Duration) -> usize {
        self.remote.as_ref().map_or(0, |remote| remote.close(limit))
    }
}
