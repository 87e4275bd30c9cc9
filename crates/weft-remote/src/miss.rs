//! Why rows or a chunk did not come from the store.
//!
//! No miss is an error of the request: rows are computed, and the reason is counted by its name.

use object_store::client::{HttpError, HttpErrorKind};
use weft_core::store::{KvKey, Reason};

/// Why nothing came from the store.
#[derive(Debug, thiserror::Error)]
pub enum Miss {
    /// Nobody has stored it.
    #[error("the store does not have it")]
    Absent,
    /// The store did not have it a moment ago, and was not asked again.
    #[error("the store did not have it a moment ago")]
    RecentlyAbsent,
    /// The manifest is there, but its rows were deleted.
    #[error("its manifest is in the store, but its rows are gone")]
    RowsAbsent,
    /// Rows need a key, or a user who trusts all writers.
    #[error("rows are not read without a key (--remote-key), or --remote-unsigned")]
    Untrusted,
    /// The store refuses the credentials.
    #[error("the store refuses access: {0}; check credentials and the bucket's rights")]
    Denied(String),
    /// The store answers with an error.
    #[error("the store fails: {0}")]
    Failed(String),
    /// There is no connection to the store, or no answer in time.
    #[error("the store does not answer: {0}; check its address and the network")]
    Silent(String),
    /// A fetch took too long.
    #[error("it did not arrive within {seconds} s")]
    Timeout {
        /// The limit.
        seconds: f64,
    },
    /// The store has failed recently; the breaker is open.
    #[error("the store failed recently and is left alone for a while")]
    BreakerOpen,
    /// Too many fetches wait already.
    #[error("too many fetches wait already")]
    Busy,
    /// Whoever wanted it is gone.
    #[error("nobody wants it any more")]
    Unwanted,
    /// The service is being closed.
    #[error("the service is being closed")]
    Closed,
    /// The object is not one that weft wrote.
    #[error("it cannot be read: {0}; it is damaged, or weft did not write it")]
    Form(String),
    /// Another version of weft wrote it.
    #[error("it has format version {found}, expected {expected}")]
    Version {
        /// The version in the object.
        found: u32,
        /// The version that this program reads.
        expected: u32,
    },
    /// The manifest has changed since it was written.
    #[error("it does not match its own checksum; it was damaged after writing")]
    ManifestChecksum,
    /// It has no signature, and a key was given.
    #[error("nobody has signed it; it was stored without --remote-key")]
    Unsigned,
    /// Another key signed it, or somebody changed it.
    #[error("its signature is not by the key in --remote-key")]
    Signature,
    /// Somebody with a key has signed what would be replaced, and no key was given.
    #[error("the store holds it signed by a key; give --remote-key FILE to replace it")]
    Signed,
    /// The manifest is about other rows than its name says.
    #[error("it holds {found}; somebody copied or renamed it")]
    Key {
        /// What its content hashes to.
        found: KvKey,
    },
    /// The rows are not those that were asked for, or are not numbers.
    #[error("{0}")]
    Mismatch(Reason),
    /// The rows attended to something that no prompt begins with here.
    #[error("they attended to something else than a system prompt that is registered here")]
    Elsewhere,
    /// More bytes than fit.
    #[error("it has {bytes} bytes, and at most {limit} fit")]
    TooLarge {
        /// Its bytes.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A folder has more objects than anybody stores.
    #[error("a folder of it lists more than {limit} objects; give another prefix, or delete some")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// An object is longer or shorter than it should be.
    #[error("the store sent {found} bytes instead of {expected}")]
    Length {
        /// The length according to the manifest.
        expected: u64,
        /// What came.
        found: u64,
    },
    /// A range of the rows has changed since it was written.
    #[error("the rows of layer {layer} do not match their checksum")]
    RangeChecksum {
        /// The layer.
        layer: usize,
    },
    /// The text of a chunk does not belong to its label.
    #[error("its text does not belong to its label: {0}")]
    Card(String),
}

impl Miss {
    /// The name under which it is counted.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::RecentlyAbsent => "recently_absent",
            Self::RowsAbsent => "rows_absent",
            Self::Untrusted => "untrusted",
            Self::Denied(_) => "denied",
            Self::Failed(_) => "failed",
            Self::Silent(_) => "silent",
            Self::Timeout { .. } => "timeout",
            Self::BreakerOpen => "breaker_open",
            Self::Busy => "busy",
            Self::Unwanted => "unwanted",
            Self::Closed => "closed",
            Self::Form(_) => "form",
            Self::Version { .. } => "version",
            Self::ManifestChecksum => "manifest_checksum",
            Self::Unsigned => "unsigned",
            Self::Signature => "signature",
            Self::Signed => "signed",
            Self::Key { .. } => "key",
            Self::Mismatch(reason) => reason.name(),
            Self::Elsewhere => "elsewhere",
            Self::TooLarge { .. } => "too_large",
            Self::TooMany { .. } => "too_many",
            Self::Length { .. } => "length",
            Self::RangeChecksum { .. } => "range_checksum",
            Self::Card(_) => "card",
        }
    }

    /// Whether the store itself failed, so that the next request would probably fail too.
    pub(crate) fn is_failure(&self) -> bool {
        self.is_silence() || matches!(self, Self::Denied(_) | Self::Failed(_))
    }

    /// Whether the next request would have to wait for nothing.
    pub(crate) fn is_silence(&self) -> bool {
        matches!(self, Self::Silent(_) | Self::Timeout { .. })
    }

    /// Whether an object is there and cannot be used. Writing it again may help.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::RowsAbsent
                | Self::Form(_)
                | Self::ManifestChecksum
                | Self::Unsigned
                | Self::Signature
                | Self::Key { .. }
                | Self::Mismatch(_)
                | Self::TooLarge { .. }
                | Self::Length { .. }
                | Self::RangeChecksum { .. }
                | Self::Card(_)
        )
    }
}

impl From<object_store::Error> for Miss {
    fn from(error: object_store::Error) -> Self {
        use object_store::Error;
        match error {
            Error::NotFound { .. } => Self::Absent,
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
                Self::Denied(first_line(&error))
            }
            error => Self::Failed(first_line(&error)),
        }
    }
}

/// Whether an error is that of a request that got no answer in time.
pub(crate) fn is_timeout(error: &object_store::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if let Some(http) = error.downcast_ref::<HttpError>() {
            return matches!(http.kind(), HttpErrorKind::Timeout | HttpErrorKind::Connect);
        }
        source = error.source();
    }
    false
}

/// Stores answer with pages of XML; the beginning is enough for a message.
pub(crate) fn first_line(error: &dyn std::fmt::Display) -> String {
    const MOST: usize = 500;
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}
