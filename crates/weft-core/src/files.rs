//! Reads untrusted files, with a limit on their size.

use std::fs::File;
use std::io::{Read, Result};
use std::path::Path;

/// Reads a file of at most `limit` bytes; `None` if it has more. It does not rely on the reported
/// size, which can be wrong (a pipe, a growing file).
pub(crate) fn read_capped(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= limit).then_some(bytes))
}
