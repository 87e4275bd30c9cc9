//! Reads `tokenizer.json` into the parts of a [`Tokenizer`](super::Tokenizer).
//!
//! The file is not trusted: whatever it contains must result in a tokenizer or in an error, never
//! in a panic or a huge allocation. Steps that would change the bytes of a text (a prefix space,
//! lower case) are refused, so that encoding never changes them.

use std::collections::HashMap;

use serde::Deserialize;

use super::TokenizerError;
use super::added::{Added, AddedToken};
use super::merge::Merges;
use super::normal::Form;
use super::shape::{Merge, Vocab};
use super::split::{GPT2, Splitter};

/// Larger ids are refused, because they determine the sizes of tables (real vocabularies end below
/// 300 000).
const MAX_IDS: u32 = 1 << 22;

/// Tokens before a text and after it, together. Real tokenizers write one of each.
const MAX_AROUND: usize = 64;

/// Steps of a pre-tokenizer. Real ones have up to 7 (DeepSeek), and each cuts the text again.
const MAX_SPLITS: usize = 16;

/// Steps of a normalizer. Each copies the text.
const MAX_FORMS: usize = 8;

/// Bytes of all expressions of a pre-tokenizer. Real ones have up to 3000.
const MAX_EXPRESSION_BYTES: usize = 8 << 10;

/// For each id the start and end of its bytes.
pub(super) type Spans = Vec<(u32, u32)>;

/// The parts of a [`Tokenizer`](super::Tokenizer).
pub(super) struct Parts {
    pub(super) arena: Vec<u8>,
    pub(super) spans: Spans,
    pub(super) merges: Merges,
    pub(super) added: Added,
    pub(super) forms: Vec<Form>,
    pub(super) splitter: Splitter,
    pub(super) bos: Vec<u32>,
    pub(super) eos: Vec<u32>,
}

/// The kind of tokenizer. It is read first, because the vocabularies of other kinds have other
/// shapes.
#[derive(Deserialize)]
struct Head {
    model: ModelHead,
    decoder: Option<Component>,
}

#[derive(Deserialize)]
struct ModelHead {
    #[serde(rename = "type")]
    kind: Option<String>,
}

/// A `tokenizer.json`.
#[derive(Deserialize)]
pub(super) struct File<'a> {
    #[serde(default)]
    pub(super) added_tokens: Vec<AddedToken>,
    pub(super) normalizer: Option<Component>,
    pub(super) pre_tokenizer: Option<Component>,
    post_processor: Option<Component>,
    #[serde(borrow)]
    pub(super) model: Model<'a>,
}

#[derive(Deserialize)]
pub(super) struct Model<'a> {
    #[serde(borrow)]
    pub(super) vocab: Vocab<'a>,
    #[serde(borrow)]
    pub(super) merges: Vec<Merge<'a>>,
    #[serde(default)]
    pub(super) ignore_merges: bool,
    dropout: Option<f32>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
}

/// A normalizer, pre-tokenizer, post-processor or decoder: the fields of all kinds in one.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Component {
    #[serde(rename = "type")]
    kind: String,
    normalizers: Vec<Component>,
    pretokenizers: Vec<Component>,
    processors: Vec<Component>,
    decoders: Vec<Component>,
    pattern: Option<Pattern>,
    behavior: Option<String>,
    add_prefix_space: bool,
    use_regex: Option<bool>,
    individual_digits: bool,
    single: serde_json::Value,
    special_tokens: serde_json::Value,
}

#[derive(Debug, Deserialize)]
enum Pattern {
    String(String),
    Regex(String),
}

/// Parses and checks the content of a `tokenizer.json`.
pub(super) fn parse(json: &[u8]) -> Result<Parts, TokenizerError> {
    let head: Head = serde_json::from_slice(json)?;
    if let Some(kind) = head.model.kind.filter(|kind| kind != "BPE") {
        return Err(unsupported(format!("its model is of type {kind:?}")));
    }
    if !head.decoder.as_ref().is_some_and(|decoder| decoder.contains("ByteLevel")) {
        let kind = head.decoder.map_or("none".to_owned(), |decoder| format!("{:?}", decoder.kind));
        return Err(unsupported(format!("its decoder is {kind}, not \"ByteLevel\"")));
    }
    let file: File = serde_json::from_slice(json)?;
    let model = file.model;
    if model.dropout.is_some_and(|dropout| dropout != 0.0) {
        return Err(unsupported("it drops merges at random".into()));
    }
    let affixes = [&model.continuing_subword_prefix, &model.end_of_word_suffix];
    if affixes.into_iter().flatten().any(|affix| !affix.is_empty()) {
        return Err(unsupported("it marks subwords by a prefix or suffix".into()));
    }
    let ids: HashMap<&str, u32> =
        model.vocab.0.iter().map(|(token, id)| (token.0.as_ref(), *id)).collect();
    let mut added_tokens = file.added_tokens;
    for token in &mut added_tokens {
        // As in Hugging Face: if the vocabulary has the token, the vocabulary's id counts.
        token.id = ids.get(token.content.as_str()).copied().unwrap_or(token.id);
    }
    let added = Added::new(added_tokens)?;
    let (arena, spans) = table(&model.vocab, &added)?;
    let merges = merges(&model.merges, &ids, model.ignore_merges.then_some(&model.vocab))?;
    let (mut bos, mut eos) = (Vec::new(), Vec::new());
    if let Some(processor) = &file.post_processor {
        around(processor, &spans, &mut bos, &mut eos)?;
    }
    let mut forms = Vec::new();
    normal_forms(file.normalizer.as_ref(), &mut forms)?;
    let mut splitter = Splitter::default();
    for expression in expressions(file.pre_tokenizer.as_ref())? {
        splitter.push(&expression)?;
    }
    Ok(Parts { arena, spans, merges, added, forms, splitter, bos, eos })
}

fn unsupported(what: String) -> TokenizerError {
    TokenizerError::Unsupported(what)
}

fn inconsistent(what: String) -> TokenizerError {
    TokenizerError::Inconsistent(what)
}

impl Component {
    fn contains(&self, kind: &str) -> bool {
        self.kind == kind || self.decoders.iter().any(|decoder| decoder.contains(kind))
    }
}

/// The bytes of every token, and their offsets.
pub(super) fn table(vocab: &Vocab, added: &Added) -> Result<(Vec<u8>, Spans), TokenizerError> {
    let tokens = vocab.0.iter().map(|(token, id)| (*id, token_bytes(&token.0), &*token.0));
    let added = added.iter().map(|t| (t.id, t.content.clone().into_bytes(), t.content.as_str()));
    let tokens: Vec<_> = tokens.collect();
    let added: Vec<_> = added.collect();
    let largest = tokens.iter().chain(&added).max_by_key(|(id, ..)| *id);
    let Some((largest, _, token)) = largest else {
        return Err(inconsistent("it has no tokens".into()));
    };
    if *largest >= MAX_IDS {
        return Err(inconsistent(format!(
            "the token {token:?} has the id {largest}, above the limit of {MAX_IDS}"
        )));
    }
    let mut spans = vec![(0, 0); *largest as usize + 1];
    let mut arena = Vec::new();
    for (id, bytes, token) in tokens {
        let span: &mut (u32, u32) = &mut spans[id as usize];
        if span.0 != span.1 {
            return Err(inconsistent(format!("the id {id} of the token {token:?} is used twice")));
        }
        let start = arena.len() as u32;
        arena.extend_from_slice(&bytes);
        *span = (start, arena.len() as u32);
    }
    // If an added token is in the vocabulary too, the added token's content counts.
    for (id, bytes, _) in added {
        let start = arena.len() as u32;
        arena.extend_from_slice(&bytes);
        spans[id as usize] = (start, arena.len() as u32);
    }
    Ok((arena, spans))
}

/// The merge table. Words that are tokens of `whole` are not merged, if it is given.
pub(super) fn merges(
    merges: &[Merge],
    ids: &HashMap<&str, u32>,
    whole: Option<&Vocab>,
) -> Result<Merges, TokenizerError> {
    let mut byte_ids = [u32::MAX; 256];
    for byte in 0..=u8::MAX {
        let id = ids.get(byte_char(byte).encode_utf8(&mut [0; 4]) as &str);
        // UTF-8 never contains these bytes, so a vocabulary may lack them.
        let unused = matches!(byte, 0xc0 | 0xc1 | 0xf5..);
        if id.is_none() && !unused {
            return Err(unsupported(format!(
                "its vocabulary has no token for the byte {byte:#04x}"
            )));
        }
        byte_ids[usize::from(byte)] = id.copied().unwrap_or(u32::MAX);
    }
    let mut table = Vec::with_capacity(merges.len());
    let mut joined = String::new();
    for Merge(left, right) in merges {
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        let id = |token: &str| {
            ids.get(token).copied().ok_or_else(|| {
                inconsistent(format!("a merge needs the token {token:?}, which has no id"))
            })
        };
        table.push((id(left)?, id(right)?, id(&joined)?));
    }
    let whole = whole.map(|vocab| {
        let tokens = vocab.0.iter();
        tokens
            .filter_map(|(token, id)| Some((byte_level(&token.0)?.into_boxed_slice(), *id)))
            .collect()
    });
    Ok(Merges::new(table.into_iter(), byte_ids, whole))
}

/// The tokens that a post-processor writes before a text and after it.
fn around(
    processor: &Component,
    spans: &[(u32, u32)],
    bos: &mut Vec<u32>,
    eos: &mut Vec<u32>,
) -> Result<(), TokenizerError> {
    for part in &processor.processors {
        around(part, spans, bos, eos)?;
    }
    if processor.kind != "TemplateProcessing" {
        return Ok(());
    }
    let mut is_after = false;
    for piece in processor.single.as_array().into_iter().flatten() {
        let Some(name) = piece["SpecialToken"]["id"].as_str() else {
            is_after = true;
            continue;
        };
        for id in processor.special_tokens[name]["ids"].as_array().into_iter().flatten() {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
            let id = id.filter(|&id| spans.get(id as usize).is_some_and(|span| span.0 < span.1));
            if bos.len() + eos.len() == MAX_AROUND {
                return Err(inconsistent(format!(
                    "its post-processor writes more than {MAX_AROUND} tokens around a text"
                )));
            }
            let to = if is_after { &mut *eos } else { &mut *bos };
            to.push(id.ok_or_else(|| {
                inconsistent(format!("its post-processor's token {name:?} has no id"))
            })?);
        }
    }
    Ok(())
}

pub(super) fn normal_forms(
    normalizer: Option<&Component>,
    forms: &mut Vec<Form>,
) -> Result<(), TokenizerError> {
    let Some(normalizer) = normalizer else { return Ok(()) };
    if forms.len() == MAX_FORMS && normalizer.kind != "Sequence" {
        return Err(unsupported(format!(
            "its normalizer has more than {MAX_FORMS} steps; take another model"
        )));
    }
    match normalizer.kind.as_str() {
        "NFC" => forms.push(Form::Nfc),
        "NFD" => forms.push(Form::Nfd),
        "NFKC" => forms.push(Form::Nfkc),
        "NFKD" => forms.push(Form::Nfkd),
        "Sequence" => {
            for part in &normalizer.normalizers {
                normal_forms(Some(part), forms)?;
            }
        }
        kind => return Err(unsupported(format!("its normalizer is of type {kind:?}"))),
    }
    Ok(())
}

/// The expressions of a pre-tokenizer, in order.
pub(super) fn expressions(
    pre_tokenizer: Option<&Component>,
) -> Result<Vec<String>, TokenizerError> {
    let mut steps = Vec::new();
    if let Some(component) = pre_tokenizer {
        flatten(component, &mut steps);
    }
    check_size("steps", steps.len(), MAX_SPLITS)?;
    let Some((last, steps)) = steps.split_last().filter(|(last, _)| last.kind == "ByteLevel")
    else {
        return Err(unsupported("its last pre-tokenizer is not \"ByteLevel\"".into()));
    };
    if last.add_prefix_space {
        return Err(unsupported("it adds a space before every text".into()));
    }
    let mut expressions = Vec::new();
    for step in steps {
        match (step.kind.as_str(), step.behavior.as_deref(), &step.pattern) {
            ("Split", Some("Isolated"), Some(Pattern::Regex(regex))) => {
                expressions.push(regex.clone());
            }
            ("Split", Some("Isolated"), Some(Pattern::String(text))) => {
                expressions.push(quote(text));
            }
            ("Digits", ..) if step.individual_digits => expressions.push(r"\p{N}".to_owned()),
            ("Digits", ..) => expressions.push(r"\p{N}+".to_owned()),
            (kind, behavior, _) => {
                let behavior = behavior.map_or(String::new(), |name| format!(" ({name:?})"));
                return Err(unsupported(format!("it has a pre-tokenizer {kind:?}{behavior}")));
            }
        }
    }
    if last.use_regex != Some(false) {
        expressions.push(GPT2.to_owned());
    }
    let n_bytes = expressions.iter().map(String::len).sum();
    check_size("bytes of expressions", n_bytes, MAX_EXPRESSION_BYTES)?;
    Ok(expressions)
}

fn check_size(what: &str, found: usize, limit: usize) -> Result<(), TokenizerError> {
    if found <= limit {
        return Ok(());
    }
    Err(unsupported(format!(
        "its pre-tokenizer has {found} {what}, more than the limit of {limit}; take another model"
    )))
}

fn flatten<'c>(component: &'c Component, steps: &mut Vec<&'c Component>) {
    match component.kind.as_str() {
        "Sequence" => component.pretokenizers.iter().for_each(|part| flatten(part, steps)),
        _ => steps.push(component),
    }
}

/// An expression that matches only `text`.
fn quote(text: &str) -> String {
    let escape = |c: char| if c.is_ascii_punctuation() { format!("\\{c}") } else { c.into() };
    text.chars().map(escape).collect()
}

/// The character that represents a byte in a byte-level vocabulary (GPT-2's table): printable bytes
/// represent themselves, the others are moved to U+0100 and up.
fn byte_char(byte: u8) -> char {
    let moved = match byte {
        0..=0x20 => u32::from(byte),
        0x7f..=0xa0 => u32::from(byte) - 0x7f + 0x21,
        0xad => 0x43,
        _ => return char::from(byte),
    };
    char::from_u32(0x100 + moved).unwrap_or(char::from(byte))
}

/// Undoes [`byte_char`].
fn char_byte(c: char) -> Option<u8> {
    let byte = match u32::from(c) {
        code @ 0x100..=0x120 => code - 0x100,
        code @ 0x121..=0x142 => code - 0x121 + 0x7f,
        0x143 => 0xad,
        code => code,
    };
    u8::try_from(byte).ok().filter(|&byte| byte_char(byte) == c)
}

/// The bytes of a vocabulary entry; `None` if it is not written in byte characters.
fn byte_level(token: &str) -> Option<Vec<u8>> {
    token.chars().map(char_byte).collect()
}

/// As in Hugging Face: an entry that is not written in byte characters represents itself.
fn token_bytes(token: &str) -> Vec<u8> {
    byte_level(token).unwrap_or_else(|| token.as_bytes().to_vec())
}
