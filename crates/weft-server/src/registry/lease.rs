//! How a request gets its model: which one it means, and the hold that keeps it loaded.

use std::ops::Deref;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use axum::http::HeaderValue;
use axum::response::Response;
use tokio::sync::watch;
use weft_core::engine::Engine;

use super::{Entry, EntryState, MAX_LOADING, Registry, Served, Stage, Status, entry};
use crate::api_error::ApiError;
use crate::metrics::Metrics;
use crate::model_info::ModelInfo;
use crate::worker::{Job, JobHandle, Phase};

/// The most names of other models that are logged, and the most characters of one.
const MAX_LOGGED: usize = 32;
const MAX_NAME_CHARS: usize = 80;

/// The answer after two faults.
const DOWN: &str = "the engine failed; the server needs a restart";

/// The model that a request means.
#[derive(Clone)]
pub(crate) struct Found {
    pub(crate) entry: Arc<Entry>,
    /// Whether the request named another one.
    is_substitute: bool,
}

/// Keeps a model from being unloaded. It may still be loading.
struct Hold {
    registry: Arc<Registry>,
    entry: Arc<Entry>,
    served: Arc<Served>,
}

impl Hold {
    /// Counts another user. The caller holds the lock.
    fn new(registry: &Arc<Registry>, slot: &mut EntryState, served: &Arc<Served>) -> Self {
        slot.users += 1;
        let (registry, entry) = (Arc::clone(registry), Arc::clone(&slot.entry));
        Self { registry, entry, served: Arc::clone(served) }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut slots = self.registry.slots();
        let slot = Registry::slot(&mut slots, &self.entry);
        slot.users -= 1;
        slot.last_used = Instant::now();
        let is_idle = slot.users == 0;
        Registry::forget(&mut slots, &self.entry);
        drop(slots);
        if is_idle {
            self.registry.notify();
        }
    }
}

/// A loaded model in the hands of a request. It is unloaded after the last lease is dropped.
#[derive(Clone)]
pub(crate) struct Lease {
    hold: Arc<Hold>,
    info: Arc<ModelInfo>,
    is_substitute: bool,
}

impl Deref for Lease {
    type Target = Served;

    fn deref(&self) -> &Served {
        &self.hold.served
    }
}

impl Lease {
    pub(crate) fn info(&self) -> &Arc<ModelInfo> {
        &self.info
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.hold.entry.metrics
    }

    pub(crate) fn entry(&self) -> &Arc<Entry> {
        &self.hold.entry
    }

    /// The model's name for clients.
    pub(crate) fn id(&self) -> &str {
        &self.hold.entry.name.id
    }

    /// Queues jobs, each for its own lane. If the queue is full, they are refused.
    pub(crate) async fn submit(&self, jobs: Vec<Job>) -> Result<JobHandle, ApiError> {
        Ok(self.worker.submit(jobs).await?.hold(self.clone()))
    }

    /// Queues jobs of a request that others were queued for before.
    pub(crate) async fn submit_next(&self, jobs: Vec<Job>) -> Result<JobHandle, ApiError> {
        Ok(self.worker.submit_next(jobs).await?.hold(self.clone()))
    }

    /// Calls a function on the engine between two steps. It must be quick: all lanes wait.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        function: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        self.worker.call(function).await
    }

    /// Marks a response whose request named another model than the one that answers.
    pub(crate) fn mark(&self, mut response: Response) -> Response {
        let id = HeaderValue::from_bytes(self.id().as_bytes()).ok();
        let id = id.filter(|_| self.is_substitute);
        id.map(|id| response.headers_mut().insert("x-weft-model", id));
        response
    }
}

impl Registry {
    /// The model that a request means. One model that is served alone answers to any name, unless
    /// names are strict.
    pub(crate) async fn find(self: &Arc<Self>, asked: Option<&str>) -> Result<Found, ApiError> {
        let found = |entry| Ok(Found { entry, is_substitute: false });
        let is_single = self.is_single();
        let Some(asked) = asked.filter(|name| is_single || !name.is_empty()) else {
            return found(self.first());
        };
        if let Some(entry) = self.known(asked) {
            return found(entry);
        }
        if is_single && !self.settings.strict {
            let entry = self.first();
            self.log_once(&entry, asked);
            return Ok(Found { entry, is_substitute: true });
        }
        if self.settings.allow_load {
            let (registry, name) = (Arc::clone(self), asked.to_owned());
            let search = move || registry.source.find(&name);
            // The search reads a folder.
            let name = tokio::task::spawn_blocking(search).await.ok().flatten();
            if let Some(name) = name {
                // The client may have used another name of a model that is served.
                let known = self.known(&name.id);
                return found(known.unwrap_or_else(|| entry(name, false)));
            }
        }
        Err(ApiError::unknown_model(asked, &self.first().name.id))
    }

    /// A model that is served, or that a client had loaded.
    pub(crate) fn known(&self, name: &str) -> Option<Arc<Entry>> {
        let slots = self.slots();
        let called = |slot: &&EntryState| slot.entry.name.is_called(name);
        slots.iter().find(called).map(|slot| Arc::clone(&slot.entry))
    }

    /// Loads a model if it must be, and holds it. A request that waits for that keeps its place: it
    /// is neither refused nor forgotten, and leaves no trace if it is dropped.
    pub(crate) async fn lease(self: &Arc<Self>, found: &Found) -> Result<Lease, ApiError> {
        let Found { entry, is_substitute } = found.clone();
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            let Some(hold) = self.hold(&entry)? else {
                // It is being unloaded. The server's end is a change, too.
                let _ = changes.changed().await;
                continue;
            };
            let mut phase = hold.served.worker.phase();
            let ready = async {
                let over = phase.wait_for(|phase| !matches!(phase, Phase::Loading)).await;
                over.map_or(Phase::Ended, |phase| phase.clone())
            };
            let phase = tokio::select! {
                phase = ready => phase,
                closing = self.closing() => return Err(closing),
            };
            return match phase {
                Phase::Ready(info) => {
                    self.check_open()?;
                    Ok(Lease { hold: Arc::new(hold), info, is_substitute })
                }
                Phase::Down => Err(ApiError::unavailable(DOWN)),
                // Its thread ended between two looks: it is loaded again.
                Phase::Loading | Phase::Ended => {
                    self.check_open()?;
                    drop(hold);
                    tokio::task::yield_now().await;
                    continue;
                }
                Phase::Unloadable(failure) if failure.is_unknown => {
                    Err(ApiError::unknown_model(&entry.name.id, &self.first().name.id))
                }
                Phase::Unloadable(failure) => {
                    let message = format!("the model {}: {}", entry.name.id, failure.message);
                    Err(ApiError::unavailable(message).code("model_not_loaded"))
                }
            };
        }
    }

    /// Both at once, for requests that have nothing to do in between.
    pub(crate) async fn open(self: &Arc<Self>, asked: Option<&str>) -> Result<Lease, ApiError> {
        let found = self.find(asked).await?;
        self.lease(&found).await
    }

    /// Refuses what cannot wait and needs a model that is served alone: while that loads, after it
    /// has failed, and at the end.
    pub(crate) fn check_ready(&self) -> Result<(), ApiError> {
        self.check_status(self.list()[0].status)
    }

    /// The same for the status of the first model.
    pub(crate) fn check_status(&self, first: Status) -> Result<(), ApiError> {
        self.check_open()?;
        match first {
            Status::Loading(..) if self.is_single() => {
                Err(ApiError::unavailable("the model is loading; try again soon"))
            }
            Status::Failed if self.is_single() => Err(ApiError::unavailable(DOWN)),
            _ => Ok(()),
        }
    }

    /// Starts to load the first model, for nobody yet.
    pub(crate) fn begin_first(self: &Arc<Self>) -> Option<watch::Receiver<Phase>> {
        let hold = self.hold(&self.first()).ok().flatten()?;
        Some(hold.served.worker.phase())
    }

    /// Holds a model, which is started if it is not loaded. `None` while it is being unloaded.
    fn hold(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<Option<Hold>, ApiError> {
        self.check_open()?;
        let mut slots = self.slots();
        // Downloads that nobody waits for do not keep others out.
        let is_loading = |slot: &&EntryState| {
            slot.users > 0 && slot.served().is_some_and(|s| s.worker.is_loading())
        };
        let n_loading = slots.iter().filter(is_loading).count();
        let queue = self.settings.limits.queue;
        let slot = Self::slot(&mut slots, entry);
        let held = match &slot.stage {
            Stage::Unloading(_) => return Ok(None),
            Stage::Loaded(_) if slot.is_leaving => return Ok(None),
            Stage::Loaded(served) => Ok(Arc::clone(served)),
            Stage::Unloaded if n_loading >= MAX_LOADING => Err(ApiError::too_busy(n_loading)),
            // Those of a load that failed have not left yet.
            Stage::Unloaded if slot.users >= queue => Err(ApiError::too_busy(slot.users)),
            Stage::Unloaded => self.start(&slot.entry),
        };
        let held = held.and_then(|served| match served.worker.is_loading() {
            true if slot.users >= queue => Err(ApiError::too_busy(slot.users)),
            _ => Ok(served),
        });
        match held {
            Ok(served) => {
                slot.stage = Stage::Loaded(Arc::clone(&served));
                Ok(Some(Hold::new(self, slot, &served)))
            }
            Err(error) => {
                Self::forget(&mut slots, entry);
                Err(error)
            }
        }
    }

    /// The error for those who wait when a shutdown is requested.
    async fn closing(&self) -> ApiError {
        let mut changes = self.changes.subscribe();
        loop {
            if let Err(error) = self.check_open() {
                return error;
            }
            let _ = changes.changed().await;
        }
    }

    /// Logs each name once, and not more names than an operator reads.
    fn log_once(&self, entry: &Entry, asked: &str) {
        let asked: String = asked.chars().take(MAX_NAME_CHARS).collect();
        let mut names = self.other_names.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() < MAX_LOGGED && names.insert(asked.clone()) {
            (self.settings.log)(&format!(
                "a client asks for the model {asked:?}; {} answers (--strict-model refuses)",
                entry.name.id
            ));
        }
    }
}
