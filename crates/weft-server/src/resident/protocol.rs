//! What a resident server and the commands of its user say to each other: JSON over HTTP.
//!
//! Both are the same version of the same program, so nothing here is kept compatible.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use weft_core::chunk::{
    AskError, Asked, ChunkError, ChunkId, Composition, Kind, Library, Prompt, Reuse, Source,
    compose_prompt,
};
use weft_core::engine::{Finished, Preview, Speculate};
use weft_core::prompt::Template;
use weft_core::sampling::Overrides;
use weft_core::tokenizer::Tokenizer;

/// The questions below are for a model of the server, which the query names: `?model=NAME`.
///
/// `GET`: [`Facts`] of each model.
pub const FACTS: &str = "/resident";
/// `POST` a [`Question`]: [`Event`]s, one per line. Empty lines keep the connection alive.
pub const ANSWER: &str = "/resident/answer";
/// `POST` the id of an answer: ends it.
pub const CANCEL: &str = "/resident/cancel";
/// `POST` a [`Find`]: [`Found`].
pub const FIND: &str = "/resident/find";
/// `POST` a [`Warm`]: [`Warmed`].
pub const WARM: &str = "/resident/warm";
/// `POST` the id of an answer: [`weft_core::engine::Verification`].
pub const VERIFY: &str = "/resident/verify";
/// `POST`: reads the registered chunks again, after another program has changed their files.
pub const REFRESH: &str = "/resident/refresh";
/// `POST`: finishes running answers and ends the server.
pub const STOP: &str = "/resident/stop";

/// A server, with one of its models.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Facts {
    /// Its process.
    pub pid: u32,
    /// The program's version.
    pub version: String,
    /// The model's name for clients.
    pub model: String,
    /// Whether it is loaded.
    pub is_ready: bool,
    /// Whether it is loaded, in a word, as the list of models has it.
    pub state: String,
    /// The share of its load that is done.
    pub progress: Option<f64>,
    /// The bytes of memory that are planned for it.
    pub bytes: u64,
    /// Seconds that it stays loaded if nobody uses it; for ever if there are none.
    pub stays_s: Option<u64>,
    /// The device, in words.
    pub device: String,
    /// Tokens of a context.
    pub context: usize,
    /// The most answers side by side.
    pub lanes: usize,
    /// Answers that run now.
    pub running: usize,
    /// Its address for HTTP.
    pub address: String,
    /// Its bytes in main memory, if the system says.
    pub resident_bytes: Option<u64>,
    /// Bytes of KV rows in use on the device, and bytes reserved for them.
    pub kv_bytes: (u64, u64),
    /// When it started, in seconds since 1970.
    pub started: u64,
    /// Whether the model has a chat template.
    pub has_template: bool,
    /// The folder of its registered chunks.
    pub shelf: Option<PathBuf>,
    /// See [`crate::Loaded::identity`].
    pub identity: Value,
}

/// A question.
#[derive(Debug, Serialize, Deserialize)]
pub struct Question {
    /// The prompt.
    pub asked: Asked,
    /// Whether the model should reason; `None` leaves it to the template.
    pub thinking: Option<bool>,
    /// The settings that the user gave.
    pub sampling: Overrides,
    /// Whether cached rows are used, and new ones cached.
    pub use_cache: bool,
    /// How much is drafted; as the server is set if it is `None`.
    pub speculate: Option<Speculate>,
}

/// What happens to a question.
#[derive(Debug, Serialize, Deserialize)]
pub enum Event {
    /// It is composed.
    Started {
        /// The answer's id.
        id: String,
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// The prompt's last words.
        end: String,
    },
    /// Tokens of the prompt are computed.
    Prefill(usize),
    /// Text of the answer.
    Text(String),
    /// The answer is complete, or was cancelled.
    Done {
        /// How it ended.
        finished: Box<Finished>,
        /// The names of its chunks.
        names: BTreeMap<ChunkId, String>,
    },
    /// There is no answer.
    Failed(Refusal),
}

/// Why a server does not do something.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Refusal {
    /// Whose fault it is.
    pub fault: Fault,
    /// The reason, in the words of the command line.
    pub message: String,
}

/// Whose fault a refusal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// The command line's.
    Usage,
    /// The request's. Others may succeed.
    Request,
    /// The server cannot answer now.
    Busy,
    /// The engine's.
    Engine,
}

/// A chunk to find or to make.
#[derive(Debug, Serialize, Deserialize)]
pub enum Find {
    /// The chunk of a system prompt.
    System(Source),
    /// A document.
    Document(Source),
    /// A registered chunk of any kind.
    Registered(String),
    /// A text as a chunk of a kind.
    Text(Kind, String),
}

/// A chunk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Found {
    /// Its id.
    pub id: ChunkId,
    /// Its kind.
    pub kind: Kind,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Its name.
    pub name: Option<String>,
    /// Its text.
    pub text: String,
}

/// A query, because a prompt needs one; its rows are not computed.
const ANY_QUERY: &str = "?";

/// Registered chunks to compute ahead, in the order of the prompt.
#[derive(Debug, Serialize, Deserialize)]
pub struct Warm {
    /// The system prompt. The name of no chunk is the text itself.
    pub system: Option<Source>,
    /// Their names or ids.
    pub words: Vec<String>,
    /// How their rows will be reused.
    pub reuse: Reuse,
}

impl Warm {
    /// Composes the prompt. `registered` has the chunks that it names.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn compose(
        &self,
        template: Option<&Template>,
        tokenizer: &Tokenizer,
        registered: &Library,
    ) -> Result<Composition, AskError> {
        let mut library = registered.clone();
        let mut prompt = Prompt::new().query(ANY_QUERY).reuse(self.reuse);
        if let Some(system) = &self.system {
            let chunk = system.system(tokenizer, registered)?;
            prompt = prompt.system(&chunk.id);
            library.restore(chunk);
        }
        for word in &self.words {
            let chunk = registered.find(word)?;
            prompt = match chunk.kind {
                Kind::System => prompt.system(&chunk.id),
                _ => prompt.context(&chunk.id),
            };
        }
        let template = template.ok_or(ChunkError::NoTemplate)?;
        Ok(compose_prompt(template, tokenizer, &library, &prompt)?)
    }
}

/// What was computed ahead.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Warmed {
    /// Tokens of the chunks.
    pub tokens: usize,
    /// Those whose rows were there already.
    pub cached: usize,
    /// Files of rows afterwards.
    pub files: usize,
}

impl Warmed {
    /// Counts the tokens of a prompt as the cache had them before.
    pub fn new(before: &Preview, files: usize) -> Self {
        let pieces = || before.pieces.iter().filter(|piece| piece.kind != Kind::Query);
        let tokens = pieces().map(|piece| piece.tokens).sum();
        let cached = pieces().map(|piece| piece.cached_tokens).sum();
        Self { tokens, cached, files }
    }
}
