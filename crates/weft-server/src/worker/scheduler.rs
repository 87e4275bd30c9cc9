//! The engine's loop: receive commands, admit queued jobs, run a step, send its events.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use weft_core::chunk::{PieceReport, Report};
use weft_core::device::{DeviceError, MAX_LANES};
use weft_core::engine::{Cancel, Engine, Event, FinishReason, Finished, LaneId, Saving, Stats};

use super::event_sender::{EventSender, Reader};
use super::job::{Admission, JobError, JobEvent, Progress, QueuedJob};
use super::{Command, Shared};

/// How often paused lanes are checked if nothing else happens.
const PAUSED_WAIT: Duration = Duration::from_millis(5);

/// How long a shutdown waits for the remote store.
const REMOTE_WAIT: Duration = Duration::from_secs(10);

/// Lanes that may read at a time. Many texts can wait to be read, and the lane that is left answers
/// others meanwhile.
pub(crate) const MAX_READINGS: usize = MAX_LANES - 1;

/// A job that has a lane.
struct RunningJob {
    events: EventSender,
    is_answer: bool,
    is_warm: bool,
    is_reading: bool,
    sends_progress: bool,
    cancel: Cancel,
    since: Instant,
    admitted: Instant,
    last_token: Option<Instant>,
    paused: bool,
}

/// A job that has computed rows and promises that they are in files when it is done.
struct SavingJob {
    saving: Saving,
    events: EventSender,
    last: JobEvent,
}

/// The state of the engine's thread beside the engine itself. It outlives an engine that fails.
pub(super) struct Scheduler {
    commands: Receiver<Command>,
    pub(super) shared: Arc<Shared>,
    queue: VecDeque<QueuedJob>,
    running: HashMap<LaneId, RunningJob>,
    /// Senders of finished jobs whose readers have not caught up yet.
    closing: Vec<EventSender>,
    /// Jobs that are done when their rows are in files.
    saving: Vec<SavingJob>,
    /// Whether rows were on their way to files after the last step.
    was_filing: bool,
    /// Whether a lane has become free or a job has arrived since the last attempt to admit jobs.
    may_admit: bool,
    /// When a shutdown was requested.
    draining: Option<Instant>,
}

impl Scheduler {
    pub(super) fn new(commands: Receiver<Command>, shared: Arc<Shared>) -> Self {
        Self {
            commands,
            shared,
            queue: VecDeque::new(),
            running: HashMap::new(),
            closing: Vec::new(),
            saving: Vec::new(),
            was_filing: false,
            may_admit: false,
            draining: None,
        }
    }

    /// Runs jobs until a shutdown is requested and all jobs are done.
    pub(super) fn run(&mut self, engine: &mut Engine) -> Result<(), DeviceError> {
        self.may_admit = true;
        self.publish(engine);
        loop {
            self.receive(engine);
            self.admit(engine);
            self.check_readers(engine);
            if engine.has_work() {
                let events = engine.step()?;
                // A client that reads the end of an answer finds its lane free in the metrics.
                self.publish(engine);
                events.into_iter().for_each(|event| self.dispatch(event, engine));
            }
            engine.tend_files();
            self.end_saved(engine);
            self.publish(engine);
            self.log_warnings(engine);
            if self.draining.is_some() && self.is_idle() {
                self.save_all(engine);
                return Ok(());
            }
        }
    }

    /// Files all rows before the thread ends, as long as a shutdown may take.
    fn save_all(&self, engine: &mut Engine) {
        let saving = engine.begin_save(true);
        let start = Instant::now();
        let has_time = || start.elapsed() <= self.shared.limits.drain;
        while engine.is_saving(&saving) && has_time() {
            std::thread::sleep(PAUSED_WAIT);
            engine.tend_files();
        }
        if engine.is_saving(&saving) {
            (self.shared.log)("the disk is too slow: some rows were not written before the end");
        }
        // What is lost there is only computed again elsewhere.
        let n_left = engine.close_remote(REMOTE_WAIT);
        if n_left > 0 {
            (self.shared.log)(&format!("the remote store is too slow: {n_left} rows not written"));
        }
        self.log_warnings(engine);
    }

    /// Ends the jobs whose rows are in files, or could not be written. A disk that stalls does not
    /// hold up a shutdown for ever.
    fn end_saved(&mut self, engine: &mut Engine) {
        if self.is_out_of_time() {
            for SavingJob { mut events, .. } in self.saving.drain(..) {
                events.end_with(JobEvent::Failed(JobError::Ended));
            }
        }
        let is_over = |job: &mut SavingJob| !engine.is_saving(&job.saving);
        let over: Vec<SavingJob> = self.saving.extract_if(.., is_over).collect();
        let was_filing = std::mem::replace(&mut self.was_filing, engine.is_filing());
        if !over.is_empty() || was_filing && !self.was_filing {
            // A client that reads the end of the job finds its files in the metrics.
            self.shared.metrics.set_cache(engine);
        }
        for SavingJob { mut events, last, .. } in over {
            if let Reader::Behind(_) = events.send(last) {
                self.closing.push(events);
            }
        }
    }

    /// Reports damaged files, and rows that could not be written.
    fn log_warnings(&self, engine: &mut Engine) {
        engine.take_warnings().iter().for_each(|warning| (self.shared.log)(warning));
    }

    /// Whether a shutdown has taken as long as it may.
    fn is_out_of_time(&self) -> bool {
        self.draining.is_some_and(|since| since.elapsed() > self.shared.limits.drain)
    }

    fn is_idle(&self) -> bool {
        self.queue.is_empty()
            && self.running.is_empty()
            && self.closing.is_empty()
            && self.saving.is_empty()
    }

    /// Handles the commands that have arrived; waits for one if there is nothing else to do, or if
    /// the last step did nothing.
    fn receive(&mut self, engine: &mut Engine) {
        let has_work = engine.has_work() && !engine.was_idle();
        let mut next = if has_work { self.commands.try_recv().ok() } else { self.wait(engine) };
        while let Some(command) = next {
            self.handle(command, engine);
            next = self.commands.try_recv().ok();
        }
        self.drop_cancelled();
    }

    fn wait(&self, engine: &Engine) -> Option<Command> {
        if !self.is_idle() || self.draining.is_some() || engine.is_filing() {
            return self.commands.recv_timeout(PAUSED_WAIT).ok();
        }
        // If the worker's handle is gone, no more commands can arrive.
        Some(self.commands.recv().unwrap_or(Command::Drain))
    }

    fn handle(&mut self, command: Command, engine: &mut Engine) {
        match command {
            Command::Submit(jobs) => {
                self.queue.extend(jobs);
                self.may_admit = true;
            }
            Command::Call(function) => function(engine),
            Command::Drain => {
                self.draining.get_or_insert_with(Instant::now);
            }
        }
    }

    /// Drops queued jobs whose clients have gone.
    fn drop_cancelled(&mut self) {
        let before = self.queue.len();
        self.queue.retain(|job| !job.cancel.is_cancelled());
        self.free_places(before - self.queue.len());
    }

    fn free_places(&self, n: usize) {
        self.shared.waiting.fetch_sub(n, Ordering::Relaxed);
    }

    /// Lanes that read now.
    fn n_readings(&self) -> usize {
        self.running.values().filter(|job| job.is_reading).count()
    }

    /// Whether a queued job would take a lane if one were free.
    fn is_lane_wanted(&self) -> bool {
        let may_read = self.n_readings() < MAX_READINGS;
        self.queue.iter().any(|job| may_read || !job.is_reading())
    }

    /// Gives lanes to queued jobs, in order, until one does not fit beside the running ones. Jobs
    /// that read are passed over while as many as may do so run.
    fn admit(&mut self, engine: &mut Engine) {
        if !std::mem::take(&mut self.may_admit) {
            return;
        }
        let mut passed = VecDeque::new();
        while let Some(mut job) = self.queue.pop_front() {
            if job.is_reading() && self.n_readings() >= MAX_READINGS {
                passed.push_back(job);
                continue;
            }
            match job.admit(engine) {
                Admission::NoRoom => {
                    self.queue.push_front(job);
                    break;
                }
                Admission::Refused(error) => {
                    job.events.send(JobEvent::Failed(error.into()));
                }
                Admission::NothingToDo => {
                    let (stats, report) = (Stats::default(), Report::default());
                    let finished =
                        Finished { reason: FinishReason::Stop, stats, report, stop: None };
                    job.events.send(JobEvent::Done(Box::new(finished)));
                }
                Admission::Admitted(lane) => {
                    job.events.send(JobEvent::Admitted);
                    let job = RunningJob {
                        is_answer: job.is_answer(),
                        is_warm: job.is_warm(),
                        is_reading: job.is_reading(),
                        sends_progress: job.sends_progress(),
                        events: job.events,
                        cancel: job.cancel,
                        since: job.since,
                        admitted: Instant::now(),
                        last_token: None,
                        paused: false,
                    };
                    self.running.insert(lane, job);
                    self.send_progress(lane, None, engine);
                }
            }
            self.free_places(1);
        }
        passed.append(&mut self.queue);
        self.queue = passed;
    }

    /// Pauses lanes whose readers are behind, resumes those whose readers have caught up, and
    /// cancels jobs whose readers are gone or too slow.
    fn check_readers(&mut self, engine: &mut Engine) {
        let limits = &self.shared.limits;
        let is_out_of_time = self.is_out_of_time();
        // The lane whose reader is behind for the longest time, and whether one is ending already.
        let (mut slowest, mut is_one_ending) = (None, false);
        for (lane, job) in &mut self.running {
            let reader = job.events.flush();
            match reader {
                Reader::Gone => job.cancel.cancel(),
                Reader::Behind(time) if time > limits.slow_reader => job.cancel.cancel(),
                Reader::Behind(_) | Reader::KeepsUp => {}
            }
            if is_out_of_time {
                job.cancel.cancel();
            }
            let is_behind = matches!(reader, Reader::Behind(_)) && !job.cancel.is_cancelled();
            if is_behind != job.paused {
                job.paused = is_behind;
                engine.pause(*lane, is_behind);
            }
            is_one_ending |= job.cancel.is_cancelled();
            if let Reader::Behind(time) = reader
                && time > limits.give_way
            {
                slowest = slowest.max(Some((time, *lane)));
            }
        }
        // Jobs that are still queued need a lane: the slowest reader gives way, one at a time.
        if let Some((_, lane)) = slowest.filter(|_| self.is_lane_wanted() && !is_one_ending) {
            self.running.get(&lane).iter().for_each(|job| job.cancel.cancel());
        }
        self.closing.retain_mut(|events| match events.flush() {
            Reader::Behind(time) if time > limits.slow_reader || is_out_of_time => {
                events.end_with(JobEvent::Failed(JobError::Ended));
                false
            }
            Reader::Behind(_) => true,
            Reader::KeepsUp | Reader::Gone => false,
        });
    }

    /// Sends an event of the engine to the job that it belongs to.
    fn dispatch(&mut self, event: Event, engine: &mut Engine) {
        match event {
            Event::Prefill { lane, done, .. } => self.send_progress(lane, Some(done), engine),
            Event::Token { lane, token, drafted } => {
                let metrics = &self.shared.metrics;
                let Some(job) = self.running.get_mut(&lane) else { return };
                let now = Instant::now();
                match job.last_token.replace(now) {
                    None => metrics.first_token.observe(now - job.since),
                    Some(last) => metrics.token.observe(now - last),
                }
                job.events.send(JobEvent::Token { token, is_drafted: drafted.is_some() });
            }
            Event::Prompt { lane, tokens } => {
                if let Some(job) = self.running.get_mut(&lane) {
                    job.events.send(JobEvent::Prompt(tokens));
                }
            }
            Event::Read { lane, values } => {
                if let Some(job) = self.running.get_mut(&lane) {
                    job.events.send(JobEvent::Read(values));
                }
            }
            Event::Done { lane, finished } => {
                self.save_new_chunks(&finished.report, engine);
                let is_warm = self.running.get(&lane).is_some_and(|job| job.is_warm);
                match self.running.get(&lane) {
                    Some(job) if job.is_answer => self.shared.metrics.count_answer(&finished),
                    Some(job) if job.is_reading => self.shared.metrics.count_reading(&finished),
                    _ => {}
                }
                let last = match finished.reason {
                    FinishReason::Cancelled => JobEvent::Cancelled(Box::new(finished)),
                    _ => JobEvent::Done(Box::new(finished)),
                };
                if is_warm {
                    self.end_when_saved(lane, last, engine);
                } else {
                    self.end(lane, last);
                }
            }
            Event::Failed { lane, error } => {
                self.shared.metrics.count_failure();
                self.end(lane, JobEvent::Failed(error.into()));
            }
        }
    }

    /// Sends how far a prompt is, if its client asked for that. Before the first block of a prompt
    /// `processed` is `None`, and what is cached is all there is.
    fn send_progress(&mut self, lane: LaneId, processed: Option<usize>, engine: &Engine) {
        let job = self.running.get_mut(&lane).filter(|job| job.sends_progress);
        // A lane that ended in this step sends its whole report instead.
        if let (Some(job), Some(report)) = (job, engine.report(lane)) {
            let processed = processed.unwrap_or_else(|| report.cached_tokens());
            let time = job.admitted.elapsed();
            job.events.send(JobEvent::Progress(Box::new(Progress { processed, time, report })));
        }
    }

    /// Starts to file the rows of chunks that a job had to compute. Nobody waits for that.
    fn save_new_chunks(&self, report: &Report, engine: &mut Engine) {
        let is_new = |piece: &PieceReport| piece.chunk.is_some() && piece.source.is_none();
        if report.pieces.iter().any(is_new) {
            engine.begin_save(false);
        }
    }

    /// Sends a job's last event when the rows of chunks are in files: a client that reads it can
    /// rely on them, however this process ends. Its lane is free.
    fn end_when_saved(&mut self, lane: LaneId, last: JobEvent, engine: &mut Engine) {
        self.may_admit = true;
        let Some(RunningJob { events, .. }) = self.running.remove(&lane) else { return };
        self.saving.push(SavingJob { saving: engine.begin_save(false), events, last });
    }

    /// Sends a job's last event. Its lane is free; its reader may have to catch up.
    fn end(&mut self, lane: LaneId, last: JobEvent) {
        self.may_admit = true;
        let Some(RunningJob { mut events, .. }) = self.running.remove(&lane) else { return };
        if let JobEvent::Failed(_) = last {
            events.end_with(last);
        } else if let Reader::Behind(_) = events.send(last) {
            self.closing.push(events);
        }
    }

    /// Fails all jobs, queued and running, because the engine has failed.
    pub(super) fn fail_all(&mut self) {
        self.closing.clear();
        let saving = self.saving.drain(..).map(|job| job.events);
        let running = self.running.drain().map(|(_, job)| job.events).chain(saving);
        let queued = self.queue.drain(..).map(|job| job.events);
        let n_queued = queued.len();
        for mut events in running.chain(queued) {
            events.end_with(JobEvent::Failed(JobError::Fault));
        }
        self.free_places(n_queued);
        while let Ok(command) = self.commands.try_recv() {
            self.refuse(command);
        }
        self.shared.metrics.set_lanes(0, 0);
    }

    /// Refuses every command until a shutdown is requested: the engine is gone.
    pub(super) fn refuse_until_drained(&mut self) {
        while self.draining.is_none() {
            match self.commands.recv() {
                Ok(command) => self.refuse(command),
                Err(_) => return,
            }
        }
    }

    fn refuse(&mut self, command: Command) {
        match command {
            // Dropping the function closes the channel that its caller waits on.
            Command::Call(_) => {}
            Command::Drain => drop(self.draining.get_or_insert_with(Instant::now)),
            Command::Submit(jobs) => {
                self.free_places(jobs.len());
                for mut job in jobs {
                    job.events.send(JobEvent::Failed(JobError::Fault));
                }
            }
        }
    }

    fn publish(&self, engine: &Engine) {
        let waiting = self.shared.waiting.load(Ordering::Relaxed);
        self.shared.metrics.set_lanes(engine.running(), waiting);
        if self.may_admit {
            self.shared.metrics.set_cache(engine);
        }
    }
}
