//! Moves rows down: out of the device's pages, to main memory, to files.
//!
//! The node with the smallest worth goes first, to the next tier that has room. Copies from pages
//! to main memory are started here and run beside steps; readers wait for them. `filing.rs` takes
//! rows to files, and `fetching.rs` brings rows back up.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use super::filing::Filing;
use super::node::InRam;
use super::{Cache, CacheStats, Node, NodeId, TierStats, Worth};
use crate::chunk::Tier;
use crate::device::{Device, MAX_LANES};
use crate::store::{HostRows, RowForm, Store};

/// Number of pages that are freed before lanes take them, one for each lane.
const SPARE_PAGES: usize = MAX_LANES;

impl Cache {
    /// Adds nodes for the files that fit this model and device.
    pub(super) fn find_files(&mut self, store: &Store) {
        let found: Vec<_> = store
            .entries()
            .filter(|(key, entry)| {
                let header = &entry.header;
                header.fingerprint == self.fingerprint
                    && (header.form == RowForm::Full || header.form == self.stored_rows)
                    && header.key() == **key
            })
            .map(|(_, entry)| entry.header.clone())
            .collect();
        for header in found {
            let filled = header.tokens.len();
            self.index(Node {
                parent: header.parent,
                form: header.form,
                place: header.form.place(&header.parent),
                is_rounded: header.form.is_coarse(),
                home: header.home_position,
                tokens: header.tokens,
                lead: 0,
                has_lead: false,
                chunk: None,
                pages: Vec::new(),
                filled,
                filler: None,
                ram: None,
                filing: None,
                fetching: None,
                read_time: Duration::ZERO,
                kept_cost: None,
                on_disk: true,
                is_shared: false,
                is_chunk_s_own: false,
                is_public: true,
                group: None,
                cost: Duration::from_micros(header.prefill_us),
                users: 0,
                pinned: false,
                worth: Worth::default(),
            });
        }
    }

    /// Moves all unused nodes down to a tier, and waits for the copies and the files.
    pub(crate) fn demote(&mut self, tier: Tier, device: &mut dyn Device) {
        let tier = tier.min(Tier::Disk);
        if tier == Tier::Disk {
            self.save(device, |_| true);
        }
        let ids: Vec<NodeId> = self.nodes.keys().copied().collect();
        for id in ids {
            // Making room for one node may have dropped another.
            let Some(node) = self.nodes.get(&id) else { continue };
            let is_filed = tier == Tier::Disk && node.on_disk;
            if is_filed {
                self.evict_from_ram(id);
            }
            if tier > Tier::Device && self.nodes.get(&id).is_some_and(Node::is_evictable) {
                self.evict(id, !is_filed, device);
            }
        }
        let in_ram = self.nodes.iter().filter(|(_, node)| node.ram.is_some());
        for id in in_ram.map(|(id, _)| *id).collect::<Vec<_>>() {
            if let Some(Err(_)) = self.rows_in_ram(id, true) {
                self.drop_if_nowhere(id);
            }
        }
        self.flush(device);
    }

    /// The rows in main memory, if they are there or on their way; `waits` is whether to wait for
    /// the device's copy. If that has failed, they are not there any more and cannot be filed.
    pub(super) fn rows_in_ram(
        &mut self,
        id: NodeId,
        waits: bool,
    ) -> Option<Result<Arc<HostRows>, TryRecvError>> {
        let rows = self.node_mut(id).ram.as_mut()?.rows(waits);
        if let Err(TryRecvError::Disconnected) = rows {
            self.node_mut(id).ram = None;
            self.ram_used -= self.ram_bytes_of(self.node(id));
            self.stop_filing(id);
        }
        Some(rows)
    }

    /// Frees the pages of the node with the smallest worth.
    pub(super) fn evict_one(&mut self, device: &mut dyn Device) {
        let victim = self.least(Node::is_evictable);
        self.evict(victim.expect("promised pages are free or evictable"), true, device);
    }

    /// Frees pages that lanes will take, one node at a time. The rows are copied while steps run,
    /// so no step waits for them. Without a RAM tier there is no copy to wait for.
    pub(crate) fn evict_ahead(&mut self, device: &mut dyn Device) {
        let is_short = self.pool.free() < self.promised.min(SPARE_PAGES);
        if is_short
            && self.ram_bytes > 0
            && let Some(victim) = self.least(Node::is_evictable)
        {
            self.evict(victim, true, device);
        }
    }

    /// Frees the pages of a node. `to_ram` copies its rows to main memory even if there is a file.
    fn evict(&mut self, id: NodeId, to_ram: bool, device: &mut dyn Device) {
        self.worth = self.worth.max(self.node(id).worth.value);
        self.stats.evicted_from_device += 1;
        // Rows of a group leave nothing behind.
        if to_ram && self.node(id).is_public && self.node(id).ram.is_none() {
            self.keep_below(id, device);
        }
        let pages = std::mem::take(&mut self.node_mut(id).pages);
        self.pool.give_back(pages);
        self.drop_if_nowhere(id);
    }

    /// Drops a node that is in no tier any more.
    pub(super) fn drop_if_nowhere(&mut self, id: NodeId) {
        if self.node(id).tier().is_none() {
            self.stats.dropped += 1;
            self.drop_node(id);
        }
    }

    /// Moves rows to main memory, or else to a file, or else drops them. Rows that are being copied
    /// out for a file are not copied again.
    fn keep_below(&mut self, id: NodeId, device: &mut dyn Device) {
        if let Some(Filing::Coming(_)) = self.node(id).filing {
            return;
        }
        let needed = self.ram_bytes_of(self.node(id));
        if self.make_room_in_ram(needed) {
            self.ram_used += needed;
            let ram = match &self.node(id).filing {
                Some(Filing::Queued(rows)) => InRam::There(Arc::clone(rows)),
                _ => InRam::Coming(self.send(id, device)),
            };
            self.node_mut(id).ram = Some(ram);
        } else if !self.is_filed_or_queued(id) {
            if self.has_room(self.shape.node_bytes(self.node(id))) {
                let coming = InRam::Coming(self.send(id, device));
                self.file_leaving(id, coming);
            } else if self.files.is_some() {
                self.stop_filing(id);
                self.stats.unfiled += 1;
            }
        }
    }

    /// Whether a file has the rows, or will soon.
    fn is_filed_or_queued(&self, id: NodeId) -> bool {
        let node = self.node(id);
        node.on_disk || matches!(node.filing, Some(Filing::Coming(_) | Filing::Queued(_)))
    }

    /// Starts to copy a node's rows out of its pages.
    pub(super) fn send(&self, id: NodeId, device: &mut dyn Device) -> Receiver<HostRows> {
        let (node, n_layers) = (self.node(id), self.shape.layers as u16);
        if let Some(form) = self.packed(node) {
            return device.send_packed_kv(n_layers, &node.rows(), form);
        }
        let bytes = self.shape.bytes(self.shape.layers, node.len());
        device.send_kv(0..n_layers, &node.rows(), bytes)
    }

    /// Evicts from main memory until there is room. Returns false if that is impossible.
    fn make_room_in_ram(&mut self, needed: u64) -> bool {
        if needed > self.ram_bytes {
            return false;
        }
        while self.ram_used + needed > self.ram_bytes {
            // A lane is about to load these rows, and they are in no other tier.
            let is_in_use = |node: &Node| node.users > 0 && node.pages.is_empty();
            let may_go = |node: &Node| node.ram.is_some() && !node.pinned && !is_in_use(node);
            let Some(victim) = self.least(may_go) else { return false };
            self.evict_from_ram(victim);
        }
        true
    }

    fn evict_from_ram(&mut self, id: NodeId) {
        let Some(ram) = self.node_mut(id).ram.take() else { return };
        self.ram_used -= self.ram_bytes_of(self.node(id));
        self.stats.evicted_from_ram += 1;
        if self.node(id).pages.is_empty() && !self.is_filed_or_queued(id) {
            self.file_leaving(id, ram);
        }
        self.drop_if_nowhere(id);
    }

    /// The node with the smallest worth; of equal ones the least recently used.
    fn least(&self, which: impl Fn(&Node) -> bool) -> Option<NodeId> {
        let nodes = self.nodes.iter().filter(|(_, node)| which(node));
        let least = nodes.min_by(|(_, a), (_, b)| {
            let (a, b) = (a.worth, b.worth);
            a.value.total_cmp(&b.value).then(a.last_use.cmp(&b.last_use))
        });
        least.map(|(id, _)| *id)
    }

    /// The current contents of the tiers.
    pub(crate) fn stats(&self) -> CacheStats {
        let tier = |which: &dyn Fn(&Node) -> bool, budget_bytes: u64| {
            let nodes: Vec<&Node> = self.nodes.values().filter(|node| which(node)).collect();
            let tokens = nodes.iter().map(|node| node.len()).sum();
            let used_bytes = 2 * self.shape.bytes(self.shape.layers, tokens) as u64;
            TierStats { nodes: nodes.len(), tokens, used_bytes, budget_bytes }
        };
        let page_bytes = 2 * self.shape.bytes(self.shape.layers, crate::kv::PAGE_ROWS) as u64;
        let mut device =
            tier(&|node| !node.pages.is_empty(), self.pool.total() as u64 * page_bytes);
        device.used_bytes = (self.pool.total() - self.pool.free()) as u64 * page_bytes;
        let ram = tier(&|node| node.ram.is_some(), self.ram_bytes);
        let seen = self.files.as_ref().map(|files| files.seen());
        let mut disk =
            tier(&|node| node.on_disk, seen.as_ref().map_or(0, |seen| seen.budget_bytes));
        disk.used_bytes = seen.as_ref().map_or(0, |seen| seen.used_bytes);
        CacheStats {
            device,
            ram: TierStats { used_bytes: self.ram_used, ..ram },
            disk,
            coarse: tier(&|node| node.on_disk && node.form.is_coarse(), 0),
            store: seen.map(|seen| seen.stats.clone()),
            remote: self.remote.as_ref().map(|remote| remote.stats()),
            ..self.stats.clone()
        }
    }

    pub(crate) fn count_prompt(&mut self, cached: usize, computed: usize) {
        self.stats.cached_tokens += cached as u64;
        self.stats.computed_tokens += computed as u64;
    }

    /// Returns the warnings about files and the remote tier since the last call.
    pub(crate) fn take_warnings(&mut self) -> Vec<String> {
        let mut warnings = std::mem::take(&mut self.warnings);
        if let Some(files) = &self.files {
            warnings.append(&mut files.seen().warnings);
        }
        warnings.extend(self.remote.iter().flat_map(|remote| remote.take_warnings()));
        warnings
    }

    /// Mean computing time per token, as an estimate for rows that were computed by decoding.
    pub(crate) fn mean_cost(&self) -> Duration {
        let (mut cost, mut tokens) = (Duration::ZERO, 0);
        for node in self.nodes.values().filter(|node| node.is_filled()) {
            cost += node.cost;
            tokens += node.len();
        }
        if tokens == 0 { Duration::ZERO } else { cost / u32::try_from(tokens).unwrap_or(u32::MAX) }
    }
}
