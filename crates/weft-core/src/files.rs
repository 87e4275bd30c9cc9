//! Reads untrusted files with a limit on their size, and keeps the files of private folders.

use std::fs::File;
use std::io::{Read, Result, Write};
use std::path::Path;

use crate::store::platform::{check_ours, create_private_folder, open_regular, sync_folder};
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

#[cfg(all(test, unix))]
mod tests {
    use std::fs::{self, Permissions};
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
