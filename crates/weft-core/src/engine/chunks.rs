//! The engine's operations on chunks: register, compose, preview, warm, pin, delete, save.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::held::Policy;
use super::placement::{Placement, PlannedNode};
use super::{
    CacheStats, Cancel, ChunkTiers, Engine, GenerateError, LaneId, RemoteTier, Request,
    RequestError, Saving,
};
use crate::chunk::{
    Chunk, ChunkError, ChunkId, Composition, Kind, Library, Piece, Prompt, Repair, Reuse, Tier,
    TurnReuse, Which, compose_conversation, compose_prompt,
};
use crate::prompt::{Conversation, Template};
use crate::sampling::Sampling;

/// The cache's contents for a prompt, before it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Preview {
    /// Its pieces in order.
    pub pieces: Vec<PiecePreview>,
    /// Bytes of the prompt's KV rows.
    pub bytes: u64,
    /// Estimated time to compute the missing rows, if known.
    pub estimate: Option<Duration>,
}

/// One piece of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct PiecePreview {
    /// The chunk, if the piece is one of the library.
    pub chunk: Option<ChunkId>,
    /// Its kind.
    pub kind: Kind,
    /// Its tokens.
    pub tokens: usize,
    /// Tokens whose rows are cached.
    pub cached_tokens: usize,
    /// The tier that holds them, or the slowest if there are several. `None` if any token has to be
    /// computed.
    pub source: Option<Tier>,
    /// Which tokens it attends to.
    pub reuse: Reuse,
}

impl Preview {
    /// Tokens of the prompt.
    pub fn tokens(&self) -> usize {
        self.pieces.iter().map(|piece| piece.tokens).sum()
    }

    /// Tokens whose rows are cached.
    pub fn cached_tokens(&self) -> usize {
        self.pieces.iter().map(|piece| piece.cached_tokens).sum()
    }
}

impl Engine {
    /// Registers a text, without computing anything. The same content gives the same chunk.
    pub fn chunk(&mut self, kind: Kind, text: &str) -> Result<ChunkId, ChunkError> {
        self.library.add(&self.tokenizer, kind, text, BTreeMap::new())
    }

    /// Registers a chunk whose text was encoded elsewhere. The same content gives the same chunk.
    pub fn register(&mut self, chunk: Chunk) -> ChunkId {
        self.library.register(chunk)
    }

    /// Restores a chunk that was registered before.
    pub fn restore(&mut self, chunk: Chunk) -> Result<(), ChunkError> {
        let id = ChunkId::of(chunk.kind, &self.tokenizer.encode_text(&chunk.in_prompt())?);
        if id != chunk.id {
            return Err(ChunkError::OtherModel { id: chunk.id });
        }
        if chunk.pinned {
            self.cache.pin_files(&chunk, true);
        }
        self.library.restore(chunk);
        Ok(())
    }

    /// The registered chunks.
    pub fn library(&self) -> &Library {
        &self.library
    }

    /// Deletes a chunk and its rows, in every tier.
    pub fn delete(&mut self, id: &ChunkId) -> Result<(), ChunkError> {
        let chunk = self.library.delete(id)?;
        self.cache.forget(&chunk);
        self.speculating.indexes.remove(id);
        Ok(())
    }

    /// Deletes all chunks that match a filter, and their rows; returns their number.
    pub fn clear(&mut self, which: &Which) -> usize {
        let ids: Vec<ChunkId> = self.library.list(which).iter().map(|chunk| chunk.id).collect();
        ids.iter().filter(|id| self.delete(id).is_ok()).count()
    }

    /// Drops all cached rows, in every tier. Chunks stay registered.
    pub fn drop_rows(&mut self) {
        self.cache.clear();
    }

    /// Pins or unpins a chunk's rows.
    pub fn pin(&mut self, id: &ChunkId, pinned: bool) -> Result<(), ChunkError> {
        self.library.get(id)?;
        self.cache.pin(id, pinned)?;
        self.library.pin(id, pinned)?;
        self.cache.pin_files(self.library.get(id)?, pinned);
        Ok(())
    }

    fn template(&self) -> Result<&Template, ChunkError> {
        self.template.as_deref().ok_or(ChunkError::NoTemplate)
    }

    /// Composes a prompt of chunks into tokens.
    pub fn compose(&self, prompt: &Prompt) -> Result<Composition, ChunkError> {
        compose_prompt(self.template()?, &self.tokenizer, &self.library, prompt)
    }

    /// Composes a conversation. Each turn is a piece, and so is each of `chunks` in it. `reuse` and
    /// `repair` are those of documents; turns attend to everything before them.
    pub fn compose_chat(
        &self,
        conversation: &Conversation,
        chunks: &[ChunkId],
        reuse: Reuse,
        repair: Repair,
    ) -> Result<Composition, ChunkError> {
        let (template, tokenizer) = (self.template()?, &self.tokenizer);
        let chunks = chunks.iter().map(|id| self.library.get(id));
        let chunks: Vec<&Chunk> = chunks.collect::<Result<_, _>>()?;
        let exact = TurnReuse::default();
        let mut prompt = compose_conversation(template, tokenizer, conversation, chunks, &exact)?;
        let is_document = |piece: &&mut Piece| piece.chunk.is_some() && piece.kind.level() == 1;
        for piece in prompt.pieces.iter_mut().filter(is_document) {
            piece.reuse = reuse;
        }
        prompt.repair = repair;
        Ok(prompt)
    }

    /// The cache's contents for a prompt.
    pub fn preview(&self, prompt: &Composition) -> Preview {
        let placement = Placement::look_up(&self.cache, prompt, usize::MAX, None);
        let mut start = 0;
        let mut pieces = Vec::new();
        for piece in &prompt.pieces {
            let range = start..start + piece.tokens.len();
            start = range.end;
            let mut cached_tokens = 0;
            let mut source = None;
            for planned in &placement.nodes {
                let end = planned.range.end.min(range.end);
                let common = end.saturating_sub(planned.range.start.max(range.start));
                let kept =
                    planned.found.map(|id| self.cache.node(id)).filter(|node| node.is_filled());
                if let Some(node) = kept.filter(|_| common > 0) {
                    cached_tokens += common;
                    source = source.max(node.tier());
                }
            }
            let source = source.filter(|_| cached_tokens == range.len());
            let (chunk, kind, tokens) = (piece.chunk, piece.kind, range.len());
            let reuse = piece.reuse;
            pieces.push(PiecePreview { chunk, kind, tokens, cached_tokens, source, reuse });
        }
        let shape = self.cache.shape();
        let bytes = 2 * shape.bytes(shape.layers, prompt.len()) as u64;
        let missing = prompt.len() - pieces.iter().map(|piece| piece.cached_tokens).sum::<usize>();
        let mean = Some(self.cache.mean_cost()).filter(|mean| !mean.is_zero());
        Preview { pieces, bytes, estimate: mean.map(|mean| mean * missing as u32) }
    }

    /// Computes a prompt's rows in advance, except those of its query.
    pub fn warm(&mut self, prompt: &Composition) -> Result<(), GenerateError> {
        match self.add_warm(prompt, &Cancel::default())? {
            Some(lane) => self.finish_lane(lane),
            None => Ok(()),
        }
    }

    /// Admits a lane that computes a prompt's rows, except those of its query, and generates
    /// nothing. `None` if there is nothing to compute.
    pub fn add_warm(
        &mut self,
        prompt: &Composition,
        cancel: &Cancel,
    ) -> Result<Option<LaneId>, RequestError> {
        let mut prompt = prompt.clone();
        prompt.pieces.retain(|piece| piece.kind != Kind::Query && !piece.tokens.is_empty());
        if !self.keeps {
            return Err(RequestError::KeepsNothing);
        }
        if prompt.is_empty() {
            return Ok(None);
        }
        let sampling = Sampling { max_tokens: Some(1), ..Sampling::default() };
        let policy = Policy { answers: false, ..Policy::WARM };
        let request = Request { cancel: cancel.clone(), ..Request::new(prompt, sampling) };
        self.admit_lane(request, policy).map(Some)
    }

    /// The fastest tier that holds rows of a chunk.
    pub fn tier_of(&self, chunk: &Chunk) -> Option<Tier> {
        self.cache.tier_of(chunk)
    }

    /// The tiers of the rows of all chunks, for those who look for many.
    pub fn chunk_tiers(&self) -> ChunkTiers {
        self.cache.chunk_tiers()
    }

    /// Whether the rows of all chunks of a prompt are in files.
    pub fn is_saved(&self, prompt: &Composition) -> bool {
        let placement = Placement::look_up(&self.cache, prompt, usize::MAX, None);
        let mut start = 0;
        prompt.pieces.iter().all(|piece| {
            let range = start..start + piece.tokens.len();
            start = range.end;
            let is_in_file = |planned: &PlannedNode| {
                planned.found.is_some_and(|id| self.cache.node(id).is_on_disk())
            };
            let overlaps = |planned: &&PlannedNode| {
                planned.range.start < range.end && range.start < planned.range.end
            };
            piece.chunk.is_none() || placement.nodes.iter().filter(overlaps).all(is_in_file)
        })
    }

    /// Writes cached rows to files, those of registered chunks or all; returns the number of nodes
    /// with a file. Waits until the files are on disk, where they survive a crash; no lane runs
    /// meanwhile.
    pub fn save(&mut self, all: bool) -> usize {
        self.cache.save(&mut *self.device, |node| all || node.chunk.is_some())
    }

    /// Starts to write cached rows to files, and waits for nothing. Lanes go on.
    pub fn begin_save(&mut self, all: bool) -> Saving {
        self.cache.begin_save(&mut *self.device, |node| all || node.chunk.is_some())
    }

    /// Whether some of these rows are still on their way to files. Afterwards they are on disk, or
    /// could not be written ([`Engine::is_saved`]). Calls to [`Engine::step`] or
    /// [`Engine::tend_files`] make progress.
    pub fn is_saving(&self, saving: &Saving) -> bool {
        self.cache.is_saving(saving)
    }

    /// Fetches rows from files even if computing them is faster, for measurements. Without this,
    /// the faster way is chosen for each piece.
    pub fn always_fetch(&mut self, always: bool) {
        self.cache.always_fetch(always);
    }

    /// Whether any rows are on their way to files.
    pub fn is_filing(&self) -> bool {
        self.cache.is_filing()
    }

    /// Hands rows to the threads that write files, if no step does. Waits for nothing.
    pub fn tend_files(&mut self) {
        self.cache.tend(&mut *self.device);
    }

    /// The remote tier, if there is one. Its counts may be read at any time.
    pub fn remote(&self) -> Option<Arc<dyn RemoteTier>> {
        self.cache.remote()
    }

    /// Waits until the remote tier has written what it took, at most for `limit`; it takes no more.
    /// Returns the number of rows that are lost. Does nothing without a remote tier.
    pub fn close_remote(&mut self, limit: Duration) -> usize {
        self.cache.close_remote(limit)
    }

    /// Number of cached nodes with a file, of registered chunks or all.
    pub fn n_saved(&self, all: bool) -> usize {
        self.cache.n_filed(|node| all || node.chunk.is_some())
    }

    /// Moves all rows that no lane reads down to a tier, if the tier has room. This frees the
    /// device's pages, or main memory too.
    pub fn demote(&mut self, tier: Tier) {
        self.cache.demote(tier, &mut *self.device);
    }

    /// Contents and counters of the cache.
    pub fn cache_stats(&self) -> CacheStats {
        let draft_index_bytes = self.speculating.indexes.bytes() as u64;
        CacheStats { draft_index_bytes, ..self.cache.stats() }
    }

    /// Returns the warnings about files and the remote tier since the last call. Such faults never
    /// change an answer.
    pub fn take_warnings(&mut self) -> Vec<String> {
        self.cache.take_warnings()
    }
}
