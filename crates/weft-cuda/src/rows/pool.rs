//! Pinned memory for rows in main memory: the GPU copies from it and to it at the speed of the bus,
//! and no core moves their bytes.
//!
//! Pinning takes longer than copying, so nobody waits for it: a new slab is plain memory until a
//! thread has pinned it, and the rows that are in it by then stay where they are. Rows take ranges
//! of slabs and give them back when they are dropped. Of what is free, only some is kept.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use weft_core::store::{LentMemory, PlainMemory, RowBytes, RowMemory};

use crate::driver::{Gpu, Pinned};

/// The fewest bytes of a slab. It has room for a whole number of the rows that it is made for.
const SLAB_BYTES: usize = 64 << 20;
/// Ranges begin at a multiple of this.
const ALIGNMENT: usize = 4096;
/// Smaller rows are copied by a core in less time than they take here.
const LEAST_BYTES: usize = 64 << 10;
/// Of the machine's memory, the largest part that is pinned, and that is pinned and free.
const MOST_PINNED: usize = 2;
const MOST_FREE: usize = 32;
/// The machine's memory, if it is not known.
const UNKNOWN_MEMORY: usize = 16 << 30;

/// Slabs, and which of their ranges are free. Knows no memory: `S` is a slab's.
struct Slabs<S> {
    slabs: Vec<Slab<S>>,
    next_id: u64,
    pinned_bytes: usize,
    free_bytes: usize,
}

struct Slab<S> {
    id: u64,
    memory: S,
    bytes: usize,
    /// Free ranges, start to end; no two touch.
    free: BTreeMap<usize, usize>,
}

/// A range of a slab.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    slab: u64,
    range: Range<usize>,
}

impl<S: Clone> Slabs<S> {
    const fn new() -> Self {
        Self { slabs: Vec::new(), next_id: 0, pinned_bytes: 0, free_bytes: 0 }
    }

    fn add(&mut self, memory: S, bytes: usize) {
        let id = self.next_id;
        self.next_id += 1;
        self.slabs.push(Slab { id, memory, bytes, free: BTreeMap::from([(0, bytes)]) });
        self.pinned_bytes += bytes;
        self.free_bytes += bytes;
    }

    /// Takes the first range that is long enough.
    fn take(&mut self, bytes: usize) -> Option<(S, Place)> {
        let bytes = bytes.next_multiple_of(ALIGNMENT);
        for slab in &mut self.slabs {
            let fitting = slab.free.iter().find(|(start, end)| **end - **start >= bytes);
            let Some((start, end)) = fitting.map(|(start, end)| (*start, *end)) else { continue };
            slab.free.remove(&start);
            if start + bytes < end {
                slab.free.insert(start + bytes, end);
            }
            self.free_bytes -= bytes;
            let place = Place { slab: slab.id, range: start..start + bytes };
            return Some((slab.memory.clone(), place));
        }
        None
    }

    /// Takes a range back, and joins it with its free neighbours. Returns slabs that are to go:
    /// free ones, while more than `most_free` bytes are free.
    fn give_back(&mut self, place: &Place, most_free: usize) -> Vec<S> {
        let slab = self.slabs.iter_mut().find(|slab| slab.id == place.slab);
        let slab = slab.expect("a slab with rows stays");
        let Range { mut start, mut end } = place.range;
        self.free_bytes += end - start;
        if let Some((before, end)) = slab.free.range(..start).next_back()
            && *end == start
        {
            start = *before;
        }
        if let Some(after) = slab.free.remove(&end) {
            end = after;
        }
        slab.free.insert(start, end);
        let mut gone = Vec::new();
        while self.free_bytes > most_free {
            let is_free = |slab: &Slab<S>| slab.free.get(&0) == Some(&slab.bytes);
            let Some(at) = self.slabs.iter().position(is_free) else { break };
            let slab = self.slabs.remove(at);
            self.pinned_bytes -= slab.bytes;
            self.free_bytes -= slab.bytes;
            gone.push(slab.memory);
        }
        gone
    }
}

/// What the thread that pins is asked to do.
enum Command {
    Pin(Weak<Pinned>),
    /// Free a slab.
    Free(Arc<Pinned>),
}

/// Pinned memory of a device, for rows.
pub(crate) struct RowPool {
    gpu: Arc<Gpu>,
    slabs: Mutex<Slabs<Arc<Pinned>>>,
    commands: Sender<Command>,
    most_pinned: usize,
    most_free: usize,
}

impl RowPool {
    /// Without any memory yet.
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Arc<Self> {
        let memory = machine_bytes().unwrap_or(UNKNOWN_MEMORY);
        let (commands, to_do) = channel();
        let run = move || {
            while let Ok(command) = to_do.recv() {
                match command {
                    Command::Free(slab) => drop(slab),
                    // The machine may not allow it; then the slab stays plain.
                    Command::Pin(slab) => slab.upgrade().into_iter().for_each(|slab| {
                        let _ = slab.pin();
                    }),
                }
            }
        };
        // Without the thread all rows stay in plain memory.
        let _ = thread::Builder::new().name("weft-pin".to_owned()).spawn(run);
        Arc::new(Self {
            gpu: Arc::clone(gpu),
            slabs: Mutex::new(Slabs::new()),
            commands,
            most_pinned: memory / MOST_PINNED,
            most_free: memory / MOST_FREE,
        })
    }

    fn slabs(&self) -> MutexGuard<'_, Slabs<Arc<Pinned>>> {
        self.slabs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, command: Command) {
        // A slab that cannot be sent is freed here.
        let _ = self.commands.send(command);
    }

    /// A range of a slab, of a new one if there is no room. `None` if too much is pinned.
    fn find(&self, bytes: usize) -> Option<(Arc<Pinned>, Place)> {
        let mut slabs = self.slabs();
        if let Some(taken) = slabs.take(bytes) {
            return Some(taken);
        }
        let slab_bytes = slab_bytes(bytes);
        if slabs.pinned_bytes.saturating_add(slab_bytes) > self.most_pinned {
            return None;
        }
        let slab = Arc::new(Pinned::later(&self.gpu, slab_bytes));
        self.ask(Command::Pin(Arc::downgrade(&slab)));
        slabs.add(slab, slab_bytes);
        slabs.take(bytes)
    }

    /// Memory for rows.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> RowBytes {
        let found = if bytes < LEAST_BYTES { None } else { self.find(bytes) };
        let Some((slab, place)) = found else { return PlainMemory.take(bytes) };
        let start = place.range.start;
        let rows = PinnedRows { slab, start, bytes, place, pool: Arc::clone(self) };
        RowBytes::of_device(Box::new(rows))
    }
}

/// [`RowMemory`] of a pool.
pub(crate) struct Lender(pub(crate) Arc<RowPool>);

impl RowMemory for Lender {
    fn take(&self, bytes: usize) -> RowBytes {
        self.0.take(bytes)
    }
}

/// Rows in pinned memory.
pub(crate) struct PinnedRows {
    slab: Arc<Pinned>,
    start: usize,
    bytes: usize,
    place: Place,
    pool: Arc<RowPool>,
}

impl PinnedRows {
    /// The slab that has them, if it is pinned by now, and where they begin.
    pub(crate) fn pinned(&self) -> Option<(&Pinned, usize)> {
        self.slab.is_pinned().then_some((&*self.slab, self.start))
    }
}

impl LentMemory for PinnedRows {
    fn kind(&self) -> &'static str {
        if self.slab.is_pinned() { "pinned for a device" } else { "of a device" }
    }

    fn bytes(&self) -> &[u8] {
        let at = self.slab.part(self.start, self.bytes);
        // SAFETY: the range lies in the slab, was taken for these rows alone, and is set. Copies by
        // the GPU to it are waited for before anybody gets the rows.
        unsafe { std::slice::from_raw_parts(at, self.bytes) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let at = self.slab.part(self.start, self.bytes);
        // SAFETY: as above; `self` is borrowed for as long as the bytes, and the GPU copies from
        // rows only while somebody shares them.
        unsafe { std::slice::from_raw_parts_mut(at, self.bytes) }
    }
}

impl Drop for PinnedRows {
    fn drop(&mut self) {
        let gone = self.pool.slabs().give_back(&self.place, self.pool.most_free);
        gone.into_iter().for_each(|slab| self.pool.ask(Command::Free(slab)));
    }
}

/// Bytes of a slab that is made for rows of `bytes` bytes.
fn slab_bytes(bytes: usize) -> usize {
    let bytes = bytes.max(1).next_multiple_of(ALIGNMENT);
    bytes * SLAB_BYTES.div_ceil(bytes)
}

/// Bytes of the machine's memory.
fn machine_bytes() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    line.split_whitespace().nth(1)?.parse::<usize>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = ALIGNMENT;

    #[test]
    fn ranges_are_taken_once_and_join_when_they_come_back() {
        let mut slabs = Slabs::new();
        assert!(slabs.take(1).is_none());
        slabs.add('a', 4 * PAGE);
        let mut take = |bytes| slabs.take(bytes).map(|(slab, place)| (slab, place.range));
        assert_eq!(take(PAGE + 1), Some(('a', 0..2 * PAGE)));
        assert_eq!(take(PAGE), Some(('a', 2 * PAGE..3 * PAGE)));
        assert_eq!(take(2 * PAGE), None);
        assert_eq!(take(1), Some(('a', 3 * PAGE..4 * PAGE)));
        assert_eq!(slabs.free_bytes, 0);
        let place = |range| Place { slab: 0, range };
        // The middle joins with both sides.
        for range in [0..2 * PAGE, 3 * PAGE..4 * PAGE, 2 * PAGE..3 * PAGE] {
            assert!(slabs.give_back(&place(range), usize::MAX).is_empty());
        }
        assert_eq!(slabs.slabs[0].free, BTreeMap::from([(0, 4 * PAGE)]));
        assert_eq!(slabs.take(4 * PAGE).unwrap().1, place(0..4 * PAGE));
    }

    #[test]
    fn a_slab_is_filled_by_the_rows_that_it_is_made_for() {
        // Keys of 256 tokens of 0.6B and 8B, small rows, rows larger than a slab.
        for bytes in [14_680_064, 18_874_368, 70_000, 200 << 20, (200 << 20) + 1] {
            let mut slabs = Slabs::new();
            slabs.add((), slab_bytes(bytes));
            assert!((SLAB_BYTES..2 * SLAB_BYTES.max(bytes)).contains(&slab_bytes(bytes)));
            while slabs.take(bytes).is_some() {}
            assert_eq!(slabs.free_bytes, 0, "{bytes}");
        }
    }

    #[test]
    fn free_slabs_go_when_too_much_is_free() {
        let mut slabs = Slabs::new();
        ['a', 'b', 'c'].into_iter().for_each(|slab| slabs.add(slab, 2 * PAGE));
        let places: Vec<Place> = (0..6).map(|_| slabs.take(PAGE).unwrap().1).collect();
        assert_eq!((slabs.free_bytes, slabs.pinned_bytes), (0, 6 * PAGE));
        // One range of each slab: no slab is free as a whole.
        for place in [&places[0], &places[2], &places[4]] {
            assert!(slabs.give_back(place, PAGE).is_empty());
        }
        assert_eq!(slabs.give_back(&places[3], 3 * PAGE), ['b']);
        assert_eq!((slabs.free_bytes, slabs.pinned_bytes), (2 * PAGE, 4 * PAGE));
        // The others still know theirs.
        assert_eq!(slabs.give_back(&places[5], 2 * PAGE), ['c']);
        assert!(slabs.give_back(&places[1], 2 * PAGE).is_empty(), "no more than may be free");
        assert_eq!((slabs.free_bytes, slabs.pinned_bytes), (2 * PAGE, 2 * PAGE));
    }
}
