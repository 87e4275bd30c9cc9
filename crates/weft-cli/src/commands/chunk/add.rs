//! `weft chunk add FILE`: registers a text, with a name if one is given.

use std::collections::BTreeMap;
use std::path::Path;

use weft_core::chunk::{Chunk, ChunkId, Kind, Library};
use weft_core::tokenizer::Tokenizer;

use super::check_name;
use crate::answer::print;
use crate::args::AddArgs;
use crate::error::CliError;
use crate::input::{read_file, read_stdin};
use crate::tiers::RegisteredChunks;

pub(super) fn run(args: AddArgs) -> Result<(), CliError> {
    let text = match args.file.as_str() {
        "-" => read_stdin()?,
        file => read_file(Path::new(file))?,
    };
    // A line feed at the end of a file is not part of the text.
    let text = text.trim_end();
    let mut metadata: BTreeMap<String, String> = args.meta.into_iter().collect();
    metadata.extend(args.name.map(|name| ("name".to_owned(), name)));
    let (model, mut registered) = super::open(&args.model, &args.cache)?;
    let id = register(&mut registered, &model.tokenizer, args.kind.into(), text, metadata)
        .map_err(|error| error.about(&args.file))?;
    print(&format!("{id}\n"))
}

/// Writes a text to the shelf. If the text is registered, only the metadata is added.
pub(super) fn register(
    registered: &mut RegisteredChunks,
    tokenizer: &Tokenizer,
    kind: Kind,
    text: &str,
    metadata: BTreeMap<String, String>,
) -> Result<ChunkId, CliError> {
    let mut library = Library::default();
    let name = metadata.get("name").cloned();
    let id = library.add(tokenizer, kind, text, BTreeMap::new())?;
    if let Some(name) = name {
        check_name(&registered.library, &name, |other| other.id == id)?;
    }
    let mut chunk = match registered.library.get(&id) {
        Ok(known) => known.clone(),
        Err(_) => library.delete(&id)?,
    };
    chunk.metadata.extend(metadata);
    registered.keep(&Chunk { text: text.to_owned(), ..chunk })?;
    Ok(id)
}
