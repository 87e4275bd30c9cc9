//! The cache of KV rows: which rows exist, where they lie, and which are evicted.
//!
//! A node holds the rows of some tokens after a context. Nodes are found by the context that they
//! attended to. They lie in the device's pages, in main memory or on disk, and move down a tier
//! when others need the space. Rows that a lane reads are never moved, and pages promised to a lane
//! are always available. The cache knows tokens and pages, but not requests.

mod chunks;
mod fetching;
mod files;
mod filing;
mod group;
mod news;
mod node;
mod remote;
mod shape;
mod speeds;
mod stats;
#[cfg(test)]
mod tests;
mod tiers;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::chunk::ChunkId;
use crate::device::Device;
use crate::kv::{OutOfPages, PageId, PagePool, pages_for};
use crate::store::{KvKey, Prefix, RowForm, Store};

pub use self::chunks::ChunkTiers;
pub(crate) use self::fetching::Brought;
use self::files::Files;
pub use self::filing::Saving;
pub(crate) use self::group::GroupId;
pub use self::group::RowGroup;
use self::group::Waiting;
use self::news::NewsChannel;
pub use self::node::LaneId;
use self::node::Worth;
pub(crate) use self::node::{Node, NodeId};
pub use self::remote::{
    BreakerState, Fetched, Interest, Latency, RemoteStats, RemoteTier, WhenFetched,
};
pub(crate) use self::shape::RowShape;
use self::speeds::Speeds;
pub use self::stats::{CacheStats, TierStats};

/// A shorter match at the start of a node is not worth copying a page for.
const LEAST_PARTIAL_MATCH: usize = 32;

/// The storage tiers below the device, and their sizes.
#[derive(Default)]
pub struct Tiers {
    /// Bytes of main memory for rows evicted from the device's pages.
    pub ram_bytes: u64,
    /// Files on disk.
    pub store: Option<Store>,
    /// A store that several machines share. Rows are written to it on their way to disk, so it
    /// gets none without files.
    pub remote: Option<Arc<dyn RemoteTier>>,
    /// How the rows of approximate pieces are stored in files and in the remote tier. Rows of
    /// exact pieces are always stored in full. Unless rows are stored coarsely, coarse rows are
    /// not read either.
    pub stored_rows: RowForm,
}

/// All nodes and all pages.
pub(crate) struct Cache {
    fingerprint: String,
    shape: RowShape,
    pool: PagePool,
    /// Pages promised to lanes. They are kept free or evictable.
    promised: usize,
    nodes: BTreeMap<NodeId, Node>,
    /// Nodes that other requests can find, by the key of the context that they attended to, and of
    /// the form in which they are stored.
    children: HashMap<KvKey, Vec<NodeId>>,
    groups: HashMap<GroupId, Waiting>,
    next: u64,
    /// Bytes of main memory for rows, and those in use.
    ram_bytes: u64,
    ram_used: u64,
    files: Option<Files>,
    remote: Option<Arc<dyn RemoteTier>>,
    /// How the rows of approximate pieces are stored.
    stored_rows: RowForm,
    /// Whether they travel between the device and main memory in that form, and lie there so.
    packs: bool,
    /// Nodes whose rows have to be handed to the files.
    to_file: VecDeque<NodeId>,
    news: NewsChannel,
    speeds: Speeds,
    warnings: Vec<String>,
    /// Counts uses.
    clock: u64,
    /// The worth of the node that was evicted last.
    worth: f64,
    stats: CacheStats,
}

/// A new node: tokens to compute after a context.
pub(crate) struct NewNode {
    pub(crate) parent: KvKey,
    pub(crate) home: usize,
    pub(crate) tokens: Vec<u32>,
    /// Rows of the first page before the node's own.
    pub(crate) lead: usize,
    pub(crate) chunk: Option<ChunkId>,
    /// How they are stored.
    pub(crate) form: RowForm,
    pub(crate) is_public: bool,
    pub(crate) group: Option<GroupId>,
}

/// Where a node's rows start in its first page.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Begin {
    /// Rows of the page before the node's own.
    pub(crate) lead: usize,
    /// The page, if it is the last page of the preceding rows and belongs to the same lane.
    pub(crate) page: Option<PageId>,
}

impl Cache {
    /// A cache for all pages of a device, with the files that earlier processes wrote.
    ///
    /// # Panics
    /// If rows of this width cannot be stored in the given form.
    pub(crate) fn new(fingerprint: String, shape: RowShape, pages: usize, tiers: Tiers) -> Self {
        let stored_rows = tiers.stored_rows;
        let row_bytes = stored_rows.row_bytes(shape.kv_width, shape.dtype);
        assert!(row_bytes.is_some(), "{stored_rows:?} for rows of {} numbers", shape.kv_width);
        let mut cache = Self {
            fingerprint,
            shape,
            pool: PagePool::new(pages),
            promised: 0,
            nodes: BTreeMap::new(),
            children: HashMap::new(),
            groups: HashMap::new(),
            next: 0,
            ram_bytes: tiers.ram_bytes,
            ram_used: 0,
            files: None,
            remote: tiers.remote,
            stored_rows,
            packs: false,
            to_file: VecDeque::new(),
            news: NewsChannel::default(),
            speeds: Speeds::default(),
            warnings: Vec::new(),
            clock: 0,
            worth: 0.0,
            stats: CacheStats::default(),
        };
        if let Some(store) = tiers.store {
            cache.find_files(&store);
            cache.start_files(store);
        }
        cache
    }

    fn start_files(&mut self, store: Store) {
        match Files::start(store, self.news.to.clone()) {
            Ok(files) => self.files = Some(files),
            Err(error) => {
                self.warnings.push(format!("files of rows are not used: no thread: {error}"));
                self.nodes.clear();
                self.children.clear();
            }
        }
    }

    pub(crate) fn shape(&self) -> RowShape {
        self.shape
    }

    /// How the rows of approximate pieces are stored.
    pub(crate) fn stored_rows(&self) -> RowForm {
        self.stored_rows
    }

    /// The empty context.
    pub(crate) fn root(&self) -> Prefix {
        Prefix::root(&self.fingerprint)
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[&id]
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes.get_mut(&id).expect("a lane's nodes live as long as the lane")
    }

    /// The node after `place`, a context in some form, that shares the longest start with `tokens`,
    /// and the length of that start: all of `tokens`, the whole node, or enough to be worth it.
    pub(crate) fn longest(&self, place: &KvKey, tokens: &[u32]) -> Option<(NodeId, usize)> {
        let candidates = self.children.get(place)?.iter().map(|id| (*id, &self.nodes[id]));
        candidates
            .map(|(id, node)| (id, node, common_prefix(&node.tokens, tokens)))
            .filter(|(_, node, n)| {
                *n >= LEAST_PARTIAL_MATCH.min(node.len()).min(tokens.len()).max(1)
            })
            // The longest match; of equal ones the fastest tier, then the oldest node.
            .min_by_key(|(id, node, n)| (std::cmp::Reverse(*n), node.tier(), *id))
            .map(|(id, _, n)| (id, n))
    }

    /// Pages that are free, or that eviction could free while the nodes `held` are in use.
    fn free_or_evictable(&self, held: &[NodeId]) -> usize {
        let is_evictable =
            |(id, node): &(&NodeId, &Node)| node.is_evictable() && !held.contains(id);
        let mut holders = self.pool.holders().to_vec();
        for (_, node) in self.nodes.iter().filter(is_evictable) {
            node.pages.iter().for_each(|page| holders[*page as usize] -= 1);
        }
        // A page is free once it has no references.
        holders.iter().filter(|holders| **holders == 0).count()
    }

    /// Whether pages can be promised while the nodes `held` are in use. Using these nodes alone may
    /// be impossible, because their pages may be the only evictable ones.
    pub(crate) fn check_promise(&self, pages: usize, held: &[NodeId]) -> Result<(), OutOfPages> {
        let there = self.free_or_evictable(held);
        if self.promised + pages > there {
            let free = there.saturating_sub(self.promised);
            return Err(OutOfPages { wanted: pages, free, total: self.pool.total() });
        }
        Ok(())
    }

    /// Promises pages to a lane that will use the nodes `held`.
    pub(crate) fn promise(&mut self, pages: usize, held: &[NodeId]) -> Result<(), OutOfPages> {
        self.check_promise(pages, held)?;
        self.promised += pages;
        Ok(())
    }

    /// Pages that are promised and not yet taken.
    #[cfg(test)]
    pub(crate) fn n_promised(&self) -> usize {
        self.promised
    }

    /// Whether a node still exists.
    #[cfg(test)]
    pub(crate) fn has(&self, id: NodeId) -> bool {
        self.nodes.contains_key(&id)
    }

    /// Takes back a promise.
    pub(crate) fn release_promise(&mut self, pages: usize) {
        self.promised -= pages;
    }

    /// Takes promised pages.
    pub(crate) fn take_pages(&mut self, pages: usize, device: &mut dyn Device) -> Vec<PageId> {
        while self.pool.free() < pages {
            self.evict_one(device);
        }
        self.promised -= pages;
        self.pool.take(pages).expect("there are enough free pages now")
    }

    pub(crate) fn give_back_pages(&mut self, pages: impl IntoIterator<Item = PageId>) {
        self.pool.give_back(pages);
    }

    /// Adds a lane's references to pages: they stay allocated whatever happens to their nodes.
    pub(crate) fn hold_pages(&mut self, pages: &[PageId]) {
        self.pool.hold(pages);
    }

    /// Takes promised pages for rows that start somewhere in a page.
    fn take_pages_from(
        &mut self,
        begin: Begin,
        rows: usize,
        device: &mut dyn Device,
    ) -> Vec<PageId> {
        let first = begin.page.filter(|_| begin.lead > 0);
        self.pool.hold(first.as_slice());
        let n_pages = pages_for(begin.lead + rows) - first.iter().len();
        let more = self.take_pages(n_pages, device);
        first.into_iter().chain(more).collect()
    }

    /// Adds a node for tokens that a lane will compute, in promised pages.
    pub(crate) fn insert(
        &mut self,
        new: NewNode,
        begins_in: Option<PageId>,
        filler: LaneId,
        device: &mut dyn Device,
    ) -> NodeId {
        let begin = Begin { lead: new.lead, page: begins_in };
        let pages = self.take_pages_from(begin, new.tokens.len(), device);
        self.add_node(new, pages, 0, Some(filler))
    }

    /// Makes nodes that end in page `from` end in page `to` instead, which holds the same rows and
    /// more: one page serves both. Does nothing if other nodes need `from`.
    pub(crate) fn move_ends(&mut self, nodes: &[NodeId], from: PageId, to: PageId) {
        let needs =
            |node: &Node| node.pages.first() == Some(&from) || node.pages.last() == Some(&from);
        if self.nodes.iter().any(|(id, node)| needs(node) && !nodes.contains(id)) {
            return;
        }
        for id in nodes {
            let node = self.nodes.get_mut(id).expect("a lane's nodes live as long as the lane");
            if let Some(last) = node.pages.last_mut().filter(|last| **last == from) {
                *last = to;
                self.pool.hold(&[to]);
                self.pool.give_back([from]);
            }
        }
    }

    /// Adds a node for rows that a lane has computed in its own pages, unless the cache has them.
    pub(crate) fn adopt(&mut self, new: NewNode, pages: Vec<PageId>, cost: Duration) {
        let filled = new.tokens.len();
        let place = new.form.place(&new.parent);
        if self.longest(&place, &new.tokens).is_some_and(|(_, n)| n == filled) {
            self.pool.give_back(pages);
            return;
        }
        let id = self.add_node(new, pages, filled, None);
        let node = self.node_mut(id);
        node.cost = cost;
        node.has_lead = true;
        self.hold(id);
        self.let_go(id);
    }

    fn add_node(
        &mut self,
        new: NewNode,
        pages: Vec<PageId>,
        filled: usize,
        filler: Option<LaneId>,
    ) -> NodeId {
        let NewNode { parent, home, tokens, lead, chunk, form, is_public, group } = new;
        let node = Node {
            parent,
            form,
            place: form.place(&parent),
            is_rounded: false,
            home,
            tokens,
            lead,
            has_lead: lead == 0,
            chunk,
            pages,
            filled,
            filler,
            ram: None,
            filing: None,
            fetching: None,
            read_time: Duration::ZERO,
            kept_cost: None,
            on_disk: false,
            is_shared: false,
            is_chunk_s_own: chunk.is_some(),
            is_public,
            group,
            cost: Duration::ZERO,
            users: 0,
            pinned: false,
            worth: Worth::default(),
        };
        self.index(node)
    }

    fn index(&mut self, node: Node) -> NodeId {
        let id = NodeId(self.next);
        self.next += 1;
        if node.is_found() {
            self.children.entry(node.place).or_default().push(id);
        }
        self.nodes.insert(id, node);
        id
    }

    /// A lane starts to read a node.
    pub(crate) fn hold(&mut self, id: NodeId) {
        self.node_mut(id).users += 1;
    }

    /// A lane has finished with a node. If it was the last one, an incomplete node stays
    /// incomplete; its computed rows stay if they can be found.
    pub(crate) fn let_go(&mut self, id: NodeId) {
        self.touch(id);
        let node = self.node_mut(id);
        node.users -= 1;
        if node.users > 0 {
            return;
        }
        let node = self.node(id);
        if node.on_disk && !node.is_filled() {
            self.leave_to_file(id);
            return;
        }
        if node.filled == 0 || !(node.is_public || self.is_awaited(node)) {
            self.drop_node(id);
            return;
        }
        let node = self.node_mut(id);
        node.tokens.truncate(node.filled);
        let spare = node.pages.split_off(node.n_pages().min(node.pages.len()));
        self.pool.give_back(spare);
    }

    fn touch(&mut self, id: NodeId) {
        self.clock += 1;
        let (clock, worth) = (self.clock, self.worth);
        let node = self.node_mut(id);
        node.worth = Worth { value: worth + node.cost_per_page(), last_use: clock };
    }

    fn drop_node(&mut self, id: NodeId) {
        if self.nodes.contains_key(&id) {
            self.stop_filing(id);
        }
        let Some(node) = self.nodes.remove(&id) else { return };
        if node.ram.is_some() {
            self.ram_used -= self.ram_bytes_of(&node);
        }
        self.pool.give_back(node.pages);
        self.remove_child(&node.place, id);
    }

    /// Nobody finds the node at its place any more.
    fn remove_child(&mut self, place: &KvKey, id: NodeId) {
        if let Some(siblings) = self.children.get_mut(place) {
            siblings.retain(|sibling| *sibling != id);
            if siblings.is_empty() {
                self.children.remove(place);
            }
        }
    }

    /// The key of a node's file.
    fn key_of(node: &Node) -> KvKey {
        KvKey::of_rows(&node.place, &node.tokens)
    }

    /// Panics unless all reference counts and totals are correct.
    #[cfg(test)]
    pub(crate) fn check(&self, elsewhere: &[PageId]) {
        let mut holders = vec![0; self.pool.total()];
        let nodes = self.nodes.values().flat_map(|node| &node.pages);
        nodes.chain(elsewhere).for_each(|page| holders[*page as usize] += 1);
        assert_eq!(self.pool.holders(), holders, "holders of pages");
        assert_eq!(holders.iter().filter(|n| **n == 0).count(), self.pool.free());
        for node in self.nodes.values().filter(|node| !node.pages.is_empty()) {
            assert_eq!(node.pages.len(), node.n_pages(), "pages of a node");
        }
        let in_ram = self.nodes.values().filter(|n| n.ram.is_some());
        let ram: u64 = in_ram.map(|n| self.ram_bytes_of(n)).sum();
        assert_eq!(ram, self.ram_used);
        assert!(ram <= self.ram_bytes);
        let free = self.free_or_evictable(&[]);
        assert!(free >= self.promised, "{} promised of {free}", self.promised);
        let public = self.nodes.values().filter(|n| n.is_found()).count();
        assert_eq!(self.children.values().map(Vec::len).sum::<usize>(), public);
        assert!(self.children.values().all(|nodes| !nodes.is_empty()), "places without nodes");
    }
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
