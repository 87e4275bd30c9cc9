//! A chunk as JSON, as the shelf, parcels and the remote tier write it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::{Chunk, ChunkId, Kind};

/// The JSON form of a chunk. It includes the tokens, so that listing chunks does not encode every
/// text again. The id is a hash of the tokens and proves them.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Card {
    id: String,
    pub(super) kind: Kind,
    pub(super) text: String,
    tokens: Vec<u32>,
    pub(super) metadata: BTreeMap<String, String>,
    created_ms: u64,
    last_used_ms: Option<u64>,
    uses: u64,
    pinned: bool,
}

impl Card {
    pub(super) fn of(chunk: &Chunk) -> Self {
        Self {
            id: chunk.id.to_string(),
            kind: chunk.kind,
            text: chunk.text.clone(),
            tokens: chunk.tokens.clone(),
            metadata: chunk.metadata.clone(),
            created_ms: milliseconds(chunk.created),
            last_used_ms: chunk.last_used.map(milliseconds),
            uses: chunk.uses,
            pinned: chunk.pinned,
        }
    }

    /// The chunk, or why the JSON does not describe one.
    pub(super) fn chunk(self) -> Result<Chunk, String> {
        let id = ChunkId::of(self.kind, &self.tokens);
        if id.to_string() != self.id {
            return Err(format!("its id is {}, but it holds chunk {id}", self.id));
        }
        Ok(Chunk {
            id,
            kind: self.kind,
            text: self.text,
            tokens: self.tokens,
            metadata: self.metadata,
            created: time(self.created_ms),
            last_used: self.last_used_ms.map(time),
            uses: self.uses,
            pinned: self.pinned,
        })
    }
}

impl Chunk {
    /// The chunk as JSON.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(&Card::of(self)).expect("texts and numbers become JSON")
    }

    /// Reads the output of [`to_json`](Self::to_json).
    ///
    /// # Errors
    /// Why the JSON does not describe a chunk: its form, or an id that is not the one of its
    /// tokens. Whether the tokens are those of the text, only a tokenizer can say.
    pub fn from_json(json: &[u8]) -> Result<Self, String> {
        let card: Card = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        card.chunk()
    }
}

fn milliseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A time that the system cannot represent becomes the epoch.
fn time(milliseconds: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_millis(milliseconds)).unwrap_or(UNIX_EPOCH)
}
