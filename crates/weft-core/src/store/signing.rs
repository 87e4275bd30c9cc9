//! Signatures on rows that come from elsewhere: a file from another machine, a shared store.
//!
//! Anyone who can write to such a place can plant rows that change answers: a checksum proves that
//! rows arrived as they were sent, not who computed them. A signature is a keyed BLAKE3 hash, so
//! whoever can check one can also write one: the key belongs to people who trust each other.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use super::{KvKey, platform};

/// Separates signatures of rows from any other use of the same key.
const PURPOSE: &str = "weft rows 1";

/// A secret that signs rows and checks their signatures.
#[derive(Clone)]
pub struct SigningKey([u8; 32]);

/// A signature of some rows. Comparing takes the same time whatever differs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Signature(blake3::Hash);

impl SigningKey {
    /// The key with these bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// A new key, from the system's source of random numbers.
    ///
    /// # Errors
    /// If the system gives none.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Self(bytes))
    }

    /// Reads a key from a file of 64 hex digits that only its owner can read.
    ///
    /// # Errors
    /// If the file cannot be read, has other content, or others can read it.
    pub fn read(path: &Path) -> io::Result<Self> {
        let file = platform::open_regular(path)?;
        platform::check_secret(&file)?;
        let text = io::read_to_string(io::Read::take(file, 128))?;
        let key: KvKey = text.trim_end().parse().map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidData, "a key is 64 lower-case hex digits")
        })?;
        Ok(Self(*key.as_bytes()))
    }

    /// Writes a key to a new file that only its owner can read.
    ///
    /// # Errors
    /// If the file exists or cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = platform::create_private_file(path)?;
        let written = writeln!(file, "{}", KvKey::from_bytes(self.0));
        written.and_then(|()| file.sync_all()).inspect_err(|_| {
            // The error of writing is the one to report.
            let _ = fs::remove_file(path);
        })
    }

    /// Signs a message of several parts. Their lengths are signed too, so no other parts with the
    /// same bytes have this signature.
    pub fn sign(&self, parts: &[&[u8]]) -> Signature {
        let mut hasher = blake3::Hasher::new_keyed(&blake3::derive_key(PURPOSE, &self.0));
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        Signature(hasher.finalize())
    }

    /// Whether this key signed the message.
    pub fn has_signed(&self, parts: &[&[u8]], signature: &Signature) -> bool {
        self.sign(parts) == *signature
    }
}

/// Does not print the secret.
impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey")
    }
}

impl Signature {
    /// Reads a signature of 64 lower-case hex digits.
    pub fn parse(text: &str) -> Option<Self> {
        let signature = blake3::Hash::from_hex(text).ok()?;
        // One signature has one spelling.
        (!text.bytes().any(|byte| byte.is_ascii_uppercase())).then_some(Self(signature))
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signature({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: SigningKey = SigningKey::from_bytes([7; 32]);

    #[test]
    fn only_the_same_key_and_the_same_parts_have_a_signature() {
        let signature = KEY.sign(&[b"ab", b"c"]);
        assert!(KEY.has_signed(&[b"ab", b"c"], &signature));
        assert!(!KEY.has_signed(&[b"a", b"bc"], &signature));
        assert!(!KEY.has_signed(&[b"abc"], &signature));
        assert!(!SigningKey::from_bytes([8; 32]).has_signed(&[b"ab", b"c"], &signature));
        assert_eq!(Signature::parse(&signature.to_string()), Some(signature));
        assert_eq!(Signature::parse("abc"), None);
        assert_eq!(Signature::parse(&signature.to_string().to_uppercase()), None);
    }

    #[test]
    fn random_keys_differ() {
        let keys = [SigningKey::random().unwrap(), SigningKey::random().unwrap()];
        assert_ne!(keys[0].0, keys[1].0);
        assert_ne!(keys[0].0, [0; 32]);
    }

    #[test]
    fn a_key_is_read_as_it_was_written_and_only_from_a_secret_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        KEY.write(&path).unwrap();
        assert_eq!(SigningKey::read(&path).unwrap().0, KEY.0);
        assert_eq!(KEY.write(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        fs::write(&path, "short\n").unwrap();
        assert_eq!(SigningKey::read(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
            let error = SigningKey::read(&path).unwrap_err();
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
        assert_eq!(format!("{KEY:?}"), "SigningKey");
    }
}
