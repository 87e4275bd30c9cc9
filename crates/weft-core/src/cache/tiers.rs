//! Moves rows between the device's pages, main memory and disk.
//!
//! Down: the node with the smallest worth goes first, to the next tier that has room. Up: nodes are
//! loaded as a whole. Copies between pages and main memory are started here and run beside steps;
//! readers wait for them. A damaged file counts as absent.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::node::{InRam, received};
use super::{Begin, Cache, CacheStats, Node, NodeId, TierStats, Worth};
use crate::chunk::Tier;
use crate::device::{Device, MAX_LANES};
use crate::store::{Header, KvKey, Put, Rows, Store, StoreStats};

/// Rows could not be loaded and have to be computed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Gone;

/// Number of pages that are freed before lanes take them, one for each lane.
const SPARE_PAGES: usize = MAX_LANES;

impl Cache {
    /// Adds nodes for the files that fit this model and device.
    pub(super) fn find_files(&mut self) {
        let Some(store) = &self.tiers.store else { return };
        let found: Vec<_> = store
            .entries()
            .filter(|(key, entry)| {
                let header = &entry.header;
                header.fingerprint == self.fingerprint
                    && KvKey::of_rows(&header.parent, &header.tokens) == **key
            })
            .map(|(_, entry)| entry.header.clone())
            .collect();
        for header in found {
            let filled = header.tokens.len();
            self.index(Node {
                parent: header.parent,
                home: header.home_position,
                tokens: header.tokens,
                lead: 0,
                has_lead: false,
                chunk: None,
                pages: Vec::new(),
                filled,
                filler: None,
                ram: None,
                on_disk: true,
                is_public: true,
                group: None,
                cost: Duration::from_micros(header.prefill_us),
                users: 0,
                pinned: false,
                worth: Worth::default(),
            });
        }
    }

    /// Starts to copy a node's rows into the device's pages, promised ones if the node has none.
    /// Returns the tier that held the rows, and the time to start the copy.
    pub(crate) fn bring(
        &mut self,
        id: NodeId,
        begin: Begin,
        device: &mut dyn Device,
    ) -> Result<(Tier, Duration), Gone> {
        let start = Instant::now();
        let tier = self.nodes.get(&id).and_then(Node::tier).ok_or(Gone)?;
        if tier != Tier::Device {
            let rows = match self.node_mut(id).ram.take() {
                Some(ram) => ram.rows(),
                None => Arc::new(self.read_file(id)?),
            };
            let pages = self.take_pages_from(begin, self.node(id).len(), device);
            let node = self.node_mut(id);
            node.pages = pages;
            node.lead = begin.lead;
            node.has_lead = begin.lead == 0;
            device.bring_kv(&node.rows(), Arc::clone(&rows));
            if tier == Tier::Ram {
                node.ram = Some(InRam::There(rows));
                self.stats.brought_from_ram += 1;
            } else {
                self.stats.brought_from_disk += 1;
            }
        }
        Ok((tier, start.elapsed()))
    }

    fn read_file(&mut self, id: NodeId) -> Result<Rows, Gone> {
        let (key, header) = self.filed(id);
        let rows = self.tiers.store.as_mut().and_then(|store| store.get(&key, &header));
        if rows.is_none() {
            self.node_mut(id).on_disk = false;
            self.drop_node(id);
        }
        rows.ok_or(Gone)
    }

    /// Moves all unused nodes down to a tier, and waits for the copies.
    pub(crate) fn demote(&mut self, tier: Tier, device: &mut dyn Device) {
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
        for node in self.nodes.values_mut() {
            node.ram = node.ram.take().map(|ram| InRam::There(ram.rows()));
        }
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
            && self.tiers.ram_bytes > 0
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
        if self.node(id).tier().is_none() {
            self.stats.dropped += 1;
            self.drop_node(id);
        }
    }

    /// Moves rows to main memory, or else to a file, or else drops them.
    fn keep_below(&mut self, id: NodeId, device: &mut dyn Device) {
        let needed = self.shape.node_bytes(self.node(id));
        if self.make_room_in_ram(needed) {
            self.ram_used += needed;
            let coming = self.send(id, device);
            self.node_mut(id).ram = Some(InRam::Coming(coming));
        } else if self.tiers.store.is_some() {
            let rows = received(&self.send(id, device));
            self.put_on_disk(id, &rows);
        }
    }

    /// Starts to copy a node's rows out of its pages.
    fn send(&self, id: NodeId, device: &mut dyn Device) -> Receiver<Rows> {
        let node = self.node(id);
        let room = || vec![0; self.shape.bytes(self.shape.layers, node.len())];
        let layers = 0..self.shape.layers as u16;
        device.send_kv(layers, &node.rows(), Rows { k: room(), v: room() })
    }

    /// Evicts from main memory until there is room. Returns false if that is impossible.
    fn make_room_in_ram(&mut self, needed: u64) -> bool {
        if needed > self.tiers.ram_bytes {
            return false;
        }
        while self.ram_used + needed > self.tiers.ram_bytes {
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
        self.ram_used -= self.shape.node_bytes(self.node(id));
        self.stats.evicted_from_ram += 1;
        if self.node(id).pages.is_empty() && !self.node(id).on_disk {
            self.put_on_disk(id, &ram.rows());
        }
        if self.node(id).tier().is_none() {
            self.stats.dropped += 1;
            self.drop_node(id);
        }
    }

    fn put_on_disk(&mut self, id: NodeId, rows: &Rows) -> bool {
        if self.node(id).on_disk {
            return true;
        }
        let (key, header) = self.filed(id);
        let pinned = self.node(id).pinned;
        let Some(store) = &mut self.tiers.store else { return false };
        if pinned {
            store.pin(&key);
        }
        let put = store.put(&key, &header, rows);
        let is_there = matches!(put, Put::Stored | Put::Present);
        self.node_mut(id).on_disk = is_there;
        is_there
    }

    /// Writes the rows of nodes to files, and keeps the nodes where they are. Returns the number of
    /// nodes with a file.
    pub(crate) fn save(&mut self, device: &mut dyn Device, which: impl Fn(&Node) -> bool) -> usize {
        let is_chosen = |node: &Node| node.is_public && node.is_filled() && which(node);
        let ids: Vec<NodeId> =
            self.nodes.iter().filter(|(_, node)| is_chosen(node)).map(|(id, _)| *id).collect();
        ids.into_iter().filter(|id| self.save_node(*id, device)).count()
    }

    fn save_node(&mut self, id: NodeId, device: &mut dyn Device) -> bool {
        if self.node(id).on_disk {
            return true;
        }
        let Some(ram) = self.node_mut(id).ram.take() else {
            let rows = received(&self.send(id, device));
            return self.put_on_disk(id, &rows);
        };
        let rows = ram.rows();
        self.node_mut(id).ram = Some(InRam::There(Arc::clone(&rows)));
        self.put_on_disk(id, &rows)
    }

    /// The key and header of a node's file.
    fn filed(&self, id: NodeId) -> (KvKey, Header) {
        let node = self.node(id);
        let header = Header {
            fingerprint: self.fingerprint.clone(),
            dtype: self.shape.dtype,
            layers: self.shape.layers,
            kv_width: self.shape.kv_width,
            // Rows are exact for the context that they attended to. Only a prompt uses them
            // approximately.
            reuse: "exact".to_owned(),
            parent: node.parent,
            home_position: node.home,
            tokens: node.tokens.clone(),
            prefill_us: u64::try_from(node.cost.as_micros()).unwrap_or(u64::MAX),
        };
        (Self::key_of(node), header)
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
        let store = self.tiers.store.as_ref();
        let mut disk = tier(&|node| node.on_disk, store.map_or(0, Store::budget_bytes));
        disk.used_bytes = store.map_or(0, Store::used_bytes);
        CacheStats {
            device,
            ram: tier(&|node| node.ram.is_some(), self.tiers.ram_bytes),
            disk,
            store: store.map(|store| -> StoreStats { store.stats().clone() }),
            ..self.stats.clone()
        }
    }

    pub(crate) fn count_prompt(&mut self, cached: usize, computed: usize) {
        self.stats.cached_tokens += cached as u64;
        self.stats.computed_tokens += computed as u64;
    }

    /// Returns the warnings about files since the last call.
    pub(crate) fn take_warnings(&mut self) -> Vec<String> {
        self.tiers.store.as_mut().map(Store::take_warnings).unwrap_or_default()
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
