//! The shelf: registered chunks in a folder, one JSON file each, named by id.
//!
//! A chunk's tokens depend on the tokenizer, so each tokenizer has its own subfolder, named by a
//! hash of its vocabulary. Models with the same tokenizer share their chunks. The shelf holds texts
//! and no KV rows. Several processes may share it: files are written atomically, and the last
//! writer of a chunk wins.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::card::Card;
use super::{Chunk, ChunkError, ChunkId, Library};
use crate::files::{read_private, write_private};
use crate::store::platform::check_ours;
use crate::store::put::is_disk_full;
use crate::store::temp;
use crate::tokenizer::Tokenizer;

const ENDING: &str = ".json";

/// Maximum bytes of a file: longer than any text that fits a context.
const FILE_LIMIT: u64 = 256 << 20;

/// Digits of the tokenizer's hash in the subfolder's name.
const HASH_DIGITS: usize = 16;

/// The chunks of one tokenizer.
#[derive(Clone, Debug)]
pub struct Shelf {
    folder: PathBuf,
}

/// The contents of a shelf.
#[derive(Debug, Default)]
pub struct Shelved {
    /// The chunks.
    pub library: Library,
    /// Files that do not hold a chunk, and why. They stay where they are.
    pub broken: Vec<ChunkError>,
}

impl Shelf {
    /// The shelf of a tokenizer below a folder. The folder is created with the first chunk.
    pub fn new(root: &Path, tokenizer: &Tokenizer) -> Self {
        Self { folder: root.join(&vocabulary_hash(tokenizer)[..HASH_DIGITS]) }
    }

    /// A shelf whose own folder is known.
    pub fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The folder of its files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Reads all chunks.
    ///
    /// # Errors
    /// If the folder exists and cannot be listed, or if other users can write to it.
    pub fn load(&self) -> Result<Shelved, ChunkError> {
        let mut shelved = Shelved::default();
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(shelved),
            entries => entries.map_err(|error| failed(&self.folder, &error))?,
        };
        check_ours(&self.folder).map_err(|error| failed(&self.folder, &error))?;
        for entry in entries {
            let path = entry.map_err(|error| failed(&self.folder, &error))?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let Some(stem) = name.strip_suffix(ENDING) else { continue };
            match read(&path, stem) {
                Ok(chunk) => shelved.library.restore(chunk),
                Err(reason) => shelved.broken.push(file_error(&path, reason)),
            }
        }
        Ok(shelved)
    }

    /// Writes a chunk's file, or replaces it.
    ///
    /// # Errors
    /// If the folder or the file cannot be written.
    pub fn keep(&self, chunk: &Chunk) -> Result<(), ChunkError> {
        let path = self.file_of(&chunk.id);
        // Leftover files of a crash do no harm if they cannot be removed.
        let _ = temp::sweep(&self.folder);
        let json = serde_json::to_vec_pretty(&Card::of(chunk)).map_err(io::Error::from);
        let written = json.and_then(|json| write_private(&path, &[&json]));
        written.map_err(|error| match is_disk_full(&error) {
            true => ChunkError::DiskFull { path: path.display().to_string() },
            false => failed(&path, &error),
        })
    }

    /// Removes a chunk's file, if it exists.
    ///
    /// # Errors
    /// If the file exists and cannot be removed.
    pub fn remove(&self, id: &ChunkId) -> Result<(), ChunkError> {
        let path = self.file_of(id);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&path, &error)),
            _ => Ok(()),
        }
    }

    fn file_of(&self, id: &ChunkId) -> PathBuf {
        self.folder.join(format!("{id}{ENDING}"))
    }
}

fn read(path: &Path, stem: &str) -> Result<Chunk, String> {
    let bytes = read_private(path, FILE_LIMIT)
        .map_err(|error| error.to_string())?
        .ok_or_else(|| format!("it has more than {FILE_LIMIT} bytes"))?;
    let card: Card = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    let chunk = card.chunk()?;
    if chunk.id.to_string() != stem {
        return Err(format!("it holds chunk {}; the file was renamed", chunk.id));
    }
    Ok(chunk)
}

/// Two tokenizers with the same tokens under the same ids count as one. If they split texts
/// differently all the same, each refuses the other's chunks when they are used.
fn vocabulary_hash(tokenizer: &Tokenizer) -> String {
    let mut hasher = blake3::Hasher::new();
    for id in 0..tokenizer.vocab_size() {
        let bytes = tokenizer.token_bytes(id).unwrap_or_default();
        hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
    }
    hasher.finalize().to_hex().to_string()
}

fn failed(path: &Path, error: &io::Error) -> ChunkError {
    file_error(path, error.to_string())
}

fn file_error(path: &Path, reason: String) -> ChunkError {
    ChunkError::File { path: path.display().to_string(), reason }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::chunk::{Kind, Which};

    fn tokenizer() -> Tokenizer {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/prompts/tokenizer.json");
        Tokenizer::from_file(file).unwrap()
    }

    fn chunk(text: &str) -> Chunk {
        let mut library = Library::default();
        let metadata = BTreeMap::from([("name".to_owned(), "n".to_owned())]);
        let id = library.add(&tokenizer(), Kind::Context, text, metadata).unwrap();
        library.pin(&id, true).unwrap();
        library.count_use(&id);
        library.get(&id).unwrap().clone()
    }

    #[test]
    fn what_is_kept_is_there_until_it_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let shelf = Shelf::new(root.path(), &tokenizer());
        assert_eq!(shelf.load().unwrap().library.list(&Which::default()).len(), 0);
        assert!(!shelf.folder().exists(), "reading makes no folder");
        let chunk = chunk("a text");
        shelf.keep(&chunk).unwrap();
        shelf.keep(&chunk).unwrap();
        let shelved = Shelf::new(root.path(), &tokenizer()).load().unwrap();
        let found = shelved.library.find("n").unwrap();
        let times = |chunk: &Chunk| (chunk.uses, chunk.pinned, chunk.last_used.is_some());
        assert_eq!((&found.text, &found.tokens), (&chunk.text, &chunk.tokens));
        assert_eq!((times(found), &found.metadata), (times(&chunk), &chunk.metadata));
        shelf.remove(&chunk.id).unwrap();
        shelf.remove(&chunk.id).unwrap();
        assert_eq!(shelf.load().unwrap().library.list(&Which::default()).len(), 0);
    }

    /// A process that ended while it wrote has left a file that nobody holds.
    #[test]
    fn leftovers_go_when_something_is_kept() {
        let root = tempfile::tempdir().unwrap();
        let shelf = Shelf::new(root.path(), &tokenizer());
        shelf.keep(&chunk("a text")).unwrap();
        let leftover = shelf.folder().join("4194305-0.tmp");
        fs::write(&leftover, "{").unwrap();
        shelf.keep(&chunk("another text")).unwrap();
        assert!(!leftover.exists());
        assert_eq!(shelf.load().unwrap().library.list(&Which::default()).len(), 2);
    }

    /// Not only their bytes one after the other.
    #[test]
    fn vocabularies_differ_if_their_tokens_do() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/prompts/tokenizer.json");
        let with = |contents: [&str; 2]| {
            let mut json: serde_json::Value =
                serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            let first = tokenizer().vocab_size();
            for (content, id) in contents.iter().zip(first..) {
                let token = serde_json::json!({ "id": id, "content": content });
                json["added_tokens"].as_array_mut().unwrap().push(token);
            }
            vocabulary_hash(&Tokenizer::from_bytes(json.to_string().as_bytes()).unwrap())
        };
        assert_ne!(with(["<|a", "b|>"]), with(["<|ab", "|>"]));
    }

    #[cfg(unix)]
    #[test]
    fn nobody_else_can_read_it() {
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir().unwrap();
        let shelf = Shelf::new(&root.path().join("chunks"), &tokenizer());
        let chunk = chunk("a secret");
        shelf.keep(&chunk).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(shelf.folder()), mode(&shelf.file_of(&chunk.id))), (0o700, 0o600));
    }

    #[cfg(unix)]
    #[test]
    fn links_are_not_followed_and_a_shared_folder_is_not_read() {
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir().unwrap();
        let shelf = Shelf::new(root.path(), &tokenizer());
        let chunk = chunk("a text");
        shelf.keep(&chunk).unwrap();
        let (file, away) = (shelf.file_of(&chunk.id), root.path().join("away.json"));
        fs::rename(&file, &away).unwrap();
        std::os::unix::fs::symlink(&away, &file).unwrap();
        let shelved = shelf.load().unwrap();
        assert_eq!((shelved.library.list(&Which::default()).len(), shelved.broken.len()), (0, 1));
        fs::rename(&away, &file).unwrap();
        assert_eq!(shelf.load().unwrap().broken.len(), 0);
        fs::set_permissions(shelf.folder(), fs::Permissions::from_mode(0o777)).unwrap();
        for result in [shelf.load().map(drop), shelf.keep(&chunk)] {
            assert!(result.unwrap_err().to_string().contains("chmod 700"));
        }
    }

    #[test]
    fn broken_files_are_reported_and_the_rest_is_read() {
        let root = tempfile::tempdir().unwrap();
        let shelf = Shelf::new(root.path(), &tokenizer());
        let (sound, damaged) = (chunk("sound"), chunk("damaged"));
        shelf.keep(&sound).unwrap();
        shelf.keep(&damaged).unwrap();
        let file = shelf.file_of(&damaged.id);
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace("\"context\"", "\"output\"")).unwrap();
        fs::write(shelf.folder().join("no.json"), "{").unwrap();
        fs::copy(shelf.file_of(&sound.id), shelf.folder().join("renamed.json")).unwrap();
        fs::write(shelf.folder().join("notes.txt"), "not ours").unwrap();
        let shelved = shelf.load().unwrap();
        assert_eq!(shelved.library.list(&Which::default()).len(), 1);
        assert!(shelved.library.get(&sound.id).is_ok());
        let mut reasons: Vec<String> = shelved.broken.iter().map(ToString::to_string).collect();
        reasons.sort();
        assert_eq!(reasons.len(), 3, "{reasons:?}");
        assert!(
            reasons.iter().any(|reason| reason.contains(&damaged.id.to_string())),
            "{reasons:?}"
        );
        assert!(reasons.iter().any(|reason| reason.contains("renamed")), "{reasons:?}");
    }
}
