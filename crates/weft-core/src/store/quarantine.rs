//! The quarantine: a folder for damaged files.
//!
//! Damaged files are moved, not deleted, because they are evidence of a failing disk or a bug. The
//! oldest are deleted if there are too many, so that they do not fill the disk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::index::file_of;
use super::{KvKey, platform};

const FOLDER: &str = "quarantine";

/// Maximum number of files.
pub(super) const MAX_FILES: usize = 8;

/// They take at most 1/8 of the store's budget. The newest is kept whatever its size.
const BUDGET_SHARE: u64 = 8;

/// The folder of damaged files.
pub(super) fn folder(store: &Path) -> PathBuf {
    store.join(FOLDER)
}

/// Moves the file of a key to quarantine, and returns its new path.
pub(super) fn move_in(folder: &Path, key: &KvKey, budget_bytes: u64) -> io::Result<PathBuf> {
    let quarantine = folder.join(FOLDER);
    platform::create_private_folder(&quarantine)?;
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // The time comes first, so that names sort by age. A key may be moved in more than once.
    let to = quarantine.join(format!("{:020}-{key}.safetensors", time.as_nanos()));
    fs::rename(file_of(folder, key), &to)?;
    // The file is in quarantine, even if older ones could not be removed.
    let _ = keep_newest(&quarantine, budget_bytes / BUDGET_SHARE);
    Ok(to)
}

fn keep_newest(quarantine: &Path, max_bytes: u64) -> io::Result<()> {
    let mut files = Vec::new();
    for entry in fs::read_dir(quarantine)? {
        let entry = entry?;
        files.push((entry.file_name(), entry.metadata()?.len()));
    }
    files.sort();
    let mut bytes = 0;
    for (n, (name, size)) in files.into_iter().rev().enumerate() {
        bytes += size;
        if n > 0 && (n >= MAX_FILES || bytes > max_bytes) {
            fs::remove_file(quarantine.join(name))?;
        }
    }
    Ok(())
}

/// Deletes all files in quarantine, and returns their number and their bytes.
pub(super) fn empty(folder: &Path) -> io::Result<(u64, u64)> {
    let entries = match fs::read_dir(folder.join(FOLDER)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((0, 0)),
        entries => entries?,
    };
    let (mut files, mut bytes) = (0, 0);
    for entry in entries {
        let entry = entry?;
        let size = entry.metadata()?.len();
        fs::remove_file(entry.path())?;
        files += 1;
        bytes += size;
    }
    Ok((files, bytes))
}
