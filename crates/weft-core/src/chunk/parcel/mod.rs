//! A parcel: a chunk and its KV rows in one file, for another machine.
//!
//! The file starts with a line of JSON that holds the chunk. For each KV file, a line of JSON with
//! its length and its signature and the file itself follow, as the store writes it (safetensors).
//! Rows fit only the same model on the same kind of device; the text fits every model. The text is
//! therefore imported first, and rows that do not fit are reported and skipped.
//!
//! Rows do not show whether the model computed them. They are accepted only at the homes of the
//! parcel's own chunk, and only if a key that the user trusts has signed them. A signature of rows
//! covers the chunk too, so it is worth nothing in another parcel.

mod read;
#[cfg(test)]
mod tests;
mod write;

use std::path::Path;

use serde::{Deserialize, Serialize};

pub use self::read::{Imported, Parcel, SignedParcel, Untrusted};
pub use self::write::{Exported, SignedRows, export};
use super::ChunkError;
use super::card::Card;

const FORMAT: &str = "weft-chunk";
const VERSION: u32 = 2;
/// The version without signatures.
const UNSIGNED_VERSION: u32 = 1;

/// What signatures are of. Other messages of the same key begin with other words.
const CHUNK_MESSAGE: &[u8] = b"parcel: chunk";
const ROWS_MESSAGE: &[u8] = b"parcel: rows";

/// The first line.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct First {
    format: String,
    version: u32,
    chunk: Card,
    /// Of the chunk's JSON. The chunk's id depends on the tokenizer, so it cannot prove the text.
    chunk_blake3: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signature: Option<String>,
}

/// The first line of the version without signatures.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UnsignedFirst {
    #[serde(rename = "format")]
    _format: String,
    #[serde(rename = "version")]
    _version: u32,
    chunk: Card,
    text_blake3: String,
}

/// The header of a KV file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    rows_bytes: u64,
    signature: String,
}

/// The checksum of a chunk: of its JSON as weft writes it, however a file spells it.
fn hash_chunk(card: &Card) -> serde_json::Result<blake3::Hash> {
    Ok(blake3::hash(&serde_json::to_vec(card)?))
}

/// The message that the signature of a chunk is of.
fn chunk_message(chunk: &blake3::Hash) -> [&[u8]; 2] {
    [CHUNK_MESSAGE, chunk.as_bytes()]
}

/// The message that the signature of a KV file is of.
fn rows_message<'h>(chunk: &'h blake3::Hash, file: &'h blake3::Hash) -> [&'h [u8]; 3] {
    [ROWS_MESSAGE, chunk.as_bytes(), file.as_bytes()]
}

fn file_error(path: &Path, reason: String) -> ChunkError {
    ChunkError::File { path: path.display().to_string(), reason }
}
