//! Brings rows to the device's pages: at once from main memory, later from a file or the remote
//! tier.
//!
//! A node whose rows come from elsewhere has its pages from the start and counts as empty until the
//! rows have come. If they do not come, it stays empty, and a lane that holds it computes it like
//! any other. Two lanes that need the same rows wait for the same read. If the last of them goes,
//! the pages are given back and the rows stay where they are. If computing rows is faster than
//! fetching them, the node is empty from the start.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::files::Room;
use super::filing::Filing;
use super::news::{Arrival, Fetching};
use super::speeds::Way;
use super::{Begin, Cache, NodeId};
use crate::chunk::{ExpectedTimes, Tier};
use crate::device::Device;
use crate::store::{HostRows, PackedRows};

/// How rows came to the device's pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Brought {
    /// The tier that held them.
    pub(crate) tier: Tier,
    /// Whether pages were taken for them now.
    pub(crate) is_new: bool,
    /// The time that it took up to now.
    pub(crate) time: Duration,
    /// What was expected of fetching and of computing them, if both are known.
    pub(crate) choice: Option<ExpectedTimes>,
}

impl Cache {
    /// Starts to bring a node's rows into the device's pages, promised ones if the node has none.
    /// The lane needs the first `n_tokens` of them.
    pub(crate) fn bring(
        &mut self,
        id: NodeId,
        n_tokens: usize,
        begin: Begin,
        device: &mut dyn Device,
    ) -> Brought {
        let start = Instant::now();
        let tier = self.node(id).tier().expect("rows that were found are in a tier");
        let is_new = self.node(id).pages.is_empty();
        let mut choice = None;
        if is_new {
            let rows = self.rows_in_memory(id);
            let pages = self.take_pages_from(begin, self.node(id).len(), device);
            let node = self.node_mut(id);
            node.pages = pages;
            node.lead = begin.lead;
            node.has_lead = begin.lead == 0;
            match rows {
                Some(rows) => {
                    self.bring_rows(id, rows, device);
                    self.stats.brought_from_ram += 1;
                }
                None if self.node(id).on_disk => {
                    choice = self.compare(id, n_tokens);
                    self.fetch_or_compute(id, choice, device);
                }
                None => self.compute_lost(id),
            }
        }
        Brought { tier, is_new, time: start.elapsed(), choice }
    }

    /// Asks for the rows of a node's file, or lets a lane compute them.
    fn fetch_or_compute(&mut self, id: NodeId, choice: Option<ExpectedTimes>, device: &dyn Device) {
        let way = self.speeds.choose(Tier::Disk, choice);
        match way {
            Way::Fetch => self.begin_fetching(id, device),
            Way::Compute => {}
            Way::ComputeAndTry => self.try_reading(id, device),
        }
        if way != Way::Fetch {
            self.compute_again(id);
        }
    }

    /// Starts to copy rows into a node's pages, unpacked if they are packed.
    fn bring_rows(&mut self, id: NodeId, rows: Arc<HostRows>, device: &mut dyn Device) {
        let node = self.node(id);
        let is_packed = |_: &PackedRows| rows.k.len() as u64 * 2 == self.shape.stored_bytes(node);
        match self.packed(node).filter(is_packed) {
            Some(form) => {
                device.bring_packed_kv(&node.rows(), rows, form);
                self.node_mut(id).is_rounded = true;
                self.stats.brought_coarse += 1;
            }
            None => device.bring_kv(&node.rows(), rows),
        }
    }

    /// Where the rows of a node's file are read to.
    fn room_for(&self, id: NodeId, device: &dyn Device) -> Room {
        Room { memory: device.row_memory(), packed: self.packed(self.node(id)).is_some() }
    }

    /// The rows in main memory, after waiting for the device's copy. None if that failed.
    fn rows_in_memory(&mut self, id: NodeId) -> Option<Arc<HostRows>> {
        if let Some(rows) = self.rows_in_ram(id, true) {
            return rows.ok();
        }
        match &self.node(id).filing {
            Some(Filing::Coming(coming)) => match coming.recv() {
                Ok(rows) => {
                    let rows = Arc::new(rows);
                    self.queue(id, Arc::clone(&rows));
                    Some(rows)
                }
                Err(_) => {
                    self.stop_filing(id);
                    None
                }
            },
            Some(Filing::Queued(rows)) => Some(Arc::clone(rows)),
            Some(Filing::Wanted) | None => None,
        }
    }

    /// The expected times to fetch a node's rows and to compute the first `n_tokens` of them.
    fn compare(&self, id: NodeId, n_tokens: usize) -> Option<ExpectedTimes> {
        let node = self.node(id);
        let cost = node.cost.mul_f64(n_tokens as f64 / node.len() as f64);
        self.speeds.compare(Tier::Disk, self.shape.stored_bytes(node), n_tokens, cost)
    }

    /// Fetches whatever is kept, even if computing it is faster.
    pub(crate) fn always_fetch(&mut self, always: bool) {
        self.speeds.always_fetch(always);
    }

    /// Counts tokens of a prompt that a lane has computed.
    pub(crate) fn count_computed(&mut self, tokens: usize, time: Duration) {
        self.speeds.count_computed(tokens, time);
    }

    /// Counts a read as if it had been made.
    #[cfg(test)]
    pub(crate) fn count_read(&mut self, tier: Tier, bytes: u64, time: Duration) {
        self.speeds.count_read(tier, bytes, time);
    }

    /// Lets a lane compute rows that a file has.
    fn compute_again(&mut self, id: NodeId) {
        self.stats.computed_again += 1;
        let node = self.node_mut(id);
        node.filled = 0;
        node.is_rounded = false;
        node.kept_cost = Some(std::mem::take(&mut node.cost));
    }

    /// Lets a lane compute rows that the device failed to copy out of its pages.
    fn compute_lost(&mut self, id: NodeId) {
        let node = self.node_mut(id);
        node.filled = 0;
        node.is_rounded = false;
        node.cost = Duration::ZERO;
    }

    /// Asks for the rows of a node's file.
    fn begin_fetching(&mut self, id: NodeId, device: &dyn Device) {
        let room = self.room_for(id, device);
        let (fetching, awaited) = Fetching::new(id, Tier::Disk, &self.news);
        let file = self.file_of(id);
        let node = self.node_mut(id);
        node.fetching = Some(fetching);
        node.filled = 0;
        if let Some(files) = &self.files {
            files.read(file, room, awaited);
        }
    }

    /// Reads a node's file to learn how long it takes. Nobody gets the rows.
    fn try_reading(&mut self, id: NodeId, device: &dyn Device) {
        let room = self.room_for(id, device);
        let file = self.file_of(id);
        let bytes = self.shape.stored_bytes(self.node(id));
        if let Some(files) = &self.files {
            files.try_reading(file, room, bytes);
        }
    }

    /// Takes rows that have come. If there are none, the node is empty.
    pub(super) fn arrived(&mut self, arrival: Arrival, device: &mut dyn Device) {
        let bytes = |rows: &HostRows| rows.k.len() as u64 + rows.v.len() as u64;
        let Some(node) = self.nodes.get_mut(&arrival.node) else { return };
        let ended = node.fetching.as_ref().filter(|fetching| fetching.is_ended_by(&arrival));
        let Some(tier) = ended.map(|fetching| fetching.tier) else { return };
        let Arrival { node: id, rows, time, cost, .. } = arrival;
        node.fetching = None;
        node.read_time = time.unwrap_or_default();
        let stored_bytes = self.shape.stored_bytes(node);
        let packed_bytes = self.shape.packed(node).filter(|_| self.packs).map(|_| stored_bytes);
        let expected = [Some(self.shape.node_bytes(node)), packed_bytes];
        let fits = |rows: &HostRows| expected.contains(&Some(bytes(rows)));
        match (rows.filter(fits).map(Arc::new), tier) {
            (Some(rows), tier) => {
                self.speeds.count_read(tier, stored_bytes, node.read_time);
                node.filled = node.len();
                if node.form.is_coarse() && Some(bytes(&rows)) != packed_bytes {
                    node.is_rounded = true;
                    self.stats.brought_coarse += 1;
                }
                self.bring_rows(id, Arc::clone(&rows), device);
                if tier == Tier::Remote {
                    let node = self.node_mut(id);
                    (node.is_shared, node.cost) = (true, cost.unwrap_or_default());
                    self.stats.brought_from_remote += 1;
                    self.keep_fetched(id, rows);
                } else {
                    self.stats.brought_from_disk += 1;
                    self.share(id, &rows);
                }
            }
            (None, Tier::Remote) => {
                // An absence shows how long the store takes to answer.
                time.into_iter().for_each(|time| self.speeds.count_read(tier, 0, time));
            }
            (None, _) => {
                node.on_disk = false;
                node.is_rounded = false;
                node.cost = Duration::ZERO;
            }
        }
    }

    /// Gives back the pages of a node that is not filled and has a file, once no lane holds it. Its
    /// rows stay in the file.
    pub(super) fn leave_to_file(&mut self, id: NodeId) {
        let node = self.node_mut(id);
        node.fetching = None;
        node.filled = node.len();
        node.cost = node.kept_cost.take().unwrap_or(node.cost);
        let pages = std::mem::take(&mut node.pages);
        self.give_back_pages(pages);
    }
}
