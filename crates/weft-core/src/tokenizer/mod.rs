//! Text to token ids and back, for byte-level BPE tokenizers in Hugging Face's `tokenizer.json` and
//! in the metadata of GGUF files.
//!
//! This module separates *data* from *markup*. [`Tokenizer::encode_text`] never returns an added
//! token, so a user's `<|im_end|>` stays text. Only [`Tokenizer::encode_markup`] recognises added
//! tokens.
//!
//! Regular expressions and Unicode normal forms come from the crates that Hugging Face's own
//! `tokenizers` takes. Splitting and merging are done here on bytes, because `tokenizers` stores 16
//! bytes of alignment for each byte of text, and silently ends a text where its regex engine gives
//! up (see `split.rs`). Tests compare the two.

mod added;
mod file;
mod gguf;
mod gguf_tables;
mod merge;
mod normal;
mod shape;
mod split;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use added::{Added, Piece};
use file::Parts;
pub(crate) use gguf_tables::{GgufTables, to_json};
use merge::{Merges, Scratch};
use normal::Form;
use split::Splitter;
use thiserror::Error;

use crate::files::read_capped;
use crate::weights::Metadata;

/// Maximum size of a `tokenizer.json`: 64 MB (real ones have 2 to 35 MB).
pub(crate) const MAX_FILE_BYTES: u64 = 64 << 20;

/// Longer words are not cached, because they rarely recur.
const MAX_CACHED_WORD_BYTES: usize = 48;
/// Maximum number of words in the cache of one call; bounds its memory.
const MAX_CACHED_WORDS: usize = 1 << 17;

/// Why a tokenizer could not be loaded, or a text could not be encoded.
#[derive(Debug, Error)]
pub enum TokenizerError {
    /// The file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is too large for a tokenizer.
    #[error("tokenizer.json is larger than the limit of {limit} bytes; download it again")]
    TooLarge {
        /// The limit in bytes.
        limit: u64,
    },
    /// The file is not JSON, or not that of a tokenizer.
    #[error("tokenizer.json is malformed: {0}; download it again")]
    Malformed(#[from] serde_json::Error),
    /// The file is well-formed, but its parts contradict each other.
    #[error("tokenizer.json is inconsistent: {0}; download it again")]
    Inconsistent(String),
    /// The tokenizer is not byte-level BPE, or has an unsupported option.
    #[error("this tokenizer is not supported: {0} (weft runs byte-level BPE tokenizers)")]
    Unsupported(String),
    /// The tokenizer in the metadata of a GGUF file cannot be used.
    #[error("the GGUF file's tokenizer: {0}; take another file of this model")]
    Gguf(String),
    /// The text is too long for 32-bit positions.
    #[error("the text has {bytes} bytes, more than the limit of {limit}; shorten it")]
    TextTooLong {
        /// Length of the text in bytes.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },
}

/// A byte-level BPE tokenizer. Immutable and shared freely between threads.
#[derive(Debug)]
pub struct Tokenizer {
    /// The bytes of all tokens, concatenated.
    arena: Vec<u8>,
    /// For each id, the start and end of its bytes in `arena`; empty if the id has no token.
    spans: Vec<(u32, u32)>,
    merges: Merges,
    added: Added,
    forms: Vec<Form>,
    splitter: Splitter,
    bos: Vec<u32>,
    eos: Vec<u32>,
}

impl Tokenizer {
    /// Loads a `tokenizer.json`.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, TokenizerError> {
        let path = path.as_ref();
        let read = read_capped(path, MAX_FILE_BYTES)
            .map_err(|source| TokenizerError::Read { path: path.to_owned(), source })?;
        Self::from_bytes(&read.ok_or(TokenizerError::TooLarge { limit: MAX_FILE_BYTES })?)
    }

    /// Loads a tokenizer from the content of a `tokenizer.json`.
    pub fn from_bytes(json: &[u8]) -> Result<Self, TokenizerError> {
        if json.len() as u64 > MAX_FILE_BYTES {
            return Err(TokenizerError::TooLarge { limit: MAX_FILE_BYTES });
        }
        Ok(Self::of_parts(file::parse(json)?))
    }

    /// Makes the tokenizer that the metadata of a GGUF file describes.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self, TokenizerError> {
        gguf::parse(metadata).map(Self::of_parts)
    }

    fn of_parts(parts: Parts) -> Self {
        let Parts { arena, spans, merges, added, forms, splitter, bos, eos } = parts;
        Self { arena, spans, merges, added, forms, splitter, bos, eos }
    }

    /// Encodes `text` as data: no added token is recognised, special or not.
    ///
    /// The concatenated bytes of the tokens equal the text. If the tokenizer has a Unicode
    /// normalizer (Qwen: NFC), they equal the text in that normal form.
    pub fn encode_text(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        check_length(text)?;
        let mut ids = Vec::with_capacity(text.len() / 3);
        self.push_text(text, &mut ids);
        Ok(ids)
    }

    /// Encodes `text` as markup: added tokens are recognised wherever they occur. Use it only for a
    /// template's text, never for a user's. Adds no BOS.
    pub fn encode_markup(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        check_length(text)?;
        let mut ids = Vec::new();
        for piece in self.markup_pieces(text) {
            match piece {
                Piece::Text(text) => self.push_words(&text, &mut ids),
                Piece::Token(id) => ids.push(id),
            }
        }
        Ok(ids)
    }

    /// Encodes the prompt of a raw completion: `text` as data, after [`Tokenizer::bos`].
    pub fn encode_with_bos(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = self.bos.clone();
        ids.extend(self.encode_text(text)?);
        Ok(ids)
    }

    /// The ids that the tokenizer's post-processor inserts before a text (Llama 3: one; Qwen:
    /// none).
    pub fn bos(&self) -> &[u32] {
        &self.bos
    }

    /// The ids that the post-processor writes after a text (Qwen3-Embedding: `<|endoftext|>`; most
    /// models: none).
    pub fn eos(&self) -> &[u32] {
        &self.eos
    }

    /// Encodes a text that is read as a whole, such as one to embed: as data, between
    /// [`Tokenizer::bos`] and [`Tokenizer::eos`].
    pub fn encode_whole(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = self.encode_with_bos(text)?;
        ids.extend(&self.eos);
        Ok(ids)
    }

    /// The exact bytes of a token, which may be incomplete UTF-8. `None` for an id without a token
    /// (models pad their vocabulary).
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        let &(start, end) = self.spans.get(id as usize)?;
        (start < end).then(|| &self.arena[start as usize..end as usize])
    }

    /// Whether `id` is an added token that is marked as special (`<|im_end|>` is, `<think>` is
    /// not).
    pub fn is_special(&self, id: u32) -> bool {
        self.added.is_special(id)
    }

    /// The id of the token with this content: an added token first, else a vocabulary entry with
    /// these bytes. Searches the whole vocabulary, so it is slow.
    pub fn id_of(&self, content: &str) -> Option<u32> {
        self.added.id_of(content).or_else(|| {
            let wanted = content.as_bytes();
            (0..self.vocab_size()).find(|&id| self.token_bytes(id) == Some(wanted))
        })
    }

    /// One more than the largest id, added tokens included.
    pub fn vocab_size(&self) -> u32 {
        self.spans.len() as u32
    }

    /// The text of `ids`, for display: invalid UTF-8 becomes U+FFFD, and ids without a token are
    /// skipped. For streams, concatenate [`Tokenizer::token_bytes`] instead.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut bytes = Vec::new();
        for &id in ids {
            if !(skip_special && self.is_special(id)) {
                bytes.extend_from_slice(self.token_bytes(id).unwrap_or_default());
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// `text` in the normal form that the tokenizer encodes; unchanged if it has none.
    pub fn normalize<'t>(&self, text: &'t str) -> std::borrow::Cow<'t, str> {
        normal::apply(&self.forms, text)
    }

    /// Cuts markup into added tokens and the (normalised) text between them.
    fn markup_pieces<'t>(&self, text: &'t str) -> Vec<Piece<'t>> {
        self.added.pieces(text, |text| self.normalize(text))
    }

    fn push_text(&self, text: &str, ids: &mut Vec<u32>) {
        self.push_words(&self.normalize(text), ids);
    }

    /// Splits normalised text into words and merges each. It records where in `ids` a word was
    /// first written, and copies the tokens of a recurring word.
    fn push_words(&self, text: &str, ids: &mut Vec<u32>) {
        let mut seen: HashMap<&str, (usize, usize)> = HashMap::new();
        let mut scratch = Scratch::default();
        self.splitter.words(text, &mut |word| {
            if let Some(&(start, end)) = seen.get(word) {
                ids.extend_from_within(start..end);
                return;
            }
            let start = ids.len();
            self.merges.encode(word.as_bytes(), &mut scratch, ids);
            if (2..=MAX_CACHED_WORD_BYTES).contains(&word.len()) && seen.len() < MAX_CACHED_WORDS {
                seen.insert(word, (start, ids.len()));
            }
        });
    }
}

/// Positions inside a word have 32 bits.
fn check_length(text: &str) -> Result<(), TokenizerError> {
    let limit = i32::MAX as usize;
    if text.len() > limit {
        return Err(TokenizerError::TextTooLong { bytes: text.len(), limit });
    }
    Ok(())
}
