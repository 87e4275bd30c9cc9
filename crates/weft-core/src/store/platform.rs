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
