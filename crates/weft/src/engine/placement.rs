//! Where the rows of a composition come from: what is kept already, what has to be computed.
//!
//! Exact pieces are looked up by their tokens and all before them, wherever they were cut when they
//! were computed. An approximate piece is looked up after what it may attend to: the system piece, or
//! nothing. One that stands where it was computed is exact, and treated so.

use std::ops::Range;

use crate::cache::{Cache, NodeId, Prefix};
use crate::chunk::{ChunkId, Composition, Kind, Piece, Reuse, Tier};
use crate::device::MAX_SPANS;
use crate::kv::pages_for;
use crate::store::KvKey;

/// A stretch of the prompt whose rows lie together.
#[derive(Debug)]
pub(super) struct Place {
    /// Its positions in the prompt.
    pub(super) range: Range<usize>,
    /// The piece it belongs to; the first one, if a node spans several.
    pub(super) chunk: Option<ChunkId>,
    /// What its rows attended to, and how many rows that is.
    pub(super) parent: KvKey,
    pub(super) home: usize,
    /// How many places at the begin of the prompt it sees while it is computed.
    pub(super) sees: usize,
    /// The node that has its rows.
    pub(super) found: Option<NodeId>,
}

impl Place {
    /// Whether it stands elsewhere than it was computed.
    pub(super) fn is_moved(&self) -> bool {
        self.range.start != self.home
    }
}

/// A whole prompt.
#[derive(Debug)]
pub(super) struct Placement {
    pub(super) places: Vec<Place>,
    /// What the answer attends to.
    pub(super) end: KvKey,
}

impl Placement {
    /// Looks up the pieces of the prompt's first `limit` tokens.
    pub(super) fn plan(cache: &Cache, composition: &Composition, limit: usize) -> Self {
        let placement = Self::look_up(cache, composition, limit);
        // The answer has a span too. Rows in that many bits were cut elsewhere than this prompt is.
        if placement.places.len() < MAX_SPANS {
            return placement;
        }
        Self::look_up(cache, composition, 0)
    }

    fn look_up(cache: &Cache, composition: &Composition, limit: usize) -> Self {
        let root = cache.root();
        let mut planner = Planner {
            cache,
            limit,
            tokens: composition.tokens(),
            has_anchored: pieces_are_anchored(composition),
            anchor: Anchor { key: root.key(), len: 0, places: 0 },
            root: root.key(),
            prefix: root,
            places: Vec::new(),
            at: 0,
        };
        let mut pieces = &composition.pieces[..];
        while let Some(piece) = pieces.first() {
            let n = planner.exact_run(pieces);
            if n == 0 {
                planner.place_moved(piece, composition);
            } else {
                planner.place_exact(&pieces[..n]);
            }
            if piece.kind == Kind::System && planner.anchor.places == 0 {
                planner.set_anchor();
            }
            pieces = &pieces[n.max(1)..];
        }
        Self { end: planner.prefix.key(), places: planner.places }
    }

    /// Nodes that were found.
    pub(super) fn found(&self) -> Vec<NodeId> {
        self.places.iter().filter_map(|place| place.found).collect()
    }

    /// Pages that have to be taken for the prompt's rows.
    pub(super) fn n_pages(&self, cache: &Cache) -> usize {
        let mut brought: Vec<NodeId> = Vec::new();
        let mut pages = 0;
        for place in &self.places {
            match place.found {
                None => pages += pages_for(place.range.len()),
                Some(id) if !brought.contains(&id) => {
                    let node = cache.node(id);
                    pages += if node.tier() == Some(Tier::Device) { 0 } else { node.n_pages() };
                    brought.push(id);
                }
                Some(_) => {}
            }
        }
        pages
    }
}

fn pieces_are_anchored(composition: &Composition) -> bool {
    composition.pieces.iter().any(|piece| piece.reuse == Reuse::Anchored)
}

/// The system piece, which anchored pieces attend to.
struct Anchor {
    key: KvKey,
    len: usize,
    places: usize,
}

struct Planner<'c> {
    cache: &'c Cache,
    /// Tokens that are looked up.
    limit: usize,
    tokens: Vec<u32>,
    has_anchored: bool,
    root: KvKey,
    anchor: Anchor,
    prefix: Prefix,
    places: Vec<Place>,
    at: usize,
}

impl Planner<'_> {
    /// Where a piece would be computed.
    fn home(&self, reuse: Reuse, position: usize) -> usize {
        match reuse {
            Reuse::Exact => position,
            Reuse::Anchored => self.anchor.len,
            Reuse::Isolated => 0,
        }
    }

    /// How many of the pieces stand where they are computed, one after the other. A system piece is
    /// by itself where others are anchored to it; elsewhere rows that span it and what follows are as
    /// good as any.
    fn exact_run(&self, pieces: &[Piece]) -> usize {
        let mut position = self.at;
        let is_exact = |piece: &&Piece| {
            let is_exact = self.home(piece.reuse, position) == position;
            position += piece.tokens.len();
            is_exact
        };
        let n = pieces.iter().take_while(is_exact).count();
        if !self.has_anchored {
            return n;
        }
        let system = pieces[..n].iter().position(|piece| piece.kind == Kind::System);
        match system {
            Some(0) => 1,
            Some(before) => before,
            None => n,
        }
    }

    /// The longest kept match of a stretch of the prompt after a context.
    fn longest(&self, parent: &KvKey, range: Range<usize>) -> Option<(NodeId, usize)> {
        let end = range.end.min(self.limit);
        if range.start >= end {
            return None;
        }
        self.cache.longest(parent, &self.tokens[range.start..end])
    }

    fn set_anchor(&mut self) {
        self.anchor = Anchor { key: self.prefix.key(), len: self.at, places: self.places.len() };
    }

    /// Exact pieces that follow one another: nodes may span them, new ones are cut between them.
    fn place_exact(&mut self, run: &[Piece]) {
        let end = self.at + run.iter().map(|piece| piece.tokens.len()).sum::<usize>();
        let mut piece_end = self.at;
        for piece in run {
            piece_end += piece.tokens.len();
            while self.at < piece_end {
                let parent = self.prefix.key();
                let found = self.longest(&parent, self.at..end);
                let len = found.map_or(piece_end - self.at, |(_, len)| len);
                let range = self.at..self.at + len;
                self.prefix.add(&self.tokens[range.clone()]);
                self.at = range.end;
                self.places.push(Place {
                    home: range.start,
                    range,
                    chunk: piece.chunk,
                    parent,
                    sees: self.places.len(),
                    found: found.map(|(id, _)| id),
                });
            }
        }
    }

    /// A piece that stands elsewhere than it is computed.
    fn place_moved(&mut self, piece: &Piece, composition: &Composition) {
        let (parent, sees) = match piece.reuse {
            Reuse::Isolated => (self.root, 0),
            _ => (self.anchor.key, self.anchor.places),
        };
        let whole = |(id, len): (NodeId, usize)| (len == piece.tokens.len()).then_some(id);
        let range = self.at..self.at + piece.tokens.len();
        let found = self.longest(&parent, range.clone());
        self.prefix.add_moved(&parent, composition.repair, &piece.tokens);
        self.at = range.end;
        self.places.push(Place {
            range,
            chunk: piece.chunk,
            parent,
            home: self.home(piece.reuse, usize::MAX),
            sees,
            found: found.and_then(whole),
        });
    }
}
