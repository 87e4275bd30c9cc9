//! Finds the rows of a composition: which are cached, and which have to be computed.
//!
//! Exact pieces are looked up by their tokens and everything before them, wherever they were cut
//! when they were computed. An approximate piece is looked up after the context that it may attend
//! to: the system piece, or nothing. If it stands where it was computed, it is treated as exact.
//!
//! Consecutive rows at home form a *run*, which is one span for devices: from the run's first row
//! on, each page holds the rows of 64 positions, whatever nodes they belong to. The result
//! therefore depends neither on where a prompt was cut nor on which rows were cached.

use std::ops::Range;

use crate::cache::{Cache, GroupId, NodeId};
use crate::chunk::{ChunkId, Composition, Kind, Piece, Reuse, Tier};
use crate::kv::{PAGE_ROWS, pages_for};
use crate::store::{KvKey, Prefix};

/// Tokens of the prompt whose rows are one cache node: an existing one or a new one.
#[derive(Debug)]
pub(super) struct PlannedNode {
    /// Its positions in the prompt.
    pub(super) range: Range<usize>,
    /// Its chunk; that of the first piece, if a node spans several.
    pub(super) chunk: Option<ChunkId>,
    /// The key and length of the context that its rows attended to.
    pub(super) parent: KvKey,
    pub(super) home: usize,
    /// Number of nodes at the start of the prompt that it attends to.
    pub(super) sees: usize,
    /// Rows of its first page that belong to these nodes.
    pub(super) lead: usize,
    /// The node that holds its rows, if they are cached.
    pub(super) found: Option<NodeId>,
}

impl PlannedNode {
    /// Whether it was moved from the position that it was computed at.
    pub(super) fn is_moved(&self) -> bool {
        self.range.start != self.home
    }
}

/// The nodes of a whole prompt.
#[derive(Debug)]
pub(super) struct Placement {
    pub(super) nodes: Vec<PlannedNode>,
    /// The key of the context that the answer attends to.
    pub(super) end: KvKey,
    /// Rows of the answer's first page that belong to the prompt.
    pub(super) answer_lead: usize,
}

impl Placement {
    /// Looks up the pieces of the prompt's first `limit` tokens, among the rows of a group or of all.
    pub(super) fn look_up(
        cache: &Cache,
        composition: &Composition,
        limit: usize,
        group: Option<GroupId>,
    ) -> Self {
        let root = cache.root_of(group);
        let mut planner = Planner {
            cache,
            limit,
            tokens: composition.tokens(),
            has_anchored: pieces_are_anchored(composition),
            anchor: Anchor { key: root.key(), len: 0, nodes: 0, run_start: 0 },
            root: root.key(),
            prefix: root,
            nodes: Vec::new(),
            at: 0,
            run_start: 0,
        };
        let mut pieces = &composition.pieces[..];
        while let Some(piece) = pieces.first() {
            let n = planner.exact_run(pieces);
            if n == 0 {
                planner.place_moved(piece, composition);
            } else {
                planner.place_exact(&pieces[..n]);
            }
            if piece.kind == Kind::System && planner.anchor.nodes == 0 {
                planner.set_anchor();
            }
            pieces = &pieces[n.max(1)..];
        }
        let answer_lead = planner.lead();
        Self { end: planner.prefix.key(), nodes: planner.nodes, answer_lead }
    }

    /// The cached nodes.
    pub(super) fn found(&self) -> Vec<NodeId> {
        self.nodes.iter().filter_map(|planned| planned.found).collect()
    }

    /// Pages to take for the prompt's rows, and for `answer` rows after them.
    pub(super) fn n_pages(&self, cache: &Cache, answer: usize) -> (usize, usize) {
        let mut brought: Vec<NodeId> = Vec::new();
        let mut pages = 0;
        // Whether the next rows may continue in the last page: no other lane has it yet.
        let mut is_open = false;
        let taken = |lead: usize, rows: usize, is_open: bool| {
            pages_for(lead + rows) - usize::from(is_open && lead > 0)
        };
        for planned in &self.nodes {
            let (rows, is_new) = match planned.found.map(|id| (id, cache.node(id))) {
                None => (planned.range.len(), true),
                Some((id, node)) => {
                    let is_below = node.tier() != Some(Tier::Device) && !brought.contains(&id);
                    brought.extend(is_below.then_some(id));
                    (node.len(), is_below)
                }
            };
            if is_new {
                pages += taken(planned.lead, rows, is_open && !planned.is_moved());
            }
            is_open = is_new && rows == planned.range.len();
        }
        (pages, taken(self.answer_lead, answer, is_open))
    }
}

fn pieces_are_anchored(composition: &Composition) -> bool {
    composition.pieces.iter().any(|piece| piece.reuse == Reuse::Anchored)
}

/// The system piece, which anchored pieces attend to.
struct Anchor {
    key: KvKey,
    len: usize,
    nodes: usize,
    run_start: usize,
}

struct Planner<'c> {
    cache: &'c Cache,
    /// Number of tokens that are looked up.
    limit: usize,
    tokens: Vec<u32>,
    has_anchored: bool,
    root: KvKey,
    anchor: Anchor,
    prefix: Prefix,
    nodes: Vec<PlannedNode>,
    at: usize,
    /// The start of the current run of rows at home.
    run_start: usize,
}

impl Planner<'_> {
    /// Rows of the run in the page of its next row.
    fn lead(&self) -> usize {
        (self.at - self.run_start) % PAGE_ROWS
    }

    /// The position that a piece would be computed at.
    fn home(&self, reuse: Reuse, position: usize) -> usize {
        match reuse {
            Reuse::Exact => position,
            Reuse::Anchored => self.anchor.len,
            Reuse::Isolated => 0,
        }
    }

    /// The number of consecutive pieces that stand where they are computed. A system piece counts
    /// alone if others are anchored to it; otherwise rows may span it and the pieces after it.
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

    /// The longest cached match for a range of the prompt after a context.
    fn longest(&self, parent: &KvKey, range: Range<usize>) -> Option<(NodeId, usize)> {
        let end = range.end.min(self.limit);
        if range.start >= end {
            return None;
        }
        self.cache.longest(parent, &self.tokens[range.start..end])
    }

    fn set_anchor(&mut self) {
        let (len, nodes, run_start) = (self.at, self.nodes.len(), self.run_start);
        self.anchor = Anchor { key: self.prefix.key(), len, nodes, run_start };
    }

    /// Consecutive exact pieces: cached nodes may span them, new ones are cut between them.
    fn place_exact(&mut self, run: &[Piece]) {
        let end = self.at + run.iter().map(|piece| piece.tokens.len()).sum::<usize>();
        let mut piece_end = self.at;
        for piece in run {
            piece_end += piece.tokens.len();
            while self.at < piece_end {
                let parent = self.prefix.key();
                let found = self.longest(&parent, self.at..end);
                let len = found.map_or(piece_end - self.at, |(_, len)| len);
                let (range, lead) = (self.at..self.at + len, self.lead());
                self.prefix.add(&self.tokens[range.clone()]);
                self.at = range.end;
                self.nodes.push(PlannedNode {
                    home: range.start,
                    range,
                    chunk: piece.chunk,
                    parent,
                    sees: self.nodes.len(),
                    lead,
                    found: found.map(|(id, _)| id),
                });
            }
        }
    }

    /// A piece that was moved from the position it is computed at. An empty one has no node.
    fn place_moved(&mut self, piece: &Piece, composition: &Composition) {
        if piece.tokens.is_empty() {
            return;
        }
        let Anchor { key, len, nodes, run_start } = &self.anchor;
        let (parent, sees, lead) = match piece.reuse {
            Reuse::Isolated => (self.root, 0, 0),
            _ => (*key, *nodes, (len - run_start) % PAGE_ROWS),
        };
        let whole = |(id, len): (NodeId, usize)| (len == piece.tokens.len()).then_some(id);
        let range = self.at..self.at + piece.tokens.len();
        let found = self.longest(&parent, range.clone());
        self.prefix.add_moved(&parent, composition.repair, &piece.tokens);
        self.at = range.end;
        self.run_start = self.at;
        self.nodes.push(PlannedNode {
            range,
            chunk: piece.chunk,
            parent,
            home: self.home(piece.reuse, usize::MAX),
            sees,
            lead,
            found: found.and_then(whole),
        });
    }
}
