//! Errors of opening a model and of asking it.

use thiserror::Error;
use weft_core::chunk::ChunkError;
use weft_core::device::Need;
use weft_core::engine::{DraftModelError, GenerateError, RequestError};
use weft_core::hub::HubError;
use weft_core::model::ModelError;
use weft_core::retrieval::RerankError;

use crate::memory::in_bytes;

/// Why a model cannot be opened, or a question cannot be answered.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The name is unknown, or the hub's cache cannot be read.
    #[error(transparent)]
    Hub(Box<HubError>),
    /// A file of the model is missing, damaged or unsupported.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The download failed.
    #[cfg(feature = "hub")]
    #[error(transparent)]
    Pull(Box<crate::pull::PullError>),
    /// The context is longer than the model's maximum.
    #[error(
        "a context of {wanted} tokens exceeds the model's {most} positions; shorten the context"
    )]
    ContextTooLong {
        /// Tokens that the caller asked for.
        wanted: usize,
        /// The model's maximum.
        most: usize,
    },
    /// The context has no room for a prompt and an answer.
    #[error("a context of {wanted} tokens does not hold a prompt and an answer; give 2 or more")]
    ContextTooShort {
        /// Tokens that the caller asked for.
        wanted: usize,
    },
    /// The memory for KV rows is too small for one context.
    #[error(
        "{} for KV rows is too little for a context of {context} tokens; give {} or more, or \
         shorten the context",
        in_bytes(*given), in_bytes(*least)
    )]
    KvMemory {
        /// Bytes that the caller asked for.
        given: u64,
        /// Bytes that one context needs.
        least: u64,
        /// Tokens of the context.
        context: usize,
    },
    /// The model does not fit into memory.
    #[error(
        "the model needs {} ({} of weights, {} of KV rows for contexts of {context} tokens, {} of \
         buffers) and only {} is free{}; shorten the context, lower the memory for KV rows, {}or \
         choose a smaller model",
        in_bytes(need.total()), in_bytes(need.weights), in_bytes(need.kv), in_bytes(need.scratch),
        in_bytes(*free), if *on_gpu { " on the GPU" } else { "" },
        if *has_experts { "keep the experts in main memory, " } else { "" }
    )]
    TooLarge {
        /// The memory that the model needs.
        need: Need,
        /// Free bytes.
        free: u64,
        /// Tokens of the context.
        context: usize,
        /// Whether the GPU's memory is too small, rather than main memory.
        on_gpu: bool,
        /// Whether the GPU holds experts, which could lie in main memory.
        has_experts: bool,
    },
    /// The experts of the model do not fit into main memory.
    #[error(
        "the model's experts need {} of main memory ({} of weights) and only {} is free; choose a \
         smaller model or a form with fewer bits",
        in_bytes(need.total()), in_bytes(need.weights), in_bytes(*free)
    )]
    ExpertsTooLarge {
        /// The main memory that the experts need.
        need: Need,
        /// Free bytes.
        free: u64,
    },
    /// The caller asked for experts in main memory, which this model or device does not allow.
    #[error("experts cannot lie in main memory beside a GPU: {0}; leave the experts on the device")]
    Experts(&'static str),
    /// The model fits into memory, and its draft model does not fit beside it.
    #[error(
        "the model needs {} and its draft model {} ({} of weights, {} of KV rows, {} of buffers), \
         and only {} is free{}; leave out the draft model, choose a smaller one, or shorten the \
         context",
        in_bytes(need.total()), in_bytes(draft.total()), in_bytes(draft.weights),
        in_bytes(draft.kv), in_bytes(draft.scratch), in_bytes(*free),
        if *on_gpu { " on the GPU" } else { "" }
    )]
    DraftTooLarge {
        /// The memory that the model needs.
        need: Need,
        /// The memory that the draft model needs.
        draft: Need,
        /// Free bytes.
        free: u64,
        /// Whether the GPU's memory is too small, rather than main memory.
        on_gpu: bool,
    },
    /// The draft model has another tokenizer.
    #[error(transparent)]
    DraftModel(#[from] DraftModelError),
    /// The caller asked for a GPU, and it cannot be used.
    #[error("{0}")]
    Gpu(String),
    /// `WEFT_CPU_ISA` names an instruction set that is unknown, or that this machine lacks.
    #[cfg(feature = "cpu")]
    #[error("WEFT_CPU_ISA: {0}")]
    Isa(#[from] weft_cpu::IsaError),
    /// A document, or the prompt that contains it, is invalid.
    #[error(transparent)]
    Chunk(#[from] ChunkError),
    /// A question is invalid, or does not fit the context.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The model cannot rank documents.
    #[error(transparent)]
    Rerank(#[from] RerankError),
    /// [`Stream::finish`](crate::Stream::finish) was called after the stream had returned an error.
    #[error("the answer is incomplete: its stream has already returned an error; ask again")]
    BrokenOff,
    /// Generation failed before the answer was complete.
    #[error(transparent)]
    Generate(#[from] GenerateError),
}

// Boxed, to keep every `Result` of this crate small.
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
