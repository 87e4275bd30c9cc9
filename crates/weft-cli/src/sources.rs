//! Contexts that a user names: texts, files and registered chunks.

use std::path::Path;
use std::time::Duration;

pub(crate) use weft_core::chunk::Source;
use weft_core::chunk::{AskError, ChunkError};
use weft_core::tokenizer::Tokenizer;

use crate::args::CacheArgs;
use crate::error::CliError;
use crate::input::{self, Piped, read_file};
use crate::terminal;
use crate::tiers::RegisteredChunks;

/// How long a silent pipe may delay a question that has other documents.
const SHORT_WAIT: Duration = Duration::from_secs(1);
/// How long a pipe that is the only document may take for its first byte.
const LONG_WAIT: Duration = Duration::from_secs(10);

/// A document: a file if it exists, else the name of a chunk.
pub(crate) fn document(word: &str) -> Result<Source, CliError> {
    let path = Path::new(word);
    if !path.exists() {
        return Ok(Source::Chunk(word.to_owned()));
    }
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    Ok(Source::Text { name, text: read_file(path)? })
}

/// The document on stdin, however long it takes to come.
pub(crate) fn stdin() -> Result<Source, CliError> {
    Ok(Source::Text { name: Some("stdin".to_owned()), text: input::read_stdin()? })
}

/// The document that another program or a file sends to stdin, if any. A pipe may be a parent's
/// that nobody writes to: if it stays silent, it is an error only if there are no others.
pub(crate) fn piped(has_others: bool, quiet: bool) -> Result<Option<Source>, CliError> {
    let patience = if has_others { SHORT_WAIT } else { LONG_WAIT };
    match input::piped(patience)? {
        Piped::Nothing => Ok(None),
        Piped::Text(text) => {
            terminal::note(quiet, &format!("stdin is a document of {} bytes", text.len()));
            Ok(Some(Source::Text { name: Some("stdin".to_owned()), text }))
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

/// A system prompt: `@FILE`; a single word may be a chunk; anything else is the text itself.
pub(crate) fn system(word: &str) -> Result<Source, CliError> {
    match word.strip_prefix('@') {
        Some(file) => {
            // A line feed at the end of a file is not part of the prompt.
            let text = read_file(Path::new(file))?.trim_end().to_owned();
            Ok(Source::Text { name: None, text })
        }
        None => Ok(Source::Chunk(word.to_owned())),
    }
}

/// Checks, before a model is loaded, that the chunks which documents name are registered.
pub(crate) fn check_documents(
    documents: &[Source],
    args: &CacheArgs,
    tokenizer: &Tokenizer,
) -> Result<(), CliError> {
    let words = || documents.iter().filter_map(Source::word);
    if words().next().is_none() {
        return Ok(());
    }
    let library = RegisteredChunks::open(args, tokenizer)?.library;
    words().try_for_each(|word| match library.find(word) {
        Err(ChunkError::NotFound { .. }) => {
            Err(AskError::NoSource { word: word.to_owned() }.into())
        }
        found => Ok(found.map(drop)?),
    })
}
