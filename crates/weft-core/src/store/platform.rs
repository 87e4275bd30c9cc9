//! Differences between operating systems: private files, reads at an offset, durable folders.
//!
//! On systems other than Unix, privacy depends on the folder in the user's profile.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

/// Creates a folder and its parents, accessible to the owner only.
pub(crate) fn create_private_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Creates a new file, accessible to the owner only.
pub(crate) fn create_private_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Opens a file of a private folder for reading. A link is not followed, a pipe is not waited for,
/// and only a regular file is accepted.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, flags);
    }
    let irregular =
        || io::Error::new(io::ErrorKind::InvalidInput, "a link, a pipe or a device, not a file");
    let opened = options.open(path);
    #[cfg(unix)]
    let is_link =
        |error: &io::Error| error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
    #[cfg(not(unix))]
    let is_link = |_: &io::Error| false;
    let file = opened.map_err(|error| if is_link(&error) { irregular() } else { error })?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(irregular()) }
}

/// Refuses a folder that other users can write to: its files may be theirs.
pub(crate) fn check_ours(folder: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let metadata = fs::metadata(folder)?;
        let (owner, mode) = (metadata.uid(), metadata.mode() & 0o777);
        let refused = |why| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        if mode & 0o022 != 0 {
            return refused(format!(
                "other users can write to it (mode {mode:04o}); run `chmod 700` on it"
            ));
        }
        if owner != 0 && owner != rustix::process::geteuid().as_raw() {
            return refused(format!(
                "it belongs to another user (id {owner}); use your own folder"
            ));
        }
    }
    #[cfg(not(unix))]
    let _ = folder;
    Ok(())
}

/// Refuses a file that other users can read or write.
pub(super) fn check_secret(file: &File) -> io::Result<()> {
    #[cfg(unix)]
    {
        let mode = std::os::unix::fs::MetadataExt::mode(&file.metadata()?) & 0o777;
        if mode & 0o077 != 0 {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("other users can read it (mode {mode:04o}); run `chmod 600` on it"),
            ));
        }
    }
    #[cfg(not(unix))]
    let _ = file;
    Ok(())
}

/// Whether users other than the owner may enter or list a folder.
pub(super) fn is_open_to_others(folder: &Path) -> io::Result<bool> {
    let permissions = fs::metadata(folder)?.permissions();
    #[cfg(unix)]
    let is_open = std::os::unix::fs::PermissionsExt::mode(&permissions) & 0o077 != 0;
    #[cfg(not(unix))]
    let is_open = {
        let _ = permissions;
        false
    };
    Ok(is_open)
}

/// Whether an open file still has a name in some folder.
pub(super) fn has_a_name(file: &File) -> io::Result<bool> {
    let metadata = file.metadata()?;
    #[cfg(unix)]
    let n_names = std::os::unix::fs::MetadataExt::nlink(&metadata);
    // Here, an open file cannot lose its name.
    #[cfg(not(unix))]
    let n_names = u64::from(metadata.is_file());
    Ok(n_names > 0)
}

/// Maximum number of threads that read one file. One core hashes and copies more slowly than disks
/// and page caches deliver. On systems other than Unix, reads of a file share a cursor.
pub(super) const MOST_READERS: usize = if cfg!(unix) { 16 } else { 1 };

/// Fills `bytes` from an offset, without a shared cursor.
#[cfg(unix)]
pub(super) fn read_exact_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

/// Fills `bytes` from an offset.
#[cfg(not(unix))]
pub(super) fn read_exact_at(mut file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    use std::io::{Read, Seek};
    file.seek(io::SeekFrom::Start(offset))?;
    file.read_exact(bytes)
}

/// Makes renames in a folder survive a power failure.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}
