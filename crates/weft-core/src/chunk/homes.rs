//! The homes of a chunk: the places in prompts at which its rows can be computed.
//!
//! Rows are found by what they attended to. So rows from elsewhere could be planted for the
//! beginning of any prompt. This module therefore says where a chunk can stand: where the template
//! puts it. That is the beginning of a prompt for a system chunk, a place after a system prompt for
//! a document or an answer, or a place of its own if it is isolated. Rows that attended to other
//! documents belong to one prompt, not to the chunk.

use std::sync::Arc;

use super::{Chunk, Kind, Library, Prompt, Which, compose_prompt};
use crate::prompt::Template;
use crate::store::{Header, Prefix};
use crate::tokenizer::Tokenizer;

/// A query that completes a prompt. Nothing before it depends on it.
const QUERY: &str = "?";

/// The homes of one chunk. By default it has none.
#[derive(Debug, Default)]
pub struct Homes {
    homes: Vec<Home>,
}

/// A place in prompts.
#[derive(Debug, PartialEq)]
struct Home {
    /// What the chunk attends to.
    before: Vec<u32>,
    /// The chunk and the template's tokens around it.
    piece: Arc<[u32]>,
}

impl Homes {
    /// The homes of a chunk: without a system prompt, and after each system chunk of a library. A
    /// prompt that the template refuses has none.
    pub fn new(
        template: &Template,
        tokenizer: &Tokenizer,
        library: &Library,
        chunk: &Chunk,
    ) -> Self {
        let mut homes = Self::default();
        // A template may write at the begin of a prompt whether the model is to think.
        for thinking in [None, Some(true), Some(false)] {
            let prompt = Prompt::new().query(QUERY).thinking(thinking);
            if chunk.kind == Kind::System {
                homes.add(template, tokenizer, &[chunk], &prompt.system(&chunk.id), chunk);
                continue;
            }
            let prompt = prompt.context(&chunk.id);
            homes.add(template, tokenizer, &[chunk], &prompt, chunk);
            let systems = Which { kind: Some(Kind::System), ..Which::default() };
            for system in library.list(&systems) {
                let prompt = prompt.clone().system(&system.id);
                homes.add(template, tokenizer, &[chunk, system], &prompt, chunk);
            }
        }
        homes
    }

    fn add(
        &mut self,
        template: &Template,
        tokenizer: &Tokenizer,
        chunks: &[&Chunk],
        prompt: &Prompt,
        chunk: &Chunk,
    ) {
        let mut library = Library::default();
        chunks.iter().for_each(|chunk| library.restore((*chunk).clone()));
        let Ok(composition) = compose_prompt(template, tokenizer, &library, prompt) else {
            return;
        };
        let is_it = |piece: &super::Piece| piece.chunk == Some(chunk.id);
        let Some(at) = composition.pieces.iter().position(is_it) else { return };
        let piece = &composition.pieces[at].tokens;
        let piece = match self.homes.last() {
            Some(home) if *home.piece == **piece => Arc::clone(&home.piece),
            _ => piece.as_slice().into(),
        };
        let before = composition.pieces[..at].iter();
        let before = before.flat_map(|piece| &piece.tokens).copied().collect();
        let mut found = vec![Home { before, piece: Arc::clone(&piece) }];
        if chunk.kind.level() == 1 {
            // Isolated.
            found.push(Home { before: Vec::new(), piece });
        }
        for home in found {
            if !self.homes.contains(&home) {
                self.homes.push(home);
            }
        }
    }

    /// Whether rows are those of the chunk, all of it, at one of its homes. The rows themselves may
    /// still be wrong: only computing them would show that.
    pub fn have(&self, rows: &Header) -> bool {
        let is_its = |home: &Home| {
            let is_here = rows.home_position == home.before.len() && *rows.tokens == *home.piece;
            is_here
                && rows.parent == {
                    let mut prefix = Prefix::root(&rows.fingerprint);
                    prefix.add(&home.before);
                    prefix.key()
                }
        };
        rows.reuse == rows.form.reuse() && self.homes.iter().any(is_its)
    }
}
