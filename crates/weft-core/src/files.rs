//! Reads untrusted files with a limit on their size, keeps the files of private folders, and writes
//! files that are seen whole or not at all.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::path::{Path, PathBuf};

use crate::store::platform::{
    check_ours, create_private_file, create_private_folder, open_regular, sync_folder,
};
use crate::store::temp::TempFile;

/// Reads a file of at most `limit` bytes; `None` if it has more. It does not rely on the reported
/// size, which can be wrong (a pipe, a growing file).
pub(crate) fn read_capped(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    read_open(File::open(path)?, limit)
}

/// Reads a file of a folder that only its owner can write to, with the same limit. Links, pipes and
/// devices are refused.
pub fn read_private(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    check_ours(path.parent().unwrap_or(path))?;
    read_open(open_regular(path)?, limit)
}

fn read_open(file: File, limit: u64) -> Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= limit).then_some(bytes))
}

/// Writes a file that only its owner can read, durably and at once: readers see all of it or
/// nothing. Creates its folder; refuses a folder that other users can write to.
pub fn write_private(path: &Path, parts: &[&[u8]]) -> Result<()> {
    let folder = path.parent().unwrap_or(path);
    create_private_folder(folder)?;
    check_ours(folder)?;
    let mut temp = TempFile::create(folder)?;
    for part in parts {
        temp.file.write_all(part)?;
    }
    temp.file.sync_all()?;
    temp.rename(path)?;
    sync_folder(folder)
}

/// A file that is being written. [`NewFile::commit`] gives it its name, so readers see all of it or
/// what was there before. If it is dropped without that, nothing is left.
pub struct NewFile {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
}

impl NewFile {
    /// Creates a file with the permissions that new files have.
    pub fn create(path: &Path) -> Result<Self> {
        Self::new(path, |temporary| File::create_new(temporary))
    }

    /// Creates a file that only its owner can read.
    pub fn create_private(path: &Path) -> Result<Self> {
        Self::new(path, create_private_file)
    }

    fn new(path: &Path, create: impl Fn(&Path) -> Result<File>) -> Result<Self> {
        if path.exists() && !path.is_file() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "not a file, so weft does not replace it",
            ));
        }
        // A link is followed, so that it stays a link.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let temporary = beside(&path, "tmp");
        Ok(Self { file: create(&temporary)?, temporary, path })
    }

    /// Gives the file its name, after everything that was written is on disk.
    pub fn commit(self) -> Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.temporary, &self.path)?;
        sync_folder(folder_of(&self.path))
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> Result<()> {
        self.file.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // After a commit it does not exist.
        let _ = fs::remove_file(&self.temporary);
    }
}

/// A hidden name beside a path, for what will replace it. Nobody else can guess it, so nobody can
/// have taken it before.
pub(crate) fn beside(path: &Path, ending: &str) -> PathBuf {
    let number = RandomState::new().hash_one(std::process::id());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    folder_of(path).join(format!(".{name}.{number:016x}.{ending}"))
}

/// The folder that a path lies in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::process::Command;

    use super::*;

    #[test]
    fn links_pipes_and_devices_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        write_private(&path("file"), &[b"a", b"b"]).unwrap();
        assert_eq!(read_private(&path("file"), 9).unwrap().unwrap(), b"ab");
        assert_eq!(read_private(&path("file"), 1).unwrap(), None);
        symlink(path("file"), path("link")).unwrap();
        symlink("/dev/zero", path("device")).unwrap();
        // Without care, opening a pipe waits for its other end.
        assert!(Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
        for name in ["link", "device", "pipe"] {
            let error = read_private(&path(name), 9).unwrap_err();
            assert!(error.to_string().contains("not a file"), "{name}: {error}");
        }
        assert!(open_regular(Path::new("/dev/null")).is_err());
    }

    #[test]
    fn a_new_file_is_seen_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let names = || fs::read_dir(folder.path()).unwrap().count();
        fs::write(path("file"), "old").unwrap();
        symlink(path("file"), path("link")).unwrap();
        let mut dropped = NewFile::create(&path("file")).unwrap();
        dropped.write_all(b"half").unwrap();
        assert_eq!((fs::read(path("file")).unwrap(), names()), (b"old".to_vec(), 3));
        drop(dropped);
        assert_eq!((fs::read(path("file")).unwrap(), names()), (b"old".to_vec(), 2));
        let mut whole = NewFile::create_private(&path("link")).unwrap();
        whole.write_all(b"new").unwrap();
        whole.commit().unwrap();
        assert_eq!((fs::read(path("file")).unwrap(), names()), (b"new".to_vec(), 2));
        assert!(path("link").is_symlink());
        assert_eq!(fs::metadata(path("file")).unwrap().permissions().mode() & 0o777, 0o600);
        for other in [folder.path(), Path::new("/dev/null")] {
            let error = NewFile::create(other).err().unwrap();
            assert!(error.to_string().contains("not a file"), "{error}");
        }
    }

    #[test]
    fn folders_that_others_can_write_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/file");
        write_private(&path, &[b"a"]).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(path.parent().unwrap()), mode(&path)), (0o700, 0o600));
        for open in [0o770, 0o707, 0o777, 0o722] {
            fs::set_permissions(path.parent().unwrap(), Permissions::from_mode(open)).unwrap();
            for result in [read_private(&path, 9).map(drop), write_private(&path, &[b"b"])] {
                assert!(result.unwrap_err().to_string().contains("chmod 700"), "{open:o}");
            }
        }
        fs::set_permissions(path.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
        assert_eq!(read_private(&path, 9).unwrap().unwrap(), b"a");
    }
}
