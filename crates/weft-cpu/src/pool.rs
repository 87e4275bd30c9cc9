//! Worker threads that live as long as the device, and run one job at a time together.
//!
//! A token consists of about two hundred jobs of a few dozen microseconds, so starting a job must
//! not cost a system call. Workers spin for the next job for a while, and park only if none comes.

use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle, Thread};

/// Iterations of the spin loop, some tens of microseconds, before a waiting thread gives up its
/// core: a worker parks, the caller yields. If there are more threads than cores, longer spinning
/// starves the thread that is waited for.
const SPINS: usize = 4_000;

/// A job; its argument is the number of the thread.
type Job<'j> = &'j (dyn Fn(usize) + Sync);

struct Shared {
    /// The number of the job (a change means that there is a new one), whether it is closed, and
    /// how many workers are inside it. These share one word, so that a worker can enter a job only
    /// while it is open: a worker that wakes late finds it closed, and nobody waits for it.
    state: AtomicUsize,
    /// Points to the running job, on the stack of `Pool::run`.
    job: AtomicPtr<Job<'static>>,
    panicked: AtomicBool,
    stop: AtomicBool,
}

/// The fields of `Shared::state`.
const INSIDE: usize = (1 << 15) - 1;
const CLOSED: usize = 1 << 15;
const NUMBER: u32 = 16;

struct Worker {
    thread: Thread,
    handle: Option<JoinHandle<()>>,
    parked: Arc<AtomicBool>,
}

/// Items `first..end`, as the upper and the lower half of a word, in its own cache line.
#[repr(align(64))]
struct Share(AtomicU64);

impl Share {
    /// The job starts after this, which makes it visible.
    fn set(&self, first: usize, end: usize) {
        let [first, end] = [first, end].map(|item| u32::try_from(item).expect("fewer items"));
        self.0.store(u64::from(first) << 32 | u64::from(end), Ordering::Relaxed);
    }

    fn take_first(&self) -> Option<usize> {
        self.take(|first, end| ((first + 1, end), first))
    }

    fn take_last(&self) -> Option<usize> {
        self.take(|first, end| ((first, end - 1), end - 1))
    }

    fn take(&self, split: impl Fn(u64, u64) -> ((u64, u64), u64)) -> Option<usize> {
        let mut item = None;
        let left = |share: u64| {
            let (first, end) = (share >> 32, share & u64::from(u32::MAX));
            if first >= end {
                return None;
            }
            let ((first, end), taken) = split(first, end);
            item = Some(taken as usize);
            Some(first << 32 | end)
        };
        // Which thread has an item is all that these words say: items are handed over by the job.
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).ok()?;
        item
    }
}

/// The worker threads. The thread that calls [`Pool::run`] works too.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<Worker>,
    /// The items of the running job that are still to be done: each thread's share.
    shares: Vec<Share>,
    /// There is room for one job: a pool can move to another thread, but two threads can never
    /// share it.
    one_caller: PhantomData<Cell<()>>,
}

impl Pool {
    /// A pool of `n_threads`, including the caller's.
    pub(crate) fn new(n_threads: usize) -> Self {
        assert!(n_threads <= INSIDE, "{n_threads} threads");
        let shared = Arc::new(Shared {
            state: AtomicUsize::new(CLOSED),
            job: AtomicPtr::new(std::ptr::null_mut()),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let workers = (1..n_threads).map(|index| Worker::start(index, &shared)).collect();
        let shares = (0..n_threads).map(|_| Share(AtomicU64::new(0))).collect();
        Self { shared, workers, shares, one_caller: PhantomData }
    }

    /// Number of threads, including the caller's.
    pub(crate) fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `work(thread, item)` once for each item below `n`, on all threads. The assignment of
    /// items to threads is arbitrary, so items must not depend on one another.
    ///
    /// Each thread begins with a share of neighbouring items, in order, because neighbours are
    /// mostly neighbours in memory, and a core that goes on where it stopped reads twice as fast
    /// as one that jumps every few microseconds. Then it helps the others from their ends.
    pub(crate) fn for_each(&self, n: usize, work: impl Fn(usize, usize) + Sync) {
        if n == 1 || self.workers.is_empty() {
            (0..n).for_each(|item| work(0, item));
            return;
        }
        let shares = &self.shares[..];
        let n_threads = shares.len();
        for (thread, share) in shares.iter().enumerate() {
            share.set(n * thread / n_threads, n * (thread + 1) / n_threads);
        }
        self.run(&|thread| {
            while let Some(item) = shares[thread].take_first() {
                work(thread, item);
            }
            for other in 1..n_threads {
                let share = &shares[(thread + other) % n_threads];
                while let Some(item) = share.take_last() {
                    work(thread, item);
                }
            }
        });
    }

    /// Runs the job on this thread and on every worker that enters before this thread has finished.
    /// Returns when all workers have left.
    fn run(&self, job: Job<'_>) {
        let shared = &*self.shared;
        let mut job: Job<'_> = job;
        shared.job.store((&raw mut job).cast(), Ordering::Relaxed);
        let number = (shared.state.load(Ordering::Relaxed) >> NUMBER).wrapping_add(1);
        // SeqCst with the worker's store to `parked`: either the worker sees the new job, or this
        // thread sees that the worker parked.
        shared.state.store(number << NUMBER, Ordering::SeqCst);
        for worker in &self.workers {
            if worker.parked.load(Ordering::SeqCst) {
                worker.thread.unpark();
            }
        }
        let result = catch_unwind(AssertUnwindSafe(|| job(0)));
        // `job` lives on this stack: no more workers may enter, and this thread waits for the last
        // one to leave.
        shared.state.fetch_or(CLOSED, Ordering::AcqRel);
        let mut spins = 0;
        while shared.state.load(Ordering::Acquire) & INSIDE > 0 {
            spins += 1;
            if spins > SPINS { thread::yield_now() } else { std::hint::spin_loop() }
        }
        let worker_panicked = shared.panicked.swap(false, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
        assert!(!worker_panicked, "a worker thread panicked");
    }
}

impl Worker {
    fn start(index: usize, shared: &Arc<Shared>) -> Self {
        let parked = Arc::new(AtomicBool::new(false));
        let (shared, is_parked) = (Arc::clone(shared), Arc::clone(&parked));
        let handle = thread::Builder::new()
            .name(format!("weft-cpu-{index}"))
            .spawn(move || work(index, &shared, &is_parked))
            .expect("the system starts a thread");
        Self { thread: handle.thread().clone(), handle: Some(handle), parked }
    }
}

/// A worker's loop: wait for a job, enter it if it is open, run it, leave.
fn work(thread: usize, shared: &Shared, parked: &AtomicBool) {
    let mut seen = 0;
    loop {
        let state = wait_for_job(shared, parked, seen);
        if shared.stop.load(Ordering::Relaxed) {
            return;
        }
        if state & CLOSED != 0 {
            seen = state >> NUMBER;
            continue;
        }
        let entered = shared.state.compare_exchange_weak(
            state,
            state + 1,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        if entered.is_err() {
            continue;
        }
        seen = state >> NUMBER;
        let job = shared.job.load(Ordering::Relaxed);
        // SAFETY: `Pool::run` stored a pointer to a live job before it opened the job, and keeps
        // the job alive until no worker is inside. This worker is inside until it leaves below.
        let job = unsafe { *job };
        if catch_unwind(AssertUnwindSafe(|| job(thread))).is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        shared.state.fetch_sub(1, Ordering::Release);
    }
}

/// Spins, then parks, until the number of the job differs from `seen`.
fn wait_for_job(shared: &Shared, parked: &AtomicBool, seen: usize) -> usize {
    for _ in 0..SPINS {
        let state = shared.state.load(Ordering::Acquire);
        if state >> NUMBER != seen {
            return state;
        }
        std::hint::spin_loop();
    }
    parked.store(true, Ordering::SeqCst);
    loop {
        let state = shared.state.load(Ordering::SeqCst);
        if state >> NUMBER != seen {
            parked.store(false, Ordering::SeqCst);
            return state;
        }
        thread::park();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // A new number, so that waiting workers wake.
        self.shared.state.fetch_add(1 << NUMBER, Ordering::SeqCst);
        for worker in &mut self.workers {
            worker.thread.unpark();
            if let Some(handle) = worker.handle.take() {
                // A worker catches its jobs' panics, so there is no error to report.
                let _ = handle.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_item_is_done_once() {
        for n_threads in 1..=4 {
            let pool = Pool::new(n_threads);
            for n in [0, 1, 2, 3, 1000] {
                let counts: Vec<AtomicU32> = (0..n).map(|_| AtomicU32::new(0)).collect();
                pool.for_each(n, |_, item| {
                    counts[item].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn parked_workers_wake_up() {
        let pool = Pool::new(3);
        for _ in 0..20 {
            let count = AtomicU32::new(0);
            pool.for_each(100, |_, _| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), 100);
            thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(2);
        let broken = catch_unwind(AssertUnwindSafe(|| {
            pool.for_each(64, |_, item| assert!(item != 63, "item 63"));
        }));
        assert!(broken.is_err());
        let count = AtomicU32::new(0);
        pool.for_each(8, |_, _| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 8);
    }
}
