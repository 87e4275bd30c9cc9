//! Temporary files during a write, and the removal of those that a crash left.
//!
//! The writer of a temporary file holds a lock on it. The system releases the lock when the process
//! ends in any way, so a file that can be locked is stale. Unlike a pid in the name, this works
//! across processes, containers and reused process ids.

use std::fs::{self, File, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use super::platform;

const ENDING: &str = ".tmp";

/// Number of names to try before giving up.
const MAX_ATTEMPTS: usize = 1000;

/// Numbers the temporary files of this process, for all stores.
static NEXT_NAME: AtomicU64 = AtomicU64::new(0);

/// A new, locked file. It is removed when dropped, unless it was renamed.
pub(crate) struct TempFile {
    pub(crate) file: File,
    path: PathBuf,
    is_renamed: bool,
}

impl TempFile {
    /// Creates a file under a unique name, accessible to the owner only.
    pub(crate) fn create(folder: &Path) -> io::Result<Self> {
        for _ in 0..MAX_ATTEMPTS {
            // Nobody else can guess it, so nobody can have taken it before.
            let n = RandomState::new().hash_one(NEXT_NAME.fetch_add(1, Ordering::Relaxed));
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

    /// Its temporary path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the finished file its final name. Its content must be on disk before.
    pub(crate) fn rename(mut self, to: &Path) -> io::Result<()> {
        fs::rename(&self.path, to)?;
        self.is_renamed = true;
        Ok(())
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.is_renamed {
            // If it cannot be removed now, the next start removes it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Locks a new file. Between creation and locking, another process may have mistaken it for stale:
/// then that process holds the lock, or the file has no name any more.
fn is_ours(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => platform::has_a_name(file),
        Err(TryLockError::WouldBlock) => Ok(false),
        // Without locks, nobody removes stale files, see below.
        Err(TryLockError::Error(_)) => Ok(true),
    }
}

/// Removes the temporary files of dead processes, and returns their number.
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

/// Whether a name has the form used above: the folder may hold `.tmp` files of other programs.
fn is_temp_name(name: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    name.strip_suffix(ENDING)
        .and_then(|stem| stem.split_once('-'))
        .is_some_and(|(pid, n)| is_number(pid) && is_number(n))
}

/// If files cannot be locked, none can be proven stale, and none is removed.
fn remove_if_stale(path: &Path) -> bool {
    let Ok(file) = platform::open_regular(path) else { return false };
    file.try_lock().is_ok() && fs::remove_file(path).is_ok()
}
