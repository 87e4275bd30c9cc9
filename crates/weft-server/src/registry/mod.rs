//! The models of a server: which there are, which are loaded, and who uses them.
//!
//! A model is loaded when a request first needs it, in its own engine thread. A request holds it by
//! a [`Lease`]; without one, a model is idle and may be unloaded: because another needs its room,
//! because nobody has used it for some time, or because a client asks for it. All of this is
//! decided under one lock, which is never held while something waits. `room` decides what is
//! unloaded for which model; `source` is the interface to the code that opens models.

mod lease;
mod list;
mod room;
mod source;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::api_error::ApiError;
use crate::chunk_update::ChunkLock;
use crate::http::LoadProgress;
use crate::metrics::Metrics;
use crate::worker::{Limits, LoadEngine, Phase, Worker};

pub(crate) use self::lease::{Found, Lease};
pub(crate) use self::list::{Listed, Status};
use self::room::Planned;
pub(crate) use self::source::OneModel;
pub use self::source::{About, LoadFailure, MemoryNeed, ModelName, ModelSource, OpenModel};

/// Models that may be loading, or waiting for their turn to load. More are refused.
const MAX_LOADING: usize = 8;

/// What a registry is made with.
pub(crate) struct Settings {
    pub(crate) limits: Limits,
    /// How long an idle model stays loaded; `None` is for ever.
    pub(crate) keep_loaded: Option<Duration>,
    /// The most models that are loaded at a time.
    pub(crate) max_loaded: Option<usize>,
    /// Whether clients may name models beyond those that are served.
    pub(crate) allow_load: bool,
    /// Whether one model that is served alone refuses requests for others.
    pub(crate) strict: bool,
    pub(crate) log: Arc<dyn Fn(&str) + Send + Sync>,
}

/// All models of a server.
pub(crate) struct Registry {
    settings: Settings,
    source: Arc<dyn ModelSource>,
    slots: Mutex<Vec<EntryState>>,
    /// Notified, both of them, when a slot has changed.
    changed: Condvar,
    changes: watch::Sender<u64>,
    /// Held while a model is planned and loaded, so that plans do not count on the same memory.
    loading: Mutex<()>,
    is_closing: AtomicBool,
    /// Names of other models that requests gave and that were logged.
    other_names: Mutex<std::collections::BTreeSet<String>>,
    known: Arc<tokio::sync::Mutex<list::Known>>,
}

/// What stays of a model whether it is loaded or not.
pub(crate) struct Entry {
    pub(crate) name: ModelName,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) progress: LoadProgress,
    /// Whether the operator named it. The others are forgotten when they are unloaded.
    is_named: bool,
    about: OnceLock<About>,
}

impl Entry {
    /// Its own name for clients, then the others.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.name.id).chain(&self.name.aliases).map(String::as_str)
    }
}

/// A model whose engine thread runs: it is loading, loaded, or has failed.
pub(crate) struct Served {
    pub(crate) worker: Worker,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The memory that was planned for it; none before its turn to load.
    need: Arc<Planned>,
    /// Whether the load ends before it began, because nobody waits for it any more.
    is_unwanted: AtomicBool,
    pub(crate) chunk_lock: ChunkLock,
    /// Held while a verification runs.
    pub(crate) verifying: tokio::sync::Mutex<()>,
}

enum Stage {
    Unloaded,
    Loaded(Arc<Served>),
    /// Nobody uses it any more, and its thread ends.
    Unloading(Arc<Served>),
}

/// The state of an entry.
struct EntryState {
    entry: Arc<Entry>,
    stage: Stage,
    /// Leases, and requests that wait for the model to be loaded.
    users: usize,
    last_used: Instant,
    /// Whether new requests wait until the model has been unloaded for another one.
    is_leaving: bool,
}

impl EntryState {
    fn new(entry: Arc<Entry>) -> Self {
        let last_used = Instant::now();
        Self { entry, stage: Stage::Unloaded, users: 0, last_used, is_leaving: false }
    }

    fn served(&self) -> Option<Arc<Served>> {
        let Stage::Loaded(served) = &self.stage else { return None };
        Some(Arc::clone(served))
    }

    /// The running model if it can be unloaded now.
    fn idle(&self) -> Option<&Arc<Served>> {
        let Stage::Loaded(served) = &self.stage else { return None };
        (self.users == 0 && !served.worker.is_loading()).then_some(served)
    }
}

impl Registry {
    /// The models that are served; the first is that of requests without a name.
    pub(crate) fn new(
        settings: Settings,
        source: Arc<dyn ModelSource>,
        models: Vec<ModelName>,
    ) -> Arc<Self> {
        let slots = models.into_iter().map(|name| EntryState::new(entry(name, true))).collect();
        Arc::new(Self {
            settings,
            source,
            slots: Mutex::new(slots),
            changed: Condvar::new(),
            changes: watch::Sender::new(0),
            loading: Mutex::default(),
            is_closing: AtomicBool::new(false),
            other_names: Mutex::default(),
            known: Arc::default(),
        })
    }

    /// Whether one model is served and clients may name no other.
    pub(crate) fn is_single(&self) -> bool {
        !self.settings.allow_load && self.slots().len() == 1
    }

    /// The model of requests that name none.
    pub(crate) fn first(&self) -> Arc<Entry> {
        Arc::clone(&self.slots()[0].entry)
    }

    fn slots(&self) -> MutexGuard<'_, Vec<EntryState>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot of an entry. One that was forgotten is there again.
    fn slot<'s>(slots: &'s mut Vec<EntryState>, entry: &Arc<Entry>) -> &'s mut EntryState {
        let at = slots.iter().position(|slot| slot.entry.name.id == entry.name.id);
        let at = at.unwrap_or_else(|| {
            slots.push(EntryState::new(Arc::clone(entry)));
            slots.len() - 1
        });
        &mut slots[at]
    }

    fn notify(&self) {
        // Whoever looked before this change has begun to wait for it.
        drop(self.slots());
        self.changed.notify_all();
        self.changes.send_modify(|n| *n = n.wrapping_add(1));
    }

    /// Starts the thread that loads a model.
    fn start(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<Arc<Served>, ApiError> {
        let need = Arc::<Planned>::default();
        let load = self.load(entry, &need);
        let (limits, metrics) = (self.settings.limits, Arc::clone(&entry.metrics));
        entry.progress.reset();
        let (worker, thread) = Worker::start(load, limits, metrics, Arc::clone(&self.settings.log))
            .map_err(|_| ApiError::unavailable("the system refuses another thread"))?;
        let served = Arc::new(Served {
            worker,
            thread: Mutex::new(Some(thread)),
            need,
            is_unwanted: AtomicBool::new(false),
            chunk_lock: ChunkLock::default(),
            verifying: tokio::sync::Mutex::default(),
        });
        let (registry, entry) = (Arc::clone(self), Arc::clone(entry));
        tokio::spawn(registry.watch(entry, Arc::downgrade(&served), served.worker.phase()));
        Ok(served)
    }

    /// Follows a model from its load to its end. One that cannot be loaded is ended.
    async fn watch(
        self: Arc<Self>,
        entry: Arc<Entry>,
        served: Weak<Served>,
        mut phase: watch::Receiver<Phase>,
    ) {
        loop {
            let now = phase.borrow_and_update().clone();
            self.notify();
            match now {
                Phase::Ended => return,
                Phase::Unloadable(failure) => {
                    let served_now = served.upgrade();
                    let is_unwanted =
                        served_now.is_some_and(|s| s.is_unwanted.load(Ordering::Relaxed));
                    if !self.is_single() && !is_unwanted {
                        let text = format!("{} cannot be loaded: {}", entry.name.id, failure.error);
                        (self.settings.log)(&text);
                    }
                    // Unless somebody else ends it already.
                    if let Some(served) = self.take(&entry, &served) {
                        self.end_off_thread(&entry, served).await;
                    }
                    return;
                }
                Phase::Loading | Phase::Ready(_) | Phase::Down => {}
            }
            if phase.changed().await.is_err() {
                return;
            }
        }
    }

    /// Takes this load of a model out of use; `end` must follow.
    fn take(&self, entry: &Arc<Entry>, served: &Weak<Served>) -> Option<Arc<Served>> {
        let mut slots = self.slots();
        // One that was forgotten stays so.
        let slot = slots.iter_mut().find(|slot| slot.entry.name.id == entry.name.id)?;
        let now = match &slot.stage {
            Stage::Loaded(served) => served,
            Stage::Unloading(served) if served.is_unwanted.load(Ordering::Relaxed) => served,
            Stage::Unloading(_) | Stage::Unloaded => return None,
        };
        let taken = Some(Arc::clone(now)).filter(|now| Arc::as_ptr(now) == served.as_ptr())?;
        slot.stage = Stage::Unloading(Arc::clone(&taken));
        Some(taken)
    }

    /// What the engine's thread does first: it opens the model, makes room for it and loads it.
    /// After a fault of the engine it does all of this again: its memory is free, and others that
    /// wait for their turn may take it.
    fn load(self: &Arc<Self>, entry: &Arc<Entry>, need: &Arc<Planned>) -> LoadEngine {
        let (registry, entry, need) = (Arc::clone(self), Arc::clone(entry), Arc::clone(need));
        Box::new(move || {
            let open = registry.source.open(&entry.name, &entry.progress)?;
            let _ = entry.about.set(open.about());
            if need.set(None).is_some() {
                // Who waits for this model to become idle need not any more.
                registry.notify();
                // Who unloads it waits for this thread, and may hold the lock. From now on the
                // model is loading, and nobody begins to unload it.
                if registry.is_unloading(&entry) {
                    return Err(LoadFailure::hidden("it is being unloaded"));
                }
            }
            let turn = registry.loading.lock().unwrap_or_else(PoisonError::into_inner);
            let planned = registry.make_room(&entry, &*open)?;
            need.set(Some(planned));
            let loaded = open.load();
            drop(turn);
            loaded
        })
    }

    fn is_unloading(&self, entry: &Arc<Entry>) -> bool {
        let slots = self.slots();
        let own = slots.iter().find(|slot| Arc::ptr_eq(&slot.entry, entry));
        own.is_some_and(|slot| matches!(slot.stage, Stage::Unloading(_)))
    }

    /// Ends the thread of a model that was taken out of use, and waits for it, which gives its
    /// memory back. Blocks.
    fn end(&self, entry: &Arc<Entry>, served: Arc<Served>) {
        served.worker.drain();
        served.join();
        drop(served);
        self.source.unloaded();
        entry.metrics.clear_gauges();
        let mut slots = self.slots();
        let slot = Self::slot(&mut slots, entry);
        slot.stage = Stage::Unloaded;
        slot.is_leaving = false;
        Self::forget(&mut slots, entry);
        drop(slots);
        self.notify();
    }

    /// Forgets a model that only clients named, if it is neither loaded nor waited for.
    fn forget(slots: &mut Vec<EntryState>, entry: &Entry) {
        let is_over = |slot: &EntryState| {
            let is_unused = slot.users == 0 && matches!(slot.stage, Stage::Unloaded);
            !slot.entry.is_named && is_unused && slot.entry.name.id == entry.name.id
        };
        slots.retain(|slot| !is_over(slot));
    }

    /// Takes a model that is idle out of use; `end` must follow.
    fn take_idle(slot: &mut EntryState) -> Option<Arc<Served>> {
        let served = Arc::clone(slot.idle()?);
        slot.stage = Stage::Unloading(Arc::clone(&served));
        Some(served)
    }

    /// Unloads a model as soon as it is idle. Returns whether it was loaded.
    pub(crate) async fn unload(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<bool, ApiError> {
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            self.check_open()?;
            let idle = {
                let mut slots = self.slots();
                let slot = Self::slot(&mut slots, entry);
                match &slot.stage {
                    Stage::Unloaded => {
                        Self::forget(&mut slots, entry);
                        return Ok(false);
                    }
                    Stage::Loaded(_) => Self::take_idle(slot),
                    Stage::Unloading(_) => None,
                }
            };
            if let Some(served) = idle {
                self.end_off_thread(entry, served).await;
                return Ok(true);
            }
            let _ = changes.changed().await;
        }
    }

    /// Ends it even if the client that asked for that is gone.
    async fn end_off_thread(self: &Arc<Self>, entry: &Arc<Entry>, served: Arc<Served>) {
        let (registry, entry) = (Arc::clone(self), Arc::clone(entry));
        let ended = tokio::task::spawn_blocking(move || registry.end(&entry, served));
        // A panic of the thread has been logged.
        let _ = ended.await;
    }

    /// Unloads models that nobody has used for some time, for as long as the server runs.
    pub(crate) async fn unload_by_age(self: Arc<Self>) {
        let Some(keep) = self.settings.keep_loaded else { return std::future::pending().await };
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            let expired = self.slots().iter_mut().find_map(|slot| {
                let is_old = slot.last_used.elapsed() >= keep;
                let served = if is_old { Self::take_idle(slot) } else { None };
                Some((Arc::clone(&slot.entry), served?))
            });
            if let Some((entry, served)) = expired {
                self.end_off_thread(&entry, served).await;
                continue;
            }
            let rest = |slot: &EntryState| keep.saturating_sub(slot.last_used.elapsed());
            let next = {
                let slots = self.slots();
                slots.iter().filter(|slot| slot.idle().is_some()).map(rest).min()
            };
            tokio::select! {
                _ = changes.changed() => {}
                () = tokio::time::sleep(next.unwrap_or(Duration::MAX)) => {}
            }
        }
    }

    fn check_open(&self) -> Result<(), ApiError> {
        match self.is_closing.load(Ordering::Relaxed) {
            true => Err(ApiError::unavailable("the server is shutting down")),
            false => Ok(()),
        }
    }

    /// Whether a shutdown was requested.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// Refuses new requests and finishes running ones. Returns the models to wait for; those that
    /// are still loading have nothing to finish.
    pub(crate) fn close(&self) -> Vec<Arc<Served>> {
        self.is_closing.store(true, Ordering::Relaxed);
        let mut running = Vec::new();
        for slot in self.slots().iter() {
            match &slot.stage {
                Stage::Loaded(served) => {
                    served.worker.drain();
                    running.extend((!served.worker.is_loading()).then(|| Arc::clone(served)));
                }
                // Its rows are being saved.
                Stage::Unloading(served) => running.push(Arc::clone(served)),
                Stage::Unloaded => {}
            }
        }
        self.notify();
        running
    }
}

fn entry(name: ModelName, is_named: bool) -> Arc<Entry> {
    Arc::new(Entry {
        name,
        metrics: Arc::default(),
        progress: LoadProgress::default(),
        is_named,
        about: OnceLock::new(),
    })
}

impl Served {
    /// Waits for the engine's thread. Blocks.
    pub(crate) fn join(&self) {
        // Held meanwhile, so that all who wait see the end.
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        // A panic of the thread has been logged.
        let _ = thread.take().map(JoinHandle::join);
    }
}
