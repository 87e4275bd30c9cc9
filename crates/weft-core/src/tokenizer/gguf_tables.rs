//! Writes tokenizers: the tables of a GGUF file from a `tokenizer.json`, and a `tokenizer.json`
//! from those tables.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::TokenizerError;
use super::file::{File, expressions, normal_forms};
use super::gguf::{CONTROL, NORMAL, Pre, Raw, UNUSED, USER_DEFINED};
use super::normal::Form;
use super::shape::Merge;
use crate::weights::Metadata;

/// A tokenizer as a GGUF file stores it.
pub(crate) struct GgufTables {
    /// The token of each id.
    pub(crate) tokens: Vec<String>,
    /// The type of each token.
    pub(crate) types: Vec<i32>,
    /// Pairs, with a space between them.
    pub(crate) merges: Vec<String>,
    /// The name of the expression that splits words.
    pub(crate) pre: &'static str,
}

impl GgufTables {
    /// The tables of a `tokenizer.json`, for a model with `vocab` embeddings. Ids without a token
    /// are filled as llama.cpp's converter does.
    pub(crate) fn of_json(json: &[u8], vocab: usize) -> Result<Self, TokenizerError> {
        let file: File = serde_json::from_slice(json)?;
        let pre = pre(&file)?;
        let mut tokens: Vec<String> = (0..vocab).map(|id| format!("[PAD{id}]")).collect();
        let mut types = vec![UNUSED as i32; vocab];
        let mut set = |id: u32, text: &str, kind: i64| match tokens.get_mut(id as usize) {
            Some(token) => {
                text.clone_into(token);
                types[id as usize] = kind as i32;
                Ok(())
            }
            None => Err(TokenizerError::Inconsistent(format!(
                "the token {text:?} has the id {id}, but the model has {vocab} embeddings"
            ))),
        };
        for (token, id) in &file.model.vocab.0 {
            set(*id, &token.0, NORMAL)?;
        }
        let known: HashMap<&str, u32> =
            file.model.vocab.0.iter().map(|(token, id)| (&*token.0, *id)).collect();
        for token in &file.added_tokens {
            if !token.is_verbatim() {
                return Err(TokenizerError::Unsupported(format!(
                    "its token {:?} takes the white space around it or whole words only, which a \
                     GGUF file cannot say",
                    token.content
                )));
            }
            let is_control = token.special || looks_special(&token.content);
            let id = known.get(&*token.content).copied().unwrap_or(token.id);
            set(id, &token.content, if is_control { CONTROL } else { USER_DEFINED })?;
        }
        let merges =
            file.model.merges.iter().map(|Merge(left, right)| format!("{left} {right}")).collect();
        Ok(Self { tokens, types, merges, pre })
    }
}

/// The name of the expressions, normal forms and merge rule of a file.
fn pre(file: &File<'_>) -> Result<&'static str, TokenizerError> {
    let mut forms = Vec::new();
    normal_forms(file.normalizer.as_ref(), &mut forms)?;
    let expressions = expressions(file.pre_tokenizer.as_ref())?;
    let is_nfc = forms == [Form::Nfc];
    Pre::NAMES
        .into_iter()
        .find(|name| {
            Pre::named(name).is_some_and(|pre| {
                pre.expressions == expressions
                    && (pre.nfc == is_nfc && (is_nfc || forms.is_empty()))
                    && pre.ignore_merges == file.model.ignore_merges
            })
        })
        .ok_or_else(|| {
            TokenizerError::Unsupported(
                "it splits words by rules that have no name in GGUF files; write int8 or int4"
                    .to_owned(),
            )
        })
}

/// As llama.cpp's converter decides: some models forget to mark their special tokens.
fn looks_special(token: &str) -> bool {
    ["<|", "<｜"].iter().any(|start| token.starts_with(start))
        && ["|>", "｜>"].iter().any(|end| token.ends_with(end))
}

/// The `tokenizer.json` of the tokenizer in a GGUF file.
pub(crate) fn to_json(metadata: &Metadata) -> Result<Value, TokenizerError> {
    let raw = Raw::new(metadata)?;
    let pairs: Vec<Merge> = raw.merges()?;
    let mut made = HashSet::new();
    for Merge(left, right) in &pairs {
        made.extend([left.to_string(), right.to_string(), format!("{left}{right}")]);
    }
    let mut vocab = Map::new();
    let mut added = Vec::new();
    for ((token, kind), id) in raw.tokens.iter().zip(&raw.types).zip(0_u32..) {
        if let CONTROL | USER_DEFINED = *kind {
            added.push(json!({
                "id": id, "content": token, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": *kind == CONTROL,
            }));
        }
        if !matches!(*kind, UNUSED | CONTROL | USER_DEFINED) || made.contains(*token) {
            vocab.entry(*token).or_insert_with(|| json!(id));
        }
    }
    let split = |expression: &&str| {
        json!({
            "type": "Split", "pattern": { "Regex": expression }, "behavior": "Isolated",
            "invert": false,
        })
    };
    let bytes = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false,
    });
    let mut steps: Vec<Value> = raw.pre.expressions.iter().map(split).collect();
    steps.push(bytes.clone());
    let merges: Vec<[&str; 2]> = pairs.iter().map(|Merge(left, right)| [&**left, right]).collect();
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": raw.pre.nfc.then(|| json!({ "type": "NFC" })),
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": steps },
        "post_processor": match (raw.bos()?, raw.eos()?) {
            (None, None) => bytes.clone(),
            (bos, eos) => {
                let token = |id: u32| (id, raw.tokens[id as usize]);
                writes_around(bos.map(token), eos.map(token))
            }
        },
        "decoder": bytes,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": raw.pre.ignore_merges, "vocab": vocab, "merges": merges,
        },
    }))
}

/// The step that writes a token before every text, or after it, or both.
fn writes_around(bos: Option<(u32, &str)>, eos: Option<(u32, &str)>) -> Value {
    let token = |of: &(u32, &str)| json!({ "SpecialToken": { "id": of.1, "type_id": 0 } });
    let around = |id: &str, kind: u32| {
        let text = json!({ "Sequence": { "id": id, "type_id": kind } });
        let (before, after) = (bos.as_ref().map(token), eos.as_ref().map(token));
        before.into_iter().chain([text]).chain(after).collect::<Vec<_>>()
    };
    let mut special = Map::new();
    for (id, token) in bos.into_iter().chain(eos) {
        special.insert(token.to_owned(), json!({ "id": token, "ids": [id], "tokens": [token] }));
    }
    let pair = [around("A", 0), around("B", 1)].concat();
    json!({
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": pair,
        "special_tokens": special,
    })
}
