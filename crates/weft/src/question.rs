//! Questions, the documents that they refer to, and the options of an answer.

use weft_core::chunk::{ChunkId, Repair, Reuse};
use weft_core::engine::Speculate;

/// A registered document. Its KV rows are computed once, and later questions reuse them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Document(pub(crate) ChunkId);

impl Document {
    /// The document's id in reports and in the library.
    pub fn id(&self) -> &ChunkId {
        &self.0
    }
}

/// A question, or a message of a conversation. A string converts into one: `llm.ask("Why?")`.
///
/// ```
/// let question = weft::Question::new("Why is the sky blue?").temperature(0.0).max_tokens(100);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Question {
    pub(crate) text: String,
    pub(crate) system: Option<String>,
    pub(crate) documents: Vec<Document>,
    pub(crate) reuse: Option<Reuse>,
    pub(crate) repair: Option<Repair>,
    pub(crate) think: Option<bool>,
    pub(crate) temperature: Option<f32>,
    pub(crate) seed: Option<u64>,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    pub(crate) speculate: Option<Speculate>,
    pub(crate) prediction: Option<String>,
}

impl Question {
    /// A question with the model's default settings.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// Sets the system prompt, which comes first in the prompt.
    pub fn system(mut self, text: impl Into<String>) -> Self {
        self.system = Some(text.into());
        self
    }

    /// Adds a document. Documents come before the question, in the order of these calls.
    pub fn document(mut self, document: &Document) -> Self {
        self.documents.push(*document);
        self
    }

    /// Adds several documents.
    pub fn documents<'d>(self, documents: impl IntoIterator<Item = &'d Document>) -> Self {
        documents.into_iter().fold(self, Self::document)
    }

    /// Sets how the KV rows of documents may be reused. The default is exact: the answer is bit for
    /// bit the answer of a prompt that is computed from scratch.
    pub fn reuse(mut self, reuse: Reuse) -> Self {
        self.reuse = Some(reuse);
        self
    }

    /// Sets how many rows of a reused document are recomputed.
    pub fn repair(mut self, repair: Repair) -> Self {
        self.repair = Some(repair);
        self
    }

    /// Sets whether the model reasons before it answers, if it supports reasoning.
    pub fn think(mut self, think: bool) -> Self {
        self.think = Some(think);
        self
    }

    /// Sets the sampling temperature. At 0, the most likely token is always chosen.
    pub fn temperature(mut self, temperature: f32) -> Self {
        self.temperature = Some(temperature);
        self
    }

    /// Sets the seed of the sampler: the same seed and prompt give the same answer.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets the maximum number of generated tokens, reasoning included.
    pub fn max_tokens(mut self, tokens: usize) -> Self {
        self.max_tokens = Some(tokens);
        self
    }

    /// Sets how much the answer is drafted. This changes its speed and nothing else.
    pub fn speculate(mut self, speculate: Speculate) -> Self {
        self.speculate = Some(speculate);
        self
    }

    /// Sets a text that the answer will repeat in large parts, such as a file that is to be edited.
    /// The answer stays the same, and comes sooner.
    pub fn prediction(mut self, text: impl Into<String>) -> Self {
        self.prediction = Some(text.into());
        self
    }

    /// Adds a stop string. Generation ends at this text; the answer does not contain it.
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.stop.push(text.into());
        self
    }

    /// The question, with the settings of `others` if it has none of its own.
    pub(crate) fn or(self, others: &Self) -> Self {
        Self {
            reuse: self.reuse.or(others.reuse),
            repair: self.repair.or(others.repair),
            think: self.think.or(others.think),
            temperature: self.temperature.or(others.temperature),
            seed: self.seed.or(others.seed),
            max_tokens: self.max_tokens.or(others.max_tokens),
            stop: if self.stop.is_empty() { others.stop.clone() } else { self.stop },
            speculate: self.speculate.or(others.speculate),
            prediction: self.prediction.or_else(|| others.prediction.clone()),
            ..self
        }
    }
}

impl From<&str> for Question {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<&String> for Question {
    fn from(text: &String) -> Self {
        Self::new(text)
    }
}

impl From<String> for Question {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}
