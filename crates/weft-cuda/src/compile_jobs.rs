//! Compiles modules on other threads, in the order in which steps need them.
//!
//! A [`Job`] is one module: its cubin comes from the cache, from a thread of [`Jobs`], or, if no
//! thread has begun, from whoever needs it. Devices of one process share the jobs of the same
//! module. Threads hold sources and cubins, and no resource of a GPU, so a device can be dropped
//! while they run: modules that wait are given up, and a module that a thread compiles is finished
//! and cached. `compile.rs` ends compilers when the process ends.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use crate::compile::{self, Program};
use crate::error::CudaError;

/// A module that is compiled once.
pub(crate) struct Job {
    program: Program,
    arch: String,
    key: String,
    entry: Option<PathBuf>,
    state: Mutex<State>,
    is_done: Condvar,
    is_compiled: AtomicBool,
}

enum State {
    /// Nobody has begun.
    Waiting,
    Running,
    Done(Result<Arc<[u8]>, CudaError>),
}

impl Job {
    pub(crate) fn new(program: Program, arch: &str) -> Result<Arc<Self>, CudaError> {
        let key = compile::cubin_name(&program, arch)?;
        let entry = compile::entry(&format!("{key}.cubin"));
        Ok(Self::shared(Self::waiting(program, arch, key, entry)))
    }

    /// The job of this module that a device has already, or this one.
    fn shared(self) -> Arc<Self> {
        static ALL: Mutex<BTreeMap<String, Weak<Job>>> = Mutex::new(BTreeMap::new());
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(job) = all.get(&self.key).and_then(Weak::upgrade) {
            return job;
        }
        all.retain(|_, job| job.strong_count() > 0);
        let job = Arc::new(self);
        all.insert(job.key.clone(), Arc::downgrade(&job));
        job
    }

    fn waiting(program: Program, arch: &str, key: String, entry: Option<PathBuf>) -> Self {
        let (state, is_done) = (Mutex::new(State::Waiting), Condvar::new());
        let is_compiled = AtomicBool::new(false);
        Self { program, arch: arch.to_owned(), key, entry, state, is_done, is_compiled }
    }

    /// The hash of everything that the cubin depends on.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the cubin was compiled by this process, and not taken from the cache.
    pub(crate) fn is_compiled(&self) -> bool {
        self.is_compiled.load(Ordering::Relaxed)
    }

    /// Whether waiting for the cubin, or for an error, takes no time.
    pub(crate) fn is_done(&self) -> bool {
        matches!(*self.state(), State::Done(_))
    }

    /// Takes the cubin from the cache if it is there; whether it has one then.
    pub(crate) fn look_up(&self) -> bool {
        let mut state = self.state();
        if matches!(*state, State::Waiting)
            && let Some(cubin) = self.entry.as_deref().and_then(compile::read_entry)
        {
            *state = State::Done(Ok(cubin.into()));
        }
        matches!(*state, State::Done(Ok(_)))
    }

    /// Compiles if nobody has begun.
    fn run(&self) {
        if self.look_up() {
            return;
        }
        {
            let mut state = self.state();
            if !matches!(*state, State::Waiting) {
                return;
            }
            *state = State::Running;
        }
        let compiled = compile::compile(&self.program, &self.arch).map(|compiled| compiled.cubin);
        if let (Some(entry), Ok(cubin)) = (&self.entry, &compiled) {
            // If it fails, the next start only compiles again.
            let _ = compile::write_entry(entry, cubin);
        }
        self.is_compiled.store(compiled.is_ok(), Ordering::Relaxed);
        *self.state() = State::Done(compiled.map(Into::into));
        self.is_done.notify_all();
    }

    /// The cubin. Waits for the thread that compiles it; compiles it here if none has begun.
    pub(crate) fn cubin(&self) -> Result<Arc<[u8]>, CudaError> {
        self.run();
        let state = self.is_done.wait_while(self.state(), |state| !matches!(state, State::Done(_)));
        match &*state.unwrap_or_else(PoisonError::into_inner) {
            State::Done(Ok(cubin)) => Ok(Arc::clone(cubin)),
            State::Done(Err(error)) => Err(error.again()),
            State::Waiting | State::Running => unreachable!("it was waited for"),
        }
    }
}

/// Jobs on their way. Those that no thread has begun are given up when this is dropped.
pub(crate) struct Jobs {
    waiting: Arc<Mutex<VecDeque<Arc<Job>>>>,
}

impl Jobs {
    /// Begins jobs in their order, on `n_threads` threads at most.
    pub(crate) fn begin(jobs: Vec<Arc<Job>>, n_threads: usize) -> Self {
        let n_threads = n_threads.clamp(1, jobs.len().max(1));
        let waiting = Arc::new(Mutex::new(VecDeque::from(jobs)));
        for _ in 0..n_threads {
            let waiting = Arc::clone(&waiting);
            let next = move || {
                // The lock is released before the job runs.
                waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
            };
            let work = move || std::iter::from_fn(next).for_each(|job| job.run());
            // Without threads, whoever needs a module compiles it.
            let _ = thread::Builder::new().name("weft-compile".to_owned()).spawn(work);
        }
        Self { waiting }
    }
}

impl Drop for Jobs {
    fn drop(&mut self) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(state: State) -> Arc<Job> {
        let program = Program { source: String::new(), files: Vec::new() };
        let mut job = Job::waiting(program, "sm_90a", "key".to_owned(), None);
        job.state = Mutex::new(state);
        Arc::new(job)
    }

    #[test]
    fn whoever_needs_a_cubin_waits_for_the_thread_that_compiles_it() {
        let running = job(State::Running);
        let other = Arc::clone(&running);
        let waits = thread::spawn(move || other.cubin().map(|cubin| cubin.to_vec()));
        assert!(!running.is_done());
        *running.state() = State::Done(Ok(Arc::from([1, 2].as_slice())));
        running.is_done.notify_all();
        assert_eq!(waits.join().unwrap().unwrap(), [1, 2]);
        let log = "a log".to_owned();
        let failed = job(State::Done(Err(CudaError::Compile { arch: "sm_90a".to_owned(), log })));
        for _ in 0..2 {
            assert!(failed.cubin().unwrap_err().to_string().contains(": a log;"), "every time");
        }
    }

    #[test]
    fn devices_share_the_jobs_of_the_same_module() {
        let job = |key: &str| {
            let program = Program { source: String::new(), files: Vec::new() };
            Job::waiting(program, "sm_90a", key.to_owned(), None).shared()
        };
        let (first, other) = (job("shared"), job("another"));
        assert!(Arc::ptr_eq(&first, &job("shared")) && !Arc::ptr_eq(&first, &other));
        *first.state() = State::Done(Ok(Arc::from([1].as_slice())));
        assert!(job("shared").is_done());
        drop(first);
        assert!(!job("shared").is_done(), "nobody has it any more");
    }

    #[test]
    fn jobs_that_nobody_began_are_given_up() {
        let jobs = Jobs { waiting: Arc::new(Mutex::new(VecDeque::from([job(State::Waiting)]))) };
        let waiting = Arc::clone(&jobs.waiting);
        drop(jobs);
        assert!(waiting.lock().unwrap().is_empty());
    }
}
