//! A prompt as a user names it: texts, and registered chunks by their names. The command line and
//! the resident server compose it in the same way.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{
    Chunk, ChunkError, ChunkId, Composition, Kind, Library, Prompt, Repair, Reuse, TurnReuse,
    compose_conversation, compose_prompt,
};
use crate::prompt::{Conversation, Message, PromptError, Template};
use crate::tokenizer::Tokenizer;

/// A text, or a registered chunk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Source {
    /// A text and its name.
    Text {
        /// The name for reports and errors.
        name: Option<String>,
        /// The text.
        text: String,
    },
    /// The name or id of a registered chunk.
    Chunk(String),
}

/// A prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Asked {
    /// A question about documents.
    Documents {
        /// The system prompt. The name of no chunk is the text itself.
        system: Option<Source>,
        /// The documents in order.
        documents: Vec<Source>,
        /// The question.
        question: String,
        /// How the documents' rows are reused.
        reuse: Reuse,
        /// Which of their rows are recomputed.
        repair: Repair,
    },
    /// A conversation.
    Chat {
        /// The system prompt's text.
        system: Option<String>,
        /// The turns in order.
        turns: Vec<Turn>,
    },
    /// A text to continue without a template.
    Text(String),
}

/// A turn of the user, and the answer if there is one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Documents before the text.
    pub documents: Vec<Source>,
    /// The text.
    pub text: String,
    /// The answer.
    pub answer: Option<String>,
}

/// A prompt in tokens.
#[derive(Debug)]
pub struct Composed {
    /// The prompt.
    pub prompt: Composition,
    /// Its last words.
    pub end: String,
    /// The user's names for chunks.
    pub names: BTreeMap<ChunkId, String>,
    /// The registered chunks in it.
    pub used: Vec<Chunk>,
}

/// Why a prompt cannot be composed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AskError {
    /// The prompt is invalid.
    #[error(transparent)]
    Chunk(#[from] ChunkError),
    /// The conversation cannot be rendered.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// A document's text is invalid.
    #[error("{name}: {error}")]
    Document {
        /// The document.
        name: String,
        /// Why.
        error: ChunkError,
    },
    /// A document is neither a file nor a chunk.
    #[error("{word} is neither a file nor a chunk; `weft chunk list` shows the chunks")]
    NoSource {
        /// The user's word.
        word: String,
    },
}

impl Asked {
    /// The words that may name registered chunks.
    pub fn chunk_words(&self) -> Vec<&str> {
        let sources: Vec<&Source> = match self {
            Self::Documents { system, documents, .. } => system.iter().chain(documents).collect(),
            Self::Chat { turns, .. } => turns.iter().flat_map(|turn| &turn.documents).collect(),
            Self::Text(_) => Vec::new(),
        };
        sources.into_iter().filter_map(Source::word).collect()
    }

    /// Composes the prompt. `registered` has the chunks that it names.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn compose(
        &self,
        template: Option<&Template>,
        tokenizer: &Tokenizer,
        registered: &Library,
        thinking: Option<bool>,
    ) -> Result<Composed, AskError> {
        let mut composer = Composer::new(tokenizer, registered);
        let template = || template.ok_or(ChunkError::NoTemplate);
        let prompt = match self {
            Self::Text(text) => {
                let tokens = tokenizer.encode_with_bos(text).map_err(PromptError::from)?;
                return Ok(Composed { end: text.clone(), ..composer.composed(tokens.into()) });
            }
            Self::Documents { system, documents, question, reuse, repair } => {
                let mut prompt = Prompt::new().query(question).reuse(*reuse).repair(*repair);
                if let Some(system) = system {
                    prompt = prompt.system(&composer.system(system)?);
                }
                for document in documents {
                    prompt = prompt.context(&composer.document(document)?);
                }
                let prompt = prompt.thinking(thinking);
                compose_prompt(template()?, tokenizer, &composer.library, &prompt)?
            }
            Self::Chat { system, turns } => {
                let (messages, documents) = composer.messages(system.as_deref(), turns)?;
                let conversation = Conversation::new(messages, thinking);
                let reuse = TurnReuse::default();
                let mut prompt =
                    compose_conversation(template()?, tokenizer, &conversation, [], &reuse)?;
                composer.name_documents(&mut prompt, &documents);
                prompt
            }
        };
        Ok(composer.composed(prompt))
    }
}

impl Source {
    /// The word that may name a registered chunk.
    pub fn word(&self) -> Option<&str> {
        match self {
            Self::Chunk(word) => Some(word),
            Self::Text { .. } => None,
        }
    }

    /// The context chunk that it is.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn document(&self, tokenizer: &Tokenizer, registered: &Library) -> Result<Chunk, AskError> {
        let mut composer = Composer::new(tokenizer, registered);
        let id = composer.document(self)?;
        Ok(composer.library.get(&id)?.clone())
    }

    /// The system chunk that it is.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn system(&self, tokenizer: &Tokenizer, registered: &Library) -> Result<Chunk, AskError> {
        let mut composer = Composer::new(tokenizer, registered);
        let id = composer.system(self)?;
        Ok(composer.library.get(&id)?.clone())
    }
}

/// Finds and makes the chunks of one prompt.
struct Composer<'a> {
    tokenizer: &'a Tokenizer,
    registered: &'a Library,
    /// The chunks of the prompt.
    library: Library,
    names: BTreeMap<ChunkId, String>,
    used: BTreeMap<ChunkId, Chunk>,
}

impl<'a> Composer<'a> {
    fn new(tokenizer: &'a Tokenizer, registered: &'a Library) -> Self {
        let (library, names, used) = <_>::default();
        Self { tokenizer, registered, library, names, used }
    }

    fn take(&mut self, chunk: &Chunk) -> ChunkId {
        let name = chunk.name().map(|name| (chunk.id, name.to_owned()));
        self.names.extend(name);
        self.used.insert(chunk.id, chunk.clone());
        self.library.restore(chunk.clone());
        chunk.id
    }

    fn add(&mut self, kind: Kind, text: &str) -> Result<ChunkId, ChunkError> {
        self.library.add(self.tokenizer, kind, text, BTreeMap::new())
    }

    /// A word that names no chunk is the system prompt itself.
    fn system(&mut self, source: &Source) -> Result<ChunkId, ChunkError> {
        let word = match source {
            Source::Text { text, .. } => return self.add(Kind::System, text),
            Source::Chunk(word) => word,
        };
        if word.contains(char::is_whitespace) {
            return self.add(Kind::System, word);
        }
        match self.registered.find(word) {
            Err(ChunkError::NotFound { .. }) => self.add(Kind::System, word),
            found => found.map(|chunk| self.take(chunk)),
        }
    }

    fn document(&mut self, source: &Source) -> Result<ChunkId, AskError> {
        match source {
            Source::Text { name, text } => {
                let id = self.add(Kind::Context, text).map_err(|error| match name.clone() {
                    Some(name) => AskError::Document { name, error },
                    None => error.into(),
                })?;
                self.names.extend(name.clone().map(|name| (id, name)));
                Ok(id)
            }
            Source::Chunk(word) => match self.registered.find(word) {
                Err(ChunkError::NotFound { .. }) => Err(AskError::NoSource { word: word.clone() }),
                found => Ok(found.map(|chunk| self.take(chunk))?),
            },
        }
    }

    /// The conversation, and its documents in order.
    fn messages(
        &mut self,
        system: Option<&str>,
        turns: &[Turn],
    ) -> Result<(Vec<Message>, Vec<ChunkId>), AskError> {
        let mut messages: Vec<Message> = system.into_iter().map(Message::system).collect();
        let mut all = Vec::new();
        for turn in turns {
            let mut pieces = Vec::new();
            for document in &turn.documents {
                let id = self.document(document)?;
                pieces.push(self.library.get(&id)?.in_prompt());
                all.push(id);
            }
            pieces.push(turn.text.clone());
            messages.push(match pieces.len() {
                1 => Message::user(&turn.text),
                _ => Message::user_pieces(pieces),
            });
            messages.extend(turn.answer.iter().map(|answer| Message::assistant(answer)));
        }
        Ok((messages, all))
    }

    /// Marks the pieces that are documents, so that their rows are cached and reported as those
    /// chunks.
    fn name_documents(&self, prompt: &mut Composition, documents: &[ChunkId]) {
        let mut pieces = prompt.pieces.iter_mut();
        for chunk in documents.iter().filter_map(|id| self.library.get(id).ok()) {
            if let Some(piece) = pieces.find(|piece| piece.tokens.starts_with(&chunk.tokens)) {
                piece.chunk = Some(chunk.id);
            }
        }
    }

    fn composed(self, prompt: Composition) -> Composed {
        let end = prompt.end_text(self.tokenizer);
        let used = self.used.into_values().collect();
        Composed { prompt, end, names: self.names, used }
    }
}
