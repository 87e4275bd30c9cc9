//! Queries against one section, and the stretches that marks cut it into, as kernels read them.

use super::{FEW, MARK_WORDS, Marks, PAGE_ROWS, PageId, SECTION_PAGES};
use crate::layouts::{Layout, layout};

/// One query of an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Query {
    pub(super) token: u16,
    /// Parts that the token's result is combined from.
    pub(super) n_parts: u16,
    pub(super) seen: u16,
    pub(super) cell: u16,
    pub(super) rotate_at: u32,
    pub(super) partial: u32,
}

/// Queries against one section. Kernels call it `Item`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Item {
    pub(super) pages: [PageId; SECTION_PAGES],
    pub(super) n_rows: u32,
    pub(super) n_queries: u32,
    pub(super) n_stores: u32,
    pub(super) first: u8,
    /// Number of rows that the queries see.
    pub(super) n_marks: u8,
    pub(super) first_pages: u8,
    pub(super) has_inner: u8,
    pub(super) stores: [u16; FEW],
    pub(super) cuts: [u8; MARK_WORDS],
    pub(super) stretches: [u16; MARK_WORDS],
    pub(super) marks: Marks,
    pub(super) queries: [Query; FEW],
}

/// Structs that kernels must lay out as here.
pub(super) fn item_layout() -> Layout {
    layout!(Item as "Item" {
        pages, n_rows, n_queries, n_stores, first, n_marks, first_pages, has_inner, stores, cuts,
        stretches, marks, queries,
    })
}

pub(super) fn query_layout() -> Layout {
    layout!(Query as "Query" { token, n_parts, seen, cell, rotate_at, partial })
}

impl Item {
    pub(super) fn store(&mut self, token: usize, row: usize) {
        self.stores[self.n_stores as usize] = (token << 8 | row) as u16;
        self.n_stores += 1;
    }

    pub(super) fn add(&mut self, query: Query) {
        self.n_rows = self.n_rows.max(u32::from(query.seen));
        self.queries[self.n_queries as usize] = query;
        self.n_queries += 1;
    }

    /// Numbers the stretches of rows that its queries see, once all of these are there. Queries
    /// that record shares see all of them: the last of a lane, and those of other lanes that see as
    /// far.
    pub(super) fn number_stretches(&mut self) {
        for (half, marks) in self.marks.iter_mut().enumerate() {
            let rows = self.n_rows.saturating_sub(half as u32 * 32);
            *marks &= 1_u32.checked_shl(rows).map_or(u32::MAX, |end| end - 1);
        }
        let first = usize::from(self.first);
        let (mut n, mut has_inner) = (0, false);
        for half in 0..MARK_WORDS {
            let n_own = self.marks[half].count_ones() as u16 + u16::from(half == first / 32);
            if n_own == 0 {
                continue;
            }
            n += n_own;
            has_inner |= n_own > 1;
            self.stretches[half] = halves_from(half, &self.marks) | (n - 1) << 8;
        }
        self.n_marks = (n - 1) as u8;
        self.has_inner = u8::from(has_inner && self.n_marks > 1);
        self.cut_halves();
    }

    /// Sets where the squares of each half of a page are cut in two.
    fn cut_halves(&mut self) {
        let half = self.marks.iter().position(|marks| *marks != 0).unwrap_or_default();
        let mark = half * 32 + self.marks[half].trailing_zeros() as usize;
        self.first_pages = SECTION_PAGES as u8;
        for half in 0..MARK_WORDS {
            let inside = self.marks[half] & !1;
            self.cuts[half] = match self.n_marks {
                0 => 32,
                1 => mark.saturating_sub(half * 32).min(32) as u8,
                _ => inside.trailing_zeros() as u8,
            };
        }
        if self.n_marks == 1 {
            self.first_pages = mark.div_ceil(PAGE_ROWS) as u8;
        }
    }
}

/// A bit for each half of a page that a stretch has rows in, if it is the last to begin in `half`.
fn halves_from(half: usize, marks: &Marks) -> u16 {
    let mut halves = 1 << half;
    for (later, marks) in marks.iter().enumerate().skip(half + 1) {
        if marks & 1 == 1 {
            break; // the next begins with the first row
        }
        halves |= 1 << later;
        if *marks != 0 {
            break;
        }
    }
    halves
}
