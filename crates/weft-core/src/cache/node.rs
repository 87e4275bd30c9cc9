//! Rows that are kept: of which tokens, after which context, and where they are.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use crate::chunk::{ChunkId, Tier};
use crate::device::Rows as DeviceRows;
use crate::kv::{PageId, pages_for};
use crate::store::{KvKey, Rows};

/// A running request. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub(crate) u64);

/// A node's name while the engine lives. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeId(pub(super) u64);

/// The KV rows of some tokens after a context.
#[derive(Debug)]
pub(crate) struct Node {
    /// What the rows attended to besides one another.
    pub(crate) parent: KvKey,
    /// The position that the first row's key was rotated for: the length of what it attended to.
    pub(crate) home: usize,
    pub(crate) tokens: Vec<u32>,
    /// Rows of the first page that stand before the node's own: copies of what it attended to, so that
    /// a page holds the rows of 64 positions. Told by the parent; known once there are pages.
    pub(crate) lead: usize,
    /// Whether those rows are there.
    pub(crate) has_lead: bool,
    /// The library's chunk that the tokens came from, where one is known.
    pub(crate) chunk: Option<ChunkId>,
    /// The device's pages; none where the rows are elsewhere.
    pub(crate) pages: Vec<PageId>,
    /// Rows that are computed; fewer than the tokens while a lane is at it.
    pub(crate) filled: usize,
    /// The lane that computes them.
    pub(crate) filler: Option<LaneId>,
    /// A copy in main memory.
    pub(super) ram: Option<InRam>,
    /// Whether there is a file.
    pub(super) on_disk: bool,
    /// Whether later requests may find it.
    pub(super) is_public: bool,
    /// What computing it took.
    pub(crate) cost: Duration,
    /// Lanes that read it.
    pub(super) users: usize,
    pub(super) pinned: bool,
    pub(super) worth: Worth,
}

/// Rows in main memory, or on their way there.
#[derive(Debug)]
pub(super) enum InRam {
    There(Arc<Rows>),
    Coming(Receiver<Rows>),
}

impl InRam {
    /// The rows, once they have come.
    pub(super) fn rows(self) -> Arc<Rows> {
        match self {
            Self::There(rows) => rows,
            Self::Coming(rows) => Arc::new(received(&rows)),
        }
    }
}

/// Rows that a device was asked to send.
pub(super) fn received(rows: &Receiver<Rows>) -> Rows {
    rows.recv().expect("the device sends what it was asked for, unless it failed")
}

/// How much a node is worth keeping; the least goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub(super) struct Worth {
    /// What recomputing a page of it costs, on top of the worth of what was evicted before its last
    /// use: rows that are dear stay longer, and none stays for ever.
    pub(super) value: f64,
    pub(super) last_use: u64,
}

impl Node {
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(crate) fn is_filled(&self) -> bool {
        self.filled == self.tokens.len()
    }

    pub(crate) fn n_pages(&self) -> usize {
        pages_for(self.lead + self.len())
    }

    /// Its rows in the device's pages.
    pub(super) fn rows(&self) -> DeviceRows<'_> {
        DeviceRows { pages: &self.pages, first_row: self.lead, len: self.len() }
    }

    /// The fastest place that has the rows.
    pub(crate) fn tier(&self) -> Option<Tier> {
        if !self.pages.is_empty() {
            Some(Tier::Device)
        } else if self.ram.is_some() {
            Some(Tier::Ram)
        } else {
            self.on_disk.then_some(Tier::Disk)
        }
    }

    /// Whether its pages may be taken.
    pub(super) fn is_evictable(&self) -> bool {
        self.users == 0 && !self.pinned && !self.pages.is_empty()
    }

    pub(super) fn cost_per_page(&self) -> f64 {
        self.cost.as_secs_f64() * 1e6 / pages_for(self.len()).max(1) as f64
    }
}
