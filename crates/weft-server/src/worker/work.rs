//! What a lane is to do, and what can happen to it.

use std::sync::mpsc::Receiver;
use std::time::Instant;

use thiserror::Error;
use weft_core::chunk::Composition;
use weft_core::engine::{Cancel, Engine, Finished, LaneId, Request, RequestError, Token};
use weft_core::sampling::SamplingError;

use super::outlet::Outlet;
use crate::api_error::ApiError;

/// What a lane is to do.
pub(crate) enum Work {
    /// Answer a prompt.
    Answer(Box<Request>),
    /// Compute a prompt's rows ahead.
    Warm(Composition),
    /// Tell the logits that an answer's tokens were drawn from.
    Score { prompt: Composition, answer: Vec<u32>, use_cache: bool },
}

/// What happened to a lane.
#[derive(Debug)]
pub(crate) enum Happening {
    /// It runs now.
    Admitted,
    /// Where a score's rows come out.
    Rows(Receiver<Vec<f32>>),
    /// A token was generated.
    Token(Token),
    /// It is done.
    Done(Box<Finished>),
    /// It ended without an answer.
    Failed(Failure),
}

/// Why a lane ended without an answer.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Refused(#[from] RequestError),
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    #[error("the engine failed and this request was lost; it is being restarted, try again")]
    Fault,
    #[error("the answer was ended: its client did not read it, or the server is shutting down")]
    Ended,
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(error) => error.into(),
            Failure::Sampling(error) => error.into(),
            Failure::Fault => Self::fault(failure.to_string()),
            Failure::Ended => Self::unavailable(failure.to_string()),
        }
    }
}

/// Work that waits for a lane.
pub(super) struct Entry {
    work: Work,
    pub(super) outlet: Outlet,
    pub(super) cancel: Cancel,
    pub(super) since: Instant,
}

/// What admitting an entry came to.
pub(super) enum Admission {
    /// It runs in this lane.
    Runs(LaneId),
    /// There was nothing to run.
    Nothing,
    /// It has to wait for those that run.
    Waits,
    Refused(RequestError),
}

impl Entry {
    pub(super) fn new(work: Work, outlet: Outlet) -> Self {
        let cancel = match &work {
            Work::Answer(request) => request.cancel.clone(),
            Work::Warm(_) | Work::Score { .. } => Cancel::default(),
        };
        Self { work, outlet, cancel, since: Instant::now() }
    }

    /// Whether it writes an answer, and does not only compute rows.
    pub(super) fn answers(&self) -> bool {
        matches!(self.work, Work::Answer(_))
    }

    pub(super) fn admit(&mut self, engine: &mut Engine) -> Admission {
        let admitted = match &mut self.work {
            // Asked before the request is copied: most tries find no room.
            Work::Answer(request) => match engine.check_room(request) {
                Ok(()) => engine.add((**request).clone()).map(Some),
                Err(error) => Err(error),
            },
            Work::Warm(prompt) => engine.add_warm(prompt, &self.cancel),
            Work::Score { prompt, answer, use_cache } => {
                engine.add_score(prompt, answer, *use_cache, &self.cancel).map(|(lane, rows)| {
                    self.outlet.tell(Happening::Rows(rows));
                    Some(lane)
                })
            }
        };
        match admitted {
            Ok(Some(lane)) => Admission::Runs(lane),
            Ok(None) => Admission::Nothing,
            Err(RequestError::NoLane | RequestError::NoRoom(_)) if engine.running() > 0 => {
                Admission::Waits
            }
            Err(error) => Admission::Refused(error),
        }
    }
}
