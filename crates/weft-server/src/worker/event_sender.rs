//! Sends a job's events to its request. If the channel is full, events are held here, and the
//! scheduler pauses the lane until its reader has caught up.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;

use super::job::JobEvent;

/// An event, and which choice of a request it belongs to.
#[derive(Debug)]
pub(crate) struct ChoiceEvent {
    pub(crate) choice: usize,
    pub(crate) event: JobEvent,
}

/// Whether the receiving side keeps up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    KeepsUp,
    /// It does not: events have been held for this long.
    Behind(Duration),
    Gone,
}

pub(super) struct EventSender {
    channel: Sender<ChoiceEvent>,
    choice: usize,
    /// Places of the channel that are left for the last events of the request's jobs.
    reserved: usize,
    held: VecDeque<JobEvent>,
    behind_since: Option<Instant>,
}

impl EventSender {
    pub(super) fn new(channel: Sender<ChoiceEvent>, choice: usize, reserved: usize) -> Self {
        Self { channel, choice, reserved, held: VecDeque::new(), behind_since: None }
    }

    /// Sends an event, now or as soon as there is room for it.
    pub(super) fn send(&mut self, event: JobEvent) -> Reader {
        self.held.push_back(event);
        self.flush()
    }

    /// Drops the held events and sends the last one, for which there is always room. A reader that
    /// comes back learns why its answer ended.
    pub(super) fn end_with(&mut self, last: JobEvent) {
        self.held.clear();
        self.send(last);
    }

    /// Sends as many held events as there is room for.
    pub(super) fn flush(&mut self) -> Reader {
        while let Some(event) = self.held.pop_front() {
            let is_last = matches!(event, JobEvent::Done(_) | JobEvent::Failed(_));
            let has_room = is_last || self.channel.capacity() > self.reserved;
            if !has_room && !self.channel.is_closed() {
                return self.hold(event);
            }
            match self.channel.try_send(ChoiceEvent { choice: self.choice, event }) {
                Ok(()) => self.behind_since = None,
                Err(TrySendError::Full(unsent)) => return self.hold(unsent.event),
                Err(TrySendError::Closed(_)) => {
                    self.held.clear();
                    return Reader::Gone;
                }
            }
        }
        Reader::KeepsUp
    }

    fn hold(&mut self, event: JobEvent) -> Reader {
        self.held.push_front(event);
        Reader::Behind(self.behind_since.get_or_insert_with(Instant::now).elapsed())
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::super::JobError;
    use super::*;

    #[test]
    fn events_that_do_not_fit_come_later_and_in_order() {
        let (channel, mut events) = mpsc::channel(2);
        let mut sender = EventSender::new(channel, 3, 1);
        assert_eq!(sender.send(JobEvent::Admitted), Reader::KeepsUp);
        assert!(matches!(sender.send(JobEvent::Admitted), Reader::Behind(_)));
        assert!(matches!(sender.send(JobEvent::Failed(JobError::Fault)), Reader::Behind(_)));
        let first = events.try_recv().unwrap();
        assert!(matches!(first, ChoiceEvent { choice: 3, event: JobEvent::Admitted }));
        assert_eq!(sender.flush(), Reader::KeepsUp);
        assert!(matches!(events.try_recv().unwrap().event, JobEvent::Admitted));
        assert!(matches!(events.try_recv().unwrap().event, JobEvent::Failed(_)));
        drop(events);
        assert_eq!(sender.send(JobEvent::Admitted), Reader::Gone);
    }

    /// Not from the first time that it was: one that reads slowly is not one that has stopped.
    #[test]
    fn a_reader_is_behind_since_it_last_took_an_event() {
        let (channel, mut events) = mpsc::channel(2);
        let mut sender = EventSender::new(channel, 0, 1);
        let behind = |reader| match reader {
            Reader::Behind(time) => time,
            other => panic!("{other:?}"),
        };
        sender.send(JobEvent::Admitted);
        behind(sender.send(JobEvent::Admitted));
        std::thread::sleep(Duration::from_millis(20));
        let before = behind(sender.flush());
        assert!(before >= Duration::from_millis(20), "{before:?}");
        events.try_recv().unwrap();
        let now = behind(sender.send(JobEvent::Admitted));
        assert!(now < before, "{now:?}");
    }

    #[test]
    fn the_last_event_has_its_own_place() {
        let (channel, mut events) = mpsc::channel(2);
        let mut sender = EventSender::new(channel, 0, 1);
        for _ in 0..3 {
            sender.send(JobEvent::Admitted);
        }
        sender.end_with(JobEvent::Failed(JobError::Ended));
        assert!(matches!(events.try_recv().unwrap().event, JobEvent::Admitted));
        assert!(matches!(events.try_recv().unwrap().event, JobEvent::Failed(JobError::Ended)));
    }
}
