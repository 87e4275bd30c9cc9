//! The remote tier as a service with its own threads: fetches with a time limit, and writes after
//! the answers.
//!
//! Every fetch gets a reply within its time limit. Only the calls that say so wait for the store on
//! the caller's thread.

use std::collections::HashSet;
use std::future::{Future, pending};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use object_store::ObjectStore;
use object_store::path::Path;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, oneshot};
use weft_core::chunk::ChunkId;
use weft_core::engine::{Fetched, Interest, RemoteStats, RemoteTier, WhenFetched};
use weft_core::store::{Header, HostRows, KvKey};

use crate::absent::Absent;
use crate::breaker::{Breaker, Pass};
use crate::get::Bucket;
use crate::limits::Limits;
use crate::miss::Miss;
use crate::names::Names;
use crate::put::Written;
use crate::seal::Trust;
use crate::url::{self, RemoteError, Times};
use crate::warnings::Warnings;

/// Threads that check what arrives. Requests have their own, up to `REQUESTS_AT_ONCE`.
const THREADS: usize = 2;
const REQUESTS_AT_ONCE: usize = 64;

/// For one request, which has at most a part of an object.
const REQUEST: Duration = Duration::from_secs(60);

/// What a failing store keeps from happening.
const READING: &str = "rows are not fetched from";
const WRITING: &str = "rows are not written to";

/// Damaged entries that are remembered, to be written again.
const MOST_DAMAGED: usize = 1 << 12;

/// The remote tier.
#[derive(Debug)]
pub struct Remote {
    shared: Arc<Shared>,
    /// Taken when the service is dropped.
    runtime: Option<Runtime>,
}

#[derive(Debug)]
struct Shared {
    bucket: Bucket,
    limits: Limits,
    state: Mutex<State>,
    /// Signalled when an entry leaves the queue.
    left_queue: Condvar,
    fetches: Semaphore,
    n_fetches: AtomicUsize,
    writes: Semaphore,
}

#[derive(Debug, Default)]
struct State {
    stats: RemoteStats,
    reads: Breaker,
    writes: Breaker,
    absent: Absent,
    /// Entries that a reader could not use; the next writer replaces them.
    damaged: HashSet<KvKey>,
    warnings: Warnings,
    is_closed: bool,
}

impl Remote {
    /// Opens the store of a URL. Nothing is asked of it yet.
    ///
    /// # Errors
    /// If the URL or the settings in the environment are wrong, or no thread can be started.
    pub fn open(url: &str, trust: Trust, limits: Limits) -> Result<Self, RemoteError> {
        let times = Times {
            connect: limits.fetch.min(Duration::from_secs(3)),
            request: limits.write.min(REQUEST),
            retries: limits.fetch,
        };
        let (store, prefix) = url::open(url, times)?;
        Self::with_store(store, prefix.as_ref(), trust, limits)
    }

    /// The same for any store.
    ///
    /// # Errors
    /// If no thread can be started, or the prefix cannot name objects.
    pub fn with_store(
        store: Arc<dyn ObjectStore>,
        prefix: &str,
        trust: Trust,
        limits: Limits,
    ) -> Result<Self, RemoteError> {
        let prefix = Path::parse(prefix).map_err(|error| RemoteError::Url {
            url: prefix.to_owned(),
            reason: error.to_string(),
        })?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .max_blocking_threads(REQUESTS_AT_ONCE)
            .thread_name("weft-remote")
            .enable_time()
            .build()
            .map_err(RemoteError::Threads)?;
        let shared = Shared {
            bucket: Bucket { store, names: Names::new(prefix), trust },
            fetches: Semaphore::new(limits.fetches_at_once.max(1)),
            n_fetches: AtomicUsize::new(0),
            writes: Semaphore::new(limits.writes_at_once.max(1)),
            limits,
            state: Mutex::default(),
            left_queue: Condvar::new(),
        };
        Ok(Self { shared: Arc::new(shared), runtime: Some(runtime) })
    }

    /// Asks for the rows of a key that `expected` describes. Returns at once; the answer comes
    /// within the limit on time. A miss is `None`, and counted.
    pub fn fetch(&self, key: &KvKey, expected: &Header) -> Receiver<Option<HostRows>> {
        let (sender, receiver) = sync_channel(1);
        let own = sender.clone();
        let done = move |fetched| {
            // A caller that does not wait any more has dropped the receiver.
            let _ = own.send(match fetched {
                Fetched::Rows { rows, .. } => Some(rows),
                Fetched::Absent | Fetched::Failed => None,
            });
        };
        if !self.ask(key, expected, Box::new(done), pending::<()>()) {
            // The channel has room for one answer, and the receiver is here.
            let _ = sender.send(None);
        }
        receiver
    }

    /// The same, with a function that takes the result. Returns false if the store is not asked;
    /// this is counted. When the fetch is unwanted, it ends, and its turn is another's.
    fn ask(
        &self,
        key: &KvKey,
        expected: &Header,
        done: WhenFetched,
        is_unwanted: impl Future + Send + Unpin + 'static,
    ) -> bool {
        let pass = match self.shared.admit(key, Instant::now()) {
            Ok(pass) => pass,
            Err(miss) => {
                self.shared.state().count_miss(&miss);
                return false;
            }
        };
        let shared = Arc::clone(&self.shared);
        let (key, expected) = (*key, expected.clone());
        self.runtime().spawn(async move {
            match select(pin!(shared.fetch(&key, &expected, pass)), is_unwanted).await {
                Either::Left((fetched, _)) => done(fetched),
                Either::Right(_) => shared.give_up(pass),
            }
        });
        true
    }

    /// Queues rows to be written behind the caller's back. Returns whether they are queued; if the
    /// queue is full, or the store has failed, they are dropped and counted.
    pub fn put(&self, key: &KvKey, header: &Header, rows: Arc<HostRows>) -> bool {
        self.enqueue(None, key, header, rows)
    }

    fn enqueue(
        &self,
        chunk: Option<ChunkId>,
        key: &KvKey,
        header: &Header,
        rows: Arc<HostRows>,
    ) -> bool {
        let bytes = (rows.k.len() + rows.v.len()) as u64;
        if !self.shared.enqueue(bytes) {
            return false;
        }
        let shared = Arc::clone(&self.shared);
        let (key, header) = (*key, header.clone());
        self.runtime().spawn(async move {
            shared.write(chunk.as_ref(), &key, &header, &rows).await;
            // Before the queue has room again, so that its limit is one on memory.
            drop(rows);
            shared.dequeue(bytes);
        });
        true
    }

    /// Waits until everything that was queued is written or has failed, at most for `limit`.
    /// Returns the number of entries that are left.
    pub fn flush(&self, limit: Duration) -> usize {
        let state = self.shared.state();
        let waited = self
            .shared
            .left_queue
            .wait_timeout_while(state, limit, |state| state.stats.queued.0 > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.stats.queued.0
    }

    /// Takes no more, and flushes. What is left after `limit` is dropped and counted. Returns the
    /// final counts.
    pub fn close(self, limit: Duration) -> RemoteStats {
        self.end(limit);
        self.stats()
    }

    /// Returns the number of entries that are left.
    fn end(&self, limit: Duration) -> usize {
        self.shared.state().is_closed = true;
        let n_left = self.flush(limit);
        self.shared.state().stats.dropped += n_left as u64;
        n_left
    }

    /// Counts since it was opened.
    pub fn stats(&self) -> RemoteStats {
        let state = self.shared.state();
        RemoteStats {
            read_breaker: state.reads.state(),
            write_breaker: state.writes.state(),
            n_opened: state.reads.n_opened + state.writes.n_opened,
            ..state.stats.clone()
        }
    }

    /// Warnings for the user, each kind once.
    pub fn take_warnings(&self) -> Vec<String> {
        self.shared.state().warnings.take()
    }

    /// Its store, for calls that wait.
    pub(crate) fn bucket(&self) -> &Bucket {
        &self.shared.bucket
    }

    /// Its limits.
    pub(crate) fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// Runs a call that waits on the caller's thread.
    pub(crate) fn wait_for<T>(&self, call: impl Future<Output = T>) -> T {
        self.runtime().block_on(call)
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it is taken only at the end")
    }
}

impl RemoteTier for Remote {
    fn fetch(&self, key: &KvKey, expected: &Header, done: WhenFetched) -> Option<Interest> {
        let (interest, is_unwanted) = oneshot::channel::<()>();
        self.ask(key, expected, done, is_unwanted).then(|| Box::new(interest) as Interest)
    }

    fn put(&self, chunk: &ChunkId, key: &KvKey, header: &Header, rows: Arc<HostRows>) -> bool {
        self.enqueue(Some(*chunk), key, header, rows)
    }

    fn close(&self, limit: Duration) -> usize {
        self.end(limit)
    }

    fn stats(&self) -> RemoteStats {
        self.stats()
    }

    fn take_warnings(&self) -> Vec<String> {
        self.take_warnings()
    }
}

impl Drop for Remote {
    /// Requests that run are given up; the process does not wait for a store.
    fn drop(&mut self) {
        self.shared.state().is_closed = true;
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides without the store whether to ask it.
    fn admit(&self, key: &KvKey, now: Instant) -> Result<Pass, Miss> {
        if matches!(self.bucket.trust, Trust::Nobody) {
            return Err(Miss::Untrusted);
        }
        let mut state = self.state();
        if state.is_closed {
            return Err(Miss::Closed);
        }
        if state.absent.has(key, now) {
            return Err(Miss::RecentlyAbsent);
        }
        let most = self.limits.fetches_at_once + self.limits.fetches_waiting;
        if self.n_fetches.load(Ordering::Relaxed) >= most {
            return Err(Miss::Busy);
        }
        let pass = state.reads.admit(now).ok_or(Miss::BreakerOpen)?;
        self.n_fetches.fetch_add(1, Ordering::Relaxed);
        Ok(pass)
    }

    async fn fetch(&self, key: &KvKey, expected: &Header, pass: Pass) -> Fetched {
        let limit = self.limits.whole_fetch;
        let until = tokio::time::Instant::from_std(pass.begun + limit);
        let turn = tokio::time::timeout(self.limits.fetch, self.fetches.acquire());
        let rows = match turn.await {
            // It was never this fetch's turn; that says nothing about the store.
            Err(_) | Ok(Err(_)) => Err(Miss::Busy),
            Ok(Ok(_turn)) => {
                let rows = self.bucket.rows(key, expected, self.limits.fetch);
                let timeout = Miss::Timeout { seconds: limit.as_secs_f64() };
                tokio::time::timeout_at(until, rows).await.unwrap_or(Err(timeout))
            }
        };
        self.n_fetches.fetch_sub(1, Ordering::Relaxed);
        let bytes = 2 * expected.tensor_bytes().unwrap_or_default() as u64;
        self.state().count_fetch(key, rows, bytes, pass)
    }

    /// Counts a fetch that nobody wants any more.
    fn give_up(&self, pass: Pass) {
        self.n_fetches.fetch_sub(1, Ordering::Relaxed);
        let mut state = self.state();
        state.reads.gave_up(pass);
        state.count_miss(&Miss::Unwanted);
    }

    /// Makes room in the queue, or counts what is dropped.
    fn enqueue(&self, bytes: u64) -> bool {
        let mut state = self.state();
        let (n, queued_bytes) = state.stats.queued;
        // Larger rows wait alone.
        let fits = n == 0 || queued_bytes + bytes <= self.limits.queue_bytes;
        if state.is_closed || !fits || state.writes.refuses(Instant::now()) {
            state.stats.dropped += 1;
            return false;
        }
        state.stats.queued = (n + 1, queued_bytes + bytes);
        true
    }

    fn dequeue(&self, bytes: u64) {
        let mut state = self.state();
        let (n, queued_bytes) = state.stats.queued;
        state.stats.queued = (n - 1, queued_bytes - bytes);
        drop(state);
        self.left_queue.notify_all();
    }

    async fn write(
        &self,
        chunk: Option<&ChunkId>,
        key: &KvKey,
        header: &Header,
        rows: &Arc<HostRows>,
    ) {
        let Ok(_turn) = self.writes.acquire().await else { return };
        let (pass, anew) = {
            let mut state = self.state();
            let Some(pass) = state.writes.admit(Instant::now()) else {
                state.stats.dropped += 1;
                return;
            };
            (pass, state.damaged.contains(key))
        };
        let timeout = Miss::Timeout { seconds: self.limits.write.as_secs_f64() };
        let written = self.bucket.put_rows_of(chunk, key, header, rows, anew);
        let written = tokio::time::timeout(self.limits.write, written).await;
        self.state().count_write(key, written.unwrap_or(Err(timeout)), pass);
    }
}

impl State {
    fn count_miss(&mut self, miss: &Miss) {
        self.stats.misses += 1;
        *self.stats.reasons.entry(miss.name()).or_default() += 1;
        self.warnings.add(READING, miss);
    }

    /// The store has answered a reader.
    fn read_answered(&mut self) {
        if self.reads.succeeded() {
            self.warnings.end_outage(READING);
        }
    }

    /// Counts a fetch of rows of `bytes` bytes that the breaker let through.
    fn count_fetch(
        &mut self,
        key: &KvKey,
        rows: Result<(HostRows, Duration), Miss>,
        bytes: u64,
        pass: Pass,
    ) -> Fetched {
        let now = Instant::now();
        match rows {
            Ok((rows, cost)) => {
                self.read_answered();
                self.stats.hits += 1;
                self.stats.read_bytes += bytes;
                self.stats.reads.add(now - pass.begun);
                Fetched::Rows { rows, cost }
            }
            Err(miss) => {
                match &miss {
                    Miss::Busy => self.reads.gave_up(pass),
                    miss if miss.is_failure() => self.reads.failed(pass, miss.is_silence(), now),
                    _ => {
                        // The store answered; it does not have rows that can be used.
                        self.read_answered();
                        self.absent.add(key, now);
                    }
                }
                if miss.is_damage() && self.damaged.len() < MOST_DAMAGED {
                    self.damaged.insert(*key);
                }
                self.count_miss(&miss);
                let says_nothing = miss.is_failure() || matches!(miss, Miss::Busy);
                if says_nothing { Fetched::Failed } else { Fetched::Absent }
            }
        }
    }

    fn count_write(&mut self, key: &KvKey, written: Result<Written, Miss>, pass: Pass) {
        let now = Instant::now();
        match written {
            Ok(written) => {
                if self.writes.succeeded() {
                    self.warnings.end_outage(WRITING);
                }
                self.damaged.remove(key);
                self.absent.remove(key);
                self.stats.writes.add(now - pass.begun);
                match written {
                    Written::New { bytes } => {
                        self.stats.stored += 1;
                        self.stats.written_bytes += bytes;
                    }
                    Written::Present => self.stats.present += 1,
                }
            }
            Err(miss) => {
                if miss.is_failure() {
                    self.writes.failed(pass, miss.is_silence(), now);
                } else {
                    self.writes.gave_up(pass);
                }
                *self.stats.failed_writes.entry(miss.name()).or_default() += 1;
                self.warnings.add(WRITING, &miss);
            }
        }
    }
}

#[cfg(test)]
mod tests;
