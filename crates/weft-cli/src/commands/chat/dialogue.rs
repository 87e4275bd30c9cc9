//! The turns of a chat, and the documents of each turn.

use weft_core::chunk::{self, Asked, ChunkId, Source};
use weft_server::resident::protocol::Found;

/// A document of a turn.
#[derive(Clone)]
pub(super) struct Document {
    pub(super) id: ChunkId,
    /// Its name, or the start of its id.
    pub(super) name: String,
    pub(super) tokens: usize,
    source: Source,
}

impl Document {
    pub(super) fn new(source: Source, found: Found) -> Self {
        let of_text = match &source {
            Source::Text { name, .. } => name.clone(),
            Source::Chunk(_) => None,
        };
        let Found { id, tokens, name, .. } = found;
        let name = of_text.or(name).unwrap_or_else(|| id.short());
        Self { id, name, tokens: tokens.len(), source }
    }
}

/// One turn of the user, and the answer.
struct Turn {
    /// They come before the text.
    documents: Vec<Document>,
    text: String,
    answer: Option<String>,
}

/// The conversation up to now.
#[derive(Default)]
pub(super) struct Dialogue {
    system: Option<String>,
    turns: Vec<Turn>,
    /// Documents for the next turn.
    waiting: Vec<Document>,
    /// Those of the command line.
    given: Vec<Document>,
}

impl Dialogue {
    /// Sets the system prompt, for all turns.
    pub(super) fn set_system(&mut self, system: String) {
        self.system = Some(system);
    }

    /// Removes all turns, and keeps the system prompt. The documents that the chat began with wait
    /// for the next turn, as they did then.
    pub(super) fn start_over(&mut self) {
        self.turns.clear();
        self.waiting = self.given.clone();
    }

    /// Makes the waiting documents those that a new start brings back.
    pub(super) fn keep_waiting(&mut self) {
        self.given = self.waiting.clone();
    }

    /// The documents for the next turn.
    pub(super) fn waiting(&self) -> &[Document] {
        &self.waiting
    }

    /// Adds a document to the next turn.
    pub(super) fn add_document(&mut self, document: Document) {
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

    /// Removes a document from all turns, and from a new start; returns whether it was in a turn.
    pub(super) fn drop(&mut self, document: &ChunkId) -> bool {
        let before = self.documents().count();
        let stays = |other: &Document| other.id != *document;
        self.waiting.retain(stays);
        self.given.retain(stays);
        self.turns.iter_mut().for_each(|turn| turn.documents.retain(stays));
        self.documents().count() < before
    }

    /// The documents in order, the waiting ones last.
    pub(super) fn documents(&self) -> impl Iterator<Item = &Document> {
        self.turns.iter().flat_map(|turn| &turn.documents).chain(&self.waiting)
    }

    /// Whether a document waits for the next turn.
    pub(super) fn is_waiting(&self, document: &ChunkId) -> bool {
        self.waiting.iter().any(|waiting| waiting.id == *document)
    }

    /// The conversation as a prompt.
    pub(super) fn asked(&self) -> Asked {
        let turns = self.turns.iter().map(|turn| chunk::Turn {
            documents: turn.documents.iter().map(|document| document.source.clone()).collect(),
            text: turn.text.clone(),
            answer: turn.answer.clone(),
        });
        Asked::Chat { system: self.system.clone(), turns: turns.collect() }
    }
}
