//! Finds the rows of a composition: which are cached, and which have to be computed.
//!
//! Exact pieces are looked up by their tokens and everything before them, wherever they were cut
//! when they were computed. An approximate piece is looked up after the context that it may attend
//! to: the anchor, or nothing. If it stands where it was computed, it is treated as exact.
//!
//! The anchor is the prompt's first system piece, and the pieces after it that are marked as
//! anchors, as if nothing stood between them. So a marked piece may itself be moved, by a text
//! before it that changes from prompt to prompt.
//!
//! Consecutive rows at home form a *run*, which is one span for devices: from the run's first row
//! on, each page holds the rows of 64 positions, whatever nodes they belong to. The result
//! therefore depends neither on where a prompt was cut nor on which rows were cached.
//!
//! If rows of approximate pieces are stored coarsely, these pieces have their own place in the
//! cache, and so has everything after them: exact pieces find neither.

use std::ops::Range;

use crate::cache::{Cache, GroupId, NodeId};
use crate::chunk::{ChunkId, Composition, Kind, Piece, Repair, Reuse};
use crate::kv::{PAGE_ROWS, pages_for};
use crate::store::{KvKey, Prefix, RowForm};

/// Tokens of the prompt whose rows are one cache node: an existing one or a new one.
#[derive(Debug)]
pub(super) struct PlannedNode {
    /// Its positions in the prompt.
    pub(super) range: Range<usize>,
    /// Its chunk; that of the first piece, if a node spans several.
    pub(super) chunk: Option<ChunkId>,
    /// Whether it spans no other piece.
    pub(super) is_in_piece: bool,
    /// The key and length of the context that its rows attended to.
    pub(super) parent: KvKey,
    pub(super) home: usize,
    pub(super) sees: Sees,
    /// How its rows are stored.
    pub(super) form: RowForm,
    /// Rows of its first page that belong to the nodes that it attends to.
    pub(super) lead: usize,
    /// Whether anchored nodes attend to it.
    pub(super) is_anchor: bool,
    /// The node that holds its rows, if they are cached.
    pub(super) found: Option<NodeId>,
}

impl PlannedNode {
    /// Whether it was moved from the position that it was computed at.
    pub(super) fn is_moved(&self) -> bool {
        self.range.start != self.home
    }
}

/// The nodes of a prompt that a node attends to: the first ones, and some after them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sees {
    /// The number of nodes at the start of the prompt.
    first: usize,
    /// Others, in ascending order: marked anchors.
    then: Vec<usize>,
}

impl Sees {
    /// The first nodes of the prompt.
    pub(super) const fn first(first: usize) -> Self {
        Self { first, then: Vec::new() }
    }

    /// The places of the nodes in the prompt, in order.
    pub(super) fn places(&self) -> impl DoubleEndedIterator<Item = usize> {
        (0..self.first).chain(self.then.iter().copied())
    }

    /// Whether these are the prompt's first nodes alone. If not, all of them are attended to as if
    /// they stood at home.
    pub(super) fn are_first(&self) -> bool {
        self.then.is_empty()
    }

    /// Whether these are all nodes before place `index`.
    pub(super) fn are_all_before(&self, index: usize) -> bool {
        self.first == index && self.are_first()
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
    /// Looks up the pieces of the prompt's first `limit` tokens, among the rows of a group or of
    /// all.
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
            // Rows of a group are never stored.
            coarse: if group.is_none() { cache.stored_rows() } else { RowForm::Full },
            has_anchored: pieces_are_anchored(composition),
            anchor: Anchor { prefix: root.clone(), len: 0, sees: Sees::default(), run_start: 0 },
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
            planner.anchor_to(piece, n > 0);
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
                    let is_below = node.pages.is_empty() && !brought.contains(&id);
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

/// What anchored pieces attend to.
struct Anchor {
    /// Its tokens as a context.
    prefix: Prefix,
    len: usize,
    sees: Sees,
    run_start: usize,
}

struct Planner<'c> {
    cache: &'c Cache,
    /// Number of tokens that are looked up.
    limit: usize,
    tokens: Vec<u32>,
    /// How the rows of approximate pieces are stored.
    coarse: RowForm,
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

    /// The number of consecutive pieces that stand where they are computed. A system piece and the
    /// anchors that follow it count alone if others are anchored to them; otherwise rows may span
    /// it and the pieces after it.
    fn exact_run(&self, pieces: &[Piece]) -> usize {
        let (mut position, mut anchor_len) = (self.at, self.anchor.len);
        let is_exact = |piece: &&Piece| {
            let home = match piece.reuse {
                Reuse::Anchored => anchor_len,
                reuse => self.home(reuse, position),
            };
            let is_exact = home == position;
            position += piece.tokens.len();
            if piece.is_anchor || anchor_len == 0 && self.may_be_first(piece) {
                anchor_len = position;
            }
            is_exact
        };
        let n = pieces.iter().take_while(is_exact).count();
        if !self.has_anchored {
            return n;
        }
        let system = pieces[..n].iter().position(|piece| piece.kind == Kind::System);
        match system {
            Some(0) => 1 + pieces[1..n].iter().take_while(|piece| piece.is_anchor).count(),
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

    /// The form in which a whole piece after a context is stored, and the node that has it. Full
    /// rows serve an approximate piece too, and are preferred unless they are in a slower tier.
    fn whole(
        &self,
        piece: &Piece,
        parent: &KvKey,
        range: Range<usize>,
    ) -> (RowForm, Option<NodeId>) {
        let find = |form: RowForm| {
            let found = self.longest(&form.place(parent), range.clone());
            found.and_then(|(id, len)| (len == range.len()).then_some(id))
        };
        let full = find(RowForm::Full);
        // Anchored pieces attend to an anchor, so its rows are kept as they were computed.
        if !self.coarse.is_coarse() || piece.reuse == Reuse::Exact || piece.is_anchor {
            return (RowForm::Full, full);
        }
        let tier = |id: NodeId| self.cache.node(id).tier();
        match (full, find(self.coarse)) {
            (Some(full), coarse) if coarse.is_none_or(|coarse| tier(full) <= tier(coarse)) => {
                (RowForm::Full, Some(full))
            }
            (_, coarse) => (self.coarse, coarse),
        }
    }

    /// Whether a piece is the system piece with which the anchor begins.
    fn may_be_first(&self, piece: &Piece) -> bool {
        let has_none = self.anchor.sees == Sees::default();
        has_none && piece.kind == Kind::System && piece.reuse == Reuse::Exact
    }

    /// Makes a piece that was placed part of the anchor, if it belongs there.
    fn anchor_to(&mut self, piece: &Piece, is_at_home: bool) {
        let sees = &self.anchor.sees;
        let is_first = self.may_be_first(piece);
        let is_marked =
            piece.is_anchor && piece.reuse == Reuse::Anchored && !piece.tokens.is_empty();
        let is_seen_at_home =
            !sees.are_first() || self.nodes[..sees.first].iter().all(|planned| !planned.is_moved());
        match is_at_home {
            true if is_first || is_marked => {
                let (len, run_start) = (self.at, self.run_start);
                let sees = Sees::first(self.nodes.len());
                self.anchor = Anchor { prefix: self.prefix.clone(), len, sees, run_start };
            }
            false if is_marked && is_seen_at_home => {
                self.anchor.prefix.add(&piece.tokens);
                self.anchor.len += piece.tokens.len();
                self.anchor.sees.then.push(self.nodes.len() - 1);
            }
            _ => {}
        }
    }

    /// Consecutive exact pieces: cached nodes may span them, new ones are cut between them.
    fn place_exact(&mut self, run: &[Piece]) {
        let end = self.at + run.iter().map(|piece| piece.tokens.len()).sum::<usize>();
        let mut piece_end = self.at;
        for piece in run {
            let begin = piece_end;
            piece_end += piece.tokens.len();
            while self.at < piece_end {
                let parent = self.prefix.key();
                if self.coarse.is_coarse()
                    && self.at == begin
                    && let (form @ RowForm::Int8 { .. }, found) =
                        self.whole(piece, &parent, begin..piece_end)
                {
                    self.place_coarse(piece, parent, form, found);
                    continue;
                }
                let found = self.longest(&parent, self.at..end);
                let len = found.map_or(piece_end - self.at, |(_, len)| len);
                let (range, lead) = (self.at..self.at + len, self.lead());
                self.prefix.add(&self.tokens[range.clone()]);
                self.at = range.end;
                self.nodes.push(PlannedNode {
                    home: range.start,
                    range,
                    chunk: piece.chunk,
                    is_in_piece: self.at <= piece_end,
                    parent,
                    sees: Sees::first(self.nodes.len()),
                    form: RowForm::Full,
                    lead,
                    is_anchor: piece.is_anchor,
                    found: found.map(|(id, _)| id),
                });
            }
        }
    }

    /// An approximate piece that stands where it is computed, and is stored coarsely. Whatever
    /// attends to it is not exact either.
    fn place_coarse(&mut self, piece: &Piece, parent: KvKey, form: RowForm, found: Option<NodeId>) {
        let (range, lead) = (self.at..self.at + piece.tokens.len(), self.lead());
        self.prefix.add_moved(&form.place(&parent), "at home", &piece.tokens);
        self.at = range.end;
        self.nodes.push(PlannedNode {
            home: range.start,
            range,
            chunk: piece.chunk,
            is_in_piece: true,
            parent,
            sees: Sees::first(self.nodes.len()),
            form,
            lead,
            is_anchor: false,
            found,
        });
    }

    /// A piece that was moved from the position it is computed at. An empty one has no node.
    fn place_moved(&mut self, piece: &Piece, composition: &Composition) {
        if piece.tokens.is_empty() {
            return;
        }
        let Anchor { prefix, len, sees, run_start } = &self.anchor;
        let (parent, sees, lead) = match piece.reuse {
            Reuse::Isolated => (self.root, Sees::default(), 0),
            _ => (prefix.key(), sees.clone(), (len - run_start) % PAGE_ROWS),
        };
        let range = self.at..self.at + piece.tokens.len();
        let (form, found) = self.whole(piece, &parent, range.clone());
        // An anchor is never repaired.
        let repair = if piece.is_anchor { Repair::None } else { composition.repair };
        self.prefix.add_moved(&form.place(&parent), repair, &piece.tokens);
        self.at = range.end;
        self.run_start = self.at;
        self.nodes.push(PlannedNode {
            range,
            chunk: piece.chunk,
            is_in_piece: true,
            parent,
            home: self.home(piece.reuse, usize::MAX),
            sees,
            form,
            lead,
            is_anchor: piece.is_anchor,
            found,
        });
    }
}
