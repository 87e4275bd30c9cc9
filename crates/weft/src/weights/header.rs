//! The header of one safetensors file, read and checked without touching the tensors.
//!
//! The `safetensors` crate checks that the tensors tile the data without hole or overlap and that
//! shape times format is each one's length. Added here: the header is bounded by the file before it
//! is read, and the file must be exactly as long as its header says.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use safetensors::tensor::Metadata;

use super::WeightsError;

/// Real headers are below 1 MiB even for models of hundreds of layers.
const HEADER_LIMIT: u64 = 16 << 20;

/// Bytes of the length that opens a file.
const LENGTH_BYTES: u64 = 8;

pub(super) struct Header {
    /// The file, open, so that what was checked is what is read later.
    pub(super) file: File,
    /// Its path.
    pub(super) path: PathBuf,
    pub(super) metadata: Metadata,
    /// Where the tensors begin in the file.
    pub(super) data_start: u64,
}

pub(super) fn read(path: &Path) -> Result<Header, WeightsError> {
    let name = || path.display().to_string();
    let broken = |reason: String| WeightsError::Header { file: name(), reason };
    let failed = |source| WeightsError::Read { file: name(), source };

    let mut file = File::open(path).map_err(failed)?;
    let file_bytes = file.metadata().map_err(failed)?.len();
    if file_bytes < LENGTH_BYTES {
        return Err(broken(format!("it has {file_bytes} bytes, a header alone needs more")));
    }
    let mut length = [0; LENGTH_BYTES as usize];
    file.read_exact(&mut length).map_err(failed)?;
    let header_bytes = u64::from_le_bytes(length);
    let room = HEADER_LIMIT.min(file_bytes - LENGTH_BYTES);
    if header_bytes > room {
        return Err(broken(format!("its header claims {header_bytes} bytes, at most {room} fit")));
    }
    let mut json = vec![0; header_bytes as usize];
    file.read_exact(&mut json).map_err(failed)?;
    let metadata: Metadata = serde_json::from_slice(&json).map_err(|e| broken(e.to_string()))?;

    let data_start = LENGTH_BYTES + header_bytes;
    let expected = data_start.saturating_add(metadata.data_len() as u64);
    if expected != file_bytes {
        return Err(WeightsError::Length { file: name(), expected, found: file_bytes });
    }
    Ok(Header { file, path: path.to_owned(), metadata, data_start })
}
