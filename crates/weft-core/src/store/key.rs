//! The key of KV rows.
//!
//! A key is a hash of everything that the rows depend on. It has one spelling, lower-case hex, so
//! that two file names never mean the same entry.

use std::fmt;
use std::str::FromStr;

const KEY_BYTES: usize = 32;

/// The key of KV rows: a hash of model, layout, kind of reuse, attended context and tokens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KvKey([u8; KEY_BYTES]);

/// A text that is not a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a KV key: expected 64 lower-case hex digits")]
pub struct KeyError {
    text: String,
}

impl KvKey {
    /// The parent of rows that attended to nothing.
    pub const NOTHING: Self = Self([0; KEY_BYTES]);

    /// The key of the rows of `tokens` that attended to `parent` and to each other.
    pub fn of_rows(parent: &Self, tokens: &[u32]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"weft kv key 1\0").update(parent.as_bytes());
        for token in tokens {
            hasher.update(&token.to_le_bytes());
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// The key with these bytes.
    pub const fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl fmt::Display for KvKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KvKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KvKey({self})")
    }
}

impl FromStr for KvKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let refused = || KeyError { text: text.chars().take(2 * KEY_BYTES + 1).collect() };
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if pairs.len() != KEY_BYTES || !rest.is_empty() {
            return Err(refused());
        }
        let mut bytes = [0; KEY_BYTES];
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            let (Some(high), Some(low)) = (digit(*high), digit(*low)) else {
                return Err(refused());
            };
            *byte = high << 4 | low;
        }
        Ok(Self(bytes))
    }
}

fn digit(letter: u8) -> Option<u8> {
    match letter {
        b'0'..=b'9' => Some(letter - b'0'),
        b'a'..=b'f' => Some(letter - b'a' + 10),
        _ => None,
    }
}
