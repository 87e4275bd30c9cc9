//! Memory for the kernels: aligned to cache lines, on huge pages if the system has them, and shared
//! between threads that write disjoint parts.

use std::mem::MaybeUninit;

use half::bf16;

/// Elements of one cache line.
pub(crate) const LINE: usize = 32;

/// A cache line of bf16 numbers.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([bf16; LINE]);

/// bf16 numbers that start on a cache line.
pub(crate) struct Lines(Vec<Line>);

impl Lines {
    /// `len` zeros.
    pub(crate) fn zeroed(len: usize) -> Self {
        let n_lines = len.div_ceil(LINE);
        let mut lines = Vec::with_capacity(n_lines);
        // This must precede the first write, when the system assigns pages.
        ask_for_huge_pages(lines.spare_capacity_mut());
        lines.resize(n_lines, Line([bf16::ZERO; LINE]));
        Self(lines)
    }

    pub(crate) fn get(&self) -> &[bf16] {
        // SAFETY: a `Line` is `LINE` bf16 without padding (64 bytes, aligned to 64), so n lines are
        // n · LINE initialised bf16.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * LINE) }
    }

    pub(crate) fn get_mut(&mut self) -> &mut [bf16] {
        let len = self.0.len() * LINE;
        // SAFETY: as in `get`; the borrow is unique because that of `self` is.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), len) }
    }
}

/// With 4 KiB pages, streaming gigabytes spends a tenth of the time on address translation.
#[cfg(target_os = "linux")]
fn ask_for_huge_pages(lines: &[MaybeUninit<Line>]) {
    const HUGE: usize = 2 << 20;
    let start = (lines.as_ptr() as usize).next_multiple_of(HUGE);
    let end = lines.as_ptr_range().end as usize / HUGE * HUGE;
    if start < end {
        // SAFETY: the range lies inside `lines`, and the advice changes no contents. If the system
        // refuses it, pages are small.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
fn ask_for_huge_pages(_: &[MaybeUninit<Line>]) {}

/// A buffer that several threads write, each its own part.
pub(crate) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    buffer: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: `part` is the only access, and its callers promise that parts in use at the same time do
// not overlap.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(crate) fn new(buffer: &'a mut [T]) -> Self {
        Self { start: buffer.as_mut_ptr(), len: buffer.len(), buffer: std::marker::PhantomData }
    }

    /// `len` elements from `start` on.
    ///
    /// # Safety
    /// No two parts that are in use at the same time overlap.
    #[allow(clippy::mut_from_ref, reason = "that is what it is for")]
    pub(crate) unsafe fn part(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start + len <= self.len, "part {start}+{len} of {}", self.len);
        // SAFETY: in bounds by the check above; unique by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_aligned_and_cover_the_length() {
        let mut lines = Lines::zeroed(100);
        assert_eq!(lines.get().len(), 128);
        assert_eq!(lines.get().as_ptr() as usize % 64, 0);
        lines.get_mut()[127] = bf16::ONE;
        assert_eq!(lines.get()[127], bf16::ONE);
    }
}
