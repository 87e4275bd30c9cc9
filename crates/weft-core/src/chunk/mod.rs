//! Chunks: the texts that contexts are composed of.
//!
//! A chunk is a registered text with a kind: a system prompt, a document or a kept answer.
//! [`Kind::Query`] is a kind of pieces only. A [`Prompt`] names chunks. The model's template turns
//! it into a [`Composition`] of tokens. The engine runs the composition and reuses cached KV rows.
//! This module defines chunks and how they are composed; the cache decides where their rows lie.

mod asked;
mod card;
mod compose;
mod composition;
mod conversation;
mod homes;
mod library;
mod parcel;
mod prompt;
mod report;
mod reuse;
mod shelf;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use self::asked::{AskError, Asked, Composed, Source, Turn};
pub use self::compose::compose_prompt;
pub use self::composition::{Composition, Piece};
pub use self::conversation::{TurnReuse, compose_conversation};
pub use self::homes::Homes;
pub use self::library::{Chunk, Library, Which};
pub use self::parcel::{Exported, Imported, Parcel, SignedParcel, SignedRows, Untrusted, export};
pub use self::prompt::{ChunkError, Prompt};
pub use self::report::{ExpectedTimes, PieceReport, Report, Tier};
pub use self::reuse::{ParseError, Repair, Reuse};
pub use self::shelf::{Shelf, Shelved};

/// The kind of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A system prompt: shared by most prompts.
    System,
    /// A document.
    Context,
    /// A question or another instruction: shared by the fewest prompts.
    Query,
    /// A kept answer.
    Output,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::System, Self::Context, Self::Query, Self::Output];

    /// Its rank in a prompt: the lower, the more prompts share it.
    pub const fn level(self) -> u8 {
        match self {
            Self::System => 0,
            Self::Context | Self::Output => 1,
            Self::Query => 2,
        }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Context => "context",
            Self::Query => "query",
            Self::Output => "output",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A chunk's id: a hash of its kind and tokens. The same content has the same id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ChunkId([u8; 16]);

impl ChunkId {
    /// The id of a chunk with this kind and these tokens.
    pub fn of(kind: Kind, tokens: &[u32]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(kind.name().as_bytes()).update(&[0]);
        for token in tokens {
            hasher.update(&token.to_le_bytes());
        }
        let mut id = [0; 16];
        hasher.finalize_xof().fill(&mut id);
        Self(id)
    }

    /// Its first eight digits, which nearly always are enough to find the chunk.
    pub fn short(&self) -> String {
        self.to_string()[..8].to_owned()
    }
}

impl From<ChunkId> for String {
    fn from(id: ChunkId) -> Self {
        id.to_string()
    }
}

impl TryFrom<String> for ChunkId {
    type Error = ChunkError;

    fn try_from(text: String) -> Result<Self, ChunkError> {
        text.parse()
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ChunkId {
    type Err = ChunkError;

    fn from_str(text: &str) -> Result<Self, ChunkError> {
        let unknown = || ChunkError::BadId { id: text.to_owned() };
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != 32 || !text.bytes().all(is_hex) {
            return Err(unknown());
        }
        let id = u128::from_str_radix(text, 16).map_err(|_| unknown())?;
        Ok(Self(id.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_kind_and_tokens_and_reads_back() {
        let id = ChunkId::of(Kind::Context, &[1, 2, 3]);
        assert_eq!(id, ChunkId::of(Kind::Context, &[1, 2, 3]));
        assert_ne!(id, ChunkId::of(Kind::Output, &[1, 2, 3]));
        assert_ne!(id, ChunkId::of(Kind::Context, &[1, 2]));
        assert_eq!(id.to_string().parse::<ChunkId>().unwrap(), id);
        for wrong in ["", "+0000000000000000000000000000000", &id.to_string().to_uppercase()] {
            assert!(wrong.parse::<ChunkId>().is_err(), "{wrong}");
        }
    }
}
