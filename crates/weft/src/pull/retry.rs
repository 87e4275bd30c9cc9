//! When to try again, and when to give up.
//!
//! Owns the limits of time and patience, the count of failures, and the judgement which failures of
//! a connection may pass by themselves. It sends nothing and knows nothing of files.

use std::time::Duration;

use super::error::PullError;
use crate::progress::{Event, Progress};

/// How long to wait, and how often to try. Tests shorten all of it.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// For a name look-up, and for a connection.
    pub(crate) connect: Duration,
    /// For the next byte of an answer; there is no limit on the whole.
    pub(crate) stall: Duration,
    /// Failures in a row, with no new byte in between.
    pub(crate) attempts: u32,
    /// The pause after the first failure; it doubles with each further one.
    pub(crate) first_pause: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connect: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            attempts: 6,
            first_pause: Duration::from_millis(500),
        }
    }
}

/// How an attempt failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// It may pass: a broken connection, a busy server. In words for the user.
    Passing(String),
    /// It will not.
    Lasting(PullError),
}

impl From<PullError> for Failure {
    fn from(error: PullError) -> Self {
        Failure::Lasting(error)
    }
}

/// Whether a failure of the HTTP library may pass by itself.
pub(super) fn classify(url: &str, error: ureq::Error) -> Failure {
    use ureq::Error;
    match error {
        // A bad certificate arrives in this clothing.
        Error::Io(e) if e.kind() == std::io::ErrorKind::InvalidData => {
            PullError::BadAnswer { url: url.to_owned(), reason: e.to_string() }.into()
        }
        Error::Timeout(which) => Failure::Passing(format!("the time limit was reached ({which})")),
        Error::HostNotFound => Failure::Passing(format!("the host of {url} was not found")),
        Error::Io(_) | Error::ConnectionFailed | Error::Protocol(_) | Error::BodyStalled => {
            Failure::Passing(format!("the connection failed ({error})"))
        }
        _ => PullError::BadAnswer { url: url.to_owned(), reason: error.to_string() }.into(),
    }
}

/// Calls `attempt` until it succeeds, fails for good, or fails `limits.attempts` times in a row.
/// `reached` says after a failure how far the work has come: a new mark starts the count again, so
/// a long download over a bad line ends, and a server that makes no headway is left.
pub(super) fn with_retries<T>(
    what: &str,
    limits: &Limits,
    progress: &dyn Progress,
    reached: impl Fn() -> u64,
    mut attempt: impl FnMut() -> Result<T, Failure>,
) -> Result<T, PullError> {
    let (mut n_failed, mut mark) = (0, 0);
    loop {
        let reason = match attempt() {
            Ok(value) => return Ok(value),
            Err(Failure::Lasting(error)) => return Err(error),
            Err(Failure::Passing(reason)) => reason,
        };
        let now = reached();
        n_failed = if now > mark { 1 } else { n_failed + 1 };
        mark = mark.max(now);
        if n_failed >= limits.attempts {
            return Err(PullError::GaveUp { what: what.to_owned(), attempts: n_failed, reason });
        }
        let wait = limits.first_pause * 2_u32.saturating_pow(n_failed - 1);
        progress.report(Event::Retrying { what, reason: &reason, wait });
        std::thread::sleep(wait);
    }
}
