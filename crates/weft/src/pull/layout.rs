//! Writes the folder of one repository in the hub cache.
//!
//! It knows the paths of blobs, snapshots, refs and locks. It makes each change atomically: rename
//! for files, a link for snapshot entries. The network and the contents of files are handled
//! elsewhere.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use weft_core::hub::{HubEnv, RepoRef};

use super::error::PullError;

/// The paths of a repository's files.
pub(super) struct Layout {
    repo: PathBuf,
    locks: PathBuf,
}

impl Layout {
    pub(super) fn new(env: &HubEnv, repo: &RepoRef) -> Self {
        Layout {
            repo: repo.cache_folder(env),
            // The same lock files that huggingface_hub uses, so that both tools wait for each
            // other.
            locks: env.cache.join(".locks").join(repo.cache_folder_name()),
        }
    }

    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.repo.join("blobs").join(etag)
    }

    pub(super) fn incomplete(&self, etag: &str) -> PathBuf {
        self.repo.join("blobs").join(format!("{etag}.incomplete"))
    }

    pub(super) fn snapshot(&self, sha: &str) -> PathBuf {
        self.repo.join("snapshots").join(sha)
    }

    /// Creates the blobs folder and takes the blob's lock. The system releases the lock when the
    /// returned file is closed, even if the process is killed. `on_wait` is called if another
    /// process holds the lock.
    pub(super) fn lock(&self, etag: &str, on_wait: impl FnOnce()) -> Result<File, PullError> {
        make_folder(&self.repo.join("blobs"))?;
        make_folder(&self.locks)?;
        let path = self.locks.join(format!("{etag}.lock"));
        let mut on_wait = Some(on_wait);
        loop {
            let file = lock_file(&path, || on_wait.take().map_or((), |call| call()))
                .map_err(|e| PullError::write(&path, e))?;
            // Other tools delete the lock file when they are done, and a lock on a deleted file has
            // no effect.
            if is_file_at(&file, &path) {
                return Ok(file);
            }
        }
    }

    /// Moves a finished download to its final path, durably.
    pub(super) fn publish_blob(&self, etag: &str) -> Result<(), PullError> {
        let (from, to) = (self.incomplete(etag), self.blob(etag));
        let sync = File::open(&from).and_then(|file| file.sync_all());
        sync.map_err(|e| PullError::write(&from, e))?;
        fs::rename(&from, &to).map_err(|e| PullError::write(&to, e))?;
        sync_folder(&self.repo.join("blobs"));
        Ok(())
    }

    /// Makes `snapshots/<sha>/<file>` point to a blob: by a relative link, so that the cache can be
    /// moved, or by a copy if the system has no links.
    pub(super) fn link(&self, sha: &str, file: &str, etag: &str) -> Result<(), PullError> {
        let at = self.snapshot(sha).join(file);
        make_folder(at.parent().unwrap_or(&self.repo))?;
        // The link is made elsewhere and renamed, so that it replaces one to a deleted or damaged
        // blob, or an equal one of another pull, without a moment in which there is none.
        let up = "../".repeat(2 + file.matches('/').count());
        let target = Path::new(&up).join("blobs").join(etag);
        let part = self.temporary();
        match symlink(&target, &part).and_then(|()| fs::rename(&part, &at)) {
            Ok(()) => Ok(()),
            Err(_) => self.copy_blob(etag, &at),
        }
    }

    fn copy_blob(&self, etag: &str, at: &Path) -> Result<(), PullError> {
        let part = self.temporary();
        fs::copy(self.blob(etag), &part)
            .and_then(|_| fs::rename(&part, at))
            .map_err(|e| PullError::write(at, e))
    }

    /// Points a branch or tag to a commit. If the revision is the commit itself, it needs no ref.
    pub(super) fn write_ref(&self, revision: &str, sha: &str) -> Result<(), PullError> {
        let path = self.repo.join("refs").join(revision);
        // A cache that is up to date may be read-only.
        if revision == sha || fs::read_to_string(&path).is_ok_and(|text| text == sha) {
            return Ok(());
        }
        make_folder(path.parent().unwrap_or(&self.repo))?;
        let part = self.temporary();
        fs::write(&part, sha)
            .and_then(|()| File::open(&part)?.sync_all())
            .and_then(|()| fs::rename(&part, &path))
            .map_err(|e| PullError::write(&path, e))
    }

    /// A unique name, outside the folders that are listed.
    fn temporary(&self) -> PathBuf {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        self.repo.join(format!(".{}-{n}.tmp", std::process::id()))
    }
}

fn make_folder(path: &Path) -> Result<(), PullError> {
    fs::create_dir_all(path).map_err(|e| PullError::write(path, e))
}

fn lock_file(path: &Path, on_wait: impl FnOnce()) -> io::Result<File> {
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    let locked = match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            on_wait();
            file.lock()
        }
        Err(TryLockError::Error(e)) => Err(e),
    };
    match locked {
        // Some network file systems have no locks. Downloading without a lock is better than
        // failing.
        Err(e) if e.kind() != io::ErrorKind::Unsupported => Err(e),
        _ => Ok(file),
    }
}

#[cfg(unix)]
fn is_file_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), fs::metadata(path)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

#[cfg(not(unix))]
fn is_file_at(_file: &File, _path: &Path) -> bool {
    // This system cannot delete an open file.
    true
}

#[cfg(unix)]
fn symlink(target: &Path, at: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, at)
}

#[cfg(windows)]
fn symlink(target: &Path, at: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, at)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_target: &Path, _at: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Makes a rename durable, if the system can sync a folder.
fn sync_folder(path: &Path) {
    if let Ok(folder) = File::open(path) {
        let _ = folder.sync_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use tempfile::TempDir;

    use super::*;

    fn layout(folder: &TempDir) -> Layout {
        let at = |name| folder.path().join(name);
        Layout { repo: at("repo"), locks: at("locks") }
    }

    #[test]
    fn copy_stands_in_for_a_link() {
        let folder = TempDir::new().unwrap();
        let layout = layout(&folder);
        fs::create_dir_all(layout.repo.join("blobs")).unwrap();
        fs::write(layout.blob("etag"), b"content").unwrap();
        let at = layout.repo.join("config.json");
        layout.copy_blob("etag", &at).unwrap();
        assert_eq!(fs::read(&at).unwrap(), b"content");
        let names = fs::read_dir(&layout.repo).unwrap().count();
        assert_eq!(names, 2, "the temporary file is left over");
    }

    #[cfg(unix)]
    #[test]
    fn lock_on_a_deleted_file_is_taken_again() {
        let folder = TempDir::new().unwrap();
        let layout = layout(&folder);
        let path = layout.locks.join("etag.lock");
        let first = layout.lock("etag", || panic!("nobody holds it")).unwrap();
        let (sender, waits) = mpsc::channel();
        std::thread::scope(|scope| {
            let layout = &layout;
            let second = scope.spawn(move || layout.lock("etag", || sender.send(()).unwrap()));
            waits.recv_timeout(Duration::from_secs(10)).unwrap();
            fs::remove_file(&path).unwrap();
            drop(first);
            let second = second.join().unwrap().unwrap();
            assert!(is_file_at(&second, &path), "the lock excludes nobody");
        });
    }
}
