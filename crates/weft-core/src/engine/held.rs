//! The memory of a running lane: the nodes of its prompt with their pages, and pages promised to
//! it.

use std::ops::Range;
use std::time::Duration;

use super::LaneId;
use super::placement::{Placement, PlannedNode, Sees};
use crate::cache::{Begin, Brought, Cache, GroupId, NewNode, Node, NodeId};
use crate::chunk::{Composition, ExpectedTimes, Repair, Reuse, Tier};
use crate::device::{Device, Span};
use crate::kv::{OutOfPages, PAGE_ROWS, PageId, Slot, pages_for, slot};
use crate::store::KvKey;

/// A cache node as one prompt uses it: all its rows or the first ones.
#[derive(Debug)]
pub(super) struct HeldNode {
    pub(super) node: NodeId,
    /// Its positions in the prompt.
    pub(super) range: Range<usize>,
    /// The position that its first key is rotated for.
    pub(super) home: usize,
    pub(super) sees: Sees,
    /// Rows of its first page that belong to the nodes that it attends to.
    pub(super) lead: usize,
    /// Whether anchored nodes attend to it.
    pub(super) is_anchor: bool,
    /// The pages of its rows, referenced by the lane: the node's, or copies if rows are repaired.
    pub(super) pages: Vec<PageId>,
    /// The tier that held the rows. `None` if this lane computes them, or waits for a lane that
    /// does.
    pub(super) source: Option<Tier>,
    /// The tier that the rows are coming from, until they have come.
    pub(super) awaits: Option<Tier>,
    /// Whether the rows were stored in 8 bits.
    pub(super) is_rounded: bool,
    /// Why the rows come from a file or the remote tier, or are computed instead.
    pub(super) choice: Option<ExpectedTimes>,
    /// This lane's time for computing, loading or repairing it.
    pub(super) time: Duration,
    /// Time that was once spent on computing its cached rows.
    pub(super) saved: Duration,
    /// Rows that this lane computed, and rows that it repaired.
    pub(super) computed: usize,
    pub(super) repaired: usize,
}

impl HeldNode {
    pub(super) fn is_moved(&self) -> bool {
        self.range.start != self.home
    }

    /// Counts the time that its cached rows once took.
    pub(super) fn count_saved(&mut self, kept: &Node) {
        self.saved = kept.cost.mul_f64(self.range.len() as f64 / kept.len() as f64);
    }

    /// The page of its last row.
    pub(super) fn last_page(&self) -> PageId {
        *self.pages.last().expect("a node has rows")
    }

    /// The slot of row `row`.
    pub(super) fn slot(&self, row: usize) -> Slot {
        slot(&self.pages, self.lead + row)
    }

    /// Adds its rows at their place in the prompt, after those of the nodes before.
    pub(super) fn add_to(&self, spans: &mut Vec<Span>) {
        self.add_rows_to(spans, self.range.start, self.range.len());
    }

    /// Adds its first `len` rows at a position. Rows at home continue the span before them.
    pub(super) fn add_rows_to(&self, spans: &mut Vec<Span>, position: usize, len: usize) {
        let pages = &self.pages[..pages_for(self.lead + len)];
        let goes_on = |span: &&mut Span| {
            let is_at_home = span.position == span.home_position && position == self.home;
            is_at_home && span.position + span.len == position
        };
        match spans.last_mut().filter(goes_on) {
            Some(span) => {
                debug_assert_eq!((span.first_row + span.len) % PAGE_ROWS, self.lead);
                extend(span, pages, len);
            }
            None => spans.push(Span {
                pages: pages.to_vec(),
                first_row: self.lead,
                len,
                home_position: self.home,
                position,
            }),
        }
    }
}

/// Adds rows to the end of a span: their first page is the span's last, or also holds its rows.
pub(super) fn extend(span: &mut Span, pages: &[PageId], len: usize) {
    span.pages.truncate((span.first_row + span.len) / PAGE_ROWS);
    span.pages.extend(pages);
    span.len += len;
}

/// A lane's memory: its nodes, and the pages that it may still take.
pub(super) struct Holding {
    pub(super) nodes: Vec<HeldNode>,
    pub(super) answer: AnswerStart,
    /// Pages for repairs and for the answer.
    pub(super) promised: usize,
}

/// Where the answer's rows start.
pub(super) struct AnswerStart {
    /// The key of the context that the answer attends to.
    pub(super) parent: KvKey,
    pub(super) begin: Begin,
}

/// The number of pages that a request needs: for its prompt, and later.
struct Need {
    prompt: usize,
    later: usize,
}

impl Need {
    fn new(cache: &Cache, placement: &Placement, composition: &Composition, answer: usize) -> Self {
        let moved = placement.nodes.iter().filter(|planned| planned.is_moved());
        let repaired = |planned: &PlannedNode| match composition.repair {
            Repair::None => 0,
            Repair::Link(tokens) => pages_for(planned.lead + tokens.min(planned.range.len())),
            Repair::Blend(..) => pages_for(planned.lead + planned.range.len()),
        };
        let repairs: usize = moved.map(repaired).sum();
        let (prompt, answer) = placement.n_pages(cache, answer);
        Self { prompt, later: repairs + answer }
    }
}

/// How a lane uses the cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    /// Number of prompt tokens that are looked up.
    pub(super) limit: usize,
    /// Whether computed rows are cached, and the position that they end before.
    pub(super) keeps: bool,
    pub(super) keeps_until: usize,
    /// Whether the prompt is answered, or only run.
    pub(super) answers: bool,
    /// The requests that share rows with this one; with all others if there is none.
    pub(super) group: Option<GroupId>,
}

impl Policy {
    pub(super) const WARM: Self = Self { limit: usize::MAX, keeps: true, ..Self::COLD };
    pub(super) const COLD: Self =
        Self { limit: 0, keeps: false, keeps_until: usize::MAX, answers: true, group: None };

    /// Without the cache, except for rows of the same group.
    pub(super) const fn of_group(group: GroupId) -> Self {
        Self { limit: usize::MAX, group: Some(group), ..Self::COLD }
    }
}

/// Finds where a prompt's rows come from, and the pages that this takes. Fails if there is no room
/// now.
///
/// If a prompt uses only a part of cached nodes, these still occupy all their pages. If this leaves
/// too little room for the rest, the prompt is computed from scratch as one piece, and those nodes
/// can be evicted.
fn fit(
    cache: &Cache,
    prompt: &Composition,
    policy: Policy,
    answer: usize,
) -> Result<(Placement, Need), OutOfPages> {
    let fits = |prompt: &Composition, limit| {
        let placement = Placement::look_up(cache, prompt, limit, policy.group);
        let need = Need::new(cache, &placement, prompt, answer);
        cache.check_promise(need.prompt + need.later, &placement.found())?;
        Ok((placement, need))
    };
    fits(prompt, policy.limit).or_else(|error| {
        let is_exact = prompt.pieces.iter().all(|piece| piece.reuse == Reuse::Exact);
        let joined = is_exact.then(|| Composition::from(prompt.tokens()));
        joined.and_then(|joined| fits(&joined, 0).ok()).ok_or(error)
    })
}

/// Whether there is room now for a prompt and up to `answer` rows of answer.
pub(super) fn check_room(
    cache: &Cache,
    prompt: &Composition,
    policy: Policy,
    answer: usize,
) -> Result<(), OutOfPages> {
    fit(cache, prompt, policy, answer).map(|_| ())
}

/// Takes the cached nodes of a prompt, loads them onto the device, and adds nodes for the rest.
pub(super) fn take(
    cache: &mut Cache,
    device: &mut dyn Device,
    lane: LaneId,
    prompt: &Composition,
    policy: Policy,
    answer: usize,
) -> Result<Holding, OutOfPages> {
    let (placement, need) = fit(cache, prompt, policy, answer)?;
    let found = placement.found();
    cache.promise(need.prompt + need.later, &found)?;
    found.iter().for_each(|id| cache.hold(*id));
    let Placement { nodes, end, answer_lead } = placement;
    let tokens = prompt.tokens();
    let mut maker = Maker { cache, device, lane, policy, tokens, nodes: Vec::new(), open: None };
    nodes.into_iter().for_each(|planned| maker.add(planned));
    let begin = Begin { lead: answer_lead, page: maker.open };
    let answer = AnswerStart { parent: end, begin };
    Ok(Holding { nodes: maker.nodes, answer, promised: need.later })
}

/// Makes the nodes of a prompt, one after the other. Rows that are not on the device are on their
/// way when this is done.
struct Maker<'a> {
    cache: &'a mut Cache,
    device: &'a mut dyn Device,
    lane: LaneId,
    policy: Policy,
    tokens: Vec<u32>,
    nodes: Vec<HeldNode>,
    /// The last page up to now, if it was taken for this lane and the next rows may continue in it.
    open: Option<PageId>,
}

impl Maker<'_> {
    fn add(&mut self, planned: PlannedNode) {
        let begin = Begin { lead: planned.lead, page: self.open.filter(|_| !planned.is_moved()) };
        let brought =
            planned.found.map(|id| self.cache.bring(id, planned.range.len(), begin, self.device));
        let (node, choice) = match planned.found {
            Some(node) => (node, brought.and_then(|brought| brought.choice)),
            None => self.insert(&planned, begin.page),
        };
        let held = HeldNode { choice, ..self.hold(planned, node, brought) };
        let is_new = brought.is_none_or(|brought| brought.is_new);
        let is_whole = self.cache.node(held.node).len() == held.range.len();
        self.open = (is_new && is_whole).then(|| held.last_page());
        self.nodes.push(held);
    }

    /// Adds a node, whose rows may come from the remote tier.
    fn insert(
        &mut self,
        planned: &PlannedNode,
        begins_in: Option<PageId>,
    ) -> (NodeId, Option<ExpectedTimes>) {
        let new = NewNode {
            parent: planned.parent,
            home: planned.home,
            tokens: self.tokens[planned.range.clone()].to_vec(),
            lead: planned.lead,
            chunk: planned.chunk,
            form: planned.form,
            is_public: self.policy.keeps && planned.range.end <= self.policy.keeps_until,
            group: self.policy.group,
        };
        let id = self.cache.insert(new, begins_in, self.lane, self.device);
        self.cache.hold(id);
        (id, self.cache.ask_remote(id))
    }

    fn hold(&mut self, planned: PlannedNode, node: NodeId, brought: Option<Brought>) -> HeldNode {
        let PlannedNode { range, chunk, is_in_piece, home, sees, lead, is_anchor, .. } = planned;
        let kept = self.cache.node_mut(node);
        debug_assert_eq!(kept.lead, lead, "the parent determines where rows start in a page");
        kept.name(chunk, is_in_piece && range.len() == kept.len());
        let pages = kept.pages[..pages_for(lead + range.len())].to_vec();
        let is_ready = brought.is_some() && kept.filled >= range.len();
        let mut held = HeldNode {
            node,
            pages,
            source: brought.filter(|_| is_ready).map(|brought| brought.tier),
            awaits: kept.awaits(),
            is_rounded: is_ready && kept.is_rounded,
            choice: None,
            time: brought.map_or(Duration::ZERO, |brought| brought.time),
            saved: Duration::ZERO,
            range,
            home,
            sees,
            lead,
            is_anchor,
            computed: 0,
            repaired: 0,
        };
        if is_ready {
            held.count_saved(kept);
        }
        self.cache.hold_pages(&held.pages);
        held
    }
}
