//! Contexts that a user names (texts, files, registered chunks), and the resolver that turns them
//! into chunks of the engine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use weft_core::chunk::{Chunk, ChunkError, ChunkId, Kind};
use weft_core::engine::Engine;
use weft_core::tokenizer::Tokenizer;

use crate::args::CacheArgs;
use crate::error::CliError;
use crate::input::{self, Piped, read_file};
use crate::load::Loaded;
use crate::terminal;
use crate::tiers::RegisteredChunks;

/// A context as the user named it.
pub(crate) enum Source {
    /// A text and its name.
    Text { name: Option<String>, text: String },
    /// The name or id of a registered chunk.
    Chunk(String),
}

impl Source {
    /// A document: a file if it exists, else the name of a chunk.
    pub(crate) fn document(word: &str) -> Result<Self, CliError> {
        let path = Path::new(word);
        if !path.exists() {
            return Ok(Self::Chunk(word.to_owned()));
        }
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        Ok(Self::Text { name, text: read_file(path)? })
    }

    /// The document on stdin, however long it takes to come.
    pub(crate) fn stdin() -> Result<Self, CliError> {
        Ok(Self::Text { name: Some("stdin".to_owned()), text: input::read_stdin()? })
    }

    /// The document that another program or a file sends to stdin, if any. A pipe may be a parent's
    /// that nobody writes to: if it stays silent, it is an error only if there are no others.
    pub(crate) fn piped(has_others: bool, quiet: bool) -> Result<Option<Self>, CliError> {
        let patience = if has_others { SHORT_WAIT } else { LONG_WAIT };
        match input::piped(patience)? {
            Piped::Nothing => Ok(None),
            Piped::Text(text) => {
                terminal::note(quiet, &format!("stdin is a document of {} bytes", text.len()));
                Ok(Some(Self::Text { name: Some("stdin".to_owned()), text }))
            }
            Piped::Silent => {
                let seconds = patience.as_secs();
                let reason = format!("stdin is a pipe, and nothing came for {seconds} s");
                if !has_others {
                    return Err(CliError::Usage(format!(
                        "{reason}; give `--context -` to wait for it, or `</dev/null` to ask \
                         without it"
                    )));
                }
                terminal::warn(&format!("{reason}, so it is not read; `--context -` waits for it"));
                Ok(None)
            }
        }
    }

    /// The chunk that it names, if it is one.
    fn chunk_name(&self) -> Option<&str> {
        match self {
            Self::Chunk(word) => Some(word),
            Self::Text { .. } => None,
        }
    }

    /// A system prompt: `@FILE`; a single word may be a chunk; anything else is the text itself.
    pub(crate) fn system(word: &str) -> Result<Self, CliError> {
        match word.strip_prefix('@') {
            Some(file) => {
                // A line feed at the end of a file is not part of the prompt.
                let text = read_file(Path::new(file))?.trim_end().to_owned();
                Ok(Self::Text { name: None, text })
            }
            None => Ok(Self::Chunk(word.to_owned())),
        }
    }
}

/// Checks, before a model is loaded, that the chunks which documents name are registered.
pub(crate) fn check_documents(
    documents: &[Source],
    args: &CacheArgs,
    tokenizer: &Tokenizer,
) -> Result<(), CliError> {
    let chunks = || documents.iter().filter_map(Source::chunk_name);
    if chunks().next().is_none() {
        return Ok(());
    }
    let library = RegisteredChunks::open(args, tokenizer)?.library;
    chunks().try_for_each(|word| library.find(word).map(drop).map_err(|error| missing(word, error)))
}

/// The error for a document that is neither a file nor a chunk.
fn missing(word: &str, error: ChunkError) -> CliError {
    match error {
        ChunkError::NotFound { .. } => CliError::NoSource(format!(
            "{word} is neither a file nor a chunk; `weft chunk list` shows the chunks"
        )),
        error => error.into(),
    }
}

/// How long a silent pipe may delay a question that has other documents.
const SHORT_WAIT: Duration = Duration::from_secs(1);
/// How long a pipe that is the only document may take for its first byte.
const LONG_WAIT: Duration = Duration::from_secs(10);

/// Finds or registers the chunks of a run.
pub(crate) struct ChunkResolver {
    /// Or why there are none; it is an error only if the user names a chunk.
    registered: Result<RegisteredChunks, String>,
    names: BTreeMap<ChunkId, String>,
    used: BTreeSet<ChunkId>,
    keeps: bool,
}

impl ChunkResolver {
    /// Rows of pinned chunks must stay, even if this run does not use them.
    pub(crate) fn open(args: &CacheArgs, loaded: &mut Loaded) -> Self {
        let registered =
            RegisteredChunks::open(args, &loaded.model.tokenizer).map_err(|e| e.to_string());
        let resolver = Self {
            registered,
            names: BTreeMap::new(),
            used: BTreeSet::new(),
            keeps: !args.no_cache,
        };
        let pinned: Vec<Chunk> = resolver.all().filter(|chunk| chunk.pinned).cloned().collect();
        for chunk in pinned {
            if let Err(error) = loaded.engine.restore(chunk) {
                terminal::warn(&error.to_string());
            }
        }
        resolver
    }

    fn all(&self) -> impl Iterator<Item = &Chunk> {
        self.registered.iter().flat_map(|registered| registered.library.list(&Default::default()))
    }

    /// The names of the registered chunks.
    pub(crate) fn registered_names(&self) -> impl Iterator<Item = String> {
        self.all().filter_map(|chunk| chunk.name().map(str::to_owned))
    }

    /// The user's name for a chunk.
    pub(crate) fn name(&self, id: &ChunkId) -> Option<String> {
        let registered =
            || self.registered.as_ref().ok()?.library.get(id).ok()?.name().map(str::to_owned);
        self.names.get(id).cloned().or_else(registered)
    }

    /// The system chunk for a source.
    pub(crate) fn system(
        &mut self,
        engine: &mut Engine,
        source: &Source,
    ) -> Result<ChunkId, CliError> {
        match source {
            Source::Text { text, .. } => Ok(engine.chunk(Kind::System, text)?),
            Source::Chunk(word) if word.contains(char::is_whitespace) => {
                Ok(engine.chunk(Kind::System, word)?)
            }
            Source::Chunk(word) => match self.find(word) {
                Err(CliError::Chunk(ChunkError::NotFound { .. })) | Err(CliError::Usage(_)) => {
                    Ok(engine.chunk(Kind::System, word)?)
                }
                found => self.take(engine, found?),
            },
        }
    }

    /// The text of a system prompt, possibly empty.
    pub(crate) fn system_text(
        &mut self,
        engine: &mut Engine,
        source: &Source,
    ) -> Result<String, CliError> {
        match source {
            Source::Text { text, .. } | Source::Chunk(text) if text.trim().is_empty() => {
                Ok(text.clone())
            }
            source => {
                let id = self.system(engine, source)?;
                Ok(engine.library().get(&id)?.text.clone())
            }
        }
    }

    /// The context chunk for a source.
    pub(crate) fn document(
        &mut self,
        engine: &mut Engine,
        source: &Source,
    ) -> Result<ChunkId, CliError> {
        match source {
            Source::Text { name, text } => {
                let id = engine.chunk(Kind::Context, text).map_err(|error| match name {
                    Some(name) => CliError::Usage(format!("{name}: {error}")),
                    None => error.into(),
                })?;
                if let Some(name) = name {
                    self.names.insert(id, name.clone());
                }
                Ok(id)
            }
            Source::Chunk(word) => {
                let chunk = self.find(word).map_err(|error| match error {
                    CliError::Chunk(error) => missing(word, error),
                    error => error,
                })?;
                self.take(engine, chunk)
            }
        }
    }

    /// A registered chunk of any kind.
    pub(crate) fn registered(
        &mut self,
        engine: &mut Engine,
        word: &str,
    ) -> Result<ChunkId, CliError> {
        let chunk = self.find(word)?;
        self.take(engine, chunk)
    }

    fn find(&self, word: &str) -> Result<Chunk, CliError> {
        let registered =
            self.registered.as_ref().map_err(|reason| CliError::Usage(reason.clone()))?;
        Ok(registered.library.find(word)?.clone())
    }

    fn take(&mut self, engine: &mut Engine, chunk: Chunk) -> Result<ChunkId, CliError> {
        let id = chunk.id;
        engine.restore(chunk)?;
        self.used.insert(id);
        Ok(id)
    }

    /// Saves the use counts of registered chunks.
    pub(crate) fn save_use_counts(&mut self, engine: &Engine) {
        let Some(registered) = self.registered.as_mut().ok().filter(|_| self.keeps) else { return };
        for id in &self.used {
            let kept = engine.library().get(id).map_err(CliError::from);
            if let Err(error) = kept.and_then(|chunk| registered.keep(chunk)) {
                terminal::warn(&error.to_string());
            }
        }
    }
}
