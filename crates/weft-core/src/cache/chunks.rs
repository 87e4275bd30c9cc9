//! What the cache does for a chunk as a whole: pins its rows, finds them, removes them.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};

use super::{Cache, Node, NodeId};
use crate::chunk::{Chunk, ChunkId, Tier};
use crate::kv::OutOfPages;

/// The tiers of the rows of all chunks at one time. To find those of many chunks takes time, and
/// needs no engine.
#[derive(Clone, Debug, Default)]
pub struct ChunkTiers {
    /// The fastest tier of each chunk that nodes name.
    named: BTreeMap<ChunkId, Tier>,
    /// The tokens of files of earlier processes, and where their rows lie.
    unnamed: Vec<(Vec<u32>, Tier)>,
}

impl ChunkTiers {
    /// The fastest tier of each of these chunks that has rows.
    pub fn of<C: Borrow<Chunk>>(mut self, chunks: &[C]) -> BTreeMap<ChunkId, Tier> {
        let mut by_first: HashMap<u32, Vec<&Chunk>> = HashMap::new();
        for chunk in chunks.iter().map(Borrow::borrow) {
            if let Some(first) = chunk.tokens.first() {
                by_first.entry(*first).or_default().push(chunk);
            }
        }
        for (tokens, tier) in &self.unnamed {
            for (start, first) in tokens.iter().enumerate() {
                let begin_so = by_first.get(first).into_iter().flatten();
                for chunk in begin_so.filter(|chunk| tokens[start..].starts_with(&chunk.tokens)) {
                    note(&mut self.named, chunk.id, *tier);
                }
            }
        }
        self.named
    }
}

/// Notes that a chunk has rows in a tier; the fastest counts.
fn note(tiers: &mut BTreeMap<ChunkId, Tier>, id: ChunkId, tier: Tier) {
    tiers.entry(id).and_modify(|known| *known = tier.min(*known)).or_insert(tier);
}

impl Cache {
    /// Pins or unpins the rows of a chunk. Refused if pages promised to lanes would no longer be
    /// available.
    pub(crate) fn pin(&mut self, chunk: &ChunkId, pinned: bool) -> Result<(), OutOfPages> {
        let is_of_chunk = |node: &Node| node.chunk.as_ref() == Some(chunk);
        let nodes = self.nodes.iter().filter(|(_, node)| is_of_chunk(node));
        let ids: Vec<NodeId> = nodes.map(|(id, _)| *id).collect();
        if pinned {
            self.check_promise(0, &ids)?;
        }
        ids.iter().for_each(|id| self.node_mut(*id).pinned = pinned);
        Ok(())
    }

    /// Pins or unpins the files of a chunk. Files of earlier processes are found by their tokens.
    pub(crate) fn pin_files(&mut self, chunk: &Chunk, pinned: bool) {
        let Some(files) = &self.files else { return };
        let has_file = |node: &&Node| node.is_filed_soon() && chunk.is_in(&node.tokens);
        for node in self.nodes.values().filter(has_file) {
            files.pin(Self::key_of(node), pinned);
        }
    }

    /// The fastest tier that holds rows of a chunk. Files of earlier processes are found by their
    /// tokens.
    pub(crate) fn tier_of(&self, chunk: &Chunk) -> Option<Tier> {
        let is_its = |node: &&Node| match node.chunk {
            Some(id) => id == chunk.id,
            None => node.on_disk && chunk.is_in(&node.tokens),
        };
        let filled = self.nodes.values().filter(|node| node.is_filled());
        filled.filter(is_its).filter_map(Node::tier).min()
    }

    /// The tiers of the rows of all chunks.
    pub(crate) fn chunk_tiers(&self) -> ChunkTiers {
        let mut tiers = ChunkTiers::default();
        for node in self.nodes.values().filter(|node| node.is_filled()) {
            let Some(tier) = node.tier() else { continue };
            match node.chunk {
                Some(id) => note(&mut tiers.named, id, tier),
                None if node.on_disk => tiers.unnamed.push((node.tokens.clone(), tier)),
                None => {}
            }
        }
        tiers
    }

    /// Removes all rows of a chunk from every tier. Rows that a lane reads stay until it has
    /// finished.
    pub(crate) fn forget(&mut self, chunk: &Chunk) {
        // A node may hold a part of the chunk, if another text starts in the same way.
        let is_of = |node: &Node| node.chunk == Some(chunk.id) || chunk.is_in(&node.tokens);
        let ids: Vec<NodeId> =
            self.nodes.iter().filter(|(_, node)| is_of(node)).map(|(id, _)| *id).collect();
        for id in ids {
            self.forget_node(id);
        }
    }

    /// Removes everything that no lane reads.
    pub(crate) fn clear(&mut self) {
        let ids: Vec<NodeId> = self.nodes.keys().copied().collect();
        for id in ids {
            self.forget_node(id);
        }
    }

    fn forget_node(&mut self, id: NodeId) {
        let node = &self.nodes[&id];
        if let Some(files) = self.files.as_ref().filter(|_| node.is_filed_soon()) {
            files.remove(Self::key_of(node));
        }
        self.stop_filing(id);
        let node = self.node_mut(id);
        node.on_disk = false;
        if node.users == 0 {
            self.drop_node(id);
        } else if node.is_public {
            node.is_public = false;
            let place = node.place;
            self.remove_child(&place, id);
        }
    }
}
