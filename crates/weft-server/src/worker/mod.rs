//! The engine in a thread of its own, and the handle by which requests reach it.
//!
//! Work goes in over a bounded channel and what happens to it comes back over a channel per request;
//! the thread never waits for either. Requests join at the next step, as many as there are lanes and
//! memory for; the rest waits in a queue with a limit. A panic or a failed device ends what was
//! running, and the engine is loaded once more.

mod duty;
mod outlet;
mod supervisor;
#[cfg(test)]
mod tests;
mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};
use weft_core::engine::{Cancel, Engine};

use crate::api_error::ApiError;
use crate::metrics::Metrics;
use crate::served::{Load, LoadError, Served};

pub(crate) use self::outlet::Told;
pub(crate) use self::work::{Failure, Happening, Work};

/// Events that a request may be behind before its lane is paused.
const EVENTS: usize = 256;
/// Messages on their way to the engine beside those that wait in its queue.
const ERRANDS: usize = 64;
/// How long a request looks for a place in a full queue.
const REFUSAL: Duration = Duration::from_millis(400);

/// How the thread behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Requests that may wait for a lane.
    pub(crate) queue: usize,
    /// How long a lane waits for its reader.
    pub(crate) slow_reader: Duration,
    /// How long running requests may go on after the end was asked for.
    pub(crate) drain: Duration,
}

/// Where the engine stands.
#[derive(Clone)]
pub(crate) enum Phase {
    /// It is being loaded, for the first time or after a fault.
    Loading,
    /// It answers.
    Ready(Arc<Served>),
    /// It failed twice.
    Down,
    /// It could not be loaded.
    Unloadable(Arc<LoadError>),
    /// It has ended as it was asked to.
    Ended,
}

/// What the thread is sent.
enum Message {
    /// Lanes that are to be run, all of one request.
    Entries(Vec<work::Entry>),
    /// Something that is quickly done between two steps.
    Errand(Box<dyn FnOnce(&mut Engine) + Send>),
    /// Finish what is there, and end.
    Drain,
}

/// What both sides look at.
struct Shared {
    /// Entries that are in the channel or the queue.
    waiting: AtomicUsize,
    draining: AtomicBool,
    metrics: Arc<Metrics>,
    limits: Limits,
}

/// The handle.
pub(crate) struct Worker {
    to: SyncSender<Message>,
    shared: Arc<Shared>,
    phase: watch::Receiver<Phase>,
}

/// The engine's work for one request. Dropping it ends the work.
pub(crate) struct Ticket {
    pub(crate) events: mpsc::Receiver<Told>,
    cancels: Vec<Cancel>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancels.iter().for_each(Cancel::cancel);
    }
}

impl Worker {
    /// Starts the thread, which loads the engine first. `tell` is told what happens to it.
    pub(crate) fn start(
        load: Load,
        limits: Limits,
        metrics: Arc<Metrics>,
        tell: Arc<dyn Fn(&str) + Send + Sync>,
    ) -> std::io::Result<(Self, JoinHandle<()>)> {
        let (to, inbox) = std::sync::mpsc::sync_channel(limits.queue + ERRANDS);
        let (phases, phase) = watch::channel(Phase::Loading);
        let shared = Arc::new(Shared {
            waiting: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
            metrics,
            limits,
        });
        let duty = duty::Duty::new(inbox, Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("weft-engine".to_owned())
            .spawn(move || supervisor::run(load, duty, &phases, &*tell))?;
        Ok((Self { to, shared, phase }, thread))
    }

    /// Where the engine stands, to wait for changes.
    pub(crate) fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.clone()
    }

    /// The served model, or why there is none now.
    pub(crate) fn served(&self) -> Result<Arc<Served>, ApiError> {
        if self.shared.draining.load(Ordering::Relaxed) {
            return Err(ApiError::unavailable("the server is shutting down"));
        }
        match &*self.phase.borrow() {
            Phase::Ready(served) => Ok(Arc::clone(served)),
            Phase::Loading => Err(ApiError::unavailable("the model is loading; try again soon")),
            Phase::Down | Phase::Unloadable(_) => {
                Err(ApiError::unavailable("the engine failed; the server needs a restart"))
            }
            Phase::Ended => Err(ApiError::unavailable("the server is shutting down")),
        }
    }

    /// Has work done, each piece in a lane of its own; what happens to it comes by the ticket.
    pub(crate) async fn submit(&self, works: Vec<Work>) -> Result<Ticket, ApiError> {
        let n = works.len();
        self.take_places(n).await?;
        let (tell, events) = mpsc::channel(EVENTS * n.max(1));
        let entries: Vec<_> = (0..)
            .zip(works)
            .map(|(choice, work)| work::Entry::new(work, outlet::Outlet::new(tell.clone(), choice)))
            .collect();
        let cancels = entries.iter().map(|entry| entry.cancel.clone()).collect();
        match self.send(Message::Entries(entries)) {
            Ok(()) => Ok(Ticket { events, cancels }),
            Err(error) => {
                self.shared.waiting.fetch_sub(n, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    /// Places in the queue. It may be full of those who just left, which shows within a step: so a
    /// refusal waits a moment.
    async fn take_places(&self, n: usize) -> Result<(), ApiError> {
        let start = Instant::now();
        loop {
            let before = self.shared.waiting.fetch_add(n, Ordering::Relaxed);
            if before == 0 || before + n <= self.shared.limits.queue {
                return Ok(());
            }
            self.shared.waiting.fetch_sub(n, Ordering::Relaxed);
            if start.elapsed() > REFUSAL {
                return Err(ApiError::too_busy(before));
            }
            tokio::time::sleep(REFUSAL / 20).await;
        }
    }

    /// Runs something on the engine between two steps. It must be quick: all lanes wait.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let (reply, answer) = oneshot::channel();
        self.send(Message::Errand(Box::new(move |engine| {
            // Whoever asked may have gone.
            let _ = reply.send(question(engine));
        })))?;
        answer.await.map_err(|_| Failure::Fault.into())
    }

    /// Refuses what comes, finishes what is there, saves kept rows and ends the thread.
    pub(crate) fn drain(&self) {
        self.shared.draining.store(true, Ordering::Relaxed);
        // A full channel is emptied within a step, and an ended thread needs no telling.
        let (to, message) = (self.to.clone(), Message::Drain);
        std::thread::spawn(move || to.send(message));
    }

    fn send(&self, message: Message) -> Result<(), ApiError> {
        self.to.try_send(message).map_err(|error| match error {
            TrySendError::Full(_) => ApiError::too_busy(self.shared.limits.queue),
            TrySendError::Disconnected(_) => ApiError::unavailable("the server is shutting down"),
        })
    }
}
