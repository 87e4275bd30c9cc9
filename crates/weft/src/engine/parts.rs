//! A lane's prompt as parts, each with its rows in pages.

use std::ops::Range;
use std::time::Duration;

use super::LaneId;
use super::placement::{Place, Placement};
use crate::cache::{Cache, Gone, NewNode, NodeId};
use crate::chunk::{Composition, Repair, Reuse, Tier};
use crate::device::{Device, Span};
use crate::kv::{OutOfPages, PageId, pages_for};
use crate::store::KvKey;

/// A stretch of the prompt whose rows lie together.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) node: NodeId,
    /// Its positions in the prompt.
    pub(super) range: Range<usize>,
    /// The position its first key is rotated for.
    pub(super) home: usize,
    /// How many parts at the begin of the prompt it sees while it is computed.
    pub(super) sees: usize,
    /// The node's pages, or, where rows are repaired, copies.
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

impl Part {
    pub(super) fn is_moved(&self) -> bool {
        self.range.start != self.home
    }

    /// Its rows where they stand in the prompt.
    pub(super) fn span(&self) -> Span {
        self.span_of(&self.pages, self.range.start, self.range.len())
    }

    /// Rows at its home, standing somewhere.
    pub(super) fn span_of(&self, pages: &[PageId], position: usize, len: usize) -> Span {
        let pages = pages[..pages_for(len)].to_vec();
        Span { pages, first_row: 0, len, home_position: self.home, position }
    }
}

/// What a lane holds: its parts, and the pages it may still take.
pub(super) struct Holding {
    pub(super) parts: Vec<Part>,
    /// What the answer attends to.
    pub(super) end: KvKey,
    /// Pages for repairs and for the answer.
    pub(super) promised: usize,
}

/// How many pages a request needs: for its prompt, and later.
struct Need {
    prompt: usize,
    later: usize,
}

impl Need {
    fn new(cache: &Cache, placement: &Placement, composition: &Composition, answer: usize) -> Self {
        let moved = placement.places.iter().filter(|place| place.is_moved());
        let repaired = |place: &Place| match composition.repair {
            Repair::None => 0,
            Repair::Link(tokens) => pages_for(tokens.min(place.range.len())),
            Repair::Blend(_) => pages_for(place.range.len()),
        };
        let repairs: usize = moved.map(repaired).sum();
        Self { prompt: placement.n_pages(cache), later: repairs + pages_for(answer) }
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

/// Where a prompt's rows come from, and the pages that takes; an error where there is no room now.
///
/// Kept rows fill their last pages in part, and a long conversation is many pieces: in the end their
/// pages hold less than the context. Then the prompt is computed anew as one piece, and what it was
/// pieced together from can be evicted.
fn plan(
    cache: &Cache,
    prompt: &Composition,
    policy: Policy,
    answer: usize,
) -> Result<(Placement, Need), OutOfPages> {
    let fits = |prompt: &Composition, limit| {
        let placement = Placement::plan(cache, prompt, limit);
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
    plan(cache, prompt, policy, answer).map(|_| ())
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
        let (placement, need) = plan(cache, prompt, policy, answer)?;
        let found = placement.found();
        cache.promise(need.prompt + need.later, &found)?;
        found.iter().for_each(|id| cache.hold(*id));
        let taken_before = cache.n_promised();
        match bring_all(cache, device, &placement) {
            Ok(brought) => {
                let tokens = prompt.tokens();
                let end = placement.end;
                let make = |(place, brought)| {
                    part(cache, device, lane, (policy.keeps, &tokens), place, brought)
                };
                let parts = placement.places.into_iter().zip(brought).map(make).collect();
                return Ok(Holding { parts, end, promised: need.later });
            }
            Err(Gone) => {
                let taken = taken_before - cache.n_promised();
                cache.release_promise(need.prompt + need.later - taken);
                for id in found {
                    if cache.has(id) {
                        cache.let_go(id);
                    }
                }
            }
        }
    }
}

type Brought = Option<(Tier, Duration)>;

fn bring_all(
    cache: &mut Cache,
    device: &mut dyn Device,
    placement: &Placement,
) -> Result<Vec<Brought>, Gone> {
    let bring = |place: &Place| place.found.map(|id| cache.bring(id, device)).transpose();
    placement.places.iter().map(bring).collect()
}

fn part(
    cache: &mut Cache,
    device: &mut dyn Device,
    lane: LaneId,
    (is_public, tokens): (bool, &[u32]),
    place: Place,
    brought: Brought,
) -> Part {
    let Place { range, chunk, parent, home, sees, found } = place;
    let node = found.unwrap_or_else(|| {
        let tokens = tokens[range.clone()].to_vec();
        let new = NewNode { parent, home, tokens, chunk, is_public };
        let id = cache.insert(new, lane, device);
        cache.hold(id);
        id
    });
    let kept = cache.node_mut(node);
    kept.chunk = kept.chunk.or(chunk);
    let share = range.len() as f64 / kept.len() as f64;
    let is_ready = brought.is_some() && kept.filled >= range.len();
    Part {
        node,
        pages: kept.pages.clone(),
        source: brought.filter(|_| is_ready).map(|(tier, _)| tier),
        time: brought.map_or(Duration::ZERO, |(_, time)| time),
        saved: if is_ready { kept.cost.mul_f64(share) } else { Duration::ZERO },
        range,
        home,
        sees,
        computed: 0,
        repaired: 0,
    }
}
