//! The hash of a file as the hub announces it, and the check of a file against it.
//!
//! Large files have the SHA-256 of their content. Small files are objects of the git repository:
//! their id is the SHA-1 of a header with the length, followed by the content.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use sha1::Sha1;
use sha2::{Digest, Sha256};

const BUFFER_BYTES: usize = 256 << 10;

/// An announced hash, in lower-case hex digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Hash {
    /// Of the content.
    Sha256(String),
    /// The id of a git object.
    GitBlob(String),
}

impl Hash {
    /// Reads a hash. Other names of blobs, as mirrors of the hub may use them, are none.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match text.len() {
            64 if is_hex => Some(Self::Sha256(text.to_ascii_lowercase())),
            40 if is_hex => Some(Self::GitBlob(text.to_ascii_lowercase())),
            _ => None,
        }
    }

    /// Hashes a file in the same way.
    pub(super) fn of_file(&self, path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        match self {
            Self::Sha256(_) => digest(Sha256::new(), file).map(Self::Sha256),
            Self::GitBlob(_) => {
                let header = format!("blob {}\0", file.metadata()?.len());
                digest(Sha1::new_with_prefix(header), file).map(Self::GitBlob)
            }
        }
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sha256(hex) => write!(f, "sha-256 {hex}"),
            Self::GitBlob(hex) => write!(f, "git blob {hex}"),
        }
    }
}

fn digest(mut hash: impl Digest, mut file: File) -> io::Result<String> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            return Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect());
        }
        hash.update(&buffer[..n]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_hashed_as_git_and_sha256sum_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hello");
        std::fs::write(&path, b"hello\n").unwrap();
        // `git hash-object hello` and `sha256sum hello`.
        for known in [
            "ce013625030ba8dba906f756967f9e9ca394464a",
            "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03",
        ] {
            let hash = Hash::parse(known).unwrap();
            assert_eq!(hash.of_file(&path).unwrap(), hash);
            assert_eq!(Hash::parse(&known.to_uppercase()), Some(hash));
        }
    }

    #[test]
    fn other_names_are_no_hashes() {
        for name in ["", "abc-1", "zz013625030ba8dba906f756967f9e9ca394464a", "ce01"] {
            assert_eq!(Hash::parse(name), None, "{name}");
        }
    }
}
