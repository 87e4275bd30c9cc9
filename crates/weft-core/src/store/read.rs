//! Reads files that may have been damaged since they were written.
//!
//! There are two levels of checks. [`header`] checks the header and the file's length, which
//! suffices for the index. [`rows`] also checks every byte of the rows, each time. Memory is
//! allocated only after the file's own length, and then the caller, have confirmed the size. Files
//! are read, never mapped: if a mapped file shrinks, the process crashes.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use super::checksum;
use super::format::{self, Decoded, HEADER_LIMIT, LENGTH_BYTES};
use super::platform::{open_regular, read_exact_at};
use super::reason::Reason;
use super::{HostRows, RowMemory};

/// A file with a valid header and the right length.
pub(super) struct Opened {
    pub(super) file: File,
    pub(super) decoded: Decoded,
    /// Length of the file.
    pub(super) bytes: u64,
    pub(super) last_use: SystemTime,
    /// Offset of `k`.
    pub(super) data_start: u64,
}

impl Opened {
    /// Fills `to` from an offset of the file.
    pub(super) fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<(), Reason> {
        read(&self.file, to, offset, self.bytes)
    }
}

/// Opens a file, and checks its header and its length.
pub(super) fn header(path: &Path) -> Result<Opened, Reason> {
    let file = open_regular(path).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => Reason::NotAFile,
        _ => error.into(),
    })?;
    let metadata = file.metadata()?;
    let bytes = metadata.len();
    let text = header_text(&file, bytes)?;
    let decoded = format::decode(&text)?;

    let data_start = LENGTH_BYTES + text.len() as u64;
    let expected = data_start + 2 * decoded.tensor_bytes as u64;
    if expected != bytes {
        return Err(Reason::Length { expected, found: bytes });
    }
    Ok(Opened { file, decoded, bytes, last_use: metadata.modified()?, data_start })
}

fn header_text(file: &File, bytes: u64) -> Result<Vec<u8>, Reason> {
    if bytes < LENGTH_BYTES {
        return Err(Reason::Short { found: bytes });
    }
    let mut length = [0; LENGTH_BYTES as usize];
    read(file, &mut length, 0, bytes)?;
    let claimed = u64::from_le_bytes(length);
    let limit = HEADER_LIMIT.min(bytes - LENGTH_BYTES);
    if claimed > limit {
        return Err(Reason::HeaderLength { claimed, limit });
    }
    let mut text = vec![0; claimed as usize];
    read(file, &mut text, LENGTH_BYTES, bytes)?;
    Ok(text)
}

/// Reads the rows into memory that is taken from `memory`, and compares them with their stored
/// checksum. Coarse ones are decoded, or only checked if they shall stay `coarse`. At most
/// `n_threads` read and hash.
pub(super) fn rows(
    opened: &Opened,
    memory: &dyn RowMemory,
    n_threads: usize,
    coarse: bool,
) -> Result<HostRows, Reason> {
    let room = || memory.take(opened.decoded.tensor_bytes);
    let mut rows = HostRows { k: room(), v: room() };
    let read = |offset: usize, to: &mut [u8]| opened.read_at(opened.data_start + offset as u64, to);
    let checksum = checksum::fill(&mut rows, n_threads, read)?;
    opened.decoded.check_payload(checksum)?;
    let header = &opened.decoded.header;
    if coarse && header.form.is_coarse() {
        return header.check_scales(&rows).map(|()| rows);
    }
    header.read_stored_to(rows, memory)
}

/// A file that ends early was truncated while it was open.
fn read(file: &File, to: &mut [u8], offset: u64, file_bytes: u64) -> Result<(), Reason> {
    read_exact_at(file, to, offset).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            let found = file.metadata().map_or(0, |metadata| metadata.len());
            Reason::Length { expected: file_bytes, found }
        }
        _ => Reason::Unreadable(error),
    })
}
