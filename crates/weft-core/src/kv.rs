//! KV pages, and the pool that hands them out.
//!
//! A page holds [`PAGE_ROWS`] consecutive rows of one span, in every layer. Devices own the memory;
//! the pool manages only page numbers.

use std::collections::VecDeque;

use thiserror::Error;

/// KV rows in one page.
pub const PAGE_ROWS: usize = 64;

/// The number of a page in a device's KV memory.
pub type PageId = u32;

/// One row in a device's KV memory: page · [`PAGE_ROWS`] + row in the page.
pub type Slot = u32;

/// The most pages whose rows all have a [`Slot`].
pub const MAX_PAGES: usize = Slot::MAX as usize / PAGE_ROWS;

/// The slot of row `row` of a list of pages.
pub(crate) fn slot(pages: &[PageId], row: usize) -> Slot {
    pages[row / PAGE_ROWS] * PAGE_ROWS as Slot + (row % PAGE_ROWS) as Slot
}

/// The number of pages for `rows` rows.
pub const fn pages_for(rows: usize) -> usize {
    rows.div_ceil(PAGE_ROWS)
}

/// The pages of a device with their reference counts. A page without references is free.
#[derive(Debug)]
pub(crate) struct PagePool {
    /// Taken from the front and returned to the back. A recently freed page may still be copied
    /// from; one that was freed long ago is not.
    free: VecDeque<PageId>,
    /// The reference count of each page.
    holders: Vec<u32>,
}

/// Too few pages are free.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{wanted} KV pages are needed, and only {free} of {total} are free")]
pub struct OutOfPages {
    /// Pages requested.
    pub wanted: usize,
    /// Pages free.
    pub free: usize,
    /// All pages.
    pub total: usize,
}

impl PagePool {
    /// A pool of pages `0..total`, all free.
    pub fn new(total: usize) -> Self {
        assert!(total <= MAX_PAGES, "{total} are more pages than slots can name: {MAX_PAGES}");
        Self { free: (0..total as PageId).collect(), holders: vec![0; total] }
    }

    /// Whether `wanted` pages are free.
    pub fn check(&self, wanted: usize) -> Result<(), OutOfPages> {
        let free = self.free.len();
        if wanted > free {
            return Err(OutOfPages { wanted, free, total: self.total() });
        }
        Ok(())
    }

    /// Takes `wanted` pages, each with one reference, or none at all.
    pub fn take(&mut self, wanted: usize) -> Result<Vec<PageId>, OutOfPages> {
        self.check(wanted)?;
        let pages: Vec<PageId> = self.free.drain(..wanted).collect();
        pages.iter().for_each(|page| self.holders[*page as usize] = 1);
        Ok(pages)
    }

    /// Adds a reference to each of these pages, which are already in use.
    pub fn hold(&mut self, pages: &[PageId]) {
        for page in pages {
            let holders = &mut self.holders[*page as usize];
            debug_assert!(*holders > 0, "page {page} is free");
            *holders += 1;
        }
    }

    /// Drops a reference to each of these pages.
    pub fn give_back(&mut self, pages: impl IntoIterator<Item = PageId>) {
        for page in pages {
            let holders = &mut self.holders[page as usize];
            debug_assert!(*holders > 0, "page {page} came back twice");
            *holders -= 1;
            if *holders == 0 {
                self.free.push_back(page);
            }
        }
    }

    /// The reference count of each page.
    pub fn holders(&self) -> &[u32] {
        &self.holders
    }

    /// Number of free pages.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Number of all pages.
    pub fn total(&self) -> usize {
        self.holders.len()
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
    fn a_page_is_free_when_the_last_holder_gives_it_back() {
        let mut pool = PagePool::new(2);
        let pages = pool.take(2).unwrap();
        pool.hold(&pages[..1]);
        pool.give_back(pages.iter().copied());
        assert_eq!((pool.free(), pool.holders()), (1, &[1, 0][..]));
        pool.give_back([0]);
        assert_eq!(pool.free(), 2);
    }

    #[test]
    fn a_partial_page_counts_whole() {
        assert_eq!([0, 1, 64, 65].map(pages_for), [0, 1, 1, 2]);
    }

    #[test]
    #[should_panic(expected = "more pages than slots can name")]
    fn every_row_of_a_pool_has_a_slot() {
        PagePool::new(Slot::MAX as usize / PAGE_ROWS + 1);
    }
}
