//! What the engine's thread does all day: take in, admit, step, tell.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use weft_core::chunk::{PieceReport, Report};
use weft_core::device::DeviceError;
use weft_core::engine::{Cancel, Engine, Event, FinishReason, Finished, LaneId};

use super::outlet::{Outlet, Reader};
use super::work::{Admission, Entry, Failure, Happening};
use super::{Message, Shared};

/// How often paused lanes are looked at where nothing else is to be done.
const PAUSED_WAIT: Duration = Duration::from_millis(5);

/// A lane that runs for somebody.
struct Running {
    outlet: Outlet,
    /// Whether it writes an answer, and does not only compute rows.
    answers: bool,
    cancel: Cancel,
    since: Instant,
    last_token: Option<Instant>,
    paused: bool,
}

/// The thread's state beside the engine, which may be lost under it.
pub(super) struct Duty {
    inbox: Receiver<Message>,
    pub(super) shared: Arc<Shared>,
    waiting: VecDeque<Entry>,
    running: HashMap<LaneId, Running>,
    /// Readers that are behind what lanes told that are over.
    leaving: Vec<Outlet>,
    /// Whether something happened since the last try to admit one that waits.
    is_worth_a_try: bool,
    /// When the end was asked for.
    draining: Option<Instant>,
}

impl Duty {
    pub(super) fn new(inbox: Receiver<Message>, shared: Arc<Shared>) -> Self {
        Self {
            inbox,
            shared,
            waiting: VecDeque::new(),
            running: HashMap::new(),
            leaving: Vec::new(),
            is_worth_a_try: false,
            draining: None,
        }
    }

    /// Serves until the end is asked for and all is done.
    pub(super) fn serve(&mut self, engine: &mut Engine) -> Result<(), DeviceError> {
        self.is_worth_a_try = true;
        self.publish(engine);
        loop {
            self.take_in(engine);
            self.admit(engine);
            self.look_after_readers(engine);
            if engine.has_work() {
                let events = engine.step()?;
                // Whoever hears that an answer is over finds it counted out.
                self.publish(engine);
                events.into_iter().for_each(|event| self.tell(event, engine));
            }
            self.publish(engine);
            if self.draining.is_some() && self.is_idle() {
                engine.save(true);
                return Ok(());
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty() && self.leaving.is_empty()
    }

    /// Takes what has come; waits for something where there is nothing to do.
    fn take_in(&mut self, engine: &mut Engine) {
        let mut next = if engine.has_work() { self.inbox.try_recv().ok() } else { self.wait() };
        while let Some(message) = next {
            self.take(message, engine);
            next = self.inbox.try_recv().ok();
        }
        self.forget_cancelled();
    }

    fn wait(&self) -> Option<Message> {
        if !self.is_idle() || self.draining.is_some() {
            return self.inbox.recv_timeout(PAUSED_WAIT).ok();
        }
        // The handle is gone: nobody can ask for anything any more.
        Some(self.inbox.recv().unwrap_or(Message::Drain))
    }

    fn take(&mut self, message: Message, engine: &mut Engine) {
        match message {
            Message::Entries(entries) => {
                self.waiting.extend(entries);
                self.is_worth_a_try = true;
            }
            Message::Errand(errand) => errand(engine),
            Message::Drain => {
                self.draining.get_or_insert_with(Instant::now);
            }
        }
    }

    /// Whoever left the queue needs no lane.
    fn forget_cancelled(&mut self) {
        let before = self.waiting.len();
        self.waiting.retain(|entry| !entry.cancel.is_cancelled());
        self.count_out(before - self.waiting.len());
    }

    fn count_out(&self, n: usize) {
        self.shared.waiting.fetch_sub(n, Ordering::Relaxed);
    }

    /// Gives lanes to those that wait, in their order, until one does not fit beside those that run.
    fn admit(&mut self, engine: &mut Engine) {
        if !std::mem::take(&mut self.is_worth_a_try) {
            return;
        }
        while let Some(mut entry) = self.waiting.pop_front() {
            match entry.admit(engine) {
                Admission::Waits => {
                    self.waiting.push_front(entry);
                    return;
                }
                Admission::Refused(error) => {
                    entry.outlet.tell(Happening::Failed(error.into()));
                }
                Admission::Nothing => {
                    entry.outlet.tell(Happening::Done(Box::new(nothing_done())));
                }
                Admission::Runs(lane) => {
                    let answers = entry.answers();
                    let Entry { mut outlet, cancel, since, .. } = entry;
                    outlet.tell(Happening::Admitted);
                    let (last_token, paused) = (None, false);
                    let running = Running { outlet, answers, cancel, since, last_token, paused };
                    self.running.insert(lane, running);
                }
            }
            self.count_out(1);
        }
    }

    /// Pauses lanes whose readers are behind, wakes those whose readers caught up, and ends those
    /// whose readers are gone, or as good as.
    fn look_after_readers(&mut self, engine: &mut Engine) {
        let limits = &self.shared.limits;
        let is_out_of_time = self.draining.is_some_and(|since| since.elapsed() > limits.drain);
        for (lane, running) in &mut self.running {
            let reader = running.outlet.flush();
            match reader {
                Reader::Gone => running.cancel.cancel(),
                Reader::Behind(time) if time > limits.slow_reader => running.cancel.cancel(),
                Reader::Behind(_) | Reader::Reads => {}
            }
            if is_out_of_time {
                running.cancel.cancel();
            }
            let is_behind = matches!(reader, Reader::Behind(_)) && !running.cancel.is_cancelled();
            if is_behind != running.paused {
                running.paused = is_behind;
                engine.pause(*lane, is_behind);
            }
        }
        self.leaving.retain_mut(|outlet| match outlet.flush() {
            Reader::Behind(time) => time <= limits.slow_reader && !is_out_of_time,
            Reader::Reads | Reader::Gone => false,
        });
    }

    fn tell(&mut self, event: Event, engine: &mut Engine) {
        match event {
            // The step tells of it by being over; nobody else needs to know.
            Event::Prefill { .. } => {}
            Event::Token { lane, token } => {
                let metrics = &self.shared.metrics;
                let Some(running) = self.running.get_mut(&lane) else { return };
                let now = Instant::now();
                match running.last_token.replace(now) {
                    None => metrics.first_token.observe(now - running.since),
                    Some(last) => metrics.token.observe(now - last),
                }
                running.outlet.tell(Happening::Token(token));
            }
            Event::Done { lane, finished } => {
                self.file_new_chunks(&finished.report, engine);
                if self.running.get(&lane).is_some_and(|running| running.answers) {
                    self.shared.metrics.count_answer(&finished);
                }
                let end = match finished.reason {
                    FinishReason::Cancelled => Happening::Failed(Failure::Ended),
                    _ => Happening::Done(Box::new(finished)),
                };
                self.end(lane, end);
            }
            Event::Failed { lane, error } => {
                self.shared.metrics.count_failure();
                self.end(lane, Happening::Failed(error.into()));
            }
        }
    }

    /// Files the rows of chunks that a lane had to compute. Whoever hears that the lane is done can
    /// rely on them, however this process ends.
    fn file_new_chunks(&self, report: &Report, engine: &mut Engine) {
        let is_new = |piece: &PieceReport| piece.chunk.is_some() && piece.source.is_none();
        if report.pieces.iter().any(is_new) {
            engine.save(false);
            self.shared.metrics.set_cache(engine);
        }
    }

    /// The lane is gone; its reader may have to catch up.
    fn end(&mut self, lane: LaneId, end: Happening) {
        self.is_worth_a_try = true;
        if let Some(Running { mut outlet, .. }) = self.running.remove(&lane)
            && let Reader::Behind(_) = outlet.tell(end)
        {
            self.leaving.push(outlet);
        }
    }

    /// Ends everything that waits or runs, because the engine is gone.
    pub(super) fn fail_all(&mut self) {
        self.leaving.clear();
        let running = self.running.drain().map(|(_, running)| running.outlet);
        let waiting = self.waiting.drain(..).map(|entry| entry.outlet);
        let n_waiting = waiting.len();
        for mut outlet in running.chain(waiting) {
            outlet.tell(Happening::Failed(Failure::Fault));
        }
        self.count_out(n_waiting);
        while let Ok(message) = self.inbox.try_recv() {
            self.refuse(message);
        }
        self.shared.metrics.set_lanes(0, 0);
    }

    /// Refuses all that comes until the end is asked for: there is no engine any more.
    pub(super) fn refuse_until_the_end(&mut self) {
        while self.draining.is_none() {
            match self.inbox.recv() {
                Ok(message) => self.refuse(message),
                Err(_) => return,
            }
        }
    }

    /// An errand that is dropped tells its asker by that.
    fn refuse(&mut self, message: Message) {
        match message {
            Message::Errand(_) => {}
            Message::Drain => drop(self.draining.get_or_insert_with(Instant::now)),
            Message::Entries(entries) => {
                self.count_out(entries.len());
                for mut entry in entries {
                    entry.outlet.tell(Happening::Failed(Failure::Fault));
                }
            }
        }
    }

    fn publish(&self, engine: &Engine) {
        let waiting = self.shared.waiting.load(Ordering::Relaxed);
        self.shared.metrics.set_lanes(engine.running(), waiting);
        if self.is_worth_a_try {
            self.shared.metrics.set_cache(engine);
        }
    }
}

/// What work that found nothing to do is told.
fn nothing_done() -> Finished {
    Finished {
        reason: FinishReason::Stop,
        stats: weft_core::engine::Stats::default(),
        report: Report::default(),
    }
}
