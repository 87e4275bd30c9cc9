//! A step as kernels read it: lists of numbers, made on the host, copied to the GPU in one piece.
//!
//! There are two families of kernels: one for steps of up to [`FEW`] tokens, one for more. Both
//! compute the same bits; which one runs is a matter of speed. Attention is cut into sections of
//! four pages, the same in both; the intersection of a section and a stretch between two marks is a
//! cell, and the share of attention that a token gives to it is recorded, for the tokens whose
//! attention is reported (`Reporting`). Every index in the lists was checked by `Step::check`.

use std::collections::HashMap;
use std::ops::Range;

use weft_core::device::{Lane, Limits, MAX_LANES, MAX_MARKS, MAX_SPANS, Reporting, Step};
use weft_core::kv::{PAGE_ROWS, PageId};

use crate::layouts::{Layout, layout};

mod cells;
mod groups;
mod item;
mod memory;
mod split_kv;
mod words;

use self::cells::{LaneStretches, TokenCells};
pub(crate) use self::groups::{GroupCounts, SEVERAL, SIXTEEN};
use self::item::{Item, Query};
pub(crate) use self::memory::{StepAddresses, Tables};
pub(crate) use self::split_kv::{SplitRule, TILES_TO_LAY};
use self::words::{Words, words};

/// The most tokens that the kernels for few tokens take.
pub(crate) const FEW: usize = 8;
/// Pages of a section.
pub(crate) const SECTION_PAGES: usize = 4;
pub(crate) const SECTION_ROWS: usize = SECTION_PAGES * PAGE_ROWS;
/// Rows of a tile of queries: tokens × heads that share a KV head.
const ITEM_QUERIES: usize = 16;
pub(crate) const TILE_QUERIES: usize = 64;
/// Numbers before the lists.
const COUNTS: usize = 8;
/// Words of each token in the lists: four of its own, four about its parts and cells.
const TOKEN_WORDS: usize = 8;
pub(crate) const NOWHERE: u32 = u32::MAX;
/// Words of a bit for each row of a section.
const MARK_WORDS: usize = SECTION_ROWS / 32;
/// The query's token records no shares of attention.
pub(crate) const NO_CELL: u16 = u16::MAX;

/// The most queries of an item, if `group` query heads share a KV head.
pub(crate) fn queries_of_item(group: usize) -> usize {
    (ITEM_QUERIES / group).min(FEW)
}

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

/// Rows of a section at which a stretch begins, a bit for each.
type Marks = [u32; MARK_WORDS];

/// Four pages of a span, as a lane places them. Kernels call it `Section`. Rows are counted from
/// the first page's row 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Section {
    pages: [PageId; SECTION_PAGES],
    /// Of row `first`.
    position: u32,
    home: u32,
    n_rows: u16,
    /// Rows before it do not belong to the section.
    first: u16,
    n_marks: u16,
    /// The first of its cells, of those of the lane.
    cell: u16,
    marks: Marks,
}

impl Section {
    /// The row up to which a token at a position sees.
    fn seen_from(&self, position: u32) -> u16 {
        let rows = (position + 1).saturating_sub(self.position);
        self.first + rows.min(u32::from(self.n_rows - self.first)) as u16
    }

    /// Its cells for a token at a position that sees some of it.
    fn n_cells(&self, position: u32) -> usize {
        let seen = u32::from(self.seen_from(position));
        let below = |(first, marks): (u32, &u32)| {
            let rows =
                1_u32.checked_shl(seen.saturating_sub(first)).map_or(u32::MAX, |end| end - 1);
            (marks & rows).count_ones() as usize
        };
        let n_marks = match self.n_marks {
            0 => 0,
            _ => (0..).step_by(32).zip(&self.marks).map(below).sum(),
        };
        1 + n_marks
    }
}

/// Consecutive tokens of a lane. Kernels call it `QueryTile`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct QueryTile {
    first_token: u32,
    n_tokens: u32,
    first_section: u32,
    n_sections: u32,
    cell: u32,
    n_cells: u32,
    gap: [u32; 2],
}

words!(Section, Item, QueryTile);

/// Structs that kernels must lay out as here.
pub(crate) fn layouts() -> [Layout; 5] {
    [
        layout!(Section as "Section" {
            pages, position, home, n_rows, first, n_marks, cell, marks,
        }),
        layout!(QueryTile as "QueryTile" {
            first_token, n_tokens, first_section, n_sections, cell, n_cells, gap,
        }),
        item::item_layout(),
        item::query_layout(),
        StepAddresses::layout(),
    ]
}

/// What the host must know of a step's lists to launch kernels on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) n_tokens: usize,
    pub(crate) n_outputs: usize,
    pub(crate) n_items: usize,
    pub(crate) n_tiles: usize,
    /// Sections of all lanes.
    pub(crate) n_sections: usize,
    /// Whether pages are laid before warpgroups attend to them.
    pub(crate) lays_pages: bool,
    /// Blocks that share the sections of a tile; if more than one, every token's result is
    /// combined.
    pub(crate) n_splits: usize,
    /// Parts of results that are combined.
    pub(crate) n_partials: usize,
    /// Shares of attention that are recorded.
    pub(crate) n_cells: usize,
}

/// What decides which queries may join an item, and the item before it that has the same pages.
#[derive(Clone, Copy)]
struct Open {
    /// The lane of its first query. Lanes come one after the other, so all queries that see more or
    /// less are this lane's.
    lane: usize,
    /// How far all of them see, if they all see equally far.
    seen: Option<u16>,
    /// The cells of each that records shares.
    n_cells: Option<usize>,
    before: Option<usize>,
}

/// Most sections that a lane can have. A span of n rows that begins with the last row of a page has
/// (n + 63) / 256 of them, rounded up; spans have no more rows than there are positions, and one at
/// least.
fn lane_sections(limits: &Limits) -> usize {
    let beside = PAGE_ROWS - 1 + SECTION_ROWS - 1;
    limits.positions.min((limits.positions + MAX_SPANS * beside) / SECTION_ROWS)
}

/// Additional parts for each of few tokens beyond its sections. Larger steps use them, so that a
/// query of a hundred tokens after a long context can be split over the GPU.
const SPLIT_PARTS: usize = 1024;

/// The most parts that results are combined from.
pub(crate) fn max_partials(limits: &Limits) -> usize {
    let few = lane_sections(limits)
        .max(limits.positions.min(limits.positions / SECTION_ROWS + SPLIT_PARTS));
    FEW.max(MAX_LANES) * few
}

/// The most shares of attention that are recorded.
pub(crate) fn max_cells(limits: &Limits) -> usize {
    Reporting::MAX_ROWS * (lane_sections(limits) + MAX_MARKS)
}

/// The lists, and scratch memory to build them.
#[derive(Default)]
pub(crate) struct Lists {
    split: SplitRule,
    sections: Vec<Section>,
    lanes: Vec<Range<usize>>,
    items: Vec<Item>,
    tiles: Vec<QueryTile>,
    /// For each token: the number of its parts, its first part, the number of its cells, its first
    /// cell.
    partials: Vec<[u32; 4]>,
    /// The last item of each set of pages; and for each item, which queries may join it.
    open_items: HashMap<[PageId; SECTION_PAGES], usize>,
    open: Vec<Open>,
    reporting: Reporting,
    stretches: Vec<LaneStretches>,
    /// Of the tokens whose attention is reported.
    cells: Vec<TokenCells>,
    pub(crate) counts: Counts,
}

impl Lists {
    pub(crate) fn new(split: SplitRule) -> Self {
        Self { split, ..Self::default() }
    }

    /// Builds the lists of a step. `group` query heads share a KV head.
    pub(crate) fn fill(&mut self, step: &Step<'_>, group: usize) {
        self.sections.clear();
        self.lanes.clear();
        self.items.clear();
        self.tiles.clear();
        self.partials.clear();
        self.open_items.clear();
        self.open.clear();
        self.cells.clear();
        self.reporting.fill(step);
        self.counts =
            Counts { n_tokens: step.n_tokens(), n_outputs: step.n_outputs(), ..Counts::default() };
        for (index, lane) in step.lanes.iter().enumerate() {
            let first = self.sections.len();
            self.sections.extend(sections(lane));
            self.lanes.push(first..self.sections.len());
            self.number_cells(index, lane);
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
        self.counts.n_sections = self.sections.len();
        self.counts.lays_pages = self.lays_pages();
    }

    /// The number of queries of each item: zero if a token does not see its own row, several of one
    /// token if a lane contains the same pages twice.
    pub(crate) fn queries_of_items(&self) -> impl Iterator<Item = u32> {
        self.items.iter().map(|item| item.n_queries)
    }

    /// The largest number of queries of an item.
    pub(crate) fn most_queries(&self) -> usize {
        self.queries_of_items().max().unwrap_or(0) as usize
    }

    fn fill_items(&mut self, step: &Step<'_>, group: usize) {
        let most = queries_of_item(group);
        let mut token = 0;
        for (index, lane) in step.lanes.iter().enumerate() {
            for (of_lane, position) in lane.positions.iter().enumerate() {
                let own = self.lanes[index].clone();
                let seen =
                    self.sections[own.clone()].iter().take_while(|s| s.position <= *position);
                let n = seen.count();
                let first = self.counts.n_partials;
                let [n_cells, first_cell] = self.cells_of(index, of_lane);
                self.partials.push([n as u32, first as u32, n_cells, first_cell]);
                for (i, section) in own.take(n).enumerate() {
                    let section = self.sections[section];
                    let cell = first_cell as usize + usize::from(section.cell);
                    let query = Query {
                        token: token as u16,
                        n_parts: short(n),
                        seen: section.seen_from(*position),
                        cell: if n_cells == 0 { NO_CELL } else { short(cell) },
                        rotate_at: section.home + (position - section.position),
                        partial: (first + i) as u32,
                    };
                    let n_cells = (n_cells > 0).then(|| section.n_cells(*position));
                    self.add_query(index, &section, (query, n_cells), most);
                }
                self.counts.n_partials += n;
                token += 1;
            }
        }
        self.items.iter_mut().for_each(Item::number_stretches);
        self.add_stores(step);
    }

    /// Queries that see the same rows share an item, as far as a tile holds them. Queries of one
    /// lane also share it if some see less. Those of different lanes may not: a row that one lane
    /// stores now, and another does not see, would enter the other's sums with a weight of zero,
    /// and zero times infinity is not a number. Kernels rely on this: either all results of an item
    /// are combined from parts, or none; and queries that record shares see the same cells.
    fn add_query(
        &mut self,
        lane: usize,
        section: &Section,
        (query, n_cells): (Query, Option<usize>),
        most: usize,
    ) {
        let mut next = self.open_items.get(&section.pages).copied();
        while let Some(index) = next {
            let (item, open) = (&mut self.items[index], &mut self.open[index]);
            let joins = open.lane == lane || open.seen == Some(query.seen);
            let is_folded = |query: &Query| query.n_parts > 1;
            let is_same = (u16::from(item.first), item.marks) == (section.first, section.marks)
                && is_folded(&item.queries[0]) == is_folded(&query);
            let sees_cells = n_cells.is_none() || open.n_cells.is_none_or(|n| Some(n) == n_cells);
            if joins && is_same && sees_cells && (item.n_queries as usize) < most {
                open.seen = open.seen.filter(|seen| *seen == query.seen);
                open.n_cells = open.n_cells.or(n_cells);
                return item.add(query);
            }
            next = open.before;
        }
        let before = self.open_items.insert(section.pages, self.items.len());
        self.open.push(Open { lane, seen: Some(query.seen), n_cells, before });
        let Section { pages, first, marks, .. } = *section;
        let mut item = Item { pages, first: first as u8, marks, ..Item::default() };
        item.add(query);
        self.items.push(item);
    }

    /// Every item that contains rows written in this step computes them itself. A row that is in no
    /// item gets an item without queries.
    fn add_stores(&mut self, step: &Step<'_>) {
        let slots = step.lanes.iter().flat_map(|lane| lane.store_at);
        for (token, slot) in slots.enumerate() {
            let (page, row) = crate::kv::place(*slot);
            let mut stored = false;
            for item in &mut self.items {
                let n_pages = (item.n_rows as usize).div_ceil(PAGE_ROWS);
                let found = item.pages[..n_pages].iter().position(|own| *own == page);
                let at = found.map(|i| i * PAGE_ROWS + row);
                let own = usize::from(item.first)..item.n_rows as usize;
                if let Some(at) = at.filter(|at| own.contains(at)) {
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
        let most = self.split.tile_queries.unwrap_or(TILE_QUERIES) / group;
        let mut token = 0;
        for (index, lane) in step.lanes.iter().enumerate() {
            let own = self.lanes[index].clone();
            let last = lane.positions.len();
            for first in (0..last).step_by(most) {
                let end = (first + most).min(last);
                let seen = |s: &&Section| s.position <= lane.positions[end - 1];
                let n = self.sections[own.clone()].iter().take_while(seen).count();
                let [n_cells, cell] = self.cells_of(index, end - 1);
                self.tiles.push(QueryTile {
                    first_token: (token + first) as u32,
                    n_tokens: (end - first) as u32,
                    first_section: own.start as u32,
                    n_sections: n as u32,
                    cell: if end == last { cell } else { NOWHERE },
                    n_cells,
                    gap: [0; 2],
                });
            }
            token += last;
        }
    }
}

/// A lane's spans, cut into sections; without the numbers of cells.
fn sections<'a>(lane: &'a Lane<'_>) -> impl Iterator<Item = Section> + 'a {
    lane.spans.iter().flat_map(move |span| {
        let end = span.first_row + span.len;
        (0..end).step_by(SECTION_ROWS).map(move |start| {
            let mut pages = [0; SECTION_PAGES];
            let from = span.pages.iter().skip(start / PAGE_ROWS);
            let n_rows = SECTION_ROWS.min(end - start);
            { pages.iter_mut().zip(from) }
                .take(n_rows.div_ceil(PAGE_ROWS))
                .for_each(|(to, page)| *to = *page);
            let first = span.first_row.saturating_sub(start);
            let row = start + first - span.first_row; // of the span
            let position = span.position + row;
            let (n_marks, marks) = marks(lane, position..position + n_rows - first, first);
            Section {
                pages,
                position: position as u32,
                home: (span.home_position + row) as u32,
                n_rows: n_rows as u16,
                first: first as u16,
                n_marks,
                cell: 0,
                marks,
            }
        })
    })
}

/// The marks of a lane inside a section, whose row `first` is the first of some positions: how
/// many, and their rows.
fn marks(lane: &Lane<'_>, positions: Range<usize>, first: usize) -> (u16, Marks) {
    let before = lane.marks.partition_point(|mark| *mark as usize <= positions.start);
    let inside = lane.marks[before..].iter().take_while(|mark| (**mark as usize) < positions.end);
    inside.fold((0, Marks::default()), |(n, mut marks), mark| {
        let row = first + *mark as usize - positions.start;
        marks[row / 32] |= 1 << (row % 32);
        (n + 1, marks)
    })
}

/// A number of parts or cells in the width of a query's field, which suffices for contexts of
/// millions of rows.
fn short(n: usize) -> u16 {
    u16::try_from(n).ok().filter(|n| *n != NO_CELL).expect("sections of a lane are bounded")
}

#[cfg(test)]
mod tests;
