//! The names of objects. A reader computes the name of what it needs and lists nothing.
//!
//! Below the prefix of the URL:
//! - `rows/<fingerprint hash>/<reuse>/<parent>/<key>/<hash of the bytes>`: KV rows,
//! - `rows/<fingerprint hash>/<reuse>/<parent>/<key>/manifest`: what they are; written last,
//! - `names/<vocabulary>/<chunk>/<hash of the bytes>`: the card of a registered chunk,
//! - `names/<vocabulary>/<chunk>/label`: its name and what it is; written last,
//! - `clock`: shows the store's time to whoever deletes old rows,
//! - `uses/<chunk>/<fingerprint hash>/<reuse>/<parent>/<key>`: rows that hold this chunk.

use object_store::path::Path;
use weft_core::chunk::ChunkId;
use weft_core::store::{Header, KvKey};

/// The last part of a manifest's name.
pub(crate) const MANIFEST: &str = "manifest";
/// The last part of a label's name.
pub(crate) const LABEL: &str = "label";

/// Digits in names. Manifests and labels hold the whole keys, hashes and fingerprints and are
/// checked, so two that begin alike cost a miss. Some servers turn a whole name into a file's, so
/// names are short.
const GROUP_DIGITS: usize = 16;
const HASH_DIGITS: usize = 32;

/// All names below a prefix.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    prefix: Path,
}

/// The place of rows: what their name says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    fingerprint: String,
    reuse: String,
    parent: String,
    key: String,
}

impl Place {
    /// The place of the rows of a key. `None` if the kind of reuse cannot be part of a name.
    pub(crate) fn of(key: &KvKey, header: &Header) -> Option<Self> {
        is_word(&header.reuse).then(|| Self {
            fingerprint: fingerprint_hash(&header.fingerprint),
            reuse: header.reuse.clone(),
            parent: begin(&header.parent, GROUP_DIGITS),
            key: begin(key, HASH_DIGITS),
        })
    }

    fn parts(&self) -> [String; 4] {
        let Self { fingerprint, reuse, parent, key } = self;
        [fingerprint.clone(), reuse.clone(), parent.clone(), key.clone()]
    }

    /// Reads the output of [`parts`](Self::parts).
    fn parse(parts: &[String]) -> Option<Self> {
        let [fingerprint, reuse, parent, key] = parts else { return None };
        let is_place = is_hex(fingerprint, GROUP_DIGITS)
            && is_word(reuse)
            && is_hex(parent, GROUP_DIGITS)
            && is_hex(key, HASH_DIGITS);
        is_place.then(|| Self {
            fingerprint: fingerprint.clone(),
            reuse: reuse.clone(),
            parent: parent.clone(),
            key: key.clone(),
        })
    }
}

/// What the name of an object says that it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    Manifest(Place),
    Rows(Place),
    Use(Place),
    Label { vocabulary: String, chunk: ChunkId },
    Card { vocabulary: String, chunk: ChunkId },
}

impl Names {
    pub(crate) fn new(prefix: Path) -> Self {
        Self { prefix }
    }

    /// The folder of everything.
    pub(crate) fn all(&self) -> &Path {
        &self.prefix
    }

    /// An object that shows the store's time.
    pub(crate) fn clock(&self) -> Path {
        self.below(&["clock"])
    }

    fn below<S: AsRef<str>>(&self, parts: &[S]) -> Path {
        parts.iter().fold(self.prefix.clone(), |path, part| path.join(part.as_ref()))
    }

    pub(crate) fn manifest(&self, place: &Place) -> Path {
        self.rows_folder(place).join(MANIFEST)
    }

    pub(crate) fn rows(&self, place: &Place, hash: &blake3::Hash) -> Path {
        self.rows_folder(place).join(begin(hash, HASH_DIGITS))
    }

    fn rows_folder(&self, place: &Place) -> Path {
        let mut parts = vec!["rows".to_owned()];
        parts.extend(place.parts());
        self.below(&parts)
    }

    pub(crate) fn of_use(&self, chunk: &ChunkId, place: &Place) -> Path {
        let mut parts = vec!["uses".to_owned(), chunk.to_string()];
        parts.extend(place.parts());
        self.below(&parts)
    }

    /// The folder of the uses of a chunk in the rows of a model on a device.
    pub(crate) fn uses(&self, chunk: &ChunkId, fingerprint: &str) -> Path {
        self.below(&["uses".to_owned(), chunk.to_string(), fingerprint_hash(fingerprint)])
    }

    /// The folder of the uses of a chunk in any rows.
    pub(crate) fn all_uses(&self, chunk: &ChunkId) -> Path {
        self.below(&["uses".to_owned(), chunk.to_string()])
    }

    /// The folder of a tokenizer's chunks.
    pub(crate) fn shelf(&self, vocabulary: &str) -> Path {
        self.below(&["names", vocabulary])
    }

    pub(crate) fn label(&self, vocabulary: &str, chunk: &ChunkId) -> Path {
        self.below(&["names", vocabulary, &chunk.to_string(), LABEL])
    }

    pub(crate) fn card(&self, vocabulary: &str, chunk: &ChunkId, hash: &blake3::Hash) -> Path {
        self.below(&["names", vocabulary, &chunk.to_string(), &begin(hash, HASH_DIGITS)])
    }

    /// What an object is, from its name. `None` if weft did not name it.
    pub(crate) fn parse(&self, path: &Path) -> Option<Named> {
        let parts: Vec<String> =
            path.prefix_match(&self.prefix)?.map(|part| part.as_ref().to_owned()).collect();
        let is_hash = |text: &str| is_hex(text, HASH_DIGITS);
        let (kind, rest) = parts.split_first()?;
        match (kind.as_str(), rest) {
            ("rows", [place @ .., last]) => {
                let place = Place::parse(place)?;
                match last.as_str() {
                    MANIFEST => Some(Named::Manifest(place)),
                    hash => is_hash(hash).then_some(Named::Rows(place)),
                }
            }
            ("uses", [chunk, place @ ..]) => {
                chunk.parse::<ChunkId>().ok()?;
                Some(Named::Use(Place::parse(place)?))
            }
            ("names", [vocabulary, chunk, last]) => {
                let (vocabulary, chunk) = (vocabulary.clone(), chunk.parse().ok()?);
                let is_name = is_hex(&vocabulary, GROUP_DIGITS);
                match last.as_str() {
                    _ if !is_name => None,
                    LABEL => Some(Named::Label { vocabulary, chunk }),
                    hash => is_hash(hash).then_some(Named::Card { vocabulary, chunk }),
                }
            }
            _ => None,
        }
    }
}

/// The hash of a fingerprint, as names have it.
pub(crate) fn fingerprint_hash(fingerprint: &str) -> String {
    begin(&blake3::hash(fingerprint.as_bytes()), GROUP_DIGITS)
}

/// The first digits of a key or a hash.
fn begin(hash: &impl ToString, digits: usize) -> String {
    let mut text = hash.to_string();
    text.truncate(digits);
    text
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// Kinds of reuse are short words.
fn is_word(text: &str) -> bool {
    (1..=32).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_core::chunk::Kind;

    fn place() -> Place {
        Place {
            fingerprint: fingerprint_hash("a model"),
            reuse: "exact".to_owned(),
            parent: begin(&KvKey::NOTHING, GROUP_DIGITS),
            key: begin(&KvKey::from_bytes([7; 32]), HASH_DIGITS),
        }
    }

    #[test]
    fn names_read_back_and_others_are_nobodys() {
        let names = Names::new(Path::from("team/kv"));
        let (place, hash) = (place(), blake3::hash(b"rows"));
        let chunk = ChunkId::of(Kind::Context, &[1, 2]);
        let vocabulary = "0123456789abcdef".to_owned();
        let read = |path: &Path| names.parse(path);
        assert_eq!(read(&names.manifest(&place)), Some(Named::Manifest(place.clone())));
        assert_eq!(read(&names.rows(&place, &hash)), Some(Named::Rows(place.clone())));
        let used = names.of_use(&chunk, &place);
        assert_eq!(read(&used), Some(Named::Use(place.clone())));
        assert!(used.as_ref().starts_with(names.uses(&chunk, "a model").as_ref()));
        let label = Named::Label { vocabulary: vocabulary.clone(), chunk };
        assert_eq!(read(&names.label(&vocabulary, &chunk)), Some(label));
        let card = Named::Card { vocabulary: vocabulary.clone(), chunk };
        assert_eq!(read(&names.card(&vocabulary, &chunk, &hash)), Some(card));
        // In base64, as a part of a file's name.
        assert!([names.rows(&place, &hash), used].iter().all(|path| path.as_ref().len() < 150));
        for other in [
            "team/kv",
            "team/kv/rows/x",
            "team/kv/readme.txt",
            "other/rows/a/exact/b/c/manifest",
            "team/kv/names/../a/label",
        ] {
            assert_eq!(read(&Path::from(other)), None, "{other}");
        }
        let wrong = Place { reuse: "a/b".to_owned(), ..place };
        assert_eq!(read(&names.manifest(&wrong)), None);
    }
}
