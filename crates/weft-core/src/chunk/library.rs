//! The registered chunks: their texts, metadata and use counts.
//!
//! The library holds no KV rows. A chunk may be registered long before its rows are computed, and
//! it outlives them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{ChunkError, ChunkId, Kind};
use crate::tokenizer::Tokenizer;

/// Minimum number of digits of an abbreviated id.
const LEAST_ID_DIGITS: usize = 4;

/// A registered chunk.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunk {
    /// Its id.
    pub id: ChunkId,
    /// Its kind.
    pub kind: Kind,
    /// Its text.
    pub text: String,
    /// The tokens of the text as it appears in a prompt.
    pub tokens: Vec<u32>,
    /// Key-value pairs from its owner.
    pub metadata: BTreeMap<String, String>,
    /// When it was first registered.
    pub created: SystemTime,
    /// When it was last part of a prompt.
    pub last_used: Option<SystemTime>,
    /// Number of prompts that contained it.
    pub uses: u64,
    /// Whether its rows are exempt from eviction.
    pub pinned: bool,
}

impl Chunk {
    /// A chunk that no prompt has used yet.
    pub fn new(
        tokenizer: &Tokenizer,
        kind: Kind,
        text: &str,
        metadata: BTreeMap<String, String>,
    ) -> Result<Self, ChunkError> {
        if text.trim().is_empty() {
            return Err(ChunkError::Empty { kind });
        }
        let tokens = tokenizer.encode_text(&in_prompt(kind, text))?;
        Ok(Self { metadata, ..Self::of_tokens(kind, text, tokens) })
    }

    /// A chunk whose text has these tokens, created now, without metadata. No prompt has used it yet.
    pub fn of_tokens(kind: Kind, text: impl Into<String>, tokens: Vec<u32>) -> Self {
        Self {
            id: ChunkId::of(kind, &tokens),
            kind,
            text: text.into(),
            tokens,
            metadata: BTreeMap::new(),
            created: SystemTime::now(),
            last_used: None,
            uses: 0,
            pinned: false,
        }
    }

    /// The text as it appears in a prompt: a document is followed by a blank line.
    pub fn in_prompt(&self) -> String {
        in_prompt(self.kind, &self.text)
    }

    /// Its name, from the metadata.
    pub fn name(&self) -> Option<&str> {
        self.metadata.get("name").map(String::as_str)
    }

    /// Bytes of its text, its tokens and its metadata.
    pub fn bytes(&self) -> usize {
        let notes = self.metadata.iter().map(|(key, value)| key.len() + value.len());
        self.text.len() + size_of_val(&self.tokens[..]) + notes.sum::<usize>()
    }

    /// Whether these tokens contain it.
    pub fn is_in(&self, tokens: &[u32]) -> bool {
        tokens.windows(self.tokens.len().max(1)).any(|window| window == self.tokens)
    }
}

fn in_prompt(kind: Kind, text: &str) -> String {
    match kind {
        Kind::Context | Kind::Output => format!("{}\n\n", text.trim_end()),
        Kind::System | Kind::Query => text.to_owned(),
    }
}

/// A filter for the chunks of a library. The default matches all.
#[derive(Clone, Debug, Default)]
pub struct Which {
    /// The chunk's kind.
    pub kind: Option<Kind>,
    /// Minimum age since registration.
    pub older_than: Option<Duration>,
    /// Metadata that the chunk must have.
    pub metadata: BTreeMap<String, String>,
}

impl Which {
    fn is(&self, chunk: &Chunk, now: SystemTime) -> bool {
        let age = now.duration_since(chunk.created).unwrap_or_default();
        self.kind.is_none_or(|kind| kind == chunk.kind)
            && self.older_than.is_none_or(|wanted| age >= wanted)
            && self.metadata.iter().all(|(key, value)| chunk.metadata.get(key) == Some(value))
    }
}

/// All chunks, by id.
#[derive(Clone, Debug, Default)]
pub struct Library {
    chunks: BTreeMap<ChunkId, Arc<Chunk>>,
}

impl Library {
    /// Registers a text. If the text is already registered, only the metadata is added.
    pub fn add(
        &mut self,
        tokenizer: &Tokenizer,
        kind: Kind,
        text: &str,
        metadata: BTreeMap<String, String>,
    ) -> Result<ChunkId, ChunkError> {
        Ok(self.register(Chunk::new(tokenizer, kind, text, metadata)?))
    }

    /// Registers a chunk. If its content is already registered, only the metadata is added.
    pub fn register(&mut self, chunk: Chunk) -> ChunkId {
        let id = chunk.id;
        match self.chunks.entry(id) {
            Entry::Occupied(mut known) => {
                Arc::make_mut(known.get_mut()).metadata.extend(chunk.metadata);
            }
            Entry::Vacant(place) => drop(place.insert(Arc::new(chunk))),
        }
        id
    }

    /// Restores a chunk that was registered before.
    pub fn restore(&mut self, chunk: Chunk) {
        self.chunks.insert(chunk.id, Arc::new(chunk));
    }

    /// Number of chunks.
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Whether there are no chunks.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Bytes of all chunks.
    pub fn bytes(&self) -> usize {
        self.all().map(Chunk::bytes).sum()
    }

    /// Looks up a chunk by id.
    pub fn get(&self, id: &ChunkId) -> Result<&Chunk, ChunkError> {
        self.chunks.get(id).map(|chunk| &**chunk).ok_or(ChunkError::Unknown { id: *id })
    }

    /// Looks up a chunk that outlives a borrow of the library. Nothing is copied.
    pub fn share(&self, id: &ChunkId) -> Result<Arc<Chunk>, ChunkError> {
        self.chunks.get(id).map(Arc::clone).ok_or(ChunkError::Unknown { id: *id })
    }

    /// Checks the name that a chunk, registered or not, shall get: one word that is neither an id
    /// nor the name of another chunk.
    ///
    /// # Errors
    /// [`ChunkError::BadName`] and [`ChunkError::NameTaken`]
    pub fn check_name(&self, name: &str, id: &ChunkId) -> Result<(), ChunkError> {
        let wrong = |reason| Err(ChunkError::BadName { name: name.to_owned(), reason });
        if name.is_empty() || name.chars().any(char::is_whitespace) {
            return wrong("is empty or has spaces; give one word");
        }
        if name.parse::<ChunkId>().is_ok() {
            return wrong("looks like an id; give another");
        }
        match self.all().find(|chunk| chunk.name() == Some(name) && chunk.id != *id) {
            Some(other) => Err(ChunkError::NameTaken { name: name.to_owned(), id: other.id }),
            None => Ok(()),
        }
    }

    /// Finds a chunk by its id, else by its name, else by the first digits of its id. No chunk has
    /// an empty name.
    pub fn find(&self, name: &str) -> Result<&Chunk, ChunkError> {
        if name.is_empty() {
            return Err(ChunkError::NotFound { name: String::new() });
        }
        if let Ok(id) = name.parse() {
            return self.get(&id);
        }
        let is_called = |chunk: &&Chunk| chunk.name() == Some(name);
        let begins = |chunk: &&Chunk| {
            name.len() >= LEAST_ID_DIGITS && chunk.id.to_string().starts_with(name)
        };
        let called: Vec<&Chunk> = self.all().filter(is_called).collect();
        match called[..] {
            [chunk] => return Ok(chunk),
            [] => {}
            _ => {
                let ids = called.iter().map(|chunk| chunk.id).collect();
                return Err(ChunkError::SharedName { name: name.to_owned(), ids });
            }
        }
        let found: Vec<&Chunk> = self.all().filter(begins).collect();
        let name = name.to_owned();
        match found[..] {
            [chunk] => Ok(chunk),
            [] => Err(ChunkError::NotFound { name }),
            _ => Err(ChunkError::Ambiguous { name, count: found.len() }),
        }
    }

    /// The chunks that match a filter, oldest first.
    pub fn list(&self, which: &Which) -> Vec<&Chunk> {
        let now = SystemTime::now();
        let mut chunks: Vec<_> = self.all().filter(|chunk| which.is(chunk, now)).collect();
        chunks.sort_by_key(|chunk| (chunk.created, chunk.id));
        chunks
    }

    /// Removes a chunk.
    pub fn delete(&mut self, id: &ChunkId) -> Result<Chunk, ChunkError> {
        let chunk = self.chunks.remove(id).ok_or(ChunkError::Unknown { id: *id })?;
        Ok(Arc::unwrap_or_clone(chunk))
    }

    /// Pins a chunk's rows, or unpins them.
    pub fn pin(&mut self, id: &ChunkId, pinned: bool) -> Result<(), ChunkError> {
        let chunk = self.chunks.get_mut(id).ok_or(ChunkError::Unknown { id: *id })?;
        Arc::make_mut(chunk).pinned = pinned;
        Ok(())
    }

    /// Whether a chunk's rows are exempt from eviction.
    pub fn is_pinned(&self, id: &ChunkId) -> bool {
        self.chunks.get(id).is_some_and(|chunk| chunk.pinned)
    }

    /// Counts one more use of a chunk.
    pub(crate) fn count_use(&mut self, id: &ChunkId) {
        if let Some(chunk) = self.chunks.get_mut(id) {
            let chunk = Arc::make_mut(chunk);
            chunk.uses += 1;
            chunk.last_used = Some(SystemTime::now());
        }
    }

    fn all(&self) -> impl Iterator<Item = &Chunk> {
        self.chunks.values().map(|chunk| &**chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(tokens: Vec<u32>, name: Option<&str>) -> Chunk {
        let metadata = name.iter().map(|name| ("name".to_owned(), (*name).to_owned())).collect();
        Chunk { metadata, ..Chunk::of_tokens(Kind::Context, "", tokens) }
    }

    #[test]
    fn chunks_are_found_by_id_name_or_the_begin_of_an_id() {
        let mut library = Library::default();
        let (a, b) = (chunk(vec![1], Some("a")), chunk(vec![2], Some("both")));
        let digits = a.id.to_string();
        for chunk in [a.clone(), b, chunk(vec![3], Some("both")), chunk(vec![4], None)] {
            library.restore(chunk);
        }
        for name in ["a", &digits, &digits[..8]] {
            assert_eq!(library.find(name).unwrap().id, a.id, "{name}");
        }
        let mut ids: Vec<ChunkId> = library.all().map(|chunk| chunk.id).collect();
        ids.retain(|id| library.get(id).unwrap().name() == Some("both"));
        let both = library.find("both").unwrap_err().to_string();
        let [one, other] = [ids[0], ids[1]].map(|id| id.to_string()[..8].to_owned());
        assert_eq!(both, format!("\"both\" is the name of {one}…, {other}…; give an id"));
        for name in ["", "c", &digits[..3]] {
            assert!(matches!(library.find(name), Err(ChunkError::NotFound { .. })), "{name}");
        }
        // A name takes precedence over the digits of another chunk's id.
        let named = chunk(vec![5], Some(&digits[..4]));
        library.restore(named.clone());
        assert_eq!(library.find(&digits[..4]).unwrap().id, named.id);
    }

    /// Clients had given some before names were checked.
    #[test]
    fn an_empty_word_finds_no_chunk_even_if_one_has_an_empty_name() {
        let mut library = Library::default();
        library.restore(chunk(vec![1], Some("")));
        assert!(matches!(library.find(""), Err(ChunkError::NotFound { .. })));
    }

    #[test]
    fn a_name_is_one_word_of_one_chunk() {
        let mut library = Library::default();
        let known = chunk(vec![1], Some("a"));
        library.restore(known.clone());
        let other = chunk(vec![2], None).id;
        let check = |name: &str| library.check_name(name, &other);
        for name in ["", " ", "a b", "a\tb", "a b/../c", &known.id.to_string()] {
            assert!(matches!(check(name), Err(ChunkError::BadName { .. })), "{name:?}");
        }
        assert!(matches!(check("a"), Err(ChunkError::NameTaken { id, .. }) if id == known.id));
        check("b").unwrap();
        library.check_name("a", &known.id).expect("it has this name already");
    }

    #[test]
    fn registering_again_adds_notes_and_uses_are_counted() {
        let mut library = Library::default();
        let id = library.register(chunk(vec![1], Some("a")));
        let mut again = chunk(vec![1], None);
        again.metadata.insert("from".to_owned(), "harbour".to_owned());
        assert_eq!(library.register(again), id);
        let found = library.get(&id).unwrap();
        assert_eq!((found.name(), found.metadata["from"].as_str()), (Some("a"), "harbour"));
        assert_eq!((found.uses, found.last_used), (0, None));
        let before = SystemTime::now();
        library.count_use(&id);
        let found = library.get(&id).unwrap();
        assert_eq!(found.uses, 1);
        assert!(found.last_used.is_some_and(|time| time >= before), "{found:?}");
    }

    /// A text of megabytes that several requests name is in memory once.
    #[test]
    fn a_shared_chunk_is_not_copied_and_stays_as_it_was() {
        let mut library = Library::default();
        let id = library.register(chunk(vec![1], Some("a")));
        let shared = library.share(&id).unwrap();
        assert!(Arc::ptr_eq(&shared, &library.share(&id).unwrap()));
        library.count_use(&id);
        assert_eq!((shared.uses, library.get(&id).unwrap().uses), (0, 1));
        assert_eq!(library.delete(&id).unwrap().uses, 1);
        assert!(matches!(library.share(&id), Err(ChunkError::Unknown { .. })));
    }

    #[test]
    fn bytes_are_those_of_texts_tokens_and_notes() {
        let mut library = Library::default();
        assert!(library.is_empty());
        library.register(Chunk::of_tokens(Kind::Context, "a text", vec![1, 2, 3]));
        library.register(chunk(vec![1], Some("both")));
        assert_eq!((library.len(), library.bytes()), (2, (6 + 3 * 4) + (4 + 4 + 4)));
    }

    #[test]
    fn a_filter_takes_chunks_that_have_all_it_asks_for() {
        let mut library = Library::default();
        let old = SystemTime::now() - Duration::from_secs(100);
        let mut noted = chunk(vec![1], Some("a"));
        noted.metadata.insert("from".to_owned(), "harbour".to_owned());
        library.restore(Chunk { created: old, ..noted });
        library.restore(chunk(vec![2], Some("a")));
        library.restore(Chunk::of_tokens(Kind::System, "", vec![3]));
        let found = |which: &Which| {
            let mut tokens: Vec<u32> =
                library.list(which).iter().map(|chunk| chunk.tokens[0]).collect();
            tokens.sort_unstable();
            tokens
        };
        let has = |pairs: &[(&str, &str)]| Which {
            metadata: pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            ..Which::default()
        };
        assert_eq!(found(&Which::default()), [1, 2, 3]);
        assert_eq!(found(&has(&[("name", "a")])), [1, 2]);
        assert_eq!(found(&has(&[("name", "a"), ("from", "harbour")])), [1]);
        assert_eq!(found(&has(&[("name", "harbour")])), [0; 0]);
        assert_eq!(found(&Which { kind: Some(Kind::System), ..Which::default() }), [3]);
        let older =
            |seconds| Which { older_than: Some(Duration::from_secs(seconds)), ..Which::default() };
        assert_eq!(found(&older(50)), [1]);
        assert_eq!(found(&older(150)), [0; 0]);
    }

    #[test]
    fn a_chunk_is_in_tokens_that_hold_all_of_its_own() {
        let chunk = chunk(vec![1, 2], None);
        assert!(chunk.is_in(&[0, 1, 2, 3]) && chunk.is_in(&[1, 2]));
        assert!(!chunk.is_in(&[1, 3, 2]) && !chunk.is_in(&[1]) && !chunk.is_in(&[]));
    }
}
