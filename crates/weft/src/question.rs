//! What is asked, and how it is to be answered.

use weft_core::chunk::{ChunkId, Repair, Reuse};

/// A text that a model was handed: a system prompt or a document. It is computed once, and later
/// questions about it find its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Document(pub(crate) ChunkId);

impl Document {
    /// What names it in reports and in the library.
    pub fn id(&self) -> &ChunkId {
        &self.0
    }
}

/// A question. A text is one: `llm.ask("Why?")`.
///
/// ```
/// let question = weft::Question::new("Why is the sky blue?").temperature(0.0).max_tokens(100);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Question {
    pub(crate) text: String,
    pub(crate) system: Option<String>,
    pub(crate) documents: Vec<Document>,
    pub(crate) reuse: Reuse,
    pub(crate) repair: Repair,
    pub(crate) think: Option<bool>,
    pub(crate) temperature: Option<f32>,
    pub(crate) seed: Option<u64>,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
}

impl Question {
    /// A question with the model's own settings.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// A system prompt that stands before everything else.
    pub fn system(mut self, text: impl Into<String>) -> Self {
        self.system = Some(text.into());
        self
    }

    /// A document that stands before the question, after those that were named before.
    pub fn document(mut self, document: &Document) -> Self {
        self.documents.push(*document);
        self
    }

    /// Documents that stand before the question.
    pub fn documents<'d>(self, documents: impl IntoIterator<Item = &'d Document>) -> Self {
        documents.into_iter().fold(self, Self::document)
    }

    /// How rows of documents may be used again. The default is exact: the answer is that of a prompt
    /// that was computed anew, bit for bit.
    pub fn reuse(mut self, reuse: Reuse) -> Self {
        self.reuse = reuse;
        self
    }

    /// How many rows of a reused document are computed anew.
    pub fn repair(mut self, repair: Repair) -> Self {
        self.repair = repair;
        self
    }

    /// Whether the model thinks first, if it can.
    pub fn think(mut self, think: bool) -> Self {
        self.think = Some(think);
        self
    }

    /// How freely tokens are drawn; 0 always takes the most likely one.
    pub fn temperature(mut self, temperature: f32) -> Self {
        self.temperature = Some(temperature);
        self
    }

    /// Decides every draw: the same seed and prompt give the same answer.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// At most so many tokens, thinking included.
    pub fn max_tokens(mut self, tokens: usize) -> Self {
        self.max_tokens = Some(tokens);
        self
    }

    /// A text that ends the answer, and is no part of it.
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.stop.push(text.into());
        self
    }
}

impl From<&str> for Question {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<String> for Question {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}
