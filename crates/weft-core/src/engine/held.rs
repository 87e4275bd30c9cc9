//! What a lane holds while it runs: the nodes of its prompt with their pages, and pages promised to it.

use std::ops::Range;
use std::time::Duration;

use super::LaneId;
use super::placement::{Placement, PlannedNode};
use crate::cache::{Begin, Cache, Gone, NewNode, NodeId};
use crate::chunk::{Composition, Repair, Reuse, Tier};
use crate::device::{Device, Span};
use crate::kv::{OutOfPages, PAGE_ROWS, PageId, Slot, pages_for};
use crate::store::KvKey;

/// A node of the cache as one prompt uses it: all its rows or the first of them.
#[derive(Debug)]
pub(super) struct HeldNode {
    pub(super) node: NodeId,
    /// Its positions in the prompt.
    pub(super) range: Range<usize>,
    /// The position its first key is rotated for.
    pub(super) home: usize,
    /// How many nodes at the beginning of the prompt it sees while it is computed.
    pub(super) sees: usize,
    /// Rows of its first page that belong to what it sees.
    pub(super) lead: usize,
    /// The pages of its rows, which the lane holds: the node's, or, if rows are repaired, copies.
    pub(super) pages: Vec<PageId>,
    /// Where the rows were; none if this lane computes them, or waits for one that does.
    pub(super) source: Option<Tier>,
    /// What computing, bringing or repairing it took this lane.
    pub(super) time: Duration,
    /// What computing its cached rows took.
    pub(super) saved: Duration,
    /// Rows that this lane computed, and that it repaired.
    pub(super) computed: usize,
    pub(super) repaired: usize,
}

impl HeldNode {
    pub(super) fn is_moved(&self) -> bool {
        self.range.start != self.home
    }

    /// The page that its last row lies in.
    pub(super) fn last_page(&self) -> PageId {
        *self.pages.last().expect("a node has rows")
    }

    /// Where row `row` lies.
    pub(super) fn slot(&self, row: usize) -> Slot {
        let row = self.lead + row;
        self.pages[row / PAGE_ROWS] * PAGE_ROWS as Slot + (row % PAGE_ROWS) as Slot
    }

    /// Its rows where they stand in the prompt, after those of the nodes before.
    pub(super) fn add_to(&self, spans: &mut Vec<Span>) {
        self.add_rows_to(spans, self.range.start, self.range.len());
    }

    /// Its first `len` rows, standing somewhere. Rows at home go on with the span before them.
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

/// Adds rows to the end of a span: the first of their pages is the span's last, or holds the rows of
/// that too.
pub(super) fn extend(span: &mut Span, pages: &[PageId], len: usize) {
    span.pages.truncate((span.first_row + span.len) / PAGE_ROWS);
    span.pages.extend(pages);
    span.len += len;
}

/// What a lane holds: its nodes, and the pages it may still take.
pub(super) struct Holding {
    pub(super) nodes: Vec<HeldNode>,
    pub(super) answer: AnswerStart,
    /// Pages for repairs and for the answer.
    pub(super) promised: usize,
}

/// Where the answer's rows go.
pub(super) struct AnswerStart {
    /// What the answer attends to.
    pub(super) parent: KvKey,
    pub(super) begin: Begin,
}

/// How many pages a request needs: for its prompt, and later.
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
            Repair::Blend(_) => pages_for(planned.lead + planned.range.len()),
        };
        let repairs: usize = moved.map(repaired).sum();
        let (prompt, answer) = placement.n_pages(cache, answer);
        Self { prompt, later: repairs + answer }
    }
}

/// How a lane uses the cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    /// Tokens of the prompt that are looked up.
    pub(super) limit: usize,
    /// Whether what is computed is kept.
    pub(super) keeps: bool,
    /// Whether the prompt is answered, or only run.
    pub(super) answers: bool,
}

impl Policy {
    pub(super) const WARM: Self = Self { limit: usize::MAX, keeps: true, answers: true };
    pub(super) const COLD: Self = Self { limit: 0, keeps: false, answers: true };
}

/// Where a prompt's rows come from, and the pages that takes; an error if there is no room now.
///
/// Kept rows of which a part is used take all their pages. If these leave no room for the rest, the
/// prompt is computed anew as one piece, and what it was pieced together from can be evicted.
fn fit(
    cache: &Cache,
    prompt: &Composition,
    policy: Policy,
    answer: usize,
) -> Result<(Placement, Need), OutOfPages> {
    let fits = |prompt: &Composition, limit| {
        let placement = Placement::look_up(cache, prompt, limit);
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

/// Whether a prompt that can have `answer` rows of answer would find room now.
pub(super) fn check_room(
    cache: &Cache,
    prompt: &Composition,
    policy: Policy,
    answer: usize,
) -> Result<(), OutOfPages> {
    fit(cache, prompt, policy, answer).map(|_| ())
}

/// Holds what is kept of a prompt, brings it to the device, and makes nodes for the rest.
pub(super) fn take(
    cache: &mut Cache,
    device: &mut dyn Device,
    lane: LaneId,
    prompt: &Composition,
    policy: Policy,
    answer: usize,
) -> Result<Holding, OutOfPages> {
    // A file may turn out to be no good; then its rows are computed like any that are missing.
    loop {
        let (placement, need) = fit(cache, prompt, policy, answer)?;
        let found = placement.found();
        cache.promise(need.prompt + need.later, &found)?;
        found.iter().for_each(|id| cache.hold(*id));
        let promised = cache.n_promised();
        let Placement { nodes, end, answer_lead } = placement;
        let tokens = prompt.tokens();
        let mut maker =
            Maker { cache, device, lane, policy, tokens, nodes: Vec::new(), open: None };
        if nodes.into_iter().try_for_each(|planned| maker.add(planned)).is_ok() {
            let begin = Begin { lead: answer_lead, page: maker.open };
            let answer = AnswerStart { parent: end, begin };
            return Ok(Holding { nodes: maker.nodes, answer, promised: need.later });
        }
        let nodes = maker.nodes;
        let taken = promised - cache.n_promised();
        cache.release_promise(need.prompt + need.later - taken);
        // New nodes go, they have no rows yet; rows that were brought are where others find them.
        let new = nodes.iter().map(|held| held.node).filter(|id| !found.contains(id));
        for id in new.chain(found.iter().copied()).filter(|id| cache.has(*id)).collect::<Vec<_>>() {
            cache.let_go(id);
        }
        nodes.into_iter().for_each(|held| cache.give_back_pages(held.pages));
    }
}

/// Makes the nodes of a prompt, one after the other: while rows of one are copied to the device, a
/// file with those of the next is read.
struct Maker<'a> {
    cache: &'a mut Cache,
    device: &'a mut dyn Device,
    lane: LaneId,
    policy: Policy,
    tokens: Vec<u32>,
    nodes: Vec<HeldNode>,
    /// The last page so far, if it was taken for this lane, and what follows may go on in it.
    open: Option<PageId>,
}

impl Maker<'_> {
    fn add(&mut self, planned: PlannedNode) -> Result<(), Gone> {
        let begin = Begin { lead: planned.lead, page: self.open.filter(|_| !planned.is_moved()) };
        let bring = |id| self.cache.bring(id, begin, self.device);
        let brought = planned.found.map(bring).transpose()?;
        let node = planned.found.unwrap_or_else(|| self.insert(&planned, begin.page));
        let held = self.hold(planned, node, brought);
        let is_new = brought.is_none_or(|(tier, _)| tier != Tier::Device);
        let is_whole = self.cache.node(held.node).len() == held.range.len();
        self.open = (is_new && is_whole).then(|| held.last_page());
        self.nodes.push(held);
        Ok(())
    }

    fn insert(&mut self, planned: &PlannedNode, begins_in: Option<PageId>) -> NodeId {
        let new = NewNode {
            parent: planned.parent,
            home: planned.home,
            tokens: self.tokens[planned.range.clone()].to_vec(),
            lead: planned.lead,
            chunk: planned.chunk,
            is_public: self.policy.keeps,
        };
        let id = self.cache.insert(new, begins_in, self.lane, self.device);
        self.cache.hold(id);
        id
    }

    fn hold(
        &mut self,
        planned: PlannedNode,
        node: NodeId,
        brought: Option<(Tier, Duration)>,
    ) -> HeldNode {
        let PlannedNode { range, chunk, home, sees, lead, .. } = planned;
        let kept = self.cache.node_mut(node);
        debug_assert_eq!(kept.lead, lead, "the parent tells where rows begin in a page");
        kept.chunk = kept.chunk.or(chunk);
        let pages = kept.pages[..pages_for(lead + range.len())].to_vec();
        let share = range.len() as f64 / kept.len() as f64;
        let is_ready = brought.is_some() && kept.filled >= range.len();
        let saved = if is_ready { kept.cost.mul_f64(share) } else { Duration::ZERO };
        self.cache.hold_pages(&pages);
        HeldNode {
            node,
            pages,
            source: brought.filter(|_| is_ready).map(|(tier, _)| tier),
            time: brought.map_or(Duration::ZERO, |(_, time)| time),
            saved,
            range,
            home,
            sees,
            lead,
            computed: 0,
            repaired: 0,
        }
    }
}
