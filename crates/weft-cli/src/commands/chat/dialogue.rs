//! What was said in a chat, and which documents belong to which turn.

use weft_core::chunk::{Chunk, ChunkId, Composition, Library};
use weft_core::prompt::Message;

/// One turn of the user, and what was answered.
struct Turn {
    /// They stand before the text.
    documents: Vec<ChunkId>,
    text: String,
    answer: Option<String>,
}

/// The conversation so far.
#[derive(Default)]
pub(super) struct Dialogue {
    system: Option<String>,
    turns: Vec<Turn>,
    /// Documents that go with the next turn.
    waiting: Vec<ChunkId>,
}

impl Dialogue {
    /// A conversation that begins with a system prompt.
    pub(super) fn new(system: String) -> Self {
        Self { system: Some(system), ..Self::default() }
    }

    /// Forgets what was said; the system prompt stays.
    pub(super) fn clear(&mut self) {
        self.turns.clear();
        self.waiting.clear();
    }

    /// A document that goes with the next turn.
    pub(super) fn add_document(&mut self, document: ChunkId) {
        self.waiting.push(document);
    }

    /// The user says something, about the documents that wait.
    pub(super) fn say(&mut self, text: &str) {
        let documents = std::mem::take(&mut self.waiting);
        self.turns.push(Turn { documents, text: text.to_owned(), answer: None });
    }

    /// The last turn is answered.
    pub(super) fn answer(&mut self, text: &str) {
        if let Some(turn) = self.turns.last_mut() {
            turn.answer = Some(text.to_owned());
        }
    }

    /// The last turn was refused: it is forgotten, and its documents wait again.
    pub(super) fn unsay(&mut self) {
        if let Some(turn) = self.turns.pop() {
            self.waiting = turn.documents;
        }
    }

    /// Takes a document out of all turns; returns whether it was in one.
    pub(super) fn drop(&mut self, document: &ChunkId) -> bool {
        let before = self.documents().count();
        self.waiting.retain(|id| id != document);
        self.turns.iter_mut().for_each(|turn| turn.documents.retain(|id| id != document));
        self.documents().count() < before
    }

    /// The documents in their order, those that wait last.
    pub(super) fn documents(&self) -> impl Iterator<Item = &ChunkId> {
        self.turns.iter().flat_map(|turn| &turn.documents).chain(&self.waiting)
    }

    /// Whether a document goes with the next turn.
    pub(super) fn is_waiting(&self, document: &ChunkId) -> bool {
        self.waiting.contains(document)
    }

    /// The conversation as templates take it.
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

    /// Marks the pieces of the conversation that are documents, so that their rows are kept and
    /// reported as the chunks' own.
    pub(super) fn name_documents(&self, prompt: &mut Composition, library: &Library) {
        let mut pieces = prompt.pieces.iter_mut();
        for chunk in self.documents().filter_map(|id| library.get(id).ok()) {
            if let Some(piece) = pieces.find(|piece| piece.tokens.starts_with(&chunk.tokens)) {
                piece.chunk = Some(chunk.id);
            }
        }
    }
}
