//! Why a file was not served.
//!
//! A reason is told twice: in words, with the value that was found, and as a name to count by.

use std::io;

use super::KvKey;

/// Why a file's rows were not served. None of them is an error: the rows are computed again.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    /// No file has this key: never written, evicted, or removed by another process.
    #[error("no file has this key; its rows are computed")]
    Absent,
    /// The system could not read it.
    #[error("it cannot be read: {0}; it is left where it is, and its rows are computed again")]
    Unreadable(io::Error),
    /// A folder, a link, a pipe.
    #[error("it is not a plain file; only files that weft wrote belong in this folder")]
    NotAFile,
    /// The file has too few bytes for its header, or more than one can have.
    #[error("its header claims {claimed} bytes, at most {limit} fit; the file was cut or damaged")]
    HeaderLength {
        /// What the first eight bytes say.
        claimed: u64,
        /// What the file has room for, or the most that is ever read.
        limit: u64,
    },
    /// The header is no description of KV rows.
    #[error("its header cannot be read: {0}; the file was damaged, or is not one of weft's")]
    HeaderText(String),
    /// Written by another version of weft.
    #[error("it has format version {found:?}, this weft reads {expected:?}; its rows are computed")]
    Version {
        /// The version in the file.
        found: String,
        /// The version that is written here.
        expected: &'static str,
    },
    /// The header is not byte for byte what its content would be written as.
    #[error("its header does not match its checksum {found}; the file was damaged after writing")]
    HeaderChecksum {
        /// The checksum in the header.
        found: String,
    },
    /// The file names itself otherwise than its name does.
    #[error("it holds the rows of {found}; the file was renamed, or copied by hand")]
    Key {
        /// The key that its header gives.
        found: KvKey,
    },
    /// The file is shorter or longer than its header says.
    #[error("it has {found} bytes, its header asks for {expected}; the file was cut or extended")]
    Length {
        /// Bytes that there should be.
        expected: u64,
        /// Bytes that there are.
        found: u64,
    },
    /// The header is sound and describes other rows than were asked for.
    #[error("its {field} is {found:?}, expected {expected:?}; its rows are of no use here")]
    Mismatch {
        /// The field of [`Header`](super::Header) that differs.
        field: &'static str,
        /// What was asked for.
        expected: String,
        /// What the file has.
        found: String,
    },
    /// The rows are not those that were written.
    #[error("its rows have checksum {found}, written was {expected}; check the disk for errors")]
    PayloadChecksum {
        /// The checksum in the header.
        expected: String,
        /// The checksum of what was read.
        found: String,
    },
}

impl Reason {
    /// What it is counted under.
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
            Self::Length { .. } => "length",
            Self::Mismatch { field, .. } => field,
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
