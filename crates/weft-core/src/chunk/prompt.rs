//! Prompts made of chunks, and the errors of composing them.

use thiserror::Error;

use super::{ChunkId, Kind, Repair, Reuse};
use crate::kv::OutOfPages;
use crate::prompt::PromptError;
use crate::tokenizer::TokenizerError;

/// The chunks of a prompt: at most one system chunk, contexts and outputs in any order, one query.
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
    /// An empty prompt. It needs a query.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the system chunk, which comes first.
    pub fn system(mut self, id: &ChunkId) -> Self {
        self.systems.push(*id);
        self
    }

    /// Adds a context or output chunk after the others.
    pub fn context(mut self, id: &ChunkId) -> Self {
        self.contexts.push(*id);
        self
    }

    /// Adds several context or output chunks.
    pub fn contexts<'i>(mut self, ids: impl IntoIterator<Item = &'i ChunkId>) -> Self {
        self.contexts.extend(ids);
        self
    }

    /// Adds the query.
    pub fn query(mut self, text: &str) -> Self {
        self.queries.push(text.to_owned());
        self
    }

    /// Sets how contexts may be reused. The default is exact.
    pub fn reuse(mut self, reuse: Reuse) -> Self {
        self.reuse = reuse;
        self
    }

    /// Sets which rows of moved contexts are recomputed. The default is none.
    pub fn repair(mut self, repair: Repair) -> Self {
        self.repair = repair;
        self
    }

    /// Sets whether the model should reason first. `None` leaves it to the template.
    pub fn thinking(mut self, thinking: Option<bool>) -> Self {
        self.thinking = thinking;
        self
    }
}

/// Why a chunk, or a prompt of chunks, is refused.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ChunkError {
    /// The text is not a chunk id.
    #[error("{id:?} is not a chunk id of 32 hexadecimal digits; `weft chunk list` shows all ids")]
    BadId {
        /// The text.
        id: String,
    },
    /// The text is neither a name nor the start of an id.
    #[error("no chunk has the name {name:?} or an id that starts with it; see `weft chunk list`")]
    NotFound {
        /// The text.
        name: String,
    },
    /// The text matches several chunks.
    #[error("{name:?} matches {count} chunks; give more digits of the id")]
    Ambiguous {
        /// The text.
        name: String,
        /// Number of chunks that match.
        count: usize,
    },
    /// Several chunks have this name.
    #[error("{name:?} is the name of {}; give an id", short(ids))]
    SharedName {
        /// The name.
        name: String,
        /// Their ids.
        ids: Vec<ChunkId>,
    },
    /// The text cannot be a chunk's name.
    #[error("the name {name:?} {reason}")]
    BadName {
        /// The text.
        name: String,
        /// Why, and what to do.
        reason: &'static str,
    },
    /// Another chunk has the name.
    #[error("the name {name:?} belongs to chunk {id}; delete that one, or give another name")]
    NameTaken {
        /// The name.
        name: String,
        /// The other chunk.
        id: ChunkId,
    },
    /// No chunk has this id.
    #[error(
        "there is no chunk {id}: it was deleted or belongs to another model; add its text again"
    )]
    Unknown {
        /// The id.
        id: ChunkId,
    },
    /// The text is empty.
    #[error("the text of a {kind} chunk must not be empty")]
    Empty {
        /// The kind of chunk it was meant for.
        kind: Kind,
    },
    /// The prompt has more than one system chunk.
    #[error("a prompt has at most one system chunk, and this one has {count}; join their texts")]
    TwoSystems {
        /// Number of system chunks.
        count: usize,
    },
    /// The prompt has no query.
    #[error("a prompt needs a query; add a question")]
    NoQuery,
    /// The prompt has more than one query.
    #[error("a prompt has one query, and this one has {count}; ask one after the other")]
    TwoQueries {
        /// Number of queries.
        count: usize,
    },
    /// The chunk's kind does not fit its place in the prompt.
    #[error(
        "chunk {id} is a {kind} chunk, and a {wanted} is needed here; give it with {}",
        if *kind == Kind::System { "--system" } else { "--context" }
    )]
    WrongKind {
        /// The chunk.
        id: ChunkId,
        /// Its kind.
        kind: Kind,
        /// The kinds that fit.
        wanted: &'static str,
    },
    /// The chunk was tokenised for another model.
    #[error("chunk {id} was tokenised for another model; add its text again for this one")]
    OtherModel {
        /// The chunk.
        id: ChunkId,
    },
    /// The disk is full.
    #[error("the disk is full, so {path} was not written; free some space")]
    DiskFull {
        /// The file.
        path: String,
    },
    /// A library file cannot be read or written.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// Why it cannot.
        reason: String,
    },
    /// Running requests need the pages.
    #[error("the chunk cannot be pinned now: {0} for running requests; try again when they end")]
    NoRoom(#[from] OutOfPages),
    /// The model has no chat template.
    #[error("this model has no chat template, so it cannot compose chunks; choose a chat model")]
    NoTemplate,
    /// The template refused the conversation.
    #[error(transparent)]
    Template(#[from] PromptError),
    /// The text could not be tokenised.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// The first ids, each shortened.
fn short(ids: &[ChunkId]) -> String {
    const MOST: usize = 8;
    let all: Vec<String> = ids.iter().take(MOST).map(|id| format!("{}…", id.short())).collect();
    let more = if ids.len() > MOST { " and others" } else { "" };
    all.join(", ") + more
}
