//! What ends a command, and with which exit code.

use std::process::ExitCode;

use thiserror::Error;
use weft::pull::PullError;
use weft_core::chunk::ChunkError;
use weft_core::config::ConfigError;
use weft_core::engine::{GenerateError, RequestError};
use weft_core::hub::HubError;
use weft_core::model::ModelError;
use weft_core::prompt::PromptError;

use crate::size;

/// The exit code of an answer that Ctrl-C ended.
pub(crate) const INTERRUPTED: u8 = 130;
/// The exit code of a fault that is weft's own.
pub(crate) const ENGINE_FAULT: u8 = 70;

#[derive(Debug, Error)]
pub(crate) enum CliError {
    /// The command makes no sense as given.
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Pull(#[from] PullError),
    #[error(transparent)]
    Prompt(#[from] PromptError),
    #[error(transparent)]
    Chunk(#[from] ChunkError),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// The model does not fit.
    #[error("{0}")]
    Memory(String),
    /// What should be context is nothing that is known.
    #[error("{0}")]
    NoSource(String),
    /// No GPU can be used.
    #[error("{0}")]
    Gpu(String),
    /// The server did not serve.
    #[error(transparent)]
    Serve(weft_server::ServeError),
    /// The machine failed a check.
    #[error("{0}")]
    Unhealthy(String),
    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },
}

/// What the library says of settings, said of flags.
impl From<weft::Error> for CliError {
    fn from(error: weft::Error) -> Self {
        match error {
            weft::Error::Hub(error) => (*error).into(),
            weft::Error::Model(error) => error.into(),
            weft::Error::Pull(error) => (*error).into(),
            weft::Error::Chunk(error) => error.into(),
            weft::Error::Request(error) => error.into(),
            weft::Error::Generate(error) => error.into(),
            weft::Error::Gpu(reason) => Self::Gpu(reason),
            weft::Error::ContextTooLong { wanted, most } => Self::Usage(format!(
                "--ctx-size {wanted} is beyond the {most} positions this model was made for"
            )),
            weft::Error::ContextTooShort { .. } => {
                Self::Usage("--ctx-size must hold a prompt and an answer: 2 or more".to_owned())
            }
            weft::Error::KvMemory { given, least, context } => Self::Usage(format!(
                "--kv-memory {} is too little for a context of {context} tokens; give {least} or \
                 more, or lower --ctx-size",
                size::bytes(given)
            )),
            error @ weft::Error::TooLarge { .. } => {
                Self::Memory(format!("{error} (--ctx-size, --kv-memory)"))
            }
            error => Self::Usage(error.to_string()),
        }
    }
}

impl CliError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// The same, told of something that the user named.
    pub(crate) fn about(self, what: &str) -> Self {
        match self {
            Self::Chunk(error) => Self::Usage(format!("{what}: {error}")),
            Self::Usage(reason) => Self::Usage(format!("{what}: {reason}")),
            error => error,
        }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Usage(_) => 2,
            Self::Hub(error) => hub_code(error),
            Self::Model(ModelError::NoFolder { .. })
            | Self::Pull(PullError::RepoNotFound { .. } | PullError::RevisionNotFound { .. }) => 3,
            Self::Memory(_) => 4,
            Self::Gpu(_) => 5,
            Self::Generate(GenerateError::Device(_)) => ENGINE_FAULT,
            Self::Serve(weft_server::ServeError::Load(error)) => {
                return error.downcast_ref().map_or(ExitCode::FAILURE, Self::exit_code);
            }
            _ => 1,
        })
    }
}

/// Names and settings that make no sense are misuse, a cache that cannot be read is a failure, and
/// all else means that the model is not there.
fn hub_code(error: &HubError) -> u8 {
    match error {
        HubError::InvalidReference { .. }
        | HubError::InvalidRevision { .. }
        | HubError::NoHome
        | HubError::BadEndpoint { .. }
        | HubError::BadToken { .. } => 2,
        HubError::Io { .. } | HubError::BadIndex { .. } => 1,
        _ => 3,
    }
}
