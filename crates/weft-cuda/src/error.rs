//! Errors between this program and a GPU; each says what to do next.

use thiserror::Error;
use weft_core::weights::WeightsError;

/// Why there is no CUDA device.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CudaError {
    /// No driver, no compiler or no GPU: one line that says which.
    #[error("no CUDA device: {0}")]
    Unavailable(String),
    /// The kernels do not support this model.
    #[error("the CUDA device does not run this model: {0}; run it on the CPU (--device cpu)")]
    Unsupported(String),
    /// The kernels do not compile: a bug in this program.
    #[error("the CUDA kernels do not compile for {arch}: {log}; please report this")]
    Compile {
        /// The GPU they were compiled for.
        arch: String,
        /// The compiler's output.
        log: String,
    },
    /// The GPU does not have enough memory.
    #[error(
        "the GPU has {free} MiB free and {wanted} MiB are needed for {what}; \
         shorten the context (--ctx-size), close other programs or choose a smaller model"
    )]
    Memory {
        /// What the memory was for.
        what: &'static str,
        /// MiB asked for.
        wanted: usize,
        /// MiB free.
        free: usize,
    },
    /// The weights cannot be read.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A call of the driver failed.
    #[error("{call} failed: {reason}")]
    Driver {
        /// The call that failed.
        call: &'static str,
        /// The driver's error.
        reason: String,
    },
}

impl CudaError {
    /// An error of the compiler once more, for somebody else who waited for it.
    pub(crate) fn again(&self) -> Self {
        match self {
            Self::Unavailable(reason) => Self::Unavailable(reason.clone()),
            Self::Compile { arch, log } => Self::Compile { arch: arch.clone(), log: log.clone() },
            other => Self::Driver { call: "compiling", reason: other.to_string() },
        }
    }
}
