//! `weft chunk add FILE`: registers a text under a name, by default that of its file.

use std::collections::BTreeMap;
use std::path::Path;

use weft_core::chunk::{Chunk, ChunkError, ChunkId, Kind, Shelf};
use weft_server::resident::protocol::{Find, Found};

use crate::answer::print;
use crate::args::AddArgs;
use crate::error::CliError;
use crate::input::{read_file, read_stdin};
use crate::resident;
use crate::size;
use crate::terminal;
use crate::tiers::RegisteredChunks;

pub(super) fn run(args: AddArgs) -> Result<(), CliError> {
    let text = match args.file.as_str() {
        "-" => read_stdin()?,
        file => read_file(Path::new(file))?,
    };
    // A line feed at the end of a file is not part of the text.
    let text = text.trim_end();
    let mut metadata: BTreeMap<String, String> = args.meta.into_iter().collect();
    let is_named = args.name.is_some() || metadata.contains_key("name");
    metadata.extend(args.name.map(|name| ("name".to_owned(), name)));
    let kind: Kind = args.kind.into();
    let (chunk, mut registered, server) = match resident::find(&args.model, &args.cache) {
        Some(server) if server.facts.shelf.is_some() => {
            let folder = server.facts.shelf.clone().unwrap_or_default();
            let found = server.find(&Find::Text(kind, text.to_owned()));
            (found.map(of_server), RegisteredChunks::load(Shelf::at(folder))?, Some(server))
        }
        _ => {
            let (model, registered) = super::open(&args.model, &args.cache)?;
            let chunk = Chunk::new(&model.tokenizer, kind, text, BTreeMap::new());
            (chunk.map_err(CliError::from), registered, None)
        }
    };
    let id = chunk
        .and_then(|chunk| register(&mut registered, chunk, metadata, args.model.quiet))
        .map_err(|error| match error {
        CliError::Chunk(error) => older_text(error).about(&args.file),
        error => error.about(&args.file),
    })?;
    if !is_named && args.file != "-" {
        name_after(&args.file, &mut registered, &id)?;
    }
    super::refresh(server.as_ref())?;
    let chunk = registered.library.get(&id)?;
    let (name, tokens) = (chunk.name().map(str::to_owned), chunk.tokens.len());
    print(&format!("{id}\n"))?;
    if let Some(name) = name {
        let flag = if kind == Kind::System { "--system" } else { "--context" };
        let use_it = format!("`weft ask {flag} {name} \"your question\"` uses it");
        let tokens = size::plural(tokens, "token");
        terminal::note(args.model.quiet, &format!("{name}: {tokens}; {use_it}"));
    }
    Ok(())
}

/// Gives a chunk without a name that of its file, without ending, if the name is free.
fn name_after(file: &str, registered: &mut RegisteredChunks, id: &ChunkId) -> Result<(), CliError> {
    let stem = Path::new(file).file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let chunk = registered.library.get(id)?;
    let Some(stem) = stem.filter(|_| chunk.name().is_none()) else { return Ok(()) };
    let name = stem.split_whitespace().collect::<Vec<_>>().join("-");
    match registered.library.check_name(&name, id) {
        Ok(()) => {
            let mut chunk = chunk.clone();
            chunk.metadata.insert("name".to_owned(), name);
            registered.keep(&chunk)
        }
        Err(error) => {
            let reason = older_text(error);
            terminal::warn(&format!("the chunk has no name: {reason}"));
            Ok(())
        }
    }
}

/// A text that a server has encoded.
fn of_server(found: Found) -> Chunk {
    let Found { id, kind, tokens, text, .. } = found;
    Chunk { id, ..Chunk::of_tokens(kind, text, tokens) }
}

/// Writes a chunk to the shelf. If its text is registered, only the metadata is added. A text that
/// gets another name is reported, because words that mean it may be in scripts.
pub(super) fn register(
    registered: &mut RegisteredChunks,
    new: Chunk,
    metadata: BTreeMap<String, String>,
    quiet: bool,
) -> Result<ChunkId, CliError> {
    let (id, text) = (new.id, new.text.clone());
    if let Some(name) = metadata.get("name") {
        registered.library.check_name(name, &id)?;
    }
    let mut chunk = match registered.library.get(&id) {
        Ok(known) => known.clone(),
        Err(_) => new,
    };
    let former = chunk.name().map(str::to_owned);
    chunk.metadata.extend(metadata);
    registered.keep(&Chunk { text, ..chunk.clone() })?;
    if let (Some(former), Some(name)) = (former, chunk.name())
        && former != name
    {
        let text = format!("this text was called {former:?}; it is now {name:?}");
        terminal::note(quiet, &text);
    }
    Ok(id)
}

/// The error of a name that another text has, in words for those who edited its file.
fn older_text(error: ChunkError) -> CliError {
    match error {
        ChunkError::NameTaken { name, id } => CliError::Usage(format!(
            "{name:?} still means the older text {}…; `weft chunk rm {name}` and add it again, or \
             give --name",
            id.short()
        )),
        error => error.into(),
    }
}
