//! What a caller asks for, and why it can be refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thiserror::Error;

use super::held::Policy;
use crate::chunk::Composition;
use crate::kv::OutOfPages;
use crate::sampling::{Constraint, Sampling, SamplingError};

const MAX_PIECES: usize = Composition::MAX_PIECES;

/// A prompt and how to answer it.
#[derive(Clone, Debug)]
pub struct Request {
    /// The prompt, in pieces.
    pub prompt: Composition,
    /// How to sample, and when to stop.
    pub sampling: Sampling,
    /// The handle that ends the request early.
    pub cancel: Cancel,
    /// Whether kept rows are used, and new ones kept.
    pub use_cache: bool,
    /// What the answer may say; anything, if nothing is said.
    pub constraint: Option<Box<dyn Constraint>>,
}

impl Request {
    /// A request with its own cancel handle.
    pub fn new(prompt: impl Into<Composition>, sampling: Sampling) -> Self {
        Self {
            prompt: prompt.into(),
            sampling,
            cancel: Cancel::default(),
            use_cache: true,
            constraint: None,
        }
    }

    /// The same, neither using kept rows nor keeping any.
    pub fn cold(self) -> Self {
        Self { use_cache: false, ..self }
    }

    /// The same, as it is run.
    pub(super) fn settled(self) -> Self {
        if self.sampling.echo {
            // Kept rows have no logits, and rows that were computed elsewhere others.
            return Self { prompt: self.prompt.exact(), ..self.cold() };
        }
        Self { prompt: self.prompt.answered(), ..self }
    }

    pub(super) fn policy(&self) -> Policy {
        if self.use_cache { Policy::WARM } else { Policy::COLD }
    }

    /// Checks the prompt, and gives the number of tokens that its answer can have at most.
    pub(super) fn check(&self, vocab: usize, context: usize) -> Result<usize, RequestError> {
        let tokens = self.prompt.len();
        if tokens == 0 {
            return Err(RequestError::EmptyPrompt);
        }
        let mut pieces = self.prompt.pieces.iter();
        let unknown = |token: &&u32| **token as usize >= vocab;
        if let Some(token) = pieces.by_ref().find_map(|piece| piece.tokens.iter().find(unknown)) {
            return Err(RequestError::UnknownToken { token: *token, vocab });
        }
        if tokens >= context {
            return Err(RequestError::TooLong { tokens, context });
        }
        if self.prompt.pieces.len() > MAX_PIECES {
            let pieces = self.prompt.pieces.len();
            return Err(RequestError::TooManyPieces { pieces });
        }
        Ok(self.sampling.max_tokens.unwrap_or(context).min(context - tokens))
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
    /// More pieces than a lane has spans for.
    #[error("the prompt has {pieces} chunks and a prompt holds {MAX_PIECES}; join some of them")]
    TooManyPieces {
        /// Its pieces.
        pieces: usize,
    },
    /// The sampling settings are out of range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// Every lane is busy.
    #[error("all {} lanes are busy; wait for one to finish", crate::device::MAX_LANES)]
    NoLane,
    /// The memory that is free does not hold prompt and answer.
    #[error(
        "{0}; wait for a running request, unpin chunks, lower --max-tokens or raise --kv-memory"
    )]
    NoRoom(#[from] OutOfPages),
}
