//! Makes a tokenizer from the metadata of a GGUF file: its tokens, their types, the merges, and the
//! name of the expression that splits words.
//!
//! The result equals the `tokenizer.json` of the same model. The metadata says nothing about
//! normal forms, so these follow from the name of the expression too.

use std::borrow::Cow;
use std::collections::HashMap;

use super::TokenizerError;
use super::added::{Added, AddedToken};
use super::file::{Parts, merges, table};
use super::normal::Form;
use super::shape::{Merge, Str, Vocab};
use super::split::{GPT2, Splitter};
use crate::weights::{Metadata, Wrong};

const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// What the name of a kind of splitting stands for.
pub(super) struct Pre {
    pub(super) expressions: &'static [&'static str],
    pub(super) nfc: bool,
    /// Whether a word that is a token is taken without merging.
    pub(super) ignore_merges: bool,
    /// Whether texts begin with the first token, if the file does not say.
    add_bos: bool,
}

impl Pre {
    /// One name of each kind.
    pub(super) const NAMES: [&str; 6] =
        ["qwen2", "qwen35", "llama-bpe", "tekken", "smollm", "gpt-2"];

    pub(super) fn named(name: &str) -> Option<Self> {
        let pre = |expressions, nfc, ignore_merges, add_bos| {
            Some(Self { expressions, nfc, ignore_merges, add_bos })
        };
        match name {
            "qwen2" | "deepseek-r1-qwen" => pre(&[QWEN2], true, false, false),
            "qwen35" => pre(&[QWEN35], true, false, false),
            "llama-bpe" | "llama3" | "llama-v3" => pre(&[LLAMA3], false, true, true),
            "tekken" => pre(&[TEKKEN], false, true, true),
            "smollm" | "starcoder" => pre(&[r"\p{N}", GPT2], false, false, false),
            "gpt-2" => pre(&[GPT2], false, false, false),
            _ => None,
        }
    }
}

/// The types of tokens: pieces of words, and those that are read in another way.
pub(super) const NORMAL: i64 = 1;
pub(super) const CONTROL: i64 = 3;
pub(super) const USER_DEFINED: i64 = 4;
pub(super) const UNUSED: i64 = 5;

/// The tables of the metadata.
pub(super) struct Raw<'m> {
    pub(super) tokens: Vec<&'m str>,
    pub(super) types: Vec<i64>,
    pairs: Vec<&'m str>,
    pub(super) pre: Pre,
    metadata: &'m Metadata,
}

/// The parts of the tokenizer that the metadata describes.
pub(super) fn parse(metadata: &Metadata) -> Result<Parts, TokenizerError> {
    build(&Raw::new(metadata)?).map_err(|error| match error {
        TokenizerError::Inconsistent(what) => TokenizerError::Gguf(what),
        other => other,
    })
}

impl<'m> Raw<'m> {
    pub(super) fn new(metadata: &'m Metadata) -> Result<Self, TokenizerError> {
        match metadata.text("tokenizer.ggml.model").map_err(wrong)? {
            Some("gpt2") => {}
            Some(kind @ ("llama" | "t5" | "gemma4" | "plamo2")) => {
                return Err(TokenizerError::Unsupported(format!(
                    "the GGUF file has a SentencePiece tokenizer ({kind:?}); take a Qwen3, Qwen2.5 or \
                     Llama 3 model"
                )));
            }
            Some(kind) => {
                return Err(TokenizerError::Unsupported(format!(
                    "the GGUF file has a tokenizer of the kind {kind:?}, not \"gpt2\""
                )));
            }
            None => return Err(absent("tokenizer.ggml.model")),
        }
        let pre = pre(metadata)?;
        let texts = |key: &str| metadata.texts(key).map_err(wrong)?.ok_or_else(|| absent(key));
        let (tokens, pairs) = (texts("tokenizer.ggml.tokens")?, texts("tokenizer.ggml.merges")?);
        let types = metadata.whole_numbers("tokenizer.ggml.token_type").map_err(wrong)?;
        let types = types.ok_or_else(|| absent("tokenizer.ggml.token_type"))?;
        if types.len() != tokens.len() {
            return Err(TokenizerError::Gguf(format!(
                "it has {} tokens and {} types of tokens",
                tokens.len(),
                types.len()
            )));
        }
        Ok(Self { tokens, types, pairs, pre, metadata })
    }

    pub(super) fn merges(&self) -> Result<Vec<Merge<'m>>, TokenizerError> {
        self.pairs.iter().map(|pair| merge(pair)).collect()
    }

    /// The token that texts begin with.
    pub(super) fn bos(&self) -> Result<Option<u32>, TokenizerError> {
        let wanted = self.metadata.flag("tokenizer.ggml.add_bos_token").map_err(wrong)?;
        match wanted.unwrap_or(self.pre.add_bos) {
            true => self.token("tokenizer.ggml.bos_token_id").map(Some),
            false => Ok(None),
        }
    }

    /// The token that texts to embed end with.
    pub(super) fn eos(&self) -> Result<Option<u32>, TokenizerError> {
        match self.metadata.flag("tokenizer.ggml.add_eos_token").map_err(wrong)? {
            Some(true) => self.token("tokenizer.ggml.eos_token_id").map(Some),
            _ => Ok(None),
        }
    }

    /// The token that a key of the metadata names.
    fn token(&self, key: &str) -> Result<u32, TokenizerError> {
        let id = self.metadata.count(key).map_err(wrong)?.ok_or_else(|| absent(key))?;
        let known = usize::try_from(id).ok().and_then(|id| Some((id, *self.types.get(id)?)));
        match known {
            Some((id, kind)) if kind != UNUSED && !self.tokens[id].is_empty() => Ok(id as u32),
            _ => Err(TokenizerError::Gguf(format!("`{key}` is {id}, which is not a token"))),
        }
    }
}

fn build(raw: &Raw<'_>) -> Result<Parts, TokenizerError> {
    let Raw { tokens, types, pre, .. } = raw;
    let (mut vocab, mut added, mut ids) = (Vec::new(), Vec::new(), HashMap::new());
    for ((token, kind), id) in tokens.iter().zip(types).zip(0..) {
        match *kind {
            UNUSED => {}
            kind @ (CONTROL | USER_DEFINED) => {
                added.push(AddedToken::verbatim(id, (*token).to_owned(), kind == CONTROL));
                // A merge may still make it; a piece of a word with the same text takes precedence.
                ids.entry(*token).or_insert(id);
            }
            _ => {
                vocab.push((Str(Cow::Borrowed(*token)), id));
                ids.insert(*token, id);
            }
        }
    }
    let vocab = Vocab(vocab);
    let added = Added::new(added)?;
    let (arena, spans) = table(&vocab, &added)?;
    let merges = merges(&raw.merges()?, &ids, pre.ignore_merges.then_some(&vocab))?;
    let mut splitter = Splitter::default();
    for expression in pre.expressions {
        splitter.push_known(expression)?;
    }
    let forms = if pre.nfc { vec![Form::Nfc] } else { Vec::new() };
    let bos = raw.bos()?.into_iter().collect();
    let eos = raw.eos()?.into_iter().collect();
    Ok(Parts { arena, spans, merges, added, forms, splitter, bos, eos })
}

fn merge<'a>(pair: &'a str) -> Result<Merge<'a>, TokenizerError> {
    let (left, right) = pair
        .split_once(' ')
        .ok_or_else(|| TokenizerError::Gguf(format!("its merge {pair:?} has no space")))?;
    Ok(Merge(Cow::Borrowed(left), Cow::Borrowed(right)))
}

fn pre(metadata: &Metadata) -> Result<Pre, TokenizerError> {
    let name = metadata.text("tokenizer.ggml.pre").map_err(wrong)?.unwrap_or("default");
    Pre::named(name).ok_or_else(|| {
        let why = match name {
            "default" => "the GGUF file does not say how its tokenizer splits words".to_owned(),
            _ => format!("the GGUF file's tokenizer splits words by {name:?}"),
        };
        TokenizerError::Unsupported(format!(
            "{why}; weft knows qwen2, qwen35, llama-bpe, tekken, smollm and gpt-2, so take a file \
             of another conversion"
        ))
    })
}

fn wrong(wrong: Wrong) -> TokenizerError {
    let Wrong { key, found, expected } = wrong;
    TokenizerError::Gguf(format!("`{key}` is {found}, not {expected}"))
}

fn absent(key: &str) -> TokenizerError {
    TokenizerError::Gguf(format!("the file has no `{key}`"))
}
