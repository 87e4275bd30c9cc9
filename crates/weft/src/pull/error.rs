//! What can go wrong while a model is fetched.
//!
//! Owns the words: each message says what failed, with which value, against which limit, and what
//! to do next. Text that came from the network is quoted with `{:?}`, so that it cannot drive a
//! terminal; the token is never part of a message.

use std::io;
use std::path::{Path, PathBuf};

use weft_core::hub::HubError;

/// Why a model could not be fetched. What was received stays on disk, and the next pull resumes,
/// unless a message says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The reference is a folder.
    #[error("{path:?} is a folder on this machine: there is nothing to pull")]
    NotARepo {
        /// The folder.
        path: PathBuf,
    },
    /// The user forbade the network.
    #[error("HF_HUB_OFFLINE is set, so {repo} is not fetched; unset it to pull")]
    Offline {
        /// `org/name`.
        repo: String,
    },
    /// 401 or 403.
    #[error("the hub denied {what} of {repo} (HTTP {status}): {cure}")]
    Denied {
        /// The file, or the list of files.
        what: String,
        /// `org/name`.
        repo: String,
        /// 401 or 403.
        status: u16,
        /// What to do, which depends on whether a token was sent.
        cure: String,
    },
    /// 404 for the repository.
    #[error("no model {repo} at {endpoint}; check the name (it is case-sensitive)")]
    RepoNotFound {
        /// `org/name`.
        repo: String,
        /// The hub's address.
        endpoint: String,
    },
    /// 404 for the revision.
    #[error("{repo} has no revision {revision:?}; check the branch, tag or commit after the `@`")]
    RevisionNotFound {
        /// `org/name`.
        repo: String,
        /// What was asked for.
        revision: String,
    },
    /// 404 for a file that the hub itself listed.
    #[error("{repo} lists {file:?}, but has no such file at commit {sha}; pull again later")]
    FileNotFound {
        /// `org/name`.
        repo: String,
        /// The file.
        file: String,
        /// The commit.
        sha: String,
    },
    /// The repository cannot be run by weft.
    #[error("{repo} cannot be used: {reason}")]
    Unsuitable {
        /// `org/name`.
        repo: String,
        /// What it lacks.
        reason: String,
    },
    /// A file name that leads outside of the model's folder.
    #[error("{repo} has a file named {file:?}, which is not a safe file name; nothing was fetched")]
    UnsafeFileName {
        /// `org/name`.
        repo: String,
        /// The name as the hub gave it.
        file: String,
    },
    /// An answer that a hub does not give.
    #[error("unexpected answer from {url}: {reason}; check HF_ENDPOINT and any proxy")]
    BadAnswer {
        /// Where it came from.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The length is not the one that was announced.
    #[error("{file} should have {expected} bytes, but the server {actual}; pull again later")]
    WrongLength {
        /// The file.
        file: String,
        /// As announced.
        expected: u64,
        /// What the server did instead.
        actual: String,
    },
    /// The content is not the one that was announced.
    #[error(
        "{file} arrived damaged: its sha-256 is {actual}, expected {expected}; what was received \
         is deleted, pull again"
    )]
    WrongHash {
        /// The file.
        file: String,
        /// As announced.
        expected: String,
        /// Of what arrived.
        actual: String,
    },
    /// Too many failures in a row.
    #[error(
        "gave up on {what} after {attempts} attempts without progress: {reason}; what was received \
         is kept, pull again to resume"
    )]
    GaveUp {
        /// The file, or the list of files.
        what: String,
        /// The limit.
        attempts: u32,
        /// The last failure.
        reason: String,
    },
    /// The disk is full.
    #[error(
        "the disk is full: {path:?} could not be written; free some space (the cache is where \
         HF_HUB_CACHE says) and pull again to resume"
    )]
    DiskFull {
        /// The file.
        path: PathBuf,
    },
    /// Any other trouble with the cache.
    #[error("cannot write {path:?}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// What was fetched is not a usable snapshot.
    #[error(transparent)]
    Hub(#[from] HubError),
}

impl PullError {
    /// A failure to write, told apart from a full disk, which has another cure.
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
