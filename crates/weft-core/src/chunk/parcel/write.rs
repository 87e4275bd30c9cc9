//! Writes parcels.

use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::path::Path;

use serde::Serialize;

use super::super::card::Card;
use super::super::{Chunk, ChunkError, Homes};
use super::{FORMAT, First, Section, VERSION, chunk_message, file_error, hash_chunk, rows_message};
use crate::store::platform::create_private_file;
use crate::store::{KvKey, SigningKey, Store, StoreError};

/// The rows that go with a chunk: those that a store has at the chunk's homes. Rows without a
/// signature are never accepted.
pub struct SignedRows<'s> {
    /// The rows.
    pub store: &'s mut Store,
    /// The chunk's homes.
    pub homes: &'s Homes,
    /// The key that signs the chunk and its rows.
    pub key: &'s SigningKey,
}

/// The result of an export.
#[derive(Debug, Default)]
pub struct Exported {
    /// Number of KV files.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Number of KV files that hold the chunk's tokens and belong to one prompt: they attended to
    /// other documents, or to a system prompt that is not registered.
    pub elsewhere: usize,
    /// KV files that were skipped, and why.
    pub left_out: Vec<String>,
}

/// Writes a chunk to a new file, and its stored rows if they are signed.
///
/// # Errors
/// If the file cannot be written. A partial file is removed.
pub fn export(
    chunk: &Chunk,
    rows: Option<SignedRows<'_>>,
    path: &Path,
) -> Result<Exported, ChunkError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            let reason = "it exists already, and weft does not replace it; name another file";
            file_error(path, reason.to_owned())
        }
        io::ErrorKind::StorageFull => ChunkError::DiskFull { path: path.display().to_string() },
        _ => file_error(path, error.to_string()),
    };
    let mut file = create_private_file(path).map_err(failed)?;
    write(chunk, rows, path, &mut file).map_err(failed).inspect_err(|_| {
        // A partial parcel must not remain. The error of writing is the one to report.
        let _ = fs::remove_file(path);
    })
}

fn write(
    chunk: &Chunk,
    rows: Option<SignedRows<'_>>,
    path: &Path,
    file: &mut File,
) -> io::Result<Exported> {
    let card = Card::of(chunk);
    let hash = hash_chunk(&card)?;
    let sign = |rows: &SignedRows<'_>| rows.key.sign(&chunk_message(&hash)).to_string();
    let first = First {
        format: FORMAT.to_owned(),
        version: VERSION,
        chunk: card,
        chunk_blake3: hash.to_string(),
        signature: rows.as_ref().map(sign),
    };
    write_line(file, &first)?;
    let mut exported = Exported::default();
    if let Some(mut rows) = rows {
        let (keys, elsewhere) = keys_of(&rows, chunk);
        exported.elsewhere = elsewhere;
        for key in keys {
            append_rows(&mut rows, &hash, &key, path, file, &mut exported)?;
        }
    }
    file.sync_all()?;
    Ok(exported)
}

fn write_line(file: &mut File, line: &impl Serialize) -> io::Result<()> {
    let mut json = serde_json::to_vec(line)?;
    json.push(b'\n');
    file.write_all(&json)
}

/// The keys of the rows at the chunk's homes, and the number of files that hold it elsewhere.
fn keys_of(rows: &SignedRows<'_>, chunk: &Chunk) -> (Vec<KvKey>, usize) {
    let entries = rows.store.entries().filter(|(_, entry)| chunk.is_in(&entry.header.tokens));
    let (ours, others): (Vec<_>, Vec<_>) =
        entries.partition(|(_, entry)| rows.homes.have(&entry.header));
    (ours.into_iter().map(|(key, _)| *key).collect(), others.len())
}

/// Copies the rows to a file beside the parcel first; only a fully checked copy is appended.
fn append_rows(
    rows: &mut SignedRows<'_>,
    chunk: &blake3::Hash,
    key: &KvKey,
    path: &Path,
    file: &mut File,
    exported: &mut Exported,
) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".rows");
    let copy = path.with_file_name(name);
    match rows.store.export(key, &copy) {
        Ok(()) => {}
        Err(StoreError::Export { source, .. }) => return Err(source),
        Err(error) => {
            exported.left_out.push(error.to_string());
            return Ok(());
        }
    }
    let added = File::open(&copy).and_then(|copy| append_signed(copy, rows.key, chunk, file));
    fs::remove_file(&copy)?;
    exported.files += 1;
    exported.bytes += added?;
    Ok(())
}

fn append_signed(
    mut rows: File,
    key: &SigningKey,
    chunk: &blake3::Hash,
    file: &mut File,
) -> io::Result<u64> {
    let rows_bytes = rows.metadata()?.len();
    let mut hasher = blake3::Hasher::new();
    io::copy(&mut rows, &mut hasher)?;
    rows.rewind()?;
    let signature = key.sign(&rows_message(chunk, &hasher.finalize())).to_string();
    write_line(file, &Section { rows_bytes, signature })?;
    io::copy(&mut rows, file)
}
