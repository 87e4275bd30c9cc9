//! Errors of downloading a model.
//!
//! Each message says what failed, with which value, against which limit, and what to do next. Text
//! from the network is quoted with `{:?}`, so that it cannot control a terminal. No message
//! contains the token.

use std::io;
use std::path::{Path, PathBuf};

use weft_core::hub::HubError;

/// Why a model could not be downloaded. Unless a message says otherwise, the bytes received stay on
/// disk and the next pull resumes.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The reference is a local folder or file.
    #[error("{path:?} is on this machine: there is nothing to pull")]
    NotARepo {
        /// The folder or file.
        path: PathBuf,
    },
    /// The user has forbidden network access.
    #[error("HF_HUB_OFFLINE is set, so {repo} is not fetched; unset it to pull")]
    Offline {
        /// `org/name`.
        repo: String,
    },
    /// There is no connection to the hub.
    #[error(
        "{endpoint} cannot be reached: {reason}; check the network, or HF_ENDPOINT and any proxy \
         (`weft list` shows the models that are here)"
    )]
    Unreachable {
        /// The hub's address.
        endpoint: String,
        /// The failure.
        reason: String,
    },
    /// The hub answered 401 or 403.
    #[error("the hub denied {what} of {repo} (HTTP {status}): {cure}")]
    Denied {
        /// The file, or the list of files.
        what: String,
        /// `org/name`.
        repo: String,
        /// 401 or 403.
        status: u16,
        /// Advice for the user; it depends on whether a token was sent.
        cure: String,
    },
    /// The hub answered 404 for the repository.
    #[error("no model {repo} at {endpoint}; check the name (it is case-sensitive)")]
    RepoNotFound {
        /// `org/name`.
        repo: String,
        /// The hub's address.
        endpoint: String,
    },
    /// The hub answered 404 for the revision.
    #[error("{repo} has no revision {revision:?}; check the branch, tag or commit after the `@`")]
    RevisionNotFound {
        /// `org/name`.
        repo: String,
        /// The branch, tag or commit.
        revision: String,
    },
    /// The hub answered 404 for a file that it listed.
    #[error("{repo} lists {file:?}, but has no such file at commit {sha}; pull again later")]
    FileNotFound {
        /// `org/name`.
        repo: String,
        /// The file.
        file: String,
        /// The commit.
        sha: String,
    },
    /// weft cannot run this model.
    #[error("{repo} cannot be used: {reason}")]
    Unsuitable {
        /// `org/name`.
        repo: String,
        /// What is missing or unsupported.
        reason: String,
    },
    /// A file name leads outside the model's folder.
    #[error("{repo} has a file named {file:?}, which is not a safe file name; nothing was fetched")]
    UnsafeFileName {
        /// `org/name`.
        repo: String,
        /// The name as the hub gave it.
        file: String,
    },
    /// The response is not one that a hub sends.
    #[error("unexpected answer from {url}: {reason}; check HF_ENDPOINT and any proxy")]
    BadAnswer {
        /// The URL that sent it.
        url: String,
        /// Why the response is invalid.
        reason: String,
    },
    /// The length differs from the announced one.
    #[error("{file} should have {expected} bytes, but the server {actual}; pull again later")]
    WrongLength {
        /// The file.
        file: String,
        /// The announced length.
        expected: u64,
        /// What the server sent instead.
        actual: String,
    },
    /// The hash differs from the announced one.
    #[error(
        "{file} arrived damaged: it has {actual}, expected {expected}; the received bytes were \
         deleted, pull again"
    )]
    WrongHash {
        /// The file.
        file: String,
        /// The announced hash, and of which kind it is.
        expected: String,
        /// The hash of the received bytes.
        actual: String,
    },
    /// There were too many failures in a row.
    #[error(
        "gave up on {what} after {attempts} attempts without progress: {reason}; the received \
         bytes are kept, pull again to resume"
    )]
    GaveUp {
        /// The file, or the list of files.
        what: String,
        /// Number of attempts.
        attempts: u32,
        /// The last failure.
        reason: String,
    },
    /// The disk is full.
    #[error(
        "the disk is full: {path:?} could not be written; free some space (HF_HUB_CACHE \
         sets the cache's folder) and pull again to resume"
    )]
    DiskFull {
        /// The file.
        path: PathBuf,
    },
    /// Any other I/O error in the cache.
    #[error("cannot write {path:?}: {source}; check its owner and permissions")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The downloaded files are not a usable model.
    #[error(transparent)]
    Hub(#[from] HubError),
}

impl PullError {
    /// An error of writing a file. A full disk gets its own variant, because the advice differs.
    pub(super) fn write(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                PullError::DiskFull { path }
            }
            _ => PullError::Io { path, source },
        }
    }
}
