//! The turns of a chat, and the documents of each turn.

use weft_core::chunk::{Chunk, ChunkId, Composition, Library};
use weft_core::prompt::Message;

/// One turn of the user, and the answer.
struct Turn {
    /// They come before the text.
    documents: Vec<ChunkId>,
    text: String,
    answer: Option<String>,
}

/// The conversation up to now.
#[derive(Default)]
pub(super) struct Dialogue {
    system: Option<String>,
    turns: Vec<Turn>,
    /// Documents for the next turn.
    waiting: Vec<ChunkId>,
}

impl Dialogue {
    /// A conversation that starts with a system prompt.
    pub(super) fn new(system: String) -> Self {
        Self { system: Some(system), ..Self::default() }
    }

    /// Removes all turns, and keeps the system prompt.
    pub(super) fn clear(&mut self) {
        self.turns.clear();
        self.waiting.clear();
    }

    /// Adds a document to the next turn.
    pub(super) fn add_document(&mut self, document: ChunkId) {
        self.waiting.push(document);
    }

    /// Adds a turn of the user, with the waiting documents.
    pub(super) fn say(&mut self, text: &str) {
        let documents = std::mem::take(&mut self.waiting);
        self.turns.push(Turn { documents, text: text.to_owned(), answer: None });
    }

    /// Adds the answer to the last turn.
    pub(super) fn answer(&mut self, text: &str) {
        if let Some(turn) = self.turns.last_mut() {
            turn.answer = Some(text.to_owned());
        }
    }

    /// Removes the last turn, which was refused. Its documents wait for the next one.
    pub(super) fn unsay(&mut self) {
        if let Some(turn) = self.turns.pop() {
            self.waiting = turn.documents;
        }
    }

    /// Removes a document from all turns; returns whether it was in one.
    pub(super) fn drop(&mut self, document: &ChunkId) -> bool {
        let before = self.documents().count();
        self.waiting.retain(|id| id != document);
        self.turns.iter_mut().for_each(|turn| turn.documents.retain(|id| id != document));
        self.documents().count() < before
    }

    /// The documents in order, the waiting ones last.
    pub(super) fn documents(&self) -> impl Iterator<Item = &ChunkId> {
        self.turns.iter().flat_map(|turn| &turn.documents).chain(&self.waiting)
    }

    /// Whether a document waits for the next turn.
    pub(super) fn is_waiting(&self, document: &ChunkId) -> bool {
        self.waiting.contains(document)
    }

    /// The conversation as messages for the template.
    pub(super) fn messages(&self, library: &Library) -> Vec<Message> {
        let mut messages: Vec<Message> = self.system.iter().map(|s| Message::system(s)).collect();
        for turn in &self.turns {
            let documents = turn.documents.iter().filter_map(|id| library.get(id).ok());
            let mut pieces: Vec<String> = documents.map(Chunk::in_prompt).collect();
            pieces.push(turn.text.clone());
            messages.push(match pieces.len() {
                1 => Message::user(&turn.text),
                _ => Message::user_pieces(pieces),
            });
            messages.extend(turn.answer.iter().map(|answer| Message::assistant(answer)));
        }
        messages
    }

    /// Marks the pieces of the conversation that are documents, so that their rows are cached and
    /// reported as those chunks.
    pub(super) fn name_documents(&self, prompt: &mut Composition, library: &Library) {
        let mut pieces = prompt.pieces.iter_mut();
        for chunk in self.documents().filter_map(|id| library.get(id).ok()) {
            if let Some(piece) = pieces.find(|piece| piece.tokens.starts_with(&chunk.tokens)) {
                piece.chunk = Some(chunk.id);
            }
        }
    }
}
