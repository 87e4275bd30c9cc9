//! Drafts from the context: what followed the longest match of the answer's last tokens, in the
//! prompt's chunks or in the conversation and the answer so far.
//!
//! A chunk's index is built once and shared by all lanes ([`Indexes`]). Everything else of the
//! prompt and the answer itself are in one index of the lane, which grows.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::index::SuffixIndex;
use super::{DraftSource, Drafter, Text};
use crate::chunk::{ChunkId, Piece};

/// Bytes of all indexes of chunks, at most.
const BUDGET_BYTES: usize = 64 << 20;
/// Chunks of a prompt that are searched, at most: the last ones.
const MAX_CHUNKS: usize = 32;
/// Last tokens of the text that are compared.
const MAX_SUFFIX: usize = 64;
/// A match of so many tokens is followed without a search for a better one.
const LONG_MATCH: usize = 16;

/// The indexes of chunks. The least recently used ones make room for others.
#[derive(Default)]
pub(in crate::engine) struct Indexes {
    of_chunk: HashMap<ChunkId, (Arc<SuffixIndex>, u64)>,
    bytes: usize,
    uses: u64,
}

impl Indexes {
    /// The index of a chunk, built if it is not there.
    fn get(&mut self, id: ChunkId, tokens: &[u32]) -> Arc<SuffixIndex> {
        self.uses += 1;
        if let Some((index, last_use)) = self.of_chunk.get_mut(&id) {
            *last_use = self.uses;
            return Arc::clone(index);
        }
        let index = Arc::new(SuffixIndex::new(tokens));
        self.bytes += index.bytes();
        self.of_chunk.insert(id, (Arc::clone(&index), self.uses));
        self.evict();
        index
    }

    fn evict(&mut self) {
        while self.bytes > BUDGET_BYTES {
            let oldest = self.of_chunk.iter().min_by_key(|(_, (_, last_use))| *last_use);
            let Some(id) = oldest.map(|(id, _)| *id) else { return };
            self.remove(&id);
        }
    }

    /// Forgets a chunk.
    pub(in crate::engine) fn remove(&mut self, id: &ChunkId) {
        if let Some((index, _)) = self.of_chunk.remove(id) {
            self.bytes -= index.bytes();
        }
    }

    /// Bytes of memory.
    pub(in crate::engine) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The context of one lane.
pub(super) struct Context {
    chunks: Vec<Arc<SuffixIndex>>,
    /// The prompt without these chunks, then the answer.
    own: SuffixIndex,
    /// Parts of the prompt that go into it before the first draft: until then there is a first
    /// token to be computed.
    unread: Vec<Range<usize>>,
    /// Tokens of the text that are in the indexes.
    n_read: usize,
    current: Option<Current>,
}

/// A match that the answer follows.
#[derive(Clone, Copy)]
struct Current {
    /// `None` is the lane's own index.
    chunk: Option<usize>,
    end: usize,
    len: usize,
}

impl Context {
    pub(super) fn new(pieces: &[Piece], indexes: &mut Indexes) -> Self {
        let is_chunk = |piece: &&Piece| piece.chunk.is_some();
        let skipped = pieces.iter().filter(is_chunk).count().saturating_sub(MAX_CHUNKS);
        let last = pieces.iter().filter(is_chunk).skip(skipped);
        let of_piece = |piece: &Piece| Some(indexes.get(piece.chunk?, &piece.tokens));
        let chunks = last.filter_map(of_piece).collect();
        let mut unread = Vec::new();
        let mut n_read = 0;
        for piece in pieces {
            let own = n_read..n_read + piece.tokens.len();
            n_read = own.end;
            if piece.chunk.is_none() {
                unread.push(own);
            }
        }
        Self { chunks, own: SuffixIndex::with_room(0), unread, n_read, current: None }
    }

    /// Indexes the parts of the prompt that are no chunks, if it has not been done yet.
    fn read_prompt(&mut self, tokens: &[u32]) {
        let unread = std::mem::take(&mut self.unread);
        if !unread.is_empty() {
            self.own = SuffixIndex::with_room(unread.iter().map(ExactSizeIterator::len).sum());
            unread.into_iter().flat_map(|own| &tokens[own]).for_each(|token| self.own.push(*token));
        }
    }

    fn index(&self, chunk: Option<usize>) -> &SuffixIndex {
        chunk.map_or(&self.own, |chunk| &self.chunks[chunk])
    }

    /// Takes a new token of the answer.
    fn read(&mut self, token: u32) {
        if let Some(Current { chunk, end, len }) = self.current {
            let goes_on = self.index(chunk).tokens().get(end) == Some(&token);
            self.current = goes_on.then_some(Current { chunk, end: end + 1, len: len + 1 });
        }
        self.own.push(token);
    }

    /// Looks for a longer match than the current one; of several of the same length, the most
    /// recent: in the conversation, then in the last chunk.
    fn search(&mut self, text: &[u32]) {
        let suffix = &text[text.len().saturating_sub(MAX_SUFFIX)..];
        let places = [None].into_iter().chain((0..self.chunks.len()).rev().map(Some));
        let mut best = self.current;
        for chunk in places {
            let Some(found) = self.index(chunk).find(suffix) else { continue };
            if best.is_none_or(|best| found.len > best.len) {
                best = Some(Current { chunk, end: found.end, len: found.len });
            }
        }
        self.current = best;
    }
}

impl Drafter for Context {
    fn source(&self) -> DraftSource {
        DraftSource::Context
    }

    fn draft(&mut self, text: &Text<'_>, max: usize, to: &mut Vec<u32>) -> usize {
        self.read_prompt(text.tokens);
        for token in &text.tokens[self.n_read..] {
            self.read(*token);
        }
        self.n_read = text.tokens.len();
        if self.current.is_none_or(|current| current.len < LONG_MATCH) {
            self.search(text.tokens);
        }
        let Some(Current { chunk, end, len }) = self.current else { return 0 };
        let tokens = self.index(chunk).tokens();
        let follow = &tokens[end..];
        to.extend(follow.iter().take(max));
        if chunk.is_none() && !follow.is_empty() {
            // The answer repeats itself: the draft goes on with its own first tokens.
            while to.len() < max {
                to.push(to[to.len() - follow.len()]);
            }
        }
        len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::{Kind, Reuse};
    use crate::sampling::{Sampler, Sampling};

    fn piece(tokens: Vec<u32>, is_chunk: bool) -> Piece {
        let chunk = is_chunk.then(|| ChunkId::of(Kind::Context, &tokens));
        Piece { chunk, reuse: Reuse::Exact, ..Piece::exact(Kind::Context, tokens) }
    }

    fn drafted(context: &mut Context, tokens: &[u32], max: usize) -> (usize, Vec<u32>) {
        let sampler = Sampler::new(&Sampling::default(), &[], &[], 1000).unwrap();
        let mut draft = Vec::new();
        let len =
            context.draft(&Text { tokens, prompt_len: 0, sampler: &sampler }, max, &mut draft);
        (len, draft)
    }

    #[test]
    fn the_longest_match_drafts_and_the_conversation_comes_before_chunks() {
        let mut indexes = Indexes::default();
        let pieces = [
            piece(vec![1, 2, 3, 4, 50, 51, 52], true),
            piece(vec![2, 3, 4, 60, 61], true),
            piece(vec![90, 91, 92, 93], false),
        ];
        let mut text: Vec<u32> = pieces.iter().flat_map(|p| p.tokens.clone()).collect();
        let mut context = Context::new(&pieces, &mut indexes);
        assert!(context.own.tokens().is_empty(), "nothing is indexed before the first token");
        assert_eq!(drafted(&mut context, &text, 4), (0, vec![]));
        assert_eq!(context.own.tokens(), [90, 91, 92, 93]);
        // Three tokens match in both chunks, and the last chunk is the most recent.
        text.extend([2, 3, 4]);
        assert_eq!(drafted(&mut context, &text, 4), (3, vec![60, 61]));
        // The match is followed.
        text.push(60);
        assert_eq!(drafted(&mut context, &text, 4), (4, vec![61]));
        text.extend([1, 2, 3, 4]);
        assert_eq!(drafted(&mut context, &text, 2), (4, vec![50, 51]));
        text.extend([90, 91, 92]);
        assert_eq!(drafted(&mut context, &text, 3), (3, vec![93, 2, 3]));
        // A loop of two tokens goes on as long as there is room.
        text.extend([70, 71, 70, 71, 70]);
        assert_eq!(drafted(&mut context, &text, 5), (3, vec![71, 70, 71, 70, 71]));
    }

    #[test]
    fn an_index_is_built_once_and_the_oldest_make_room() {
        let mut indexes = Indexes::default();
        let tokens: Vec<u32> = (0..400_000).collect();
        let ids: Vec<ChunkId> = (0..20).map(|i| ChunkId::of(Kind::Context, &[i])).collect();
        let first = indexes.get(ids[0], &tokens);
        assert!(Arc::ptr_eq(&first, &indexes.get(ids[0], &tokens)));
        for id in &ids {
            indexes.get(*id, &tokens);
            indexes.get(ids[0], &tokens);
            assert!(indexes.bytes() <= BUDGET_BYTES);
        }
        assert!(indexes.of_chunk.len() < ids.len() && indexes.of_chunk.contains_key(&ids[0]));
        let counted: usize = indexes.of_chunk.values().map(|(index, _)| index.bytes()).sum();
        assert_eq!(counted, indexes.bytes());
        ids.iter().for_each(|id| indexes.remove(id));
        assert_eq!(indexes.bytes(), 0);
    }
}
