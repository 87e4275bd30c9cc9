//! A model that answers: one that this process loads, or a resident server's.

use std::collections::BTreeSet;
use std::io;

use weft_core::chunk::{Asked, Chunk, ChunkError, ChunkId, Library};
use weft_core::engine::{Request, Verification};
use weft_core::model::Model;
use weft_core::sampling::Sampling;
use weft_server::resident::protocol::{Fault, Find, Found, Question, Refusal, Warm, Warmed};

use crate::answer::{Answer, Origin, Printer, Style};
use crate::args::{CacheArgs, ModelArgs};
use crate::error::CliError;
use crate::interrupt;
use crate::load::{self, Loaded};
use crate::remote;
use crate::resident::{self, Client};
use crate::sources::Source;
use crate::terminal;
use crate::tiers::RegisteredChunks;

/// A model that answers.
pub(crate) struct Session {
    model: ModelArgs,
    cache: CacheArgs,
    engine: Answering,
}

enum Answering {
    Own(Box<Own>),
    Resident(Box<Client>),
}

/// A model that this process has loaded.
struct Own {
    loaded: Loaded,
    /// Or why there are none; it is an error only if the user names a chunk.
    registered: Result<RegisteredChunks, String>,
    used: BTreeSet<ChunkId>,
}

/// The chunks that the user named on the command line.
pub(crate) struct Named<'w> {
    pub(crate) words: Vec<&'w str>,
    /// The error if one is not there.
    pub(crate) absent: fn(ChunkError) -> CliError,
}

impl Default for Named<'_> {
    fn default() -> Self {
        Self { words: Vec::new(), absent: CliError::from }
    }
}

impl Named<'_> {
    /// The registered chunks, with all of these among them; or why there are none, if none is
    /// named.
    fn open(
        &self,
        cache: &CacheArgs,
        model: &Model,
    ) -> Result<Result<RegisteredChunks, String>, CliError> {
        let opened = RegisteredChunks::open(cache, &model.tokenizer);
        if self.words.is_empty() {
            return Ok(opened.map_err(|error| error.to_string()));
        }
        let registered = opened?;
        for word in &self.words {
            registered.library.find(word).map_err(self.absent)?;
        }
        Ok(Ok(registered))
    }
}

impl Session {
    /// Finds a resident server, or loads the model.
    pub(crate) fn open(model: &ModelArgs, cache: &CacheArgs) -> Result<Self, CliError> {
        Self::open_for(model, cache, &Named::default())
    }

    /// The same, with a check of the chunks that the user named, before weights are loaded. A
    /// server makes this check itself.
    pub(crate) fn open_for(
        model: &ModelArgs,
        cache: &CacheArgs,
        named: &Named<'_>,
    ) -> Result<Self, CliError> {
        let engine = match resident::find(model, cache) {
            Some(client) => {
                terminal::note(model.quiet, &client.describe());
                Answering::Resident(Box::new(client))
            }
            None => Answering::Own(Box::new(Own::load(model, cache, named)?)),
        };
        Ok(Self { model: model.clone(), cache: cache.clone(), engine })
    }

    pub(crate) fn has_template(&self) -> bool {
        match &self.engine {
            Answering::Own(own) => own.loaded.model.template.is_some(),
            Answering::Resident(client) => client.facts.has_template,
        }
    }

    /// Answers and shows the answer.
    pub(crate) fn answer(&mut self, question: &Question, style: Style) -> Result<Answer, CliError> {
        let client = match &mut self.engine {
            Answering::Own(own) => return own.answer(question, style),
            Answering::Resident(client) => client,
        };
        match client.answer(question, style) {
            Err(error) if is_unavailable(&error) => {
                terminal::note(self.model.quiet, &format!("{error}; loading the model"));
                self.engine = {
                    let own = Own::load(&self.model, &self.cache, &Named::default())?;
                    Answering::Own(Box::new(own))
                };
                self.answer(question, style)
            }
            answered => answered,
        }
    }

    /// Computes an answer again from scratch, and compares.
    pub(crate) fn verify(&mut self, answer: &Answer) -> Result<Verification, CliError> {
        match (&mut self.engine, &answer.origin) {
            (Answering::Own(own), Origin::Own { prompt, tokens }) => {
                Ok(own.loaded.engine.verify(prompt, tokens)?)
            }
            (Answering::Resident(client), Origin::Resident(id)) => client.verify(id),
            _ => Err(CliError::Usage("the server that answered is gone; ask again".to_owned())),
        }
    }

    /// The system prompt's text, possibly empty.
    pub(crate) fn system_text(&mut self, source: &Source) -> Result<String, CliError> {
        match source {
            Source::Text { text, .. } | Source::Chunk(text) if text.trim().is_empty() => {
                Ok(text.clone())
            }
            source => Ok(self.find(Find::System(source.clone()))?.text),
        }
    }

    /// A document, or a registered chunk of any kind.
    pub(crate) fn find(&mut self, find: Find) -> Result<Found, CliError> {
        match &mut self.engine {
            Answering::Own(own) => own.find(find),
            Answering::Resident(client) => client.find(&find),
        }
    }

    /// The names of the registered chunks.
    pub(crate) fn chunk_names(&self) -> Vec<String> {
        let library = match &self.engine {
            Answering::Own(own) => own.library(false),
            Answering::Resident(client) => client.library(),
        };
        // Names are only offered to the user; if they cannot be read, none are.
        let library = library.unwrap_or_default();
        let chunks = library.list(&Default::default()).into_iter();
        chunks.filter_map(|chunk| chunk.name().map(str::to_owned)).collect()
    }

    /// Computes the rows of chunks ahead, and saves them.
    pub(crate) fn warm(&mut self, warm: &Warm) -> Result<Warmed, CliError> {
        match &mut self.engine {
            Answering::Own(own) => own.warm(warm),
            Answering::Resident(client) => client.warm(warm),
        }
    }

    /// Saves the rows of chunks for later runs, and prints warnings. A server does this itself.
    pub(crate) fn save(&mut self) {
        let Answering::Own(own) = &mut self.engine else { return };
        if !self.cache.no_cache {
            own.loaded.engine.save(false);
            remote::end(&mut own.loaded.engine);
            own.save_use_counts();
        }
        own.loaded.print_warnings();
    }

    /// Prints the warnings about cached rows since the last call.
    pub(crate) fn print_warnings(&mut self) {
        if let Answering::Own(own) = &mut self.engine {
            own.loaded.print_warnings();
        }
    }
}

/// Whether a server did not take a request: it is busy or gone. Nothing has been printed.
fn is_unavailable(error: &CliError) -> bool {
    match error {
        CliError::Resident(Refusal { fault, .. }) => *fault == Fault::Busy,
        CliError::Io { source, .. } => source.kind() == io::ErrorKind::ConnectionRefused,
        _ => false,
    }
}

impl Own {
    /// Rows of pinned chunks must stay, even if this run does not use them.
    fn load(model: &ModelArgs, cache: &CacheArgs, named: &Named<'_>) -> Result<Self, CliError> {
        let mut opened = None;
        let mut loaded = load::load_after(model, cache, |model| {
            opened = Some(named.open(cache, model)?);
            Ok(())
        })?;
        let registered = opened.expect("they were opened before the weights");
        let all = registered.iter().flat_map(|chunks| chunks.library.list(&Default::default()));
        let pinned: Vec<Chunk> = all.filter(|chunk| chunk.pinned).cloned().collect();
        for chunk in pinned {
            if let Err(error) = loaded.engine.restore(chunk) {
                terminal::warn(&error.to_string());
            }
        }
        Ok(Self { loaded, registered, used: BTreeSet::new() })
    }

    /// The registered chunks. `needs_them` makes it an error that they cannot be read.
    fn library(&self, needs_them: bool) -> Result<Library, CliError> {
        match &self.registered {
            Ok(registered) => Ok(registered.library.clone()),
            Err(reason) if needs_them => Err(CliError::Usage(reason.clone())),
            Err(_) => Ok(Library::default()),
        }
    }

    fn find(&mut self, find: Find) -> Result<Found, CliError> {
        let tokenizer = &self.loaded.model.tokenizer;
        let is_word = |source: &Source| source.word().is_some();
        let chunk = match find {
            Find::System(source) => source.system(tokenizer, &self.library(false)?)?,
            Find::Document(source) => {
                source.document(tokenizer, &self.library(is_word(&source))?)?
            }
            Find::Registered(word) => self.library(true)?.find(&word)?.clone(),
            Find::Text(kind, text) => Chunk::new(tokenizer, kind, &text, Default::default())?,
        };
        let name = chunk.name().map(str::to_owned);
        let Chunk { id, kind, tokens, text, .. } = chunk;
        Ok(Found { id, kind, tokens, name, text })
    }

    fn answer(&mut self, question: &Question, style: Style) -> Result<Answer, CliError> {
        let Question { asked, thinking, sampling, use_cache, speculate } = question;
        let names_documents = match asked {
            Asked::Documents { documents, .. } => documents.iter().any(|d| d.word().is_some()),
            Asked::Chat { .. } | Asked::Text(_) => false,
        };
        let library = self.library(names_documents)?;
        let Loaded { model, engine } = &mut self.loaded;
        let composed =
            asked.compose(model.template.as_deref(), &model.tokenizer, &library, *thinking)?;
        for chunk in composed.used {
            self.used.insert(chunk.id);
            engine.restore(chunk)?;
        }
        let thinks = !matches!(asked, Asked::Text(_)) && model.thinks(*thinking);
        let settings = sampling.over(Sampling::defaults(thinks, &model.generation));
        let prompt = composed.prompt;
        let (use_cache, speculate) = (*use_cache, *speculate);
        let request = Request { use_cache, speculate, ..Request::new(prompt.clone(), settings) };
        let _guard = interrupt::ends(&request.cancel);
        let mut printer = Printer::new(style, prompt.len(), &composed.end);
        let bar = printer.bar();
        let on_prefill = move |done, _| Printer::prefill(&bar, done);
        let mut generation = engine.generate(request)?.on_prefill(on_prefill);
        let mut tokens = Vec::new();
        for token in generation.by_ref() {
            let token = token?;
            tokens.push(token.id);
            printer.text(&token.text)?;
        }
        let finished = generation.finished().expect("the iterator ended without an error");
        let parts = printer.finish(&finished)?;
        let origin = Origin::Own { prompt, tokens };
        Ok(Answer { origin, parts, finished, names: composed.names })
    }

    fn warm(&mut self, warm: &Warm) -> Result<Warmed, CliError> {
        let library = self.library(true)?;
        let Loaded { model, engine } = &mut self.loaded;
        let prompt = warm.compose(model.template.as_deref(), &model.tokenizer, &library)?;
        let ids = prompt.pieces.iter().filter_map(|piece| piece.chunk);
        for chunk in ids.filter_map(|id| library.get(&id).ok()) {
            self.used.insert(chunk.id);
            engine.restore(chunk.clone())?;
        }
        let before = engine.preview(&prompt);
        engine.warm(&prompt)?;
        let files = engine.save(false);
        remote::end(engine);
        self.save_use_counts();
        self.loaded.print_warnings();
        Ok(Warmed::new(&before, files))
    }

    /// Saves the use counts of registered chunks.
    fn save_use_counts(&mut self) {
        let Ok(registered) = &mut self.registered else { return };
        for id in &self.used {
            let kept = self.loaded.engine.library().get(id).map_err(CliError::from);
            if let Err(error) = kept.and_then(|chunk| registered.keep(chunk)) {
                terminal::warn(&error.to_string());
            }
        }
    }
}
