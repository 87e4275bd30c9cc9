//! A node: the KV rows of some tokens after a context, and where they lie.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use super::GroupId;
use super::filing::Filing;
use super::news::Fetching;
use crate::chunk::{ChunkId, Tier};
use crate::device::PageRows;
use crate::kv::{PageId, pages_for};
use crate::store::{HostRows, KvKey, RowForm};

/// A running request. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub(crate) u64);

/// A node's id within this engine. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeId(pub(super) u64);

/// The KV rows of some tokens after a context.
#[derive(Debug)]
pub(crate) struct Node {
    /// The key of the context that the rows attended to.
    pub(crate) parent: KvKey,
    /// How its rows are stored in files and in the remote tier.
    pub(crate) form: RowForm,
    /// The key under which it is found: that of the context, in this form.
    pub(super) place: KvKey,
    /// Whether its rows have been stored in 8 bits, so that they are not those that were computed.
    pub(crate) is_rounded: bool,
    /// The position that the first row's key was rotated for: the length of that context.
    pub(crate) home: usize,
    pub(crate) tokens: Vec<u32>,
    /// Rows of the first page before the node's own: copies of the last rows of the context, so
    /// that a page holds the rows of 64 positions. The parent determines it; it is known once there
    /// are pages.
    pub(crate) lead: usize,
    /// Whether those rows have been copied.
    pub(crate) has_lead: bool,
    /// The library's chunk with these tokens, if known.
    pub(crate) chunk: Option<ChunkId>,
    /// The device's pages; empty if the rows lie in another tier.
    pub(crate) pages: Vec<PageId>,
    /// Number of computed rows; fewer than the tokens while a lane computes them.
    pub(crate) filled: usize,
    /// The lane that computes them.
    pub(crate) filler: Option<LaneId>,
    /// A copy in main memory.
    pub(super) ram: Option<InRam>,
    /// How far its rows are on their way to a file.
    pub(super) filing: Option<Filing>,
    /// Set while its rows come from elsewhere; it has pages, and counts as empty.
    pub(super) fetching: Option<Fetching>,
    /// The time that this took the last time.
    pub(crate) read_time: Duration,
    /// What its rows once cost, while they are computed again though a file has them.
    pub(super) kept_cost: Option<Duration>,
    /// Whether there is a file.
    pub(super) on_disk: bool,
    /// Whether the remote tier has taken its rows, or has given them.
    pub(super) is_shared: bool,
    /// Whether it is known to hold rows of its chunk alone.
    pub(super) is_chunk_s_own: bool,
    /// Whether all later requests can find it.
    pub(super) is_public: bool,
    /// The group whose requests can find it.
    pub(super) group: Option<GroupId>,
    /// The time to compute it.
    pub(crate) cost: Duration,
    /// Number of lanes that read it.
    pub(super) users: usize,
    pub(super) pinned: bool,
    pub(super) worth: Worth,
}

/// Rows in main memory, or being copied there.
#[derive(Debug)]
pub(super) enum InRam {
    There(Arc<HostRows>),
    Coming(Receiver<HostRows>),
}

impl InRam {
    /// The rows, if their copy has come; `waits` is whether to wait for it.
    pub(super) fn rows(&mut self, waits: bool) -> Result<Arc<HostRows>, TryRecvError> {
        let rows = match self {
            Self::There(rows) => Arc::clone(rows),
            Self::Coming(coming) => Arc::new(receive(coming, waits)?),
        };
        *self = Self::There(Arc::clone(&rows));
        Ok(rows)
    }
}

/// Takes rows that the device sends; `waits` is whether to wait for them. A device that has failed
/// to copy them has dropped the sender.
pub(super) fn receive(from: &Receiver<HostRows>, waits: bool) -> Result<HostRows, TryRecvError> {
    if waits { from.recv().map_err(|_| TryRecvError::Disconnected) } else { from.try_recv() }
}

/// The worth of keeping a node; the smallest is evicted first.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub(super) struct Worth {
    /// The cost of recomputing one of its pages, plus the worth of the node evicted last before its
    /// last use. Expensive rows stay longer, and none stays forever.
    pub(super) value: f64,
    pub(super) last_use: u64,
}

impl Node {
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Gives a node that has no chunk one that it belongs to, with or without other texts.
    pub(crate) fn name(&mut self, chunk: Option<ChunkId>, is_alone: bool) {
        if self.chunk.is_none() {
            self.is_chunk_s_own = chunk.is_some() && is_alone;
            self.chunk = chunk;
        }
    }

    /// Whether any other request can find it.
    pub(super) fn is_found(&self) -> bool {
        self.is_public || self.group.is_some()
    }

    pub(crate) fn is_filled(&self) -> bool {
        self.filled == self.tokens.len()
    }

    pub(crate) fn n_pages(&self) -> usize {
        pages_for(self.lead + self.len())
    }

    /// Its rows in the device's pages.
    pub(super) fn rows(&self) -> PageRows<'_> {
        PageRows { pages: &self.pages, first_row: self.lead, len: self.len() }
    }

    /// Whether a file has its rows.
    pub(crate) fn is_on_disk(&self) -> bool {
        self.on_disk
    }

    /// Whether a file has its rows, or will have them before the next command to the files.
    pub(super) fn is_filed_soon(&self) -> bool {
        self.on_disk || matches!(self.filing, Some(Filing::Queued(_)))
    }

    /// The fastest tier that holds the rows.
    pub(crate) fn tier(&self) -> Option<Tier> {
        let is_leaving = matches!(self.filing, Some(Filing::Coming(_) | Filing::Queued(_)));
        if let Some(fetching) = &self.fetching {
            Some(fetching.tier)
        } else if !self.pages.is_empty() {
            Some(Tier::Device)
        } else if self.ram.is_some() || is_leaving {
            Some(Tier::Ram)
        } else {
            self.on_disk.then_some(Tier::Disk)
        }
    }

    /// The tier that its rows are coming from.
    pub(crate) fn awaits(&self) -> Option<Tier> {
        self.fetching.as_ref().map(|fetching| fetching.tier)
    }

    /// Whether its pages may be evicted.
    pub(super) fn is_evictable(&self) -> bool {
        self.users == 0 && !self.pinned && !self.pages.is_empty()
    }

    pub(super) fn cost_per_page(&self) -> f64 {
        self.cost.as_secs_f64() * 1e6 / pages_for(self.len()).max(1) as f64
    }
}
