//! Contexts that a user names: texts, files and registered chunks.

use std::path::Path;
use std::time::Duration;

pub(crate) use weft_core::chunk::Source;
use weft_core::chunk::{AskError, ChunkError};

use crate::error::CliError;
use crate::input::{self, Piped, read_file};
use crate::session::Named;
use crate::terminal;

/// How long a pipe may take for its first byte if nobody asked for it by `-`.
const PATIENCE: Duration = Duration::from_secs(10);

/// A document: a file if it exists, else the name of a chunk.
pub(crate) fn document(word: &str) -> Result<Source, CliError> {
    let path = Path::new(word);
    if !path.exists() {
        return Ok(Source::Chunk(word.to_owned()));
    }
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    text(name, word, read_file(path)?)
}

/// The document on stdin, however long it takes to come.
pub(crate) fn stdin() -> Result<Source, CliError> {
    text(Some("stdin".to_owned()), "stdin", input::read_stdin()?)
}

/// A document that has been read. Without text it is an error, which is found here so that no model
/// is loaded for it.
fn text(name: Option<String>, word: &str, text: String) -> Result<Source, CliError> {
    if text.trim().is_empty() {
        return Err(CliError::Usage(format!("{word} is empty; give a document with text")));
    }
    Ok(Source::Text { name, text })
}

/// The document that another program or a file sends to stdin, if any, for a question that names no
/// document. A pipe may be inherited from a parent and have no writer, so it may not stay silent.
pub(crate) fn piped(quiet: bool) -> Result<Option<Source>, CliError> {
    match input::piped(PATIENCE)? {
        Piped::Nothing => Ok(None),
        Piped::OfALoop => {
            terminal::note(quiet, input::LEFT_TO_LOOP);
            Ok(None)
        }
        Piped::Empty => Err(CliError::Usage(
            "stdin is empty; check the command that writes to it, or give `</dev/null` to ask \
             without a document"
                .to_owned(),
        )),
        Piped::Text(text) => {
            terminal::note(quiet, &format!("stdin is a document of {} bytes", text.len()));
            Ok(Some(Source::Text { name: Some("stdin".to_owned()), text }))
        }
        Piped::Silent => Err(CliError::Usage(format!(
            "stdin is a pipe, and nothing came for {} s; give `--context -` to wait for it, or \
             `</dev/null` to ask without it",
            PATIENCE.as_secs()
        ))),
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

/// The chunks that documents name, for a check before a model is loaded.
pub(crate) fn named(documents: &[Source]) -> Named<'_> {
    let absent = |error| match error {
        ChunkError::NotFound { name } => AskError::NoSource { word: name }.into(),
        error => error.into(),
    };
    Named { words: documents.iter().filter_map(Source::word).collect(), absent }
}
