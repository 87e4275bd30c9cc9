//! Reads and checks the header of one safetensors file, without reading the tensors.
//!
//! The `safetensors` crate checks that the tensors tile the data without hole or overlap, and that
//! each length equals shape times format. This module adds two checks: the header must fit the file
//! before it is read, and the file must be exactly as long as its header says.

use std::borrow::Cow;
use std::fs::File;
use std::io::{Cursor, Read, Seek};
use std::path::Path;

use safetensors::tensor::Metadata;

use super::WeightsError;

/// Real headers are below 1 MiB even for models of hundreds of layers.
const HEADER_LIMIT: u64 = 16 << 20;

/// Bytes of the length at the start of a file.
const LENGTH_BYTES: u64 = 8;

/// A source of tensors: an open file, or bytes in memory.
pub(super) trait Source: Read + Seek + Send {}

impl<S: Read + Seek + Send> Source for S {}

pub(super) struct Header {
    /// Its name in messages.
    pub(super) name: String,
    /// The open file, so that the checked file is the one that is read later.
    pub(super) source: Box<dyn Source>,
    pub(super) metadata: Metadata,
    /// Offset of the tensors in the file.
    pub(super) data_start: u64,
}

/// Reads the header of a file.
pub(super) fn open(path: &Path) -> Result<Header, WeightsError> {
    let name = path.display().to_string();
    let failed = |source| WeightsError::Read { file: name.clone(), source };
    let file = File::open(path).map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.len();
    read(name, Box::new(file), bytes)
}

/// Reads the header of a file in memory.
pub(super) fn of_bytes(name: &str, bytes: Cow<'static, [u8]>) -> Result<Header, WeightsError> {
    let n_bytes = bytes.len() as u64;
    read(name.to_owned(), Box::new(Cursor::new(bytes)), n_bytes)
}

fn read(name: String, mut source: Box<dyn Source>, bytes: u64) -> Result<Header, WeightsError> {
    let broken = |reason: String| WeightsError::Header { file: name.clone(), reason };
    let failed = |source| WeightsError::Read { file: name.clone(), source };
    if bytes < LENGTH_BYTES {
        return Err(broken(format!("it has {bytes} bytes, fewer than a header")));
    }
    let mut length = [0; LENGTH_BYTES as usize];
    source.read_exact(&mut length).map_err(failed)?;
    let header_bytes = u64::from_le_bytes(length);
    let room = HEADER_LIMIT.min(bytes - LENGTH_BYTES);
    if header_bytes > room {
        return Err(broken(format!("its header claims {header_bytes} bytes, at most {room} fit")));
    }
    let mut json = vec![0; header_bytes as usize];
    source.read_exact(&mut json).map_err(failed)?;
    let metadata: Metadata = serde_json::from_slice(&json).map_err(|e| broken(e.to_string()))?;

    let data_start = LENGTH_BYTES + header_bytes;
    let expected = data_start.saturating_add(metadata.data_len() as u64);
    if expected != bytes {
        return Err(WeightsError::Length { file: name, expected, found: bytes });
    }
    Ok(Header { name, source, metadata, data_start })
}
