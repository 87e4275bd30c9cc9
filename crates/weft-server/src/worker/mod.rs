//! The engine in its own thread, and the handle by which requests reach it.
//!
//! Jobs go in over a bounded channel, and their events come back over one channel per request; the
//! thread never waits for either. Jobs join at the next step, as many as there are lanes and memory
//! for; the others wait in a queue with a limit. If the engine panics or its device fails, running
//! jobs fail and the engine is loaded again, unless it has failed shortly before.

mod event_sender;
mod job;
mod scheduler;
mod supervisor;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};
use weft_core::engine::{Cancel, Engine};

use self::event_sender::EventSender;
use self::job::QueuedJob;
use crate::api_error::ApiError;
use crate::metrics::Metrics;
use crate::model_info::{Loaded, ModelInfo};
use crate::registry::{Lease, LoadFailure};

pub(crate) use self::event_sender::ChoiceEvent;
pub(crate) use self::job::{Job, JobError, JobEvent, Progress};
pub(crate) use self::scheduler::MAX_READINGS;

/// Events that a request may be behind before its lane is paused.
const EVENTS: usize = 256;
/// Commands in the channel beside queued jobs.
const COMMANDS: usize = 64;
/// How long a request tries to enter a full queue.
const QUEUE_WAIT: Duration = Duration::from_millis(400);

/// Loads the engine: once at the start, and again after a fault.
pub(crate) type LoadEngine = Box<dyn FnMut() -> Result<Loaded, LoadFailure> + Send>;

/// The limits of the engine's thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Requests that may wait for a lane.
    pub(crate) queue: usize,
    /// How long a lane waits for its reader.
    pub(crate) slow_reader: Duration,
    /// The same if other requests wait for a lane.
    pub(crate) give_way: Duration,
    /// How long running requests may continue after a shutdown request.
    pub(crate) drain: Duration,
    /// An engine that fails twice within this time stays down.
    pub(crate) fault_window: Duration,
}

/// The state of the engine.
#[derive(Clone)]
pub(crate) enum Phase {
    /// It is being loaded, for the first time or after a fault.
    Loading,
    /// It answers.
    Ready(Arc<ModelInfo>),
    /// It failed twice in a short time.
    Down,
    /// It could not be loaded.
    Unloadable(LoadFailure),
    /// It was shut down.
    Ended,
}

/// A command to the engine's thread.
enum Command {
    /// Run the jobs of one request.
    Submit(Vec<QueuedJob>),
    /// Call a quick function between two steps.
    Call(Box<dyn FnOnce(&mut Engine) + Send>),
    /// Finish the queued and running jobs, and end.
    Drain,
}

/// State that the handle and the thread share.
struct Shared {
    /// Jobs that are in the channel or the queue.
    waiting: AtomicUsize,
    draining: AtomicBool,
    metrics: Arc<Metrics>,
    limits: Limits,
    /// Takes the lines that an operator should read.
    log: Arc<dyn Fn(&str) + Send + Sync>,
}

/// The handle of the engine's thread.
pub(crate) struct Worker {
    commands: SyncSender<Command>,
    shared: Arc<Shared>,
    phase: watch::Receiver<Phase>,
}

/// The jobs of one request. Dropping the handle cancels them.
pub(crate) struct JobHandle {
    pub(crate) events: mpsc::Receiver<ChoiceEvent>,
    cancels: Vec<Cancel>,
    /// The model stays loaded as long as its jobs are wanted. Only its drop counts.
    lease: Option<Lease>,
}

impl JobHandle {
    /// Keeps the model loaded until the handle is dropped.
    pub(crate) fn hold(mut self, lease: Lease) -> Self {
        self.lease = Some(lease);
        self
    }

    pub(crate) fn n_jobs(&self) -> usize {
        self.cancels.len()
    }

    /// Ends the job of one choice, whose last event follows.
    pub(crate) fn cancel(&self, choice: usize) {
        self.cancels.iter().skip(choice).take(1).for_each(Cancel::cancel);
    }
}

impl Drop for JobHandle {
    fn drop(&mut self) {
        self.cancels.iter().for_each(Cancel::cancel);
    }
}

impl Worker {
    /// Starts the thread, which loads the engine first. `log` gets a line for each fault.
    pub(crate) fn start(
        load: LoadEngine,
        limits: Limits,
        metrics: Arc<Metrics>,
        log: Arc<dyn Fn(&str) + Send + Sync>,
    ) -> std::io::Result<(Self, JoinHandle<()>)> {
        let (commands, receiver) = std::sync::mpsc::sync_channel(limits.queue + COMMANDS);
        let (phases, phase) = watch::channel(Phase::Loading);
        let shared = Arc::new(Shared {
            waiting: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
            metrics,
            limits,
            log,
        });
        let scheduler = scheduler::Scheduler::new(receiver, Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("weft-engine".to_owned())
            .spawn(move || supervisor::run(load, scheduler, &phases))?;
        Ok((Self { commands, shared, phase }, thread))
    }

    /// The state of the engine, to wait for changes.
    pub(crate) fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.clone()
    }

    /// The loaded model, or the reason why there is none now.
    #[cfg(test)]
    pub(crate) fn model(&self) -> Result<Arc<ModelInfo>, ApiError> {
        if self.shared.draining.load(Ordering::Relaxed) {
            return Err(ApiError::unavailable("the server is shutting down"));
        }
        match &*self.phase.borrow() {
            Phase::Ready(model) => Ok(Arc::clone(model)),
            Phase::Loading => Err(ApiError::unavailable("the model is loading; try again soon")),
            Phase::Down | Phase::Unloadable(_) => {
                Err(ApiError::unavailable("the engine failed; the server needs a restart"))
            }
            Phase::Ended => Err(ApiError::unavailable("the server is shutting down")),
        }
    }

    /// Whether the engine is being loaded, for the first time or after a fault.
    pub(crate) fn is_loading(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Loading)
    }

    /// Writes a line for the operator.
    pub(crate) fn log(&self, text: &str) {
        (self.shared.log)(text);
    }

    /// Queues jobs, each for its own lane. If the queue is full, they are refused.
    pub(crate) async fn submit(&self, jobs: Vec<Job>) -> Result<JobHandle, ApiError> {
        self.take_places(jobs.len(), QUEUE_WAIT).await?;
        self.enqueue(jobs)
    }

    /// Queues jobs of a request that others were queued for before. If the queue is full, they wait
    /// for places, as long as it takes.
    pub(crate) async fn submit_next(&self, jobs: Vec<Job>) -> Result<JobHandle, ApiError> {
        self.take_places(jobs.len(), Duration::MAX).await?;
        self.enqueue(jobs)
    }

    fn enqueue(&self, jobs: Vec<Job>) -> Result<JobHandle, ApiError> {
        let n = jobs.len();
        // The last event of each job has its own place.
        let (channel, events) = mpsc::channel((EVENTS + 1) * n.max(1));
        let jobs: Vec<_> = (0..)
            .zip(jobs)
            .map(|(choice, job)| QueuedJob::new(job, EventSender::new(channel.clone(), choice, n)))
            .collect();
        let cancels = jobs.iter().map(|job| job.cancel.clone()).collect();
        match self.send(Command::Submit(jobs)) {
            Ok(()) => Ok(JobHandle { events, cancels, lease: None }),
            Err(error) => {
                self.shared.waiting.fetch_sub(n, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    /// Takes places in the queue. Places of clients that have just gone are freed within a step, so
    /// a full queue is tried for some time before the request is refused.
    async fn take_places(&self, n: usize, patience: Duration) -> Result<(), ApiError> {
        let start = Instant::now();
        loop {
            let before = self.shared.waiting.fetch_add(n, Ordering::Relaxed);
            if before == 0 || before + n <= self.shared.limits.queue {
                return Ok(());
            }
            self.shared.waiting.fetch_sub(n, Ordering::Relaxed);
            if self.shared.draining.load(Ordering::Relaxed) {
                return Err(ApiError::unavailable("the server is shutting down"));
            }
            if start.elapsed() > patience {
                return Err(ApiError::too_busy(before));
            }
            tokio::time::sleep(QUEUE_WAIT / 20).await;
        }
    }

    /// Calls a function on the engine between two steps. It must be quick: all lanes wait.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        function: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let (sender, result) = oneshot::channel();
        self.send(Command::Call(Box::new(move |engine| {
            // The caller may have gone.
            let _ = sender.send(function(engine));
        })))?;
        result.await.map_err(|_| JobError::Fault.into())
    }

    /// Refuses new jobs, finishes running ones, saves rows and ends the thread.
    pub(crate) fn drain(&self) {
        self.shared.draining.store(true, Ordering::Relaxed);
        // A full channel is emptied within a step. If the thread has ended, the command is not
        // needed.
        let commands = self.commands.clone();
        std::thread::spawn(move || commands.send(Command::Drain));
    }

    fn send(&self, command: Command) -> Result<(), ApiError> {
        self.commands.try_send(command).map_err(|error| match error {
            TrySendError::Full(_) => ApiError::too_busy(self.shared.limits.queue),
            TrySendError::Disconnected(_) => ApiError::unavailable("the server is shutting down"),
        })
    }
}
