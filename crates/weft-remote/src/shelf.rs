//! Registered chunks in the store: texts under names that several machines share, and the rows
//! that hold them.
//!
//! A chunk has a card with its text, named by its content, and a label with its name, written last.
//! The label is the one object that may change: the last writer's name counts. These calls wait for
//! the store; they are for commands, not for requests.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::SystemTime;

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::{ObjectMeta, PutMode};
use serde::{Deserialize, Serialize};
use weft_core::chunk::{Chunk, ChunkId, Kind};
use weft_core::store::{Header, HostRows, KvKey};

use crate::get::{Bucket, within};
use crate::manifest::Manifest;
use crate::miss::Miss;
use crate::names::{Named, Place};
use crate::put::Written;
use crate::seal;
use crate::service::Remote;

const FORMAT: &str = "weft-remote-chunk";
const VERSION: u32 = 1;
/// Separates signatures of labels from those of manifests.
const PURPOSE: &str = "remote label 1";

/// Maximum bytes of a label: a name and some metadata.
const LABEL_LIMIT: u64 = 1 << 20;
/// Maximum bytes of a card: longer than any text that fits a context.
const CARD_LIMIT: u64 = 256 << 20;
/// Maximum bytes of all labels of one tokenizer together.
const LABELS_LIMIT: u64 = 64 << 20;
/// Labels that are read at once.
const LABELS_AT_ONCE: usize = 16;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Json {
    format: String,
    version: u32,
    vocabulary: String,
    id: ChunkId,
    kind: Kind,
    metadata: BTreeMap<String, String>,
    n_tokens: usize,
    /// Bytes and BLAKE3 of the card.
    bytes: u64,
    blake3: String,
}

/// A chunk in the store, without its text.
#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    /// Its id.
    pub id: ChunkId,
    /// Its kind.
    pub kind: Kind,
    /// Key-value pairs from its owner, the name among them.
    pub metadata: BTreeMap<String, String>,
    /// Its tokens.
    pub n_tokens: usize,
    /// Bytes of its card, which holds text and tokens.
    pub bytes: u64,
    /// When it was stored, by the store's clock.
    pub stored: SystemTime,
    card: blake3::Hash,
}

impl Label {
    /// Its name.
    pub fn name(&self) -> Option<&str> {
        self.metadata.get("name").map(String::as_str)
    }
}

/// The chunks of a tokenizer in the store.
#[derive(Debug, Default)]
pub struct Labels {
    /// Those that can be used, by name, then by id.
    pub labels: Vec<Label>,
    /// Objects that cannot be used, and why.
    pub refused: Vec<(String, Miss)>,
}

impl Labels {
    /// The labels that a name, an id or the first digits of an id can mean.
    pub fn find(&self, name: &str) -> Vec<&Label> {
        const LEAST_ID_DIGITS: usize = 4;
        let named = |label: &&Label| label.name() == Some(name);
        let found: Vec<&Label> = self.labels.iter().filter(named).collect();
        if !found.is_empty() {
            return found;
        }
        let begins =
            |l: &&Label| name.len() >= LEAST_ID_DIGITS && l.id.to_string().starts_with(name);
        self.labels.iter().filter(begins).collect()
    }
}

/// Rows of a chunk, as they were pulled.
#[derive(Debug)]
pub struct Pulled {
    /// Their key.
    pub key: KvKey,
    /// What they are.
    pub header: Header,
    /// The rows.
    pub rows: HostRows,
}

impl Remote {
    /// Stores a chunk's text under its name. `vocabulary` names the tokenizer.
    ///
    /// # Errors
    /// Why it is not stored.
    pub fn push_chunk(&self, vocabulary: &str, chunk: &Chunk) -> Result<Written, Miss> {
        self.wait_for(self.bucket().push_chunk(vocabulary, chunk))
    }

    /// Stores rows that hold a chunk, so that they are found with it.
    ///
    /// # Errors
    /// Why they are not stored.
    pub fn push_rows(
        &self,
        chunk: &ChunkId,
        key: &KvKey,
        header: &Header,
        rows: &Arc<HostRows>,
    ) -> Result<Written, Miss> {
        self.wait_for(self.bucket().put_rows_of(Some(chunk), key, header, rows, false))
    }

    /// The chunks of a tokenizer.
    ///
    /// # Errors
    /// If the store cannot be listed.
    pub fn labels(&self, vocabulary: &str) -> Result<Labels, Miss> {
        self.wait_for(within(self.limits().listing, self.bucket().labels(vocabulary)))
    }

    /// The chunk of a label.
    ///
    /// # Errors
    /// Why it is not used.
    pub fn pull_chunk(&self, vocabulary: &str, label: &Label) -> Result<Chunk, Miss> {
        self.wait_for(self.bucket().pull_chunk(vocabulary, label))
    }

    /// Whether any model's rows of a chunk are in the store.
    ///
    /// # Errors
    /// If the store cannot be listed.
    pub fn has_rows(&self, chunk: &ChunkId) -> Result<bool, Miss> {
        let folder = self.bucket().names.all_uses(chunk);
        let mut listed = pin!(self.bucket().listed(&folder));
        let first = within(self.limits().listing, listed.try_next());
        Ok(self.wait_for(first)?.is_some())
    }

    /// The rows that hold a chunk and fit a model on a device, one after the other. Each has at
    /// most `limit` bytes. `fits` says of a header why its rows are not wanted, before they are
    /// asked for. `take` gets the rows, or why they are not used.
    ///
    /// # Errors
    /// If the store cannot be listed.
    pub fn pull_rows(
        &self,
        chunk: &Chunk,
        fingerprint: &str,
        limit: u64,
        fits: impl Fn(&Header) -> Result<(), Miss>,
        mut take: impl FnMut(Result<Pulled, Miss>),
    ) -> Result<(), Miss> {
        let places = within(self.limits().listing, self.bucket().uses(&chunk.id, fingerprint));
        for place in self.wait_for(places)? {
            let entry = self.bucket().entry(&place, limit, |header| {
                is_of(header, chunk, fingerprint)?;
                fits(header)
            });
            let pulled = self.wait_for(entry);
            take(pulled.map(|(Manifest { key, header, .. }, rows)| Pulled { key, header, rows }));
        }
        Ok(())
    }
}

impl Bucket {
    async fn push_chunk(&self, vocabulary: &str, chunk: &Chunk) -> Result<Written, Miss> {
        // How often it was used here concerns nobody else.
        let shared = Chunk { last_used: None, uses: 0, pinned: false, ..chunk.clone() };
        let card = shared.to_json();
        let hash = blake3::hash(&card);
        let json = Json {
            format: FORMAT.to_owned(),
            version: VERSION,
            vocabulary: vocabulary.to_owned(),
            id: chunk.id,
            kind: chunk.kind,
            metadata: chunk.metadata.clone(),
            n_tokens: chunk.tokens.len(),
            bytes: card.len() as u64,
            blake3: hash.to_string(),
        };
        let label = seal::write(PURPOSE, &json, &self.trust);
        for (bytes, limit) in [(card.len(), CARD_LIMIT), (label.len(), LABEL_LIMIT)] {
            if bytes as u64 > limit {
                return Err(Miss::TooLarge { bytes: bytes as u64, limit });
            }
        }
        let path = self.names.label(vocabulary, &chunk.id);
        match self.small(&path, LABEL_LIMIT).await {
            Ok(found) if found == label => return Ok(Written::Present),
            Ok(found) if self.trust.key().is_none() && seal::is_signed(&found) => {
                return Err(Miss::Signed);
            }
            Err(miss) if miss.is_failure() => return Err(miss),
            _ => {}
        }
        let bytes = (card.len() + label.len()) as u64;
        let card_path = self.names.card(vocabulary, &chunk.id, &hash);
        self.put(&card_path, card.into(), PutMode::Create).await?;
        self.put(&path, label.into(), PutMode::Overwrite).await?;
        Ok(Written::New { bytes })
    }

    /// Writes rows like [`Bucket::put_rows`], and that they hold a chunk.
    pub(crate) async fn put_rows_of(
        &self,
        chunk: Option<&ChunkId>,
        key: &KvKey,
        header: &Header,
        rows: &Arc<HostRows>,
        anew: bool,
    ) -> Result<Written, Miss> {
        let written = self.put_rows(key, header, rows, anew).await?;
        if let Some((chunk, place)) = chunk.zip(Place::of(key, header)) {
            let path = self.names.of_use(chunk, &place);
            // Its name says everything, but some stores have no empty objects.
            self.put(&path, "\n".into(), PutMode::Create).await?;
        }
        Ok(written)
    }

    async fn labels(&self, vocabulary: &str) -> Result<Labels, Miss> {
        let folder = self.names.shelf(vocabulary);
        let named = self.listed(&folder).try_filter_map(|meta| async {
            Ok(match self.names.parse(&meta.location) {
                Some(Named::Label { chunk, .. }) => Some((chunk, meta)),
                _ => None,
            })
        });
        let found: Vec<_> = named.try_collect().await?;
        let mut labels = Labels::default();
        let mut bytes = 0;
        let mut read =
            stream::iter(found)
                .map(|(id, meta)| async move {
                    (id, self.small(&meta.location, LABEL_LIMIT).await, meta)
                })
                .buffer_unordered(LABELS_AT_ONCE);
        while let Some((id, text, meta)) = read.next().await {
            bytes += text.as_ref().map_or(0, |text| text.len() as u64);
            if bytes > LABELS_LIMIT {
                return Err(Miss::TooLarge { bytes, limit: LABELS_LIMIT });
            }
            match text.and_then(|text| self.label(vocabulary, &id, &meta, &text)) {
                Ok(label) => labels.labels.push(label),
                Err(miss) if miss.is_failure() => return Err(miss),
                // Deleted since it was listed.
                Err(Miss::Absent) => {}
                Err(miss) => labels.refused.push((id.to_string(), miss)),
            }
        }
        labels.labels.sort_by(|a, b| (a.name(), a.id).cmp(&(b.name(), b.id)));
        labels.refused.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(labels)
    }

    fn label(
        &self,
        vocabulary: &str,
        id: &ChunkId,
        meta: &ObjectMeta,
        text: &[u8],
    ) -> Result<Label, Miss> {
        let json: Json = seal::read(PURPOSE, text, &self.trust)?;
        if json.format != FORMAT {
            return Err(Miss::Form(format!("its format is {:?}", json.format)));
        }
        if json.version != VERSION {
            return Err(Miss::Version { found: json.version, expected: VERSION });
        }
        if json.id != *id || json.vocabulary != vocabulary {
            return Err(Miss::Card(format!("it is the label of chunk {}", json.id)));
        }
        let card =
            blake3::Hash::from_hex(&json.blake3).map_err(|error| Miss::Form(error.to_string()))?;
        Ok(Label {
            id: json.id,
            kind: json.kind,
            metadata: json.metadata,
            n_tokens: json.n_tokens,
            bytes: json.bytes,
            stored: meta.last_modified.into(),
            card,
        })
    }

    async fn pull_chunk(&self, vocabulary: &str, label: &Label) -> Result<Chunk, Miss> {
        let path = self.names.card(vocabulary, &label.id, &label.card);
        let limit = label.bytes.min(CARD_LIMIT);
        let card = self.small(&path, limit).await?;
        if blake3::hash(&card) != label.card {
            return Err(Miss::Card("its checksum differs".to_owned()));
        }
        let chunk = Chunk::from_json(&card).map_err(Miss::Form)?;
        if (chunk.id, chunk.kind) != (label.id, label.kind) {
            return Err(Miss::Card(format!("it is chunk {}", chunk.id)));
        }
        Ok(Chunk { last_used: None, uses: 0, pinned: false, ..chunk })
    }

    async fn uses(&self, chunk: &ChunkId, fingerprint: &str) -> Result<Vec<Place>, Miss> {
        let folder = self.names.uses(chunk, fingerprint);
        let places = self.listed(&folder).try_filter_map(|meta| async move {
            Ok(match self.names.parse(&meta.location) {
                Some(Named::Use(place)) => Some(place),
                _ => None,
            })
        });
        let mut places: Vec<Place> = places.try_collect().await?;
        places.sort();
        Ok(places)
    }
}

/// Checks that rows are those of a model on a device, and hold a chunk.
fn is_of(header: &Header, chunk: &Chunk, fingerprint: &str) -> Result<(), Miss> {
    let expected = Header { fingerprint: fingerprint.to_owned(), ..header.clone() };
    if let Some(reason) = expected.mismatch(header) {
        return Err(Miss::Mismatch(reason));
    }
    if !chunk.is_in(&header.tokens) {
        return Err(Miss::Card("the rows do not hold this chunk".to_owned()));
    }
    Ok(())
}
