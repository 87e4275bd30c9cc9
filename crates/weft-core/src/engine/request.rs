//! Requests, and why they can be refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thiserror::Error;

use super::held::Policy;
use super::{Reading, Speculate};
use crate::cache::RowGroup;
use crate::chunk::Composition;
use crate::kv::OutOfPages;
use crate::sampling::{Constraint, Sampling, SamplingError};

const MAX_PIECES: usize = Composition::MAX_PIECES;

/// A prompt and the settings of its answer.
#[derive(Clone, Debug)]
pub struct Request {
    /// The prompt, in pieces.
    pub prompt: Composition,
    /// Sampling settings and end conditions.
    pub sampling: Sampling,
    /// The handle that cancels the request.
    pub cancel: Cancel,
    /// Whether cached rows are used, and new ones cached.
    pub use_cache: bool,
    /// The requests that share rows with this one even without the cache.
    pub group: Option<RowGroup>,
    /// A constraint on the answer, if any.
    pub constraint: Option<Box<dyn Constraint>>,
    /// How much is drafted; as the engine is set if it is `None`. It changes the speed alone.
    pub speculate: Option<Speculate>,
    /// A text that the answer may repeat in large parts, as tokens: a draft, and no more.
    pub prediction: Option<Vec<u32>>,
    /// What is read of the prompt's last token instead of an answer, if anything.
    pub reading: Option<Reading>,
}

impl Request {
    /// A request with its own cancel handle.
    pub fn new(prompt: impl Into<Composition>, sampling: Sampling) -> Self {
        Self {
            prompt: prompt.into(),
            sampling,
            cancel: Cancel::default(),
            use_cache: true,
            group: None,
            constraint: None,
            speculate: None,
            prediction: None,
            reading: None,
        }
    }

    /// The same request without the cache: it neither uses cached rows nor adds any.
    pub fn cold(self) -> Self {
        Self { use_cache: false, ..self }
    }

    /// The request as it runs.
    pub(super) fn settled(self) -> Self {
        if self.sampling.reports_prompt() && self.reading.is_none() {
            // Cached rows carry no logits, and rows computed on another device may differ in the
            // last bits.
            return Self { prompt: self.prompt.exact(), group: None, ..self.cold() };
        }
        // Of a prompt that is read, nothing else is reported.
        let sampling = Sampling { echo: false, prompt_logprobs: None, ..self.sampling };
        Self { prompt: self.prompt.answered(), sampling, ..self }
    }

    pub(super) fn policy(&self, use_cache: bool) -> Policy {
        let policy = match &self.group {
            _ if use_cache => Policy::WARM,
            Some(group) => Policy::of_group(group.id()),
            None => Policy::COLD,
        };
        let last = self.prompt.pieces.last().map_or(0, |piece| piece.tokens.len());
        match self.reading {
            Some(_) => Policy { answers: false, keeps_until: self.prompt.len() - last, ..policy },
            None => policy,
        }
    }

    /// Checks the prompt, and returns the maximum number of tokens of its answer.
    pub(super) fn check(
        &self,
        vocab: usize,
        context: usize,
        positions: usize,
    ) -> Result<usize, RequestError> {
        let tokens = self.prompt.len();
        if tokens == 0 {
            return Err(RequestError::EmptyPrompt);
        }
        let mut pieces = self.prompt.pieces.iter();
        let unknown = |token: &&u32| **token as usize >= vocab;
        if let Some(token) = pieces.by_ref().find_map(|piece| piece.tokens.iter().find(unknown)) {
            return Err(RequestError::UnknownToken { token: *token, vocab });
        }
        let read = match &self.reading {
            Some(Reading::Logits(tokens)) => &tokens[..],
            _ => &[],
        };
        if let Some(token) = read.iter().find(unknown) {
            return Err(RequestError::UnknownToken { token: *token, vocab });
        }
        if tokens >= context {
            return Err(RequestError::TooLong { tokens, context, positions });
        }
        if self.prompt.pieces.len() > MAX_PIECES {
            let pieces = self.prompt.pieces.len();
            return Err(RequestError::TooManyPieces { pieces });
        }
        Ok(self.sampling.max_tokens.unwrap_or(context).min(context - tokens))
    }
}

/// Cancels a request from any thread, within one step.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Cancels the request.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the request was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Why a request is refused.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The prompt is empty.
    #[error("the prompt has no tokens; give it a text")]
    EmptyPrompt,
    /// The model does not have this token.
    #[error("token {token} is not in the model's vocabulary; ids are below {vocab}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The prompt leaves no room for an answer.
    #[error(
        "the prompt has {tokens} tokens and the context holds {context}, answer included; {}",
        shorten(*context, *positions)
    )]
    TooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens of the context.
        context: usize,
        /// Tokens of the longest context that the model can have.
        positions: usize,
    },
    /// The prompt has more pieces than a lane has spans.
    #[error("the prompt has {pieces} pieces, and the limit is {MAX_PIECES}; join some of them")]
    TooManyPieces {
        /// Number of pieces.
        pieces: usize,
    },
    /// The sampling settings are out of range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// Every lane is busy.
    #[error("all {} lanes are busy; wait for one to finish", crate::device::MAX_LANES)]
    NoLane,
    /// Rows cannot be computed in advance.
    #[error("the cache is off (--no-cache), so rows cannot be computed in advance")]
    KeepsNothing,
    /// There is too little free memory for prompt and answer.
    #[error(
        "{0}; wait for a running request, unpin chunks, allow a shorter answer (--max-tokens) or \
         give more memory for KV rows (--kv-memory)"
    )]
    NoRoom(#[from] OutOfPages),
}

/// What helps against a prompt that is too long.
fn shorten(context: usize, positions: usize) -> String {
    if positions > context {
        format!("shorten the prompt, or lengthen the context (--ctx-size, at most {positions})")
    } else {
        "shorten the prompt, because the model has no more positions".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::{Kind, Piece, Reuse};

    #[test]
    fn prompts_that_cannot_run_are_refused() {
        let check = |pieces: Vec<Vec<u32>>| {
            let pieces = pieces.into_iter().map(|tokens| Piece::exact(Kind::Query, tokens));
            let prompt = Composition { pieces: pieces.collect(), ..Composition::default() };
            Request::new(prompt, Sampling::default()).check(10, 1000, 2000)
        };
        assert!(matches!(check(vec![]), Err(RequestError::EmptyPrompt)));
        assert!(matches!(check(vec![vec![]]), Err(RequestError::EmptyPrompt)));
        let unknown = check(vec![vec![1], vec![9, 10]]);
        assert!(matches!(unknown, Err(RequestError::UnknownToken { token: 10, vocab: 10 })));
        assert_eq!(check(vec![vec![9; 999]]).unwrap(), 1, "room for one token");
        let long = check(vec![vec![9; 1000]]);
        let long = long.unwrap_err().to_string();
        assert!(
            long.contains("holds 1000") && long.ends_with("(--ctx-size, at most 2000)"),
            "{long}"
        );
        let whole = RequestError::TooLong { tokens: 9, context: 8, positions: 8 }.to_string();
        assert!(whole.ends_with("the model has no more positions"), "{whole}");
        assert_eq!(check(vec![vec![1]; MAX_PIECES]).unwrap(), 1000 - MAX_PIECES);
        let many = check(vec![vec![1]; MAX_PIECES + 1]);
        let refused = MAX_PIECES + 1;
        assert!(matches!(many, Err(RequestError::TooManyPieces { pieces }) if pieces == refused));
    }

    /// Every row of an echoed prompt has logits, and exact ones: none is cached or moved.
    #[test]
    fn an_echo_computes_its_prompt_exactly() {
        let mut prompt: Composition = vec![1, 2, 3].into();
        prompt.pieces.iter_mut().for_each(|piece| piece.reuse = Reuse::Isolated);
        let settled = |echo: bool| {
            Request::new(prompt.clone(), Sampling { echo, ..Sampling::default() }).settled()
        };
        let echoed = settled(true);
        assert!(!echoed.use_cache && echoed.group.is_none());
        assert!(echoed.prompt.pieces.iter().all(|piece| piece.reuse == Reuse::Exact));
        assert!(settled(false).use_cache);
    }
}
