//! A prompt made of chunks, and why it cannot be one.

use thiserror::Error;

use super::{ChunkId, Kind, Repair, Reuse};
use crate::kv::OutOfPages;
use crate::prompt::PromptError;
use crate::tokenizer::TokenizerError;

/// Which chunks a prompt is made of: at most one system, contexts and outputs in any order, a query.
#[derive(Clone, Debug, Default)]
pub struct Prompt {
    pub(super) systems: Vec<ChunkId>,
    pub(super) contexts: Vec<ChunkId>,
    pub(super) queries: Vec<String>,
    pub(super) reuse: Reuse,
    pub(super) repair: Repair,
    pub(super) thinking: Option<bool>,
}

impl Prompt {
    /// An empty prompt: it needs a query.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts a system chunk first.
    pub fn system(mut self, id: &ChunkId) -> Self {
        self.systems.push(*id);
        self
    }

    /// Adds a context or output chunk after those that are there.
    pub fn context(mut self, id: &ChunkId) -> Self {
        self.contexts.push(*id);
        self
    }

    /// Adds several.
    pub fn contexts<'i>(mut self, ids: impl IntoIterator<Item = &'i ChunkId>) -> Self {
        self.contexts.extend(ids);
        self
    }

    /// What is to be answered.
    pub fn query(mut self, text: &str) -> Self {
        self.queries.push(text.to_owned());
        self
    }

    /// How contexts are used again; exact if nothing is said.
    pub fn reuse(mut self, reuse: Reuse) -> Self {
        self.reuse = reuse;
        self
    }

    /// What is recomputed of moved contexts; nothing if nothing is said.
    pub fn repair(mut self, repair: Repair) -> Self {
        self.repair = repair;
        self
    }

    /// Whether the model should think first; `None` leaves it to the template.
    pub fn thinking(mut self, thinking: Option<bool>) -> Self {
        self.thinking = thinking;
        self
    }
}

/// Why a chunk or a prompt of chunks is refused.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ChunkError {
    /// A word that is no id.
    #[error("{id:?} is no chunk id: ids have 32 hexadecimal digits; `weft chunk list` shows them")]
    BadId {
        /// The word.
        id: String,
    },
    /// A word that is neither a name nor the begin of an id.
    #[error("no chunk is called {name:?}, and no id begins so; `weft chunk list` shows them")]
    NotFound {
        /// The word.
        name: String,
    },
    /// A word that several chunks go by.
    #[error("{name:?} may mean any of {count} chunks; give more digits of the id")]
    Ambiguous {
        /// The word.
        name: String,
        /// How many they are.
        count: usize,
    },
    /// An id that names nothing.
    #[error("there is no chunk {id}; it was deleted, or belongs to another model")]
    Unknown {
        /// The id.
        id: ChunkId,
    },
    /// The text is empty.
    #[error("a {kind} chunk needs a text; this one is empty")]
    Empty {
        /// What it was to be.
        kind: Kind,
    },
    /// More than one system chunk.
    #[error("a prompt has at most one system chunk, and this one has {count}; join their texts")]
    TwoSystems {
        /// How many there are.
        count: usize,
    },
    /// Nothing to answer.
    #[error("a prompt needs a query: say what is to be answered")]
    NoQuery,
    /// More than one thing to answer.
    #[error("a prompt has one query, and this one has {count}; ask them one after the other")]
    TwoQueries {
        /// How many there are.
        count: usize,
    },
    /// A chunk where its kind cannot stand.
    #[error("chunk {id} is a {kind} chunk and cannot stand where a {wanted} belongs")]
    WrongKind {
        /// The chunk.
        id: ChunkId,
        /// What it is.
        kind: Kind,
        /// What may stand there.
        wanted: &'static str,
    },
    /// A library file of another model.
    #[error(
        "chunk {id} was made with the tokens of another model; add its text again for this one"
    )]
    OtherModel {
        /// The chunk.
        id: ChunkId,
    },
    /// A library file that cannot be read or written.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// Running requests need the pages.
    #[error(
        "the chunk cannot be pinned now: {0} for running requests; try again when they are done"
    )]
    NoRoom(#[from] OutOfPages),
    /// The model has no chat template.
    #[error("this model has no chat template, so chunks cannot be composed into a prompt")]
    NoTemplate,
    /// The template refused.
    #[error(transparent)]
    Template(#[from] PromptError),
    /// A text could not be encoded.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}
