//! A step as kernels read it: lists of numbers, made on the host, copied to the GPU in one piece.
//!
//! There are two families of kernels: one for steps of up to [`FEW`] tokens, one for more. Both
//! compute the same bits; which one runs is a matter of speed. Attention is cut into sections of
//! four pages, the same in both. Every index in the lists was checked by `Step::check`.

use std::collections::HashMap;
use std::sync::Arc;

use weft::device::{Lane, Limits, MAX_LANES, MAX_SPANS, Outputs, Step};
use weft::kv::{PAGE_ROWS, PageId};

mod groups;
mod split;
mod words;

pub(crate) use self::groups::{GroupCounts, SEVERAL, SIXTEEN};
pub(crate) use self::split::SplitRule;
use self::words::{Words, words};
use crate::driver::{Address, Gpu, Memory, Pinned, Stream};
use crate::error::CudaError;

/// The most tokens that the kernels for few tokens take.
pub(crate) const FEW: usize = 8;
/// Pages of a section.
pub(crate) const SECTION_PAGES: usize = 4;
pub(crate) const SECTION_ROWS: usize = SECTION_PAGES * PAGE_ROWS;
/// Rows of a tile of queries: tokens × heads that share a KV head.
const ITEM_QUERIES: usize = 16;
const TILE_QUERIES: usize = 64;
/// Numbers before the lists.
const COUNTS: usize = 8;
const NOWHERE: u32 = u32::MAX;

/// Which kernels run a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// Up to [`FEW`] tokens: matrices are streamed past them, attention is cut over the GPU.
    Few,
    /// More: blocks of tokens against blocks of rows.
    Many,
}

impl Family {
    pub(crate) fn of(n_tokens: usize) -> Self {
        if n_tokens <= FEW { Self::Few } else { Self::Many }
    }
}

/// Four pages of a span, as a lane places them. Kernels call it `Section`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Section {
    pages: [PageId; SECTION_PAGES],
    n_rows: u32,
    position: u32,
    home: u32,
    /// For kernels a gap; here the number of the span.
    span: u32,
}

impl Section {
    fn seen_from(&self, position: u32) -> u32 {
        (position + 1).saturating_sub(self.position).min(self.n_rows)
    }
}

/// One query of an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Query {
    token: u16,
    /// Parts that the token's result is folded from.
    n_parts: u16,
    seen: u32,
    rotate_at: u32,
    partial: u32,
}

/// Queries against one section. Kernels call it `Item`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Item {
    pages: [PageId; SECTION_PAGES],
    n_rows: u32,
    n_queries: u32,
    n_stores: u32,
    gap: u32,
    stores: [u32; FEW],
    queries: [Query; FEW],
}

impl Item {
    fn store(&mut self, token: usize, row: usize) {
        self.stores[self.n_stores as usize] = (token << 16 | row) as u32;
        self.n_stores += 1;
    }
}

/// Consecutive tokens of a lane. Kernels call it `Tile`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct Tile {
    first_token: u32,
    n_tokens: u32,
    first_section: u32,
    n_sections: u32,
    share: u32,
    gap: [u32; 3],
}

words!(Section, Item, Tile);

/// What the host must know of a step's lists to launch kernels on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) n_tokens: usize,
    pub(crate) n_outputs: usize,
    pub(crate) n_items: usize,
    pub(crate) n_tiles: usize,
    /// Blocks that share the sections of a tile; with more than one, every token's result is folded.
    pub(crate) n_splits: usize,
    /// Parts of results that are folded, or shares of attention that are kept.
    pub(crate) n_partials: usize,
}

/// A lane's shares of attention: where they begin, and which span each is of.
#[derive(Clone, Debug, Default)]
pub(crate) struct LaneShares {
    pub(crate) first: usize,
    pub(crate) spans: Vec<u32>,
    pub(crate) n_spans: usize,
}

/// Most sections that a lane can have.
fn lane_sections(limits: &Limits) -> usize {
    limits.positions.min(limits.positions / SECTION_ROWS + MAX_SPANS)
}

/// Most parts that results are folded from.
pub(crate) fn max_partials(limits: &Limits) -> usize {
    FEW.max(MAX_LANES) * lane_sections(limits)
}

/// The lists, and room to make them.
#[derive(Default)]
pub(crate) struct Lists {
    split: SplitRule,
    sections: Vec<Section>,
    lanes: Vec<std::ops::Range<usize>>,
    items: Vec<Item>,
    tiles: Vec<Tile>,
    /// How many parts each token has, and the first.
    partials: Vec<[u32; 2]>,
    open_items: HashMap<[PageId; SECTION_PAGES], usize>,
    pub(crate) shares: Vec<LaneShares>,
    pub(crate) counts: Counts,
}

impl Lists {
    pub(crate) fn new(split: SplitRule) -> Self {
        Self { split, ..Self::default() }
    }

    /// Makes the lists of a step. `group` query heads share a KV head.
    pub(crate) fn fill(&mut self, step: &Step<'_>, group: usize) {
        self.sections.clear();
        self.lanes.clear();
        self.items.clear();
        self.tiles.clear();
        self.partials.clear();
        self.open_items.clear();
        self.counts =
            Counts { n_tokens: step.n_tokens(), n_outputs: step.n_outputs(), ..Counts::default() };
        for lane in step.lanes {
            let first = self.sections.len();
            self.sections.extend(sections(lane));
            self.lanes.push(first..self.sections.len());
        }
        match Family::of(step.n_tokens()) {
            Family::Few => self.fill_items(step, group),
            Family::Many => {
                self.fill_tiles(step, group);
                self.split_tiles(step);
            }
        }
        self.counts.n_items = self.items.len();
        self.counts.n_tiles = self.tiles.len();
    }

    /// Queries of each item: none where a token does not see its own row, several of one token where a lane has
    /// the same pages twice.
    pub(crate) fn queries_of_items(&self) -> impl Iterator<Item = u32> {
        self.items.iter().map(|item| item.n_queries)
    }

    /// Those of the item that has the most.
    pub(crate) fn most_queries(&self) -> usize {
        self.queries_of_items().max().unwrap_or(0) as usize
    }

    /// Where the shares of a lane's last token go: to its parts from `first` on.
    fn keep_shares(&mut self, index: usize, lane: &Lane<'_>, first: usize, n: usize) {
        if self.shares.len() <= index {
            self.shares.push(LaneShares::default());
        }
        let shares = &mut self.shares[index];
        shares.first = first;
        shares.n_spans = lane.spans.len();
        shares.spans.clear();
        let own = &self.sections[self.lanes[index].clone()];
        shares.spans.extend(own[..n].iter().map(|section| section.span));
    }

    fn fill_items(&mut self, step: &Step<'_>, group: usize) {
        let most = (ITEM_QUERIES / group).min(FEW);
        let mut token = 0;
        for (index, lane) in step.lanes.iter().enumerate() {
            for position in lane.positions {
                let own = self.lanes[index].clone();
                let seen =
                    self.sections[own.clone()].iter().take_while(|s| s.position <= *position);
                let n = seen.count();
                let first = self.counts.n_partials;
                self.partials.push([n as u32, first as u32]);
                for (i, section) in own.take(n).enumerate() {
                    let section = self.sections[section];
                    let query = Query {
                        token: token as u16,
                        n_parts: u16::try_from(n).expect("sections of a lane are bounded"),
                        seen: section.seen_from(*position),
                        rotate_at: section.home + (position - section.position),
                        partial: (first + i) as u32,
                    };
                    self.add_query(&section, query, most);
                }
                self.counts.n_partials += n;
                if Some(position) == lane.positions.last() {
                    self.keep_shares(index, lane, first, n);
                }
                token += 1;
            }
        }
        self.add_stores(step);
    }

    /// Queries of any lane that see the same pages share an item, as far as a tile holds them.
    fn add_query(&mut self, section: &Section, query: Query, most: usize) {
        let open = self.open_items.get(&section.pages).copied();
        let index = open.filter(|i| (self.items[*i].n_queries as usize) < most);
        let index = index.unwrap_or_else(|| {
            self.items.push(Item { pages: section.pages, ..Item::default() });
            self.open_items.insert(section.pages, self.items.len() - 1);
            self.items.len() - 1
        });
        let item = &mut self.items[index];
        item.n_rows = item.n_rows.max(query.seen);
        item.queries[item.n_queries as usize] = query;
        item.n_queries += 1;
    }

    /// Every item whose rows a token of this step writes makes them itself. A row that no item has
    /// gets one without queries.
    fn add_stores(&mut self, step: &Step<'_>) {
        let slots = step.lanes.iter().flat_map(|lane| lane.store_at);
        for (token, slot) in slots.enumerate() {
            let (page, row) = crate::kv::place(*slot);
            let mut stored = false;
            for item in &mut self.items {
                let n_pages = (item.n_rows as usize).div_ceil(PAGE_ROWS);
                let found = item.pages[..n_pages].iter().position(|own| *own == page);
                let at = found.map(|i| i * PAGE_ROWS + row);
                if let Some(at) = at.filter(|at| *at < item.n_rows as usize) {
                    item.store(token, at);
                    stored = true;
                }
            }
            if !stored {
                let mut item = Item::default();
                item.pages[0] = page;
                item.store(token, row);
                self.items.push(item);
            }
        }
    }

    fn fill_tiles(&mut self, step: &Step<'_>, group: usize) {
        let most = TILE_QUERIES / group;
        let mut token = 0;
        for (index, lane) in step.lanes.iter().enumerate() {
            let own = self.lanes[index].clone();
            let last = lane.positions.len();
            for first in (0..last).step_by(most) {
                let end = (first + most).min(last);
                let seen = |s: &&Section| s.position <= lane.positions[end - 1];
                let n = self.sections[own.clone()].iter().take_while(seen).count();
                let share = if end == last { self.counts.n_partials as u32 } else { NOWHERE };
                self.tiles.push(Tile {
                    first_token: (token + first) as u32,
                    n_tokens: (end - first) as u32,
                    first_section: own.start as u32,
                    n_sections: n as u32,
                    share,
                    gap: [0; 3],
                });
                if end == last {
                    self.keep_shares(index, lane, self.counts.n_partials, n);
                    self.counts.n_partials += n;
                }
            }
            token += last;
        }
    }
}

/// A lane's spans, cut into sections.
fn sections<'a>(lane: &'a Lane<'_>) -> impl Iterator<Item = Section> + 'a {
    lane.spans.iter().enumerate().flat_map(move |(index, span)| {
        (0..span.len).step_by(SECTION_ROWS).map(move |row| {
            let mut pages = [0; SECTION_PAGES];
            let from = span.pages.iter().skip(row / PAGE_ROWS);
            let n_rows = SECTION_ROWS.min(span.len - row);
            { pages.iter_mut().zip(from) }
                .take(n_rows.div_ceil(PAGE_ROWS))
                .for_each(|(to, page)| *to = *page);
            Section {
                pages,
                n_rows: n_rows as u32,
                position: (span.position + row) as u32,
                home: (span.home_position + row) as u32,
                span: index as u32,
            }
        })
    })
}

/// Where the lists lie on the GPU. Kernels call it `Step`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct StepAddresses {
    counts: Address,
    tokens: Address,
    positions: Address,
    key_positions: Address,
    slots: Address,
    outputs: Address,
    partials: Address,
    attention: Address,
}

impl StepAddresses {
    /// The same with counts elsewhere.
    pub(crate) fn with_counts(self, counts: Address) -> Self {
        Self { counts, ..self }
    }
}

/// The lists of one family on the GPU, and the pinned memory that they are copied from.
pub(crate) struct Tables {
    pinned: Pinned,
    memory: Memory,
    tokens: usize,
    outputs: usize,
}

impl Tables {
    pub(crate) fn new(gpu: &Arc<Gpu>, limits: &Limits, family: Family) -> Result<Self, CudaError> {
        let (tokens, outputs) = Self::rows(limits, family);
        let bytes = Self::bytes(limits, family);
        Ok(Self {
            pinned: Pinned::new(gpu, bytes)?,
            memory: Memory::new(gpu, "lists of a step", bytes)?,
            tokens,
            outputs,
        })
    }

    /// Tokens and outputs that there is room for.
    fn rows(limits: &Limits, family: Family) -> (usize, usize) {
        match family {
            Family::Few => (FEW, FEW),
            Family::Many => (limits.step_tokens, limits.step_outputs),
        }
    }

    /// What the lists take.
    pub(crate) fn bytes(limits: &Limits, family: Family) -> usize {
        let sections = max_partials(limits);
        let attention = match family {
            Family::Few => (sections + FEW) * Item::LEN,
            Family::Many => {
                let tiles = limits.step_tokens + MAX_LANES;
                tiles * Tile::LEN + sections * Section::LEN
            }
        };
        let (tokens, outputs) = Self::rows(limits, family);
        (COUNTS + 6 * tokens + outputs + attention) * 4
    }

    fn start_of_attention(&self) -> usize {
        COUNTS + 6 * self.tokens + self.outputs
    }

    pub(crate) fn addresses(&self) -> StepAddresses {
        let at = |word: usize| self.memory.address().offset(word * 4);
        let list = |i: usize| at(COUNTS + i * self.tokens);
        StepAddresses {
            counts: at(0),
            tokens: list(0),
            positions: list(1),
            key_positions: list(2),
            slots: list(3),
            partials: list(4),
            outputs: list(6),
            attention: at(self.start_of_attention()),
        }
    }

    /// Items that there is room for; in the lists for few tokens.
    pub(crate) fn most_items(&self) -> usize {
        (self.memory.bytes / 4 - self.start_of_attention()) / Item::LEN
    }

    /// Writes the lists into pinned memory; how many bytes of it they take.
    pub(crate) fn write(&mut self, step: &Step<'_>, lists: &Lists) -> usize {
        let (tokens, start) = (self.tokens, self.start_of_attention());
        let words = self.pinned.words();
        let Counts { n_tokens, n_outputs, n_items, n_tiles, .. } = lists.counts;
        let counts = [n_tokens, n_outputs, n_items, n_tiles].map(|n| n as u32);
        words[..counts.len()].copy_from_slice(&counts);
        let mut t = 0;
        for lane in step.lanes {
            let n = lane.tokens.len();
            let rows = [lane.tokens, lane.positions, lane.key_positions, lane.store_at];
            for (i, row) in rows.into_iter().enumerate() {
                words[COUNTS + i * tokens + t..][..n].copy_from_slice(row);
            }
            t += n;
        }
        for (t, partials) in lists.partials.iter().enumerate() {
            words[COUNTS + 4 * tokens + 2 * t..][..2].copy_from_slice(partials);
        }
        for (output, token) in output_tokens(step).enumerate() {
            words[COUNTS + 6 * tokens + output] = token as u32;
        }
        let mut end = start;
        put_all(words, &mut end, &lists.items);
        put_all(words, &mut end, &lists.tiles);
        if lists.counts.n_tiles > 0 {
            put_all(words, &mut end, &lists.sections);
        }
        end * 4
    }

    pub(crate) fn upload(&self, gpu: &Gpu, bytes: usize) -> Result<(), CudaError> {
        gpu.upload(Stream::Compute, self.memory.address(), &self.pinned, bytes)
    }
}

fn put_all<W: Words>(words: &mut [u32], end: &mut usize, values: &[W]) {
    for value in values {
        value.put(&mut words[*end..*end + W::LEN]);
        *end += W::LEN;
    }
}

/// The token of each row of logits.
fn output_tokens<'a>(step: &'a Step<'_>) -> impl Iterator<Item = usize> + 'a {
    let mut end = 0;
    step.lanes.iter().flat_map(move |lane| {
        end += lane.tokens.len();
        match lane.outputs {
            Outputs::None => end..end,
            Outputs::Last => end - 1..end,
            Outputs::All => end - lane.tokens.len()..end,
        }
    })
}

#[cfg(test)]
#[path = "tables_tests.rs"]
mod tests;
