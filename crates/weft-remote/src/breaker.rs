//! The circuit breaker: a store that fails is left alone for a while, so that requests do not wait
//! for it one after the other.
//!
//! After a failure in silence, or a few other failures in a row, the breaker is open: nothing is
//! asked. After a pause, one request is let through. If it succeeds, the breaker closes; if not,
//! the next pause is longer.

use std::time::{Duration, Instant};

use weft_core::engine::BreakerState;

/// Failures in a row that open the breaker. One is enough if it took a request's whole time.
const MOST_FAILURES: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Breaker {
    n_failures: u32,
    pause: Duration,
    /// When the next test may begin; `None` if the breaker is closed.
    open_until: Option<Instant>,
    /// When the request that tests the store began.
    testing_since: Option<Instant>,
    /// How often it has opened.
    pub(crate) n_opened: u64,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            n_failures: 0,
            pause: FIRST_PAUSE,
            open_until: None,
            testing_since: None,
            n_opened: 0,
        }
    }
}

impl Breaker {
    /// Whether a request may go through now. Its result must be reported.
    pub(crate) fn admits(&mut self, now: Instant) -> bool {
        match self.open_until {
            None => true,
            Some(until) if now < until => false,
            // A test whose result nobody reported does not keep the breaker open for ever.
            Some(_) if self.testing_since.is_some_and(|at| now < at + LONGEST_PAUSE) => false,
            Some(_) => {
                self.testing_since = Some(now);
                true
            }
        }
    }

    /// Whether no request may go through now.
    pub(crate) fn refuses(&self, now: Instant) -> bool {
        self.open_until.is_some_and(|until| now < until)
    }

    /// A request ended without a result that says something about the store.
    pub(crate) fn gave_up(&mut self) {
        self.testing_since = None;
    }

    /// A request was answered. Returns whether the breaker was open until now.
    pub(crate) fn succeeded(&mut self) -> bool {
        let was_open = self.open_until.is_some();
        *self = Self { n_opened: self.n_opened, ..Self::default() };
        was_open
    }

    /// A request failed; `is_silence` if it got no answer.
    pub(crate) fn failed(&mut self, is_silence: bool, now: Instant) {
        self.n_failures += 1;
        let was_test = self.testing_since.take().is_some();
        if was_test {
            self.pause = LONGEST_PAUSE.min(2 * self.pause);
        }
        let opens = is_silence || was_test || self.n_failures >= MOST_FAILURES;
        // Requests that began before it opened do not make the pause longer.
        if opens && (was_test || self.open_until.is_none()) {
            self.open_until = Some(now + self.pause);
            self.n_opened += 1;
        }
    }

    pub(crate) fn state(&self) -> BreakerState {
        match (self.open_until, self.testing_since) {
            (None, _) => BreakerState::Closed,
            (Some(_), None) => BreakerState::Open,
            (Some(_), Some(_)) => BreakerState::HalfOpen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_opens_it_at_once_and_a_test_closes_it() {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
        assert!(breaker.admits(start));
        breaker.failed(true, start);
        assert_eq!((breaker.state(), breaker.n_opened), (BreakerState::Open, 1));
        assert!(!breaker.admits(start + FIRST_PAUSE / 2));
        let later = start + FIRST_PAUSE;
        assert!(breaker.admits(later), "one test");
        assert!(!breaker.admits(later), "and no more");
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        assert!(breaker.succeeded(), "an outage ends");
        assert!(!breaker.succeeded());
        assert_eq!(breaker.state(), BreakerState::Closed);
        assert!(breaker.admits(later));
    }

    #[test]
    fn failed_tests_make_the_pause_longer_up_to_a_limit() {
        let (mut breaker, mut now) = (Breaker::default(), Instant::now());
        breaker.failed(true, now);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            let until = breaker.open_until.unwrap();
            pauses.push((until - now).as_secs());
            now = until;
            assert!(breaker.admits(now));
            breaker.failed(false, now);
        }
        assert_eq!(pauses, [5, 10, 20, 40, 60, 60]);
    }

    #[test]
    fn quick_failures_open_it_only_in_a_row() {
        let (mut breaker, now) = (Breaker::default(), Instant::now());
        for _ in 0..2 {
            breaker.failed(false, now);
            breaker.failed(false, now);
            assert_eq!(breaker.state(), BreakerState::Closed);
            breaker.succeeded();
        }
        for _ in 0..3 {
            breaker.failed(false, now);
        }
        assert_eq!(breaker.state(), BreakerState::Open);
        let until = breaker.open_until;
        breaker.failed(true, now + FIRST_PAUSE / 2);
        assert_eq!(breaker.open_until, until, "it was under way when the breaker opened");
    }

    #[test]
    fn a_test_without_a_result_is_not_waited_for_for_ever() {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
        breaker.failed(true, start);
        let test = start + FIRST_PAUSE;
        assert!(breaker.admits(test));
        assert!(!breaker.admits(test + LONGEST_PAUSE / 2));
        assert!(breaker.admits(test + LONGEST_PAUSE));
    }
}
