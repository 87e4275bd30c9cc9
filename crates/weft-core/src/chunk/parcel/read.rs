//! Reads parcels. Nothing in a parcel is believed: the text is tokenised again, and rows are
//! stored only if their signature, their model and their place are right.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;

use super::super::card::Card;
use super::super::{ChunkError, Homes, Kind};
use super::{
    FORMAT, First, Section, UNSIGNED_VERSION, UnsignedFirst, VERSION, chunk_message, file_error,
    hash_chunk, rows_message,
};
use crate::store::temp::TempFile;
use crate::store::{Reason, Signature, SigningKey, Store, StoreError};

/// Maximum bytes of the first line: longer than any text that fits a context.
const LINE_LIMIT: u64 = 256 << 20;

/// Maximum bytes of the line before a KV file.
const SECTION_LIMIT: u64 = 1 << 10;

/// Bytes copied at a time.
const BLOCK_BYTES: usize = 1 << 16;

/// The fields that every version has.
#[derive(Deserialize)]
struct AnyVersion {
    format: String,
    version: u32,
}

/// The result of importing a parcel's KV files.
#[derive(Debug, Default)]
pub struct Imported {
    /// Number of files stored.
    pub files: usize,
    /// Why the other files were refused.
    pub refused: Vec<String>,
}

/// Why no rows of a parcel are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Untrusted {
    /// It has no signature.
    #[error("it is not signed; ask its sender to export it with --key")]
    Unsigned,
    /// The user gave no key.
    #[error("it is signed, and you gave no key; give its sender's key with --key")]
    NoKey,
    /// The signature is not of this key and this chunk.
    #[error(
        "your key has not signed it, or it was changed since; give its sender's key with --key"
    )]
    OtherKey,
}

/// A parcel whose chunk has been read.
pub struct Parcel {
    path: PathBuf,
    file: BufReader<File>,
    card: Card,
    chunk: blake3::Hash,
    signature: Option<String>,
}

/// A parcel that a trusted key has signed.
pub struct SignedParcel<'k> {
    parcel: Parcel,
    key: &'k SigningKey,
}

impl Parcel {
    /// Opens a parcel and reads its chunk.
    ///
    /// # Errors
    /// If the file cannot be read, is not a parcel, or has a damaged chunk.
    pub fn open(path: &Path) -> Result<Self, ChunkError> {
        let refused = |reason: String| file_error(path, reason);
        let file = File::open(path).map_err(|error| refused(error.to_string()))?;
        let mut file = BufReader::new(file);
        let line = read_line(&mut file, LINE_LIMIT).map_err(|error| refused(error.to_string()))?;
        let foreign = |error| refused(format!("`weft chunk export` did not write it: {error}"));
        let AnyVersion { format, version } = serde_json::from_slice(&line).map_err(foreign)?;
        let (card, expected, found, signature) = match (format.as_str(), version) {
            (FORMAT, VERSION) => {
                let First { chunk, chunk_blake3, signature, .. } =
                    serde_json::from_slice(&line).map_err(foreign)?;
                let hash = hash_chunk(&chunk).map_err(foreign)?;
                (chunk, chunk_blake3, hash, signature)
            }
            (FORMAT, UNSIGNED_VERSION) => {
                let UnsignedFirst { chunk, text_blake3, .. } =
                    serde_json::from_slice(&line).map_err(foreign)?;
                let hash = blake3::hash(chunk.text.as_bytes());
                (chunk, text_blake3, hash, None)
            }
            _ => {
                return Err(refused(format!(
                    "it is {format:?} {version}, expected {FORMAT} {UNSIGNED_VERSION} or {VERSION}"
                )));
            }
        };
        if found.to_string() != expected {
            return Err(refused(
                "its text or its metadata do not match their checksum; export it again".to_owned(),
            ));
        }
        Ok(Self { path: path.to_owned(), file, card, chunk: found, signature })
    }

    /// The chunk's kind.
    pub fn kind(&self) -> Kind {
        self.card.kind
    }

    /// The chunk's text.
    pub fn text(&self) -> &str {
        &self.card.text
    }

    /// The chunk's metadata.
    pub fn metadata(&self) -> &std::collections::BTreeMap<String, String> {
        &self.card.metadata
    }

    /// Whether there are rows to import.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn has_rows(&mut self) -> Result<bool, ChunkError> {
        let at_hand = self.file.fill_buf().map(|bytes| !bytes.is_empty());
        at_hand.map_err(|error| file_error(&self.path, error.to_string()))
    }

    /// The parcel, if this key has signed its chunk. Each KV file has its own signature, which is
    /// checked when it is read.
    ///
    /// # Errors
    /// If its rows must not be used.
    pub fn signed_by(self, key: Option<&SigningKey>) -> Result<SignedParcel<'_>, Untrusted> {
        let signature = self.signature.as_deref().ok_or(Untrusted::Unsigned)?;
        let key = key.ok_or(Untrusted::NoKey)?;
        let is_signed = Signature::parse(signature)
            .is_some_and(|signature| key.has_signed(&chunk_message(&self.chunk), &signature));
        if !is_signed {
            return Err(Untrusted::OtherKey);
        }
        Ok(SignedParcel { parcel: self, key })
    }
}

impl SignedParcel<'_> {
    /// Stores the rows that fit this model and device, and stand at a home of the chunk. `homes`
    /// must be those of the parcel's text, tokenised here.
    ///
    /// # Errors
    /// If the file ends early or cannot be read. Rows stored before the error stay.
    pub fn import_rows(
        mut self,
        store: &mut Store,
        homes: &Homes,
        fingerprint: &str,
    ) -> Result<Imported, ChunkError> {
        let mut imported = Imported::default();
        while self.parcel.has_rows()? {
            let stored = self.import_section(store, homes, fingerprint);
            match stored.map_err(|error| file_error(&self.parcel.path, error.to_string()))? {
                Ok(()) => imported.files += 1,
                Err(reason) => imported.refused.push(reason),
            }
        }
        Ok(imported)
    }

    /// Stores one KV file, or returns why it is refused.
    fn import_section(
        &mut self,
        store: &mut Store,
        homes: &Homes,
        fingerprint: &str,
    ) -> io::Result<Result<(), String>> {
        let file = &mut self.parcel.file;
        let Section { rows_bytes, signature } =
            serde_json::from_slice(&read_line(file, SECTION_LIMIT)?)?;
        if rows_bytes > store.budget_bytes() {
            // Skipped without copying: the length is only the parcel's claim.
            file.seek_relative(i64::try_from(rows_bytes).map_err(io::Error::other)?)?;
            let budget = store.budget_bytes();
            return Ok(Err(format!(
                "its rows have {rows_bytes} bytes, and the budget is {budget}"
            )));
        }
        let mut temp = TempFile::create(store.folder())?;
        let hash = copy_hashed(&mut file.take(rows_bytes), rows_bytes, &mut temp.file)?;
        let message = rows_message(&self.parcel.chunk, &hash);
        let is_signed = Signature::parse(&signature)
            .is_some_and(|signature| self.key.has_signed(&message, &signature));
        if !is_signed {
            return Ok(Err("rows are refused: their signature is wrong; they were changed, or \
                           belong to another parcel"
                .to_owned()));
        }
        Ok(store_rows(store, temp.path(), homes, fingerprint))
    }
}

/// Copies exactly `bytes` bytes, and returns their hash.
fn copy_hashed(from: &mut impl Read, bytes: u64, to: &mut File) -> io::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    let mut block = vec![0; BLOCK_BYTES];
    let mut left = bytes;
    while left > 0 {
        let n = BLOCK_BYTES.min(usize::try_from(left).unwrap_or(BLOCK_BYTES));
        from.read_exact(&mut block[..n])?;
        hasher.update(&block[..n]);
        to.write_all(&block[..n])?;
        left -= n as u64;
    }
    Ok(hasher.finalize())
}

/// Everything is checked before anything is stored: another process may read the store.
fn store_rows(
    store: &mut Store,
    path: &Path,
    homes: &Homes,
    fingerprint: &str,
) -> Result<(), String> {
    let (key, header) = Store::peek(path).map_err(why)?;
    if header.fingerprint == fingerprint {
        if header.key() != key {
            return Err(format!("the rows under key {key} are those of other tokens"));
        }
        if !homes.have(&header) {
            return Err(
                "rows are refused: they are those of other tokens, or attended to something \
                        else than a system prompt that is registered here; register it (`weft \
                        chunk add --kind system`) or name it (--system), and import again"
                    .to_owned(),
            );
        }
    }
    store.import(path, fingerprint).map(drop).map_err(why)
}

fn why(error: StoreError) -> String {
    match error {
        StoreError::Refused { reason: Reason::Mismatch { field: "fingerprint", .. }, .. } => {
            "its rows are of another model or another kind of device, and are computed again when \
             they are needed"
                .to_owned()
        }
        StoreError::Refused { reason, .. } => format!("rows are refused: {reason}"),
        StoreError::NotStored { outcome, .. } => format!("rows are not stored: {outcome}"),
        error => error.to_string(),
    }
}

/// Reads a line, without its line feed.
fn read_line(file: &mut impl BufRead, limit: u64) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let n_read = file.take(limit).read_until(b'\n', &mut line)? as u64;
    let reason = match line.pop() {
        Some(b'\n') => return Ok(line),
        _ if n_read < limit => "the file is cut off; export it again",
        _ => "its line of JSON does not end; the file is damaged, or weft did not write it",
    };
    Err(io::Error::new(io::ErrorKind::InvalidData, reason))
}
