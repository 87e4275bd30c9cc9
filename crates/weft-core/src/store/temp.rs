//! Files that are being written, and the sweep of those that a crash left.
//!
//! The writer of a temporary file holds a lock on it for as long as it lives. The system lets go of
//! the lock with the process, however that ends, so a file that can be locked is stale. This holds
//! across processes, containers and reused process ids, which a pid in the name would not.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use super::platform;

const ENDING: &str = ".tmp";

/// Names that other processes may have taken before one is given up on.
const MAX_ATTEMPTS: usize = 1000;

/// Counts the names of this process, whichever store they belong to.
static NEXT_NAME: AtomicU64 = AtomicU64::new(0);

/// A new file, locked, and removed when dropped unless it was renamed.
pub(crate) struct TempFile {
    pub(crate) file: File,
    path: PathBuf,
    is_renamed: bool,
}

impl TempFile {
    /// Makes a file for its owner alone, under a name that no other has.
    pub(crate) fn create(folder: &Path) -> io::Result<Self> {
        for _ in 0..MAX_ATTEMPTS {
            let n = NEXT_NAME.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!("{}-{n}{ENDING}", process::id()));
            let file = match platform::create_private_file(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                file => file?,
            };
            if is_ours(&file)? {
                return Ok(Self { file, path, is_renamed: false });
            }
        }
        Err(io::Error::new(io::ErrorKind::AlreadyExists, "all names of temporary files are taken"))
    }

    /// Where it is for now.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the finished file its name. Its content must be on disk by then.
    pub(crate) fn rename(mut self, to: &Path) -> io::Result<()> {
        fs::rename(&self.path, to)?;
        self.is_renamed = true;
        Ok(())
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.is_renamed {
            // What cannot be removed now is swept at the next start.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Locks a file just made. Between the two another process may have taken it for stale: then it is
/// locked by that process, or already without a name.
fn is_ours(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => platform::has_a_name(file),
        Err(TryLockError::WouldBlock) => Ok(false),
        // Without locks nobody sweeps, see below.
        Err(TryLockError::Error(_)) => Ok(true),
    }
}

/// Removes the temporary files of processes that are no more; returns how many.
pub(crate) fn sweep(folder: &Path) -> io::Result<u64> {
    let mut swept = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let is_temp = entry.file_name().to_str().is_some_and(is_temp_name);
        if is_temp && entry.file_type()?.is_file() && remove_if_stale(&entry.path()) {
            swept += 1;
        }
    }
    Ok(swept)
}

/// Whether a name is of the kind made above: the folder may hold other people's `.tmp` files.
fn is_temp_name(name: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    name.strip_suffix(ENDING)
        .and_then(|stem| stem.split_once('-'))
        .is_some_and(|(pid, n)| is_number(pid) && is_number(n))
}

/// Where files cannot be locked, none is shown to be stale, and none is removed.
fn remove_if_stale(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    file.try_lock().is_ok() && fs::remove_file(path).is_ok()
}
