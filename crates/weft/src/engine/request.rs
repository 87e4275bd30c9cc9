//! What a caller asks for, and why it can be refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thiserror::Error;

use crate::kv::OutOfPages;
use crate::sampling::{Sampling, SamplingError};

/// A prompt and how to answer it.
#[derive(Clone, Debug)]
pub struct Request {
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// How to sample, and when to stop.
    pub sampling: Sampling,
    /// The handle that ends the request early.
    pub cancel: Cancel,
}

impl Request {
    /// A request with its own cancel handle.
    pub fn new(prompt: Vec<u32>, sampling: Sampling) -> Self {
        Self { prompt, sampling, cancel: Cancel::default() }
    }

    /// Checks the request, and gives the number of KV rows it can need at most.
    pub(super) fn check(&self, vocab: usize, context: usize) -> Result<usize, RequestError> {
        self.sampling.check(vocab)?;
        let tokens = self.prompt.len();
        if tokens == 0 {
            return Err(RequestError::EmptyPrompt);
        }
        if let Some(token) = self.prompt.iter().find(|token| **token as usize >= vocab) {
            return Err(RequestError::UnknownToken { token: *token, vocab });
        }
        if tokens >= context {
            return Err(RequestError::TooLong { tokens, context });
        }
        let answer = self.sampling.max_tokens.unwrap_or(context);
        Ok(tokens.saturating_add(answer).min(context))
    }
}

/// Ends a request from anywhere, within one step.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Asks the request to end.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked to.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Why a request is not taken.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// There is nothing to answer.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// A token the model does not have.
    #[error("token {token} is not in the vocabulary of {vocab}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The prompt leaves no room for an answer.
    #[error(
        "the prompt has {tokens} tokens and the context holds {context}, answer included; \
         shorten it, or raise --ctx-size if the model has more positions"
    )]
    TooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// The sampling settings are out of range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// Every lane is busy.
    #[error("all {} lanes are busy; wait for one to finish", crate::device::MAX_LANES)]
    NoLane,
    /// The memory that is free does not hold prompt and answer.
    #[error("{0}; wait for a running request, lower --max-tokens or raise --ctx-size")]
    NoRoom(#[from] OutOfPages),
}
