//! The circuit breaker: after failures, weft sends a store no requests for a while, so that they do
//! not wait for it one after the other.
//!
//! If the store does not answer, or after a few other failures in a row, the breaker opens: it lets
//! no request through. After a pause, it lets one request through. If it succeeds, the breaker
//! closes; if not, the next pause is longer.

use std::time::{Duration, Instant};

use weft_core::engine::BreakerState;

/// Leave to ask the store. Its result is reported with it: a request that was under way when the
/// breaker opened is not the one that tests the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pass {
    pub(crate) begun: Instant,
    /// The number of the test that this request is.
    test: Option<u64>,
}

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
    /// The request that tests the store.
    test: Option<Pass>,
    n_tests: u64,
    /// How often it has opened.
    pub(crate) n_opened: u64,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            n_failures: 0,
            pause: FIRST_PAUSE,
            open_until: None,
            test: None,
            n_tests: 0,
            n_opened: 0,
        }
    }
}

impl Breaker {
    /// Lets a request through, or not. Its result must be reported.
    pub(crate) fn admit(&mut self, now: Instant) -> Option<Pass> {
        let pass = Pass { begun: now, test: None };
        match self.open_until {
            None => Some(pass),
            Some(until) if now < until => None,
            // A test whose result nobody reported does not keep the breaker open for ever.
            Some(_) if self.test.is_some_and(|test| now < test.begun + LONGEST_PAUSE) => None,
            Some(_) => {
                self.n_tests += 1;
                self.test = Some(Pass { test: Some(self.n_tests), ..pass });
                self.test
            }
        }
    }

    /// Whether no request may go through now.
    pub(crate) fn refuses(&self, now: Instant) -> bool {
        self.open_until.is_some_and(|until| now < until)
    }

    /// A request ended without a result that says something about the store.
    pub(crate) fn gave_up(&mut self, pass: Pass) {
        self.end_test(pass);
    }

    /// Ends the test that runs, if this request is the test. Returns whether it is.
    fn end_test(&mut self, pass: Pass) -> bool {
        let is_test = pass.test.is_some() && self.test.and_then(|test| test.test) == pass.test;
        if is_test {
            self.test = None;
        }
        is_test
    }

    /// A request was answered. Returns whether the breaker was open until now.
    pub(crate) fn succeeded(&mut self) -> bool {
        let was_open = self.open_until.is_some();
        *self = Self { n_opened: self.n_opened, n_tests: self.n_tests, ..Self::default() };
        was_open
    }

    /// A request failed; `is_silence` if it got no answer.
    pub(crate) fn failed(&mut self, pass: Pass, is_silence: bool, now: Instant) {
        self.n_failures += 1;
        let was_test = self.end_test(pass);
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
        match (self.open_until, self.test) {
            (None, _) => BreakerState::Closed,
            (Some(_), None) => BreakerState::Open,
            (Some(_), Some(_)) => BreakerState::HalfOpen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that is let through while the breaker is closed.
    fn pass(now: Instant) -> Pass {
        Breaker::default().admit(now).unwrap()
    }

    #[test]
    fn silence_opens_it_at_once_and_a_test_closes_it() {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
        let first = breaker.admit(start).unwrap();
        breaker.failed(first, true, start);
        assert_eq!((breaker.state(), breaker.n_opened), (BreakerState::Open, 1));
        assert!(breaker.admit(start + FIRST_PAUSE / 2).is_none());
        let later = start + FIRST_PAUSE;
        assert!(breaker.admit(later).is_some(), "one test");
        assert!(breaker.admit(later).is_none(), "and no more");
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        assert!(breaker.succeeded(), "an outage ends");
        assert!(!breaker.succeeded());
        assert_eq!(breaker.state(), BreakerState::Closed);
        assert!(breaker.admit(later).is_some());
    }

    #[test]
    fn failed_tests_make_the_pause_longer_up_to_a_limit() {
        let (mut breaker, mut now) = (Breaker::default(), Instant::now());
        breaker.failed(pass(now), true, now);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            let until = breaker.open_until.unwrap();
            pauses.push((until - now).as_secs());
            now = until;
            let test = breaker.admit(now).unwrap();
            breaker.failed(test, false, now);
        }
        assert_eq!(pauses, [5, 10, 20, 40, 60, 60]);
    }

    #[test]
    fn quick_failures_open_it_only_in_a_row() {
        let (mut breaker, now) = (Breaker::default(), Instant::now());
        for _ in 0..2 {
            breaker.failed(pass(now), false, now);
            breaker.failed(pass(now), false, now);
            assert_eq!(breaker.state(), BreakerState::Closed);
            breaker.succeeded();
        }
        for _ in 0..3 {
            breaker.failed(pass(now), false, now);
        }
        assert_eq!(breaker.state(), BreakerState::Open);
        let until = breaker.open_until;
        breaker.failed(pass(now), true, now + FIRST_PAUSE / 2);
        assert_eq!(breaker.open_until, until, "it was under way when the breaker opened");
    }

    #[test]
    fn a_test_without_a_result_is_not_waited_for_for_ever() {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
        breaker.failed(pass(start), true, start);
        let test = start + FIRST_PAUSE;
        assert!(breaker.admit(test).is_some());
        assert!(breaker.admit(test + LONGEST_PAUSE / 2).is_none());
        assert!(breaker.admit(test + LONGEST_PAUSE).is_some());
    }

    /// Requests that began before it opened end while the test runs: they are not the test, and no
    /// second one begins beside it.
    #[test]
    fn no_second_test_begins_while_one_runs() {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
        let [first, silent, unwanted] = [(); 3].map(|()| breaker.admit(start).unwrap());
        breaker.failed(first, true, start);
        let later = start + FIRST_PAUSE;
        let test = breaker.admit(later).unwrap();
        breaker.gave_up(unwanted);
        assert!(breaker.admit(later).is_none(), "another request gave up");
        let until = breaker.open_until;
        breaker.failed(silent, true, later);
        assert!(breaker.admit(later).is_none(), "another request failed");
        assert_eq!((breaker.open_until, breaker.state()), (until, BreakerState::HalfOpen));
        breaker.gave_up(test);
        assert!(breaker.admit(later).is_some(), "the test itself gave up");
        breaker.failed(test, true, later);
        assert!(breaker.admit(later).is_none(), "a test that is over is not the next one");
    }
}
