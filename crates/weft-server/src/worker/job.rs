//! A job: what one lane does for a request, how it waits in the queue, and what can happen to it.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use thiserror::Error;
use weft_core::chunk::{Composition, Report};
use weft_core::engine::{
    Cancel, Engine, Finished, LaneId, PromptToken, Request, RequestError, Token,
};
use weft_core::sampling::SamplingError;

use super::event_sender::EventSender;
use crate::api_error::ApiError;

/// The task of a lane.
pub(crate) enum Job {
    /// Answer a prompt; the progress of the prompt is sent if the client asked for it.
    Answer { request: Box<Request>, sends_progress: bool },
    /// Compute a prompt's rows ahead, and file those of its chunks.
    Warm(Composition),
    /// Read the last token of a prompt.
    Read(Box<Request>),
    /// Compute the logits that an answer's tokens were drawn from.
    Score { prompt: Composition, answer: Vec<u32>, use_cache: bool },
}

/// What happened to a job.
#[derive(Debug)]
pub(crate) enum JobEvent {
    /// It has a lane.
    Admitted,
    /// The channel that a score's rows come from.
    Rows(Receiver<Vec<f32>>),
    /// Another block of its prompt was run.
    Progress(Box<Progress>),
    /// A token was generated.
    Token {
        token: Token,
        /// Whether a draft had it.
        is_drafted: bool,
    },
    /// Tokens of the prompt with their log-probabilities.
    Prompt(Vec<PromptToken>),
    /// What a job reads.
    Read(Vec<f32>),
    /// It is done.
    Done(Box<Finished>),
    /// It was cancelled.
    Cancelled(Box<Finished>),
    /// It ended without an answer.
    Failed(JobError),
}

/// How far a prompt has been computed.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Prompt tokens whose rows are there, cached ones included.
    pub(crate) processed: usize,
    /// Time since the job got its lane.
    pub(crate) time: Duration,
    /// Its pieces, so far.
    pub(crate) report: Report,
}

/// Why a job ended without an answer.
#[derive(Debug, Error)]
pub(crate) enum JobError {
    #[error(transparent)]
    Refused(#[from] RequestError),
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    #[error("the engine failed and this request was lost; the engine is restarting, try again")]
    Fault,
    #[error("the answer was ended: its client did not read it, or the server is shutting down")]
    Ended,
}

impl From<JobError> for ApiError {
    fn from(error: JobError) -> Self {
        match error {
            JobError::Refused(error) => error.into(),
            JobError::Sampling(error) => error.into(),
            JobError::Fault => Self::fault(error.to_string()),
            JobError::Ended => Self::unavailable(error.to_string()),
        }
    }
}

/// A job that waits for a lane.
pub(super) struct QueuedJob {
    job: Job,
    pub(super) events: EventSender,
    pub(super) cancel: Cancel,
    pub(super) since: Instant,
}

/// The result of trying to give a job a lane.
pub(super) enum Admission {
    /// It runs in this lane.
    Admitted(LaneId),
    /// There was nothing to compute.
    NothingToDo,
    /// It must wait for running lanes.
    NoRoom,
    Refused(RequestError),
}

impl QueuedJob {
    pub(super) fn new(job: Job, events: EventSender) -> Self {
        let cancel = match &job {
            Job::Answer { request, .. } | Job::Read(request) => request.cancel.clone(),
            Job::Warm(_) | Job::Score { .. } => Cancel::default(),
        };
        Self { job, events, cancel, since: Instant::now() }
    }

    /// Whether it writes an answer; other jobs only compute rows.
    pub(super) fn is_answer(&self) -> bool {
        matches!(self.job, Job::Answer { .. })
    }

    /// Whether it promises that its rows are in files when it is done.
    pub(super) fn is_warm(&self) -> bool {
        matches!(self.job, Job::Warm(_))
    }

    /// Whether it reads a prompt.
    pub(super) fn is_reading(&self) -> bool {
        matches!(self.job, Job::Read(_))
    }

    pub(super) fn sends_progress(&self) -> bool {
        matches!(self.job, Job::Answer { sends_progress: true, .. })
    }

    pub(super) fn admit(&mut self, engine: &mut Engine) -> Admission {
        let lane = match &mut self.job {
            // Checked before the request is copied: most attempts find no room.
            Job::Answer { request, .. } | Job::Read(request) => match engine.check_room(request) {
                Ok(()) => engine.add((**request).clone()).map(Some),
                Err(error) => Err(error),
            },
            Job::Warm(prompt) => engine.add_warm(prompt, &self.cancel),
            Job::Score { prompt, answer, use_cache } => {
                engine.add_score(prompt, answer, *use_cache, &self.cancel).map(|(lane, rows)| {
                    self.events.send(JobEvent::Rows(rows));
                    Some(lane)
                })
            }
        };
        match lane {
            Ok(Some(lane)) => Admission::Admitted(lane),
            Ok(None) => Admission::NothingToDo,
            Err(RequestError::NoLane | RequestError::NoRoom(_)) if engine.running() > 0 => {
                Admission::NoRoom
            }
            Err(error) => Admission::Refused(error),
        }
    }
}
