//! Memory for the kernels: aligned to cache lines, on huge pages if the system has them, resident
//! when it is first used, and shared between threads that write disjoint parts.

use half::bf16;
use half::slice::HalfBitsSliceExt;

/// Elements of one cache line.
pub(crate) const LINE: usize = 32;
const LINE_BYTES: usize = LINE * size_of::<u16>();

/// bf16 numbers that start on a cache line. They take memory when they are first written, not when
/// they are allocated.
pub(crate) struct Lines {
    /// The numbers' bits, with spare elements in front.
    bits: Vec<u16>,
    start: usize,
    len: usize,
}

impl Lines {
    /// `len` zeros, rounded up to whole cache lines.
    pub(crate) fn zeroed(len: usize) -> Self {
        let len = len.next_multiple_of(LINE);
        // The system's zero pages. An allocation with an alignment would be filled by hand.
        let bits = vec![0; len + LINE];
        // This must precede the first write, when the system assigns pages.
        ask_for_huge_pages(&bits);
        let start = bits.as_ptr().align_offset(LINE_BYTES);
        Self { bits, start, len }
    }

    pub(crate) fn get(&self) -> &[bf16] {
        self.bits[self.start..][..self.len].reinterpret_cast()
    }

    pub(crate) fn get_mut(&mut self) -> &mut [bf16] {
        self.bits[self.start..][..self.len].reinterpret_cast_mut()
    }
}

/// Bytes that start on a cache line. They take memory when they are first written.
pub(crate) struct Bytes {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Bytes {
    /// `len` zeros.
    pub(crate) fn zeroed(len: usize) -> Self {
        let bytes = vec![0; len + LINE_BYTES];
        ask_for_huge_pages(&bytes);
        let start = bytes.as_ptr().align_offset(LINE_BYTES);
        Self { bytes, start, len }
    }

    pub(crate) fn get(&self) -> &[u8] {
        &self.bytes[self.start..][..self.len]
    }

    pub(crate) fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.len]
    }
}

/// With 4 KiB pages, streaming gigabytes spends a tenth of the time on address translation.
#[cfg(target_os = "linux")]
fn ask_for_huge_pages<T>(numbers: &[T]) {
    const HUGE: usize = 2 << 20;
    let start = (numbers.as_ptr() as usize).next_multiple_of(HUGE);
    let end = numbers.as_ptr_range().end as usize / HUGE * HUGE;
    if start < end {
        // SAFETY: the range lies inside `numbers`, and the advice changes no contents. If the
        // system refuses it, pages are small.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
fn ask_for_huge_pages<T>(_: &[T]) {}

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
        let is_inside = start.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(is_inside, "part {start}+{len} of {}", self.len);
        // SAFETY: in bounds by the check above; unique by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}

/// Makes the threads of the process share one pool of memory, unless the environment says how many.
/// glibc has up to eight for each core, and what stays in one keeps the pages around it from being
/// given back: each load of a model in its own thread left some, even with a second pool. Threads
/// have small caches in front of it, so eight answers side by side take no more time. Call it
/// before other threads begin.
pub fn share_pools() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if !is_number_of_pools_given() {
        // SAFETY: the call takes no pointer, and changes a setting of the allocator alone.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, MAX_POOLS);
        }
    }
}

/// Whether one of glibc's two variables says how many pools there may be.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn is_number_of_pools_given() -> bool {
    let tunables = std::env::var_os("GLIBC_TUNABLES").unwrap_or_default();
    std::env::var_os("MALLOC_ARENA_MAX").is_some()
        || tunables.to_string_lossy().contains("glibc.malloc.arena_max=")
}

/// Pools of memory.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAX_POOLS: libc::c_int = 1;

/// Gives memory that the process has freed back to the system. The allocator of some systems would
/// keep much of a model's for later.
pub fn release_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call takes no pointer and locks the allocator itself, on any thread.
    unsafe {
        libc::malloc_trim(0);
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

    #[test]
    #[should_panic(expected = "part 18446744073709551615+2 of 4")]
    fn a_part_whose_end_overflows_is_refused() {
        let mut numbers = [0; 4];
        let all = Disjoint::new(&mut numbers);
        // SAFETY: there is no other part.
        unsafe { all.part(usize::MAX, 2) };
    }
}
