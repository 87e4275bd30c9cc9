//! Why a model cannot be opened or asked.

use thiserror::Error;
use weft_core::chunk::ChunkError;
use weft_core::device::Need;
use weft_core::engine::{GenerateError, RequestError};
use weft_core::hub::HubError;
use weft_core::model::ModelError;

use crate::memory::in_bytes;

/// Why a model cannot be opened or asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// No model has this name, or the hub's cache cannot be read.
    #[error(transparent)]
    Hub(Box<HubError>),
    /// A model's files are not what they should be.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A model cannot be downloaded.
    #[cfg(feature = "hub")]
    #[error(transparent)]
    Pull(Box<crate::pull::PullError>),
    /// The model was made for fewer positions.
    #[error("a context of {wanted} tokens is beyond the {most} positions this model was made for")]
    ContextTooLong {
        /// What was asked for.
        wanted: usize,
        /// The model's positions.
        most: usize,
    },
    /// A context must hold a prompt and an answer.
    #[error("a context of {wanted} tokens does not hold a prompt and an answer; give 2 or more")]
    ContextTooShort {
        /// What was asked for.
        wanted: usize,
    },
    /// The memory for KV rows does not hold one context.
    #[error(
        "{} for KV rows are too little for a context of {context} tokens; give {} or more, or \
         shorten the context",
        in_bytes(*given), in_bytes(*least)
    )]
    KvMemory {
        /// Bytes that were asked for.
        given: u64,
        /// Bytes that one context takes.
        least: u64,
        /// Tokens of the context.
        context: usize,
    },
    /// The model does not fit.
    #[error(
        "the model needs {} ({} of weights, {} of KV for contexts of {context} tokens, {} of \
         scratch) and {} are free{}; shorten the context, lower the memory for KV rows, or take \
         a smaller model",
        in_bytes(need.total()), in_bytes(need.weights), in_bytes(need.kv), in_bytes(need.scratch),
        in_bytes(*free), if *on_gpu { " on the GPU" } else { "" }
    )]
    TooLarge {
        /// What the model takes.
        need: Need,
        /// What is free.
        free: u64,
        /// Tokens of the context.
        context: usize,
        /// Whether it is the GPU's memory.
        on_gpu: bool,
    },
    /// A GPU was asked for and cannot be used.
    #[error("{0}")]
    Gpu(String),
    /// `WEFT_CPU_ISA` names instructions that this machine does not have.
    #[cfg(feature = "cpu")]
    #[error("WEFT_CPU_ISA: {0}")]
    Isa(#[from] weft_cpu::IsaError),
    /// A document or a prompt of documents is refused.
    #[error(transparent)]
    Chunk(#[from] ChunkError),
    /// A question is refused.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A stream was to give its whole answer after it had returned an error.
    #[error("the answer broke off before its end, with the error that its stream returned")]
    BrokenOff,
    /// An answer broke off.
    #[error(transparent)]
    Generate(#[from] GenerateError),
}

// Boxed, so that a result of the calls that seldom fail is small.
impl From<HubError> for Error {
    fn from(error: HubError) -> Self {
        Self::Hub(Box::new(error))
    }
}

#[cfg(feature = "hub")]
impl From<crate::pull::PullError> for Error {
    fn from(error: crate::pull::PullError) -> Self {
        Self::Pull(Box::new(error))
    }
}
