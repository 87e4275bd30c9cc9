//! Why a file was not used.
//!
//! Each reason has a message with the value that was found, and a name under which it is counted.

use std::io;

use super::KvKey;

/// Why a file's rows were not used. None of them is an error: the rows are computed again.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    /// No file has this key: it was never written, was evicted, or was removed by another process.
    #[error("no file has this key; its rows are computed again")]
    Absent,
    /// The system could not read the file.
    #[error("it cannot be read: {0}; it stays in the folder, and its rows are computed again")]
    Unreadable(io::Error),
    /// The path is a folder, a link or a pipe.
    #[error("it is not a plain file; only files that weft wrote belong in this folder")]
    NotAFile,
    /// The file has not even the bytes that every file begins with.
    #[error("it has {found} bytes, and is too short for a header; the file is damaged")]
    Short {
        /// The length of the file.
        found: u64,
    },
    /// The file is too short for its header, or the header exceeds its limit.
    #[error("its header claims {claimed} bytes, and at most {limit} fit; the file is damaged")]
    HeaderLength {
        /// The length in the first eight bytes.
        claimed: u64,
        /// The space in the file, or the maximum for any header.
        limit: u64,
    },
    /// The header does not describe KV rows.
    #[error("its header cannot be read: {0}; the file is damaged, or weft did not write it")]
    HeaderText(String),
    /// Another version of weft wrote the file.
    #[error("it has format version {found:?}, expected {expected:?}; its rows are computed again")]
    Version {
        /// The version in the file.
        found: String,
        /// The version that this program writes.
        expected: &'static str,
    },
    /// The header differs from the encoding of its content.
    #[error("its header does not match its checksum {found}; the file was damaged after writing")]
    HeaderChecksum {
        /// The checksum in the header.
        found: String,
    },
    /// The key in the header differs from the file's name.
    #[error("it holds the rows of {found}; the file was renamed or copied by hand")]
    Key {
        /// The key in the header.
        found: KvKey,
    },
    /// The file's length differs from the header's.
    #[error("it has {found} bytes, but its header says {expected}; the file is damaged")]
    Length {
        /// The length according to the header.
        expected: u64,
        /// The length of the file.
        found: u64,
    },
    /// The header is valid, but describes other rows than the requested ones.
    #[error("its {field} is {found:?}, expected {expected:?}; its rows cannot be used here")]
    Mismatch {
        /// The field of [`Header`](super::Header) that differs.
        field: &'static str,
        /// The requested value.
        expected: String,
        /// The value in the file.
        found: String,
    },
    /// The rows are coarse, and one of their scales is not a magnitude.
    #[error("a scale of its rows is {found}, expected a finite magnitude; they are computed again")]
    Scale {
        /// The scale.
        found: f32,
    },
    /// The rows have changed since they were written.
    #[error("the checksum of its rows is {found}, expected {expected}; check the disk for errors")]
    PayloadChecksum {
        /// The checksum in the header.
        expected: String,
        /// The checksum of the rows read.
        found: String,
    },
}

impl Reason {
    /// The name under which it is counted.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Unreadable(_) => "unreadable",
            Self::NotAFile => "not_a_file",
            Self::HeaderLength { .. } => "header_length",
            Self::HeaderText(_) => "header_text",
            Self::Version { .. } => "version",
            Self::HeaderChecksum { .. } => "header_checksum",
            Self::Key { .. } => "key",
            Self::Short { .. } | Self::Length { .. } => "length",
            Self::Mismatch { field, .. } => field,
            Self::Scale { .. } => "scale",
            Self::PayloadChecksum { .. } => "payload_checksum",
        }
    }
}

impl From<io::Error> for Reason {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Absent,
            _ => Self::Unreadable(error),
        }
    }
}
