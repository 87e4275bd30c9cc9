//! Retries: when to try again, and when to give up.
//!
//! It owns the time limits, the count of failures, and the decision which failures are temporary.
//! It sends nothing.

use std::time::Duration;

use super::error::PullError;
use crate::progress::{Event, Progress};

/// Time limits and number of attempts. Tests shorten them.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// Limit for a name look-up, and for a connection.
    pub(crate) connect: Duration,
    /// Limit for the next byte of a response. The whole response has no limit.
    pub(crate) stall: Duration,
    /// Failures in a row, without a new byte between them.
    pub(crate) attempts: u32,
    /// The pause after the first failure. It doubles with each further failure.
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

/// A failed attempt.
#[derive(Debug)]
pub(super) enum Failure {
    /// A temporary failure, such as a broken connection or a busy server, as text for the user.
    Passing(String),
    /// No connection to the server, as text for the user. Temporary in the middle of a pull.
    Unreachable(String),
    /// A permanent failure.
    Lasting(PullError),
}

impl From<PullError> for Failure {
    fn from(error: PullError) -> Self {
        Failure::Lasting(error)
    }
}

/// Decides whether an error of the HTTP library is temporary.
pub(super) fn classify(url: &str, error: ureq::Error) -> Failure {
    use ureq::Error;
    match error {
        // The library reports a bad certificate as invalid data.
        Error::Io(e) if e.kind() == std::io::ErrorKind::InvalidData => {
            PullError::BadAnswer { url: url.to_owned(), reason: e.to_string() }.into()
        }
        Error::Timeout(which @ (ureq::Timeout::Resolve | ureq::Timeout::Connect)) => {
            Failure::Unreachable(format!("the time limit was reached ({which})"))
        }
        Error::Timeout(which) => Failure::Passing(format!("the time limit was reached ({which})")),
        Error::HostNotFound => Failure::Unreachable("the host was not found".to_owned()),
        Error::ConnectionFailed => Failure::Unreachable(error.to_string()),
        Error::Io(e) if is_unreachable(&e) => Failure::Unreachable(e.to_string()),
        Error::Io(_) | Error::Protocol(_) | Error::BodyStalled => {
            Failure::Passing(format!("the connection failed ({error})"))
        }
        _ => PullError::BadAnswer { url: url.to_owned(), reason: error.to_string() }.into(),
    }
}

/// Whether an error means that there is no way to the server, or no server.
fn is_unreachable(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable};
    // The system reports a failed look-up without a kind.
    matches!(error.kind(), ConnectionRefused | HostUnreachable | NetworkDown | NetworkUnreachable)
        || error.to_string().contains("lookup address")
}

/// Calls `attempt` until it succeeds, fails permanently, or fails `limits.attempts` times in a row.
/// After each failure, `reached` returns how far the work has come; progress resets the count. A
/// long download over a bad line therefore completes, and a server that sends nothing is given up.
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
            Err(Failure::Passing(reason) | Failure::Unreachable(reason)) => reason,
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
