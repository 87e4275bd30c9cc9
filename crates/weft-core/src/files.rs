//! Reading files that strangers made: never more of one than it can rightly have.

use std::fs::File;
use std::io::{Read, Result};
use std::path::Path;

/// Reads a file of at most `limit` bytes; `None` where it has more. A size is not asked for first:
/// it may lie (pipes, a file that grows).
pub(crate) fn read_capped(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= limit).then_some(bytes))
}
