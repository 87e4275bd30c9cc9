//! KV pages: how the rows of keys and values are cut, and who owns which page.
//!
//! A page holds [`PAGE_ROWS`] consecutive rows of one span, in every layer. Devices own the memory;
//! the pool here only hands out page numbers.

use std::collections::VecDeque;

use thiserror::Error;

/// KV rows in one page.
pub const PAGE_ROWS: usize = 64;

/// The number of a page in a device's KV memory.
pub type PageId = u32;

/// One row in a device's KV memory: page · [`PAGE_ROWS`] + row in the page.
pub type Slot = u32;

/// Pages that `rows` rows need.
pub const fn pages_for(rows: usize) -> usize {
    rows.div_ceil(PAGE_ROWS)
}

/// The free pages of a device.
#[derive(Debug)]
pub struct PagePool {
    /// Handed out from the front and taken back at the end: a page that was just left may still be
    /// copied from, and one that was left long ago is not.
    free: VecDeque<PageId>,
    total: usize,
}

/// More pages were asked for than are free.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{wanted} KV pages are needed and {free} of {total} are free")]
pub struct OutOfPages {
    /// Pages asked for.
    pub wanted: usize,
    /// Pages free.
    pub free: usize,
    /// Pages in all.
    pub total: usize,
}

impl PagePool {
    /// A pool of pages `0..total`, all free.
    pub fn new(total: usize) -> Self {
        let total_id = PageId::try_from(total).expect("page numbers fit PageId");
        Self { free: (0..total_id).collect(), total }
    }

    /// Whether `wanted` pages are free.
    pub fn check(&self, wanted: usize) -> Result<(), OutOfPages> {
        let free = self.free.len();
        if wanted > free {
            return Err(OutOfPages { wanted, free, total: self.total });
        }
        Ok(())
    }

    /// Takes `wanted` pages, or none at all.
    pub fn take(&mut self, wanted: usize) -> Result<Vec<PageId>, OutOfPages> {
        self.check(wanted)?;
        Ok(self.free.drain(..wanted).collect())
    }

    /// Gives pages back.
    pub fn give_back(&mut self, pages: impl IntoIterator<Item = PageId>) {
        self.free.extend(pages);
        debug_assert!(self.free.len() <= self.total, "more pages came back than were taken");
    }

    /// Free pages.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// All pages.
    pub fn total(&self) -> usize {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_all_or_nothing() {
        let mut pool = PagePool::new(3);
        assert_eq!(pool.take(2), Ok(vec![0, 1]));
        assert_eq!(pool.take(2), Err(OutOfPages { wanted: 2, free: 1, total: 3 }));
        assert_eq!(pool.free(), 1);
        pool.give_back([0, 1]);
        assert_eq!(pool.take(3), Ok(vec![2, 0, 1]), "what was left last comes last");
    }

    #[test]
    fn a_partial_page_counts_whole() {
        assert_eq!([0, 1, 64, 65].map(pages_for), [0, 1, 1, 2]);
    }
}
