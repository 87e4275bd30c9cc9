//! Errors of commands, and their exit codes.

use std::io::ErrorKind;
use std::process::ExitCode;

use thiserror::Error;
use weft::pull::PullError;
use weft_core::chunk::{AskError, ChunkError};
use weft_core::compare::BaseError;
use weft_core::config::ConfigError;
use weft_core::engine::{GenerateError, RequestError};
use weft_core::export::ExportError;
use weft_core::hub::HubError;
use weft_core::model::ModelError;
use weft_core::prompt::PromptError;
use weft_server::resident::protocol::{Fault, Refusal};

use crate::size;

/// Exit code if Ctrl-C ended an answer.
pub(crate) const INTERRUPTED: u8 = 130;
/// Exit code of a fault in weft itself.
pub(crate) const ENGINE_FAULT: u8 = 70;

#[derive(Debug, Error)]
pub(crate) enum CliError {
    /// The command line is invalid.
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Export(#[from] ExportError),
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
    /// A context is neither a file nor a chunk.
    #[error("{0}")]
    NoSource(String),
    /// No GPU can be used.
    #[error("{0}")]
    Gpu(String),
    /// The server failed.
    #[error(transparent)]
    Serve(weft_server::ServeError),
    /// A resident server refused.
    #[error("{}", .0.message)]
    Resident(Refusal),
    /// The remote store, or the flags that name it, cannot be used.
    #[error(transparent)]
    Remote(#[from] weft_remote::RemoteError),
    /// The remote store did not do what was asked of it.
    #[error("{what}: {source}")]
    RemoteStore { what: String, source: weft_remote::Miss },
    /// The machine failed a check.
    #[error("{0}")]
    Unhealthy(String),
    /// A file of distributions cannot be used.
    #[error("{file}: {source}")]
    Base { file: String, source: BaseError },
    #[error("{what}: {}", io_reason(what, source))]
    Io { what: String, source: std::io::Error },
}

impl From<AskError> for CliError {
    fn from(error: AskError) -> Self {
        match error {
            AskError::Chunk(error) => error.into(),
            AskError::Prompt(error) => error.into(),
            error @ AskError::NoSource { .. } => Self::NoSource(error.to_string()),
            error => Self::Usage(error.to_string()),
        }
    }
}

/// Rewords errors about the library's settings in terms of flags.
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
                "--ctx-size {wanted} exceeds the model's {most} positions; lower it"
            )),
            weft::Error::ContextTooShort { .. } => Self::Usage(
                "--ctx-size is too small for a prompt and an answer; give 2 or more".to_owned(),
            ),
            weft::Error::KvMemory { given, least, context } => Self::Usage(format!(
                "--kv-memory {} is too little for a context of {context} tokens; give {least} or \
                 more, or lower --ctx-size",
                size::bytes(given)
            )),
            error @ weft::Error::TooLarge { has_experts, .. } => {
                let experts = if has_experts { ", --experts cpu" } else { "" };
                Self::Memory(format!("{error} (--ctx-size, --kv-memory{experts})"))
            }
            error @ weft::Error::ExpertsTooLarge { .. } => Self::Memory(error.to_string()),
            weft::Error::Experts(reason) => Self::Usage(format!(
                "--experts cpu keeps experts in main memory beside a GPU: {reason}; leave it out"
            )),
            error => Self::Usage(error.to_string()),
        }
    }
}

impl CliError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// Prefixes the error with something that the user named.
    pub(crate) fn about(self, what: &str) -> Self {
        match self {
            // The machine failed, not the request.
            Self::Chunk(ChunkError::DiskFull { .. } | ChunkError::File { .. }) => self,
            Self::Chunk(error) => Self::Usage(format!("{what}: {error}")),
            Self::Usage(reason) => Self::Usage(format!("{what}: {reason}")),
            Self::Resident(Refusal { fault: Fault::Request, message }) => {
                Self::Usage(format!("{what}: {message}"))
            }
            error => error,
        }
    }

    /// Whether the user may try another request.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Self::Request(_) | Self::Prompt(_) | Self::Chunk(_) => true,
            Self::Resident(refusal) => refusal.fault == Fault::Request,
            _ => false,
        }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Usage(_)
            | Self::NoSource(_)
            | Self::Remote(_)
            | Self::Chunk(ChunkError::NotFound { .. } | ChunkError::Unknown { .. })
            | Self::Export(ExportError::Target { .. }) => 2,
            Self::Io { source, .. } if source.kind() == ErrorKind::NotFound => 2,
            Self::Hub(error) => hub_code(error),
            Self::Model(ModelError::NoFolder { .. })
            | Self::Pull(PullError::RepoNotFound { .. } | PullError::RevisionNotFound { .. }) => 3,
            Self::Resident(Refusal { fault: Fault::Usage, .. }) => 2,
            Self::Resident(Refusal { fault: Fault::Engine, .. }) => ENGINE_FAULT,
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

/// 2 for invalid names and settings, 1 for a cache that cannot be read, and 3 for a missing model.
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

/// Why a file could not be read or written, and what to do next.
fn io_reason(what: &str, error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::AlreadyExists => {
            "it exists already, and weft does not replace it; name another file".to_owned()
        }
        ErrorKind::StorageFull => "the disk is full; free some space".to_owned(),
        ErrorKind::NotFound if what.starts_with("--key ") || what.starts_with("--remote-key ") => {
            "there is no such file; `weft chunk key team.key` writes one".to_owned()
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_fails_is_no_mistake_in_the_command() {
        let code = |error: CliError| format!("{:?}", error.exit_code());
        let (mistake, failure) = (ExitCode::from(2), ExitCode::from(1));
        let path = || "chunks/ab".to_owned();
        let full = CliError::from(ChunkError::DiskFull { path: path() }).about("a.txt");
        let broken = ChunkError::File { path: path(), reason: "input/output error".to_owned() };
        for error in [full, CliError::from(broken).about("a.txt")] {
            assert_eq!(code(error), format!("{failure:?}"));
        }
        let wrong = CliError::from(ChunkError::NoQuery).about("a.txt");
        assert_eq!(code(wrong), format!("{mistake:?}"));
        let of_kind = |kind: ErrorKind| CliError::io("x")(kind.into());
        assert_eq!(code(of_kind(ErrorKind::NotFound)), format!("{mistake:?}"));
        assert_eq!(code(of_kind(ErrorKind::StorageFull)), format!("{failure:?}"));
    }

    #[test]
    fn errors_of_files_say_what_to_do_next() {
        let of = |what: &str, kind: ErrorKind| CliError::io(what)(kind.into()).to_string();
        assert!(of("a", ErrorKind::AlreadyExists).ends_with("name another file"));
        assert!(of("a", ErrorKind::StorageFull).ends_with("free some space"));
        assert!(of("--key a", ErrorKind::NotFound).contains("weft chunk key"));
    }
}
