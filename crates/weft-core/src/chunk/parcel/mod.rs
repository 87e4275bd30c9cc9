//! A parcel: a chunk and its KV rows in one file, for another machine.
//!
//! The file starts with a line of JSON that holds the chunk. For each KV file, a line of JSON with
//! its length and the file itself follow, as the store writes it (safetensors). Rows fit only the
//! same model on the same kind of device; the text fits every model. The text is therefore imported
//! first, and rows that do not fit are reported and skipped.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::card::Card;
use super::{Chunk, ChunkError, Kind};
use crate::store::platform::create_private_file;
use crate::store::temp::TempFile;
use crate::store::{KvKey, Reason, Store, StoreError};

const FORMAT: &str = "weft-chunk";
const VERSION: u32 = 1;

/// Maximum bytes of a line: longer than any text that fits a context.
const LINE_LIMIT: u64 = 256 << 20;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct First {
    format: String,
    version: u32,
    chunk: Card,
    /// The chunk's id depends on the tokenizer, so it cannot prove the text.
    text_blake3: String,
}

/// The header of a KV file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    rows_bytes: u64,
}

/// The result of an export.
#[derive(Debug, Default)]
pub struct Exported {
    /// Number of KV files.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// KV files that were skipped, and why.
    pub left_out: Vec<String>,
}

/// The result of importing a parcel's KV files.
#[derive(Debug, Default)]
pub struct Imported {
    /// Number of files stored.
    pub files: usize,
    /// Why the other files were refused.
    pub refused: Vec<String>,
}

/// Writes a chunk and its stored rows to a new file.
///
/// # Errors
/// If the file cannot be written. A partial file is removed.
pub fn export(
    chunk: &Chunk,
    store: Option<&mut Store>,
    path: &Path,
) -> Result<Exported, ChunkError> {
    let failed = |error: io::Error| file_error(path, error.to_string());
    let mut file = create_private_file(path).map_err(failed)?;
    write(chunk, store, path, &mut file).map_err(failed).inspect_err(|_| {
        // A partial parcel must not remain. The error of writing is the one to report.
        let _ = fs::remove_file(path);
    })
}

fn write(
    chunk: &Chunk,
    store: Option<&mut Store>,
    path: &Path,
    file: &mut File,
) -> io::Result<Exported> {
    let first = First {
        format: FORMAT.to_owned(),
        version: VERSION,
        chunk: Card::of(chunk),
        text_blake3: blake3::hash(chunk.text.as_bytes()).to_string(),
    };
    write_line(file, &first)?;
    let mut exported = Exported::default();
    if let Some(store) = store {
        for key in keys_of(store, chunk) {
            append_rows(store, &key, path, file, &mut exported)?;
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

fn keys_of(store: &Store, chunk: &Chunk) -> Vec<KvKey> {
    let entries = store.entries().filter(|(_, entry)| chunk.is_in(&entry.header.tokens));
    entries.map(|(key, _)| *key).collect()
}

/// Copies the rows to a file beside the parcel first; only a fully checked copy is appended.
fn append_rows(
    store: &mut Store,
    key: &KvKey,
    path: &Path,
    file: &mut File,
    exported: &mut Exported,
) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".rows");
    let copy = path.with_file_name(name);
    match store.export(key, &copy) {
        Ok(()) => {}
        Err(StoreError::Export { source, .. }) => return Err(source),
        Err(error) => {
            exported.left_out.push(error.to_string());
            return Ok(());
        }
    }
    let added = File::open(&copy).and_then(|mut rows| {
        let rows_bytes = rows.metadata()?.len();
        write_line(file, &Section { rows_bytes })?;
        io::copy(&mut rows, file)
    });
    fs::remove_file(&copy)?;
    exported.files += 1;
    exported.bytes += added?;
    Ok(())
}

/// A parcel whose chunk has been read.
pub struct Parcel {
    path: PathBuf,
    file: BufReader<File>,
    card: Card,
}

impl Parcel {
    /// Opens a parcel and reads its chunk.
    ///
    /// # Errors
    /// If the file cannot be read, is not a parcel, or has a damaged text.
    pub fn open(path: &Path) -> Result<Self, ChunkError> {
        let refused = |reason: String| file_error(path, reason);
        let file = File::open(path).map_err(|error| refused(error.to_string()))?;
        let mut file = BufReader::new(file);
        let line = read_line(&mut file).map_err(|error| refused(error.to_string()))?;
        let first: First = serde_json::from_slice(&line)
            .map_err(|error| refused(format!("`weft chunk export` did not write it: {error}")))?;
        if (first.format.as_str(), first.version) != (FORMAT, VERSION) {
            let First { format, version, .. } = first;
            return Err(refused(format!(
                "it is {format:?} {version}, expected {FORMAT} {VERSION}"
            )));
        }
        if blake3::hash(first.chunk.text.as_bytes()).to_string() != first.text_blake3 {
            return Err(refused(
                "its text does not match its checksum; export it again".to_owned(),
            ));
        }
        Ok(Self { path: path.to_owned(), file, card: first.chunk })
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

    /// Stores the rows that fit this model and device.
    ///
    /// # Errors
    /// If the file ends early or cannot be read. Rows stored before the error stay.
    pub fn import_rows(
        mut self,
        store: &mut Store,
        fingerprint: &str,
    ) -> Result<Imported, ChunkError> {
        let mut imported = Imported::default();
        while self.has_rows()? {
            let stored = self.import_section(store, fingerprint);
            match stored.map_err(|error| file_error(&self.path, error.to_string()))? {
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
        fingerprint: &str,
    ) -> io::Result<Result<(), String>> {
        let Section { rows_bytes } = serde_json::from_slice(&read_line(&mut self.file)?)?;
        if rows_bytes > store.budget_bytes() {
            // Skipped without copying: the length is only the parcel's claim.
            self.file.seek_relative(i64::try_from(rows_bytes).map_err(io::Error::other)?)?;
            let budget = store.budget_bytes();
            return Ok(Err(format!(
                "its rows have {rows_bytes} bytes, and the budget is {budget}"
            )));
        }
        let mut temp = TempFile::create(store.folder())?;
        let copied = io::copy(&mut (&mut self.file).take(rows_bytes), &mut temp.file)?;
        if copied != rows_bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(store_rows(store, temp.path(), fingerprint))
    }
}

fn store_rows(store: &mut Store, path: &Path, fingerprint: &str) -> Result<(), String> {
    let (key, header) = store.import(path, fingerprint).map_err(|error| match error {
        StoreError::Refused { reason: Reason::Mismatch { field: "fingerprint", .. }, .. } => {
            "its rows are of another model or another kind of device, and are computed again when \
             they are needed"
                .to_owned()
        }
        StoreError::Refused { reason, .. } => format!("rows are refused: {reason}"),
        StoreError::NotStored { outcome, .. } => format!("rows are not stored: {outcome}"),
        error => error.to_string(),
    })?;
    if KvKey::of_rows(&header.parent, &header.tokens) != key {
        store.remove(&key);
        return Err(format!("the rows under key {key} are those of other tokens"));
    }
    Ok(())
}

/// Reads a line, without its line feed.
fn read_line(file: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    file.take(LINE_LIMIT).read_until(b'\n', &mut line)?;
    match line.pop() {
        Some(b'\n') => Ok(line),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "its line of JSON does not end")),
    }
}

fn file_error(path: &Path, reason: String) -> ChunkError {
    ChunkError::File { path: path.display().to_string(), reason }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tempfile::TempDir;

    use super::*;
    use crate::chunk::ChunkId;
    use crate::dtype::Dtype;
    use crate::store::{Header, Put, Rows};

    const TOKENS: [u32; 3] = [5, 6, 7];

    fn chunk() -> Chunk {
        Chunk {
            id: ChunkId::of(Kind::Context, &TOKENS),
            kind: Kind::Context,
            text: "A text.".to_owned(),
            tokens: TOKENS.to_vec(),
            metadata: BTreeMap::new(),
            created: std::time::UNIX_EPOCH,
            last_used: None,
            uses: 0,
            pinned: false,
        }
    }

    fn store(outer: &TempDir, name: &str) -> Store {
        Store::open(&outer.path().join(name), 1 << 20).unwrap()
    }

    /// A parcel of the chunk with one KV file, under this key or, by default, under the right one.
    fn parcel(outer: &TempDir, key: Option<KvKey>) -> PathBuf {
        let header = Header {
            fingerprint: "model".to_owned(),
            dtype: Dtype::Bf16,
            layers: 1,
            kv_width: 4,
            reuse: "exact".to_owned(),
            parent: KvKey::NOTHING,
            home_position: 0,
            tokens: TOKENS.to_vec(),
            prefill_us: 1,
        };
        let key = key.unwrap_or_else(|| KvKey::of_rows(&header.parent, &header.tokens));
        let n = header.tensor_bytes().unwrap();
        let mut from = store(outer, "from");
        assert_eq!(from.put(&key, &header, &Rows { k: vec![1; n], v: vec![2; n] }), Put::Stored);
        let path = outer.path().join("parcel");
        assert_eq!(export(&chunk(), Some(&mut from), &path).unwrap().files, 1);
        path
    }

    #[test]
    fn rows_come_in_under_their_own_key_alone() {
        let outer = TempDir::new().unwrap();
        let mut to = store(&outer, "to");
        let imported = Parcel::open(&parcel(&outer, None)).unwrap().import_rows(&mut to, "model");
        assert_eq!(imported.unwrap().files, 1);
        assert_eq!(to.entries().count(), 1);

        let outer = TempDir::new().unwrap();
        let mut to = store(&outer, "to");
        let foreign = parcel(&outer, Some(KvKey::from_bytes([9; 32])));
        let imported = Parcel::open(&foreign).unwrap().import_rows(&mut to, "model").unwrap();
        assert!(imported.refused[0].contains("those of other tokens"), "{:?}", imported.refused);
        assert_eq!((imported.files, to.entries().count()), (0, 0));
    }

    #[test]
    fn a_text_that_was_changed_is_refused() {
        let outer = TempDir::new().unwrap();
        let path = parcel(&outer, None);
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.windows(7).position(|window| window == b"A text.").unwrap();
        bytes[at] = b'B';
        fs::write(&path, bytes).unwrap();
        let said = Parcel::open(&path).err().expect("opened").to_string();
        assert!(said.contains("checksum"), "{said}");
    }

    #[test]
    fn a_card_with_the_id_of_another_chunk_is_refused() {
        let card = |id: &str| {
            let mut json = serde_json::to_value(Card::of(&chunk())).unwrap();
            json["id"] = id.into();
            serde_json::from_value::<Card>(json).unwrap().chunk()
        };
        assert_eq!(card(&chunk().id.to_string()).unwrap(), chunk());
        let other = ChunkId::of(Kind::Context, &[1]).to_string();
        assert!(card(&other).unwrap_err().contains("but it holds chunk"));
    }
}
