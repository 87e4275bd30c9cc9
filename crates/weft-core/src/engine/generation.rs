//! One request's tokens as an iterator.

use std::collections::VecDeque;

use thiserror::Error;

use super::{Engine, Event, Finished, LaneId, RequestError, Token};
use crate::device::DeviceError;
use crate::sampling::SamplingError;

/// The tokens of one answer, while they are generated. Dropping it cancels the request.
pub struct Generation<'e> {
    engine: &'e mut Engine,
    lane: LaneId,
    ready: VecDeque<Token>,
    finished: Option<Finished>,
    over: bool,
    on_prefill: Option<Box<dyn FnMut(usize, usize) + 'e>>,
}

/// Why an answer failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// The request was refused.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The model's output cannot be sampled.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
}

impl<'e> Generation<'e> {
    pub(super) fn new(engine: &'e mut Engine, lane: LaneId) -> Self {
        let ready = VecDeque::new();
        Self { engine, lane, ready, finished: None, over: false, on_prefill: None }
    }

    /// Calls `callback` with (done, total) prompt tokens after each block of the prompt.
    pub fn on_prefill(mut self, callback: impl FnMut(usize, usize) + 'e) -> Self {
        self.on_prefill = Some(Box::new(callback));
        self
    }

    /// How the answer ended, once the iterator has ended.
    pub fn finished(&self) -> Option<Finished> {
        self.finished.clone()
    }

    /// Runs the engine until this lane has a token or has ended.
    fn advance(&mut self) -> Result<(), GenerateError> {
        while self.ready.is_empty() && !self.over {
            for event in self.engine.step_for(|lane| lane == self.lane)? {
                match event {
                    Event::Token { token, .. } => self.ready.push_back(token),
                    Event::Prefill { done, total, .. } => {
                        if let Some(callback) = &mut self.on_prefill {
                            callback(done, total);
                        }
                    }
                    Event::Done { finished, .. } => {
                        self.finished = Some(finished);
                        self.over = true;
                    }
                    // A request that reads has no tokens. Batches collect what is said of prompts.
                    Event::Read { .. } | Event::Prompt { .. } => {}
                    Event::Failed { error, .. } => return Err(error.into()),
                }
            }
        }
        Ok(())
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<Token, GenerateError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Err(error) = self.advance() {
            self.over = true;
            return Some(Err(error));
        }
        self.ready.pop_front().map(Ok)
    }
}

impl Drop for Generation<'_> {
    fn drop(&mut self) {
        self.engine.discard(|lane| lane == self.lane);
    }
}
