//! Log-probabilities beside the text, in the formats of chats and completions.
//!
//! Entries are sent with the text of their tokens and never before it: a token that turns out to be
//! part of a stop string is cut with it.

use std::collections::VecDeque;
use std::fmt::Write;

use serde_json::{Map, Value, json};
use weft_core::engine::{PromptPrediction, PromptToken, Token};
use weft_core::tokenizer::Tokenizer;

/// One token's log-probability, and the most likely tokens in its place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    id: u32,
    bytes: Vec<u8>,
    /// None for the first token of an echoed prompt, which nothing predicted.
    logprob: Option<f32>,
    /// Their ids and bytes.
    top: Vec<(u32, Vec<u8>, f32)>,
    /// Where the token begins: in bytes of all tokens, and in characters of the whole text.
    offset: usize,
    text_offset: usize,
}

/// Entries that wait for their text.
#[derive(Default)]
pub(crate) struct Pending {
    entries: VecDeque<Entry>,
    /// Bytes of all tokens so far, characters that begin in them, and bytes of the text that was
    /// sent.
    token_bytes: usize,
    token_chars: usize,
    text_bytes: usize,
}

impl Pending {
    /// Takes a token; returns the entries whose text has begun to be sent. Tokens without text (the
    /// end of an answer) have no entry.
    pub(crate) fn push(&mut self, token: &Token, tokenizer: &Tokenizer) -> Vec<Entry> {
        self.text_bytes += token.text.len();
        let bytes = tokenizer.token_bytes(token.id).unwrap_or_default();
        if let Some(logprobs) = &token.logprobs
            && !tokenizer.is_special(token.id)
        {
            let text = |id: u32| tokenizer.token_bytes(id).unwrap_or_default().to_vec();
            let top = logprobs.top.iter().map(|(id, logprob)| (*id, text(*id), *logprob));
            let top = top.collect();
            self.add(token.id, bytes, Some(logprobs.chosen), top);
        }
        self.token_bytes += bytes.len();
        self.token_chars += bytes.iter().filter(|byte| begins_character(**byte)).count();
        let is_told = |entry: &mut Entry| entry.offset < self.text_bytes;
        std::iter::from_fn(|| self.entries.pop_front_if(is_told)).collect()
    }

    /// The first token of an echoed prompt: nothing predicted it.
    pub(crate) fn push_unpredicted(&mut self, token: &Token, tokenizer: &Tokenizer) -> Vec<Entry> {
        let bytes = tokenizer.token_bytes(token.id).unwrap_or_default();
        self.add(token.id, bytes, None, Vec::new());
        self.push(token, tokenizer)
    }

    fn add(&mut self, id: u32, bytes: &[u8], logprob: Option<f32>, top: Vec<(u32, Vec<u8>, f32)>) {
        let (offset, text_offset) = (self.token_bytes, self.token_chars);
        let bytes = bytes.to_vec();
        self.entries.push_back(Entry { id, bytes, logprob, top, offset, text_offset });
    }
}

/// Whether a byte of UTF-8 is the first of a character.
fn begins_character(byte: u8) -> bool {
    byte & 0xC0 != 0x80
}

impl Entry {
    fn token(&self) -> String {
        token_text(&self.bytes)
    }

    fn json(&self) -> Value {
        let top: Vec<Value> = self
            .top
            .iter()
            .map(|(_, bytes, logprob)| {
                json!({"token": token_text(bytes), "logprob": logprob, "bytes": bytes})
            })
            .collect();
        json!({
            "token": self.token(),
            "logprob": self.logprob,
            "bytes": self.bytes,
            "top_logprobs": top,
        })
    }
}

/// A token as text. A token that is only part of a character is written as OpenAI writes it.
fn token_text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
            text
        }),
    }
}

/// The log-probabilities of a prompt in vLLM's format: for each token an object with that token and
/// the most likely ones by their ids, and null for the first.
pub(crate) fn of_prompt(tokens: &[PromptToken], tokenizer: &Tokenizer) -> Value {
    let entry = |id: u32, logprob: f32, rank: usize| {
        let text = token_text(tokenizer.token_bytes(id).unwrap_or_default());
        (id.to_string(), json!({"logprob": logprob, "rank": rank, "decoded_token": text}))
    };
    let all = |token: &PromptToken| {
        let Some(PromptPrediction { logprobs, rank }) = &token.prediction else {
            return Value::Null;
        };
        let top = (1..).zip(&logprobs.top).map(|(rank, (id, logprob))| entry(*id, *logprob, rank));
        let own = entry(token.id, logprobs.chosen, *rank);
        Value::Object(top.chain([own]).collect())
    };
    tokens.iter().map(all).collect()
}

/// The format of chats.
pub(crate) fn of_chat(entries: &[Entry]) -> Value {
    json!({"content": entries.iter().map(Entry::json).collect::<Vec<_>>(), "refusal": null})
}

/// The format of llama.cpp's completions.
pub(crate) fn of_llama(entries: &[Entry]) -> Value {
    let token = |id: u32, bytes: &[u8], logprob: Option<f32>| json!({"id": id, "token": token_text(bytes), "bytes": bytes, "logprob": logprob});
    let entry = |entry: &Entry| {
        let top = entry.top.iter().map(|(id, bytes, logprob)| token(*id, bytes, Some(*logprob)));
        let mut json = token(entry.id, &entry.bytes, entry.logprob);
        json["top_logprobs"] = top.collect();
        json
    };
    entries.iter().map(entry).collect()
}

/// The format of completions. The chosen token is among the most likely ones or is added to them.
pub(crate) fn of_completion(entries: &[Entry]) -> Value {
    let top = |entry: &Entry| {
        let Some(chosen) = entry.logprob else { return Value::Null };
        let mut all = Map::from_iter([(entry.token(), json!(chosen))]);
        for (_, bytes, logprob) in &entry.top {
            // Of two tokens with the same text, the more likely one stays.
            all.entry(token_text(bytes)).or_insert_with(|| json!(logprob));
        }
        Value::Object(all)
    };
    json!({
        "tokens": entries.iter().map(Entry::token).collect::<Vec<_>>(),
        "token_logprobs": entries.iter().map(|entry| entry.logprob).collect::<Vec<_>>(),
        "top_logprobs": entries.iter().map(top).collect::<Vec<_>>(),
        "text_offset": entries.iter().map(|entry| entry.text_offset).collect::<Vec<_>>(),
    })
}
